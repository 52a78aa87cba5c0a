"""Convolutions with the elementwise nodes around them."""
