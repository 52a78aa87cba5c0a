"""What is measured and compared on a GPU: for scripts/gpu_suite.py."""
