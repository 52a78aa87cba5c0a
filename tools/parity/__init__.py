"""What is said of optimized models beside the originals: for scripts/parity.py and scripts/portability.py."""
