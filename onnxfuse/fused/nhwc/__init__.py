"""Tensors that have their channels last, between fused nodes."""
