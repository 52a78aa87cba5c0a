"""Operators whose axes and sizes moved from attributes to inputs, in the form of the model's opset."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.rewrite.rule import Builder

_REDUCTION_AXES_AS_INPUT = {"ReduceSum": 13, "ReduceMax": 18, "ReduceMean": 18}


def reduce(builder: Builder, op: str, data: gs.Tensor, axis: int) -> Any:
    """ReduceSum, ReduceMax or ReduceMean over one axis, which stays as a dimension of 1."""
    if builder.match.opset() >= _REDUCTION_AXES_AS_INPUT[op]:
        return builder.op(op, data, builder.initializer(np.array([axis]), "axes"), keepdims=1)
    return builder.op(op, data, axes=[axis], keepdims=1)


def unsqueeze(builder: Builder, data: gs.Tensor, axis: int) -> Any:
    """Insert a dimension of 1."""
    return _move_axis(builder, "Unsqueeze", data, axis)


def squeeze(builder: Builder, data: gs.Tensor, axis: int) -> Any:
    """Remove a dimension of 1."""
    return _move_axis(builder, "Squeeze", data, axis)


def _move_axis(builder: Builder, op: str, data: gs.Tensor, axis: int) -> Any:
    if builder.match.opset() >= 13:
        return builder.op(op, data, builder.initializer(np.array([axis]), "axes"))
    return builder.op(op, data, axes=[axis])
