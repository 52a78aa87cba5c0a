"""Symbols of sizes: those that a model declares, and those that shape inference makes up."""

MADE_UP = "?unk__"
"""What the symbols begin with that inference makes up: equal ones are equal sizes.

onnx itself begins them with ``unk__``, as tf2onnx does those that it declares; no one makes sure of declared ones.
"""


def is_made_up(size: object) -> bool:
    """Whether a dimension is a symbol that inference made up, rather than a size, a declared symbol or None."""
    return isinstance(size, str) and size.startswith(MADE_UP)
