"""The target cuda, and what chooses its convolutions by measuring."""
