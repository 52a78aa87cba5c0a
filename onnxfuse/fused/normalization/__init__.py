"""Normalizations of rows."""
