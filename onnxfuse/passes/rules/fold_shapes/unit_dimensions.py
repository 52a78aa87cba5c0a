"""Reshape(Unsqueeze(x)), Reshape(Transpose(Unsqueeze(x))) and Squeeze(Reshape(x)) without dimensions of 1 between."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import constant_value, integers_of
from onnxfuse.model.graph_ir import producer_of, standard_op
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule


class UnitDimensionsBeforeReshape(RewriteRule):
    """Reshapes a tensor without inserting dimensions of 1 before it, that is with a smaller transpose or with none.

    So tf2onnx, which Keras uses, exports einsum: its attention is recognized then.  The shape has to be a constant that
    copies no size.
    """

    name = "unit-dimensions-before-reshape"

    def pattern(self, op: Ops, data: Any, shape: Any) -> Any:
        """The Reshape."""
        return op.Reshape(data, shape, _name="reshape")

    def check(self, match: Match) -> str | None:
        """``match.plan`` is what ``without_units`` finds."""
        shape = _vector(match["shape"])
        if shape is None or 0 in shape:
            return NOT_APPLICABLE
        match.plan = without_units(match["data"])
        return NOT_APPLICABLE if match.plan is None else None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The Reshape of what is behind the dimensions of 1."""
        data, perm = match.plan
        if perm is not None:
            data = builder.op("Transpose", data, perm=perm)
        return builder.like(match.node("reshape"), data, match["shape"])


class SqueezeAfterReshape(RewriteRule):
    """Leaves out of the constant shape of a Reshape the dimensions of 1 that are taken away after it."""

    name = "squeeze-after-reshape"

    def pattern(self, op: Ops, data: Any, shape: Any) -> Any:
        """The Squeeze."""
        return op.Squeeze(op.Reshape(data, shape, _name="reshape"), _name="squeeze", _extra_inputs=True)

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds the shape that is left; a size that is copied has to stay at its place."""
        shape, axes = _vector(match["shape"]), integers_of(match.node("squeeze"), "axes", 1)
        if shape is None or not axes or not all(-len(shape) <= axis < len(shape) for axis in axes):
            return NOT_APPLICABLE
        taken = {axis % len(shape) for axis in axes}
        if any(shape[axis] != 1 for axis in taken) or 0 in shape[min(taken) :]:
            return NOT_APPLICABLE
        match.plan = [size for axis, size in enumerate(shape) if axis not in taken]
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The Reshape to fewer dimensions."""
        shape = builder.initializer(np.array(match.plan, np.int64), match["shape"].name)
        return builder.like(match.node("reshape"), match["data"], shape)


def without_units(tensor: gs.Tensor) -> tuple[gs.Tensor, list[int] | None] | None:
    """The tensor into which an Unsqueeze inserts dimensions of 1, and which ``tensor`` is a transpose of then.

    And how the other dimensions are transposed, None for not at all.  None where ``tensor`` is no such tensor.
    """
    node = producer_of(tensor)
    perm: list[int] | None = None
    if node is not None and standard_op(node) == "Transpose":
        perm = node.attrs.get("perm")
        node = None if perm is None else producer_of(node.inputs[0])
    axes = integers_of(node, "axes", 1) if node is not None and standard_op(node) == "Unsqueeze" else None
    if node is None or axes is None:
        return None
    if perm is not None:
        inserted = {axis % len(perm) for axis in axes}
        left = [axis for axis in range(len(perm)) if axis not in inserted]
        perm = [left.index(axis) for axis in perm if axis in left]
    return node.inputs[0], None if perm is None or perm == sorted(perm) else perm


def _vector(tensor: gs.Tensor) -> list[int] | None:
    values = constant_value(tensor)
    return None if values is None or values.ndim > 1 else [int(value) for value in values.reshape(-1)]
