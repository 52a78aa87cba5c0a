"""CUDA kernels of Programs that reduce."""
