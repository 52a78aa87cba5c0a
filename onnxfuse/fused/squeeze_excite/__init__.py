"""The gates of squeeze-and-excitation blocks."""
