"""Fused nodes: what kinds of them there are, and how they stand in a model."""
