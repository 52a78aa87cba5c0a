"""Regions of elementwise nodes."""
