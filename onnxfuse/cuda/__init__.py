"""CUDA kernels of Programs: rendering, access patterns, and what a launch needs."""
