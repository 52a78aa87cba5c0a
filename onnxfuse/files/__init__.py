"""Models in files: read, checked, written whole or not at all."""
