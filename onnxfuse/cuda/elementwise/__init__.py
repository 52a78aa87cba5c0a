"""Kernels of Programs that map elements: how operands are accessed, the text, and what the compiler makes of it."""
