"""Models as passes see them, and as they stand in files."""
