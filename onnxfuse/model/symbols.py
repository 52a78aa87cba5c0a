"""Symbols of sizes: those that a model declares, and those that shape inference makes up."""

MADE_UP = "?unk__"
"""What the symbols begin with that inference makes up: equal ones are equal sizes."""

MADE_BY_ONNX = "unk__"
"""What onnx begins them with, and tf2onnx those that it declares: of declared ones no one makes sure."""


def is_made_up(size: object) -> bool:
    """Whether a dimension is a symbol that inference made up, rather than a size, a declared symbol or None."""
    return isinstance(size, str) and size.startswith(MADE_UP)
