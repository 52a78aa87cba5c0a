"""Fused convolutions on CUDA: what they are, their kernels, and how those are launched."""
