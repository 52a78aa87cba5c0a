"""Regions whose tensors have a common space: elementwise nodes, reductions, and views between them."""
