"""Sizes: given, inferred, computed by a model, likely, and doubtful."""
