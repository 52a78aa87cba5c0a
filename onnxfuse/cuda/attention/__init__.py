"""Kernels of attention for CUDA."""
