"""Resize and Upsample that repeat every element: by how much, along each axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import constant_value
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.rewrite.matcher import attribute

_FLOOR_OF_QUOTIENT = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
}
"""Modes in which element i of the result is element floor(i / s) of the input, for a whole scale s.

For half_pixel the coordinate (i + 1/2) / s - 1/2 lies within 1/2 of that element, and never as far as 1/2.
"""


_WITHIN = {"half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"}
"""Modes in which nothing outside of the input is read."""


def repeats(node: Node, opsets: dict[str, int]) -> list[int] | None:
    """How often a node repeats each element along each axis; None if it does anything else, or may do.

    A Resize to given sizes is known only where those of its input are.
    """
    op = standard_op(node)
    if op not in ("Resize", "Upsample") or not node.inputs or not node.inputs[0].shape:
        return None
    if _text(node, "mode", opsets) != "nearest":
        return None
    if op == "Resize" and opsets.get("", 1) > 10:
        modes = (_text(node, "coordinate_transformation_mode", opsets), _text(node, "nearest_mode", opsets))
        if modes not in _FLOOR_OF_QUOTIENT or attribute(node, "antialias", opsets):
            return None
    shape = list(node.inputs[0].shape)
    scales = _scales(node, shape, opsets)
    if scales is None:
        return None
    axes = attribute(node, "axes", opsets)
    places = range(len(shape)) if axes is None else [int(axis) % len(shape) for axis in axes]
    if len(scales) != len(places):
        return None
    times = [1] * len(shape)
    for place, scale in zip(places, scales, strict=True):
        if not (np.isfinite(scale) and scale >= 1 and scale == int(scale)):
            return None
        times[place] = int(scale)
    return times


def stretches(node: Node, opsets: dict[str, int]) -> list[float] | None:
    """By how much a Resize interpolates linearly along each axis, every result being a mean of elements whose weights
    add up to 1; None if it does anything else, or may do, or by how much is not known.
    """
    if standard_op(node) != "Resize" or opsets.get("", 1) < 11 or not node.inputs[0].shape:
        return None
    mode = _text(node, "coordinate_transformation_mode", opsets)
    if _text(node, "mode", opsets) != "linear" or mode not in _WITHIN or attribute(node, "antialias", opsets):
        return None
    shape = list(node.inputs[0].shape)
    scales = _scales(node, shape, opsets)
    if scales is None or attribute(node, "axes", opsets) is not None or len(scales) != len(shape):
        return None
    return scales if all(np.isfinite(scale) and scale > 0 for scale in scales) else None


def _scales(node: Node, shape: Sequence[Any], opsets: dict[str, int]) -> list[float] | None:
    """The scales that a node is given, or that follow from the sizes that it is given."""
    if standard_op(node) == "Upsample" and "scales" in node.attrs:
        return [float(scale) for scale in node.attrs["scales"]]
    place = 2 if standard_op(node) == "Resize" and opsets.get("", 1) > 10 else 1
    given = _constant(node, place)
    if given is not None and given.size:
        return [float(scale) for scale in given.reshape(-1)]
    sizes = _constant(node, place + 1)
    stretches = _text(node, "keep_aspect_ratio_policy", opsets) in ("", "stretch")
    if sizes is None or attribute(node, "axes", opsets) is not None or not stretches:
        return None
    if sizes.size != len(shape) or not all(isinstance(size, int) and size > 0 for size in shape):
        return None
    return [float(size) / known for size, known in zip(sizes.reshape(-1).tolist(), shape, strict=True)]


def _constant(node: Node, place: int) -> Any:
    tensor: gs.Tensor | None = node.inputs[place] if place < len(node.inputs) else None
    return constant_value(tensor) if tensor is not None and tensor.name else None


def _text(node: Node, name: str, opsets: dict[str, int]) -> str:
    value = attribute(node, name, opsets)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
