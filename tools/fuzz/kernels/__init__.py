"""Random models of operators that have kernels: for scripts/fuzz.py."""
