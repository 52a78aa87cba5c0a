"""Models to try."""
