"""Operators whose axes and sizes moved from attributes to inputs, in the form of the model's opset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.passes.rule import Builder

_REDUCTION_AXES_AS_INPUT = {"ReduceSum": 13, "ReduceMax": 18}


def reduce(builder: Builder, op: str, data: gs.Tensor, axis: int) -> Any:
    """ReduceSum or ReduceMax over one axis, which stays as a dimension of 1."""
    if builder.match.opset() >= _REDUCTION_AXES_AS_INPUT[op]:
        return builder.op(op, data, builder.initializer(np.array([axis]), "axes"), keepdims=1)
    return builder.op(op, data, axes=[axis], keepdims=1)


def slice_axis(builder: Builder, data: gs.Tensor, axis: int, start: int, end: int) -> Any:
    """Slice along one axis; a negative ``end`` counts from the back."""
    if builder.match.opset() < 10:
        return builder.op("Slice", data, starts=[start], ends=[end], axes=[axis])
    bounds = {"starts": start, "ends": end, "axes": axis}
    return builder.op("Slice", data, *(builder.initializer(np.array([value]), name) for name, value in bounds.items()))


def pad_zeros(builder: Builder, data: gs.Tensor, pads: Sequence[int]) -> Any:
    """Pad with zeros: ``pads`` holds the counts at the beginning of every axis and then those at the end."""
    if builder.match.opset() >= 11:
        return builder.op("Pad", data, builder.initializer(np.array(pads), "pads"))
    return builder.op("Pad", data, pads=list(pads))
