"""Softmax(x, axis) → Exp(x - ReduceMax(x)) / ReduceSum(…), where the axis is not the last."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.model.constants import dtype_of
from onnxfuse.passes.rules.opset_forms import reduce
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

_FEWEST_BEHIND = 64
_LIKELY_BEHIND = 256
"""Where a size is not known: an image has more, what a classifier ends with has one."""


class SoftmaxOverChannels(RewriteRule):
    """Writes Softmax over any axis but the last as the four steps that it consists of.

    ONNX Runtime transposes the tensor to bring the axis to the end, and back; its reductions over such an axis need
    no transpose.  Refused: opsets before 13, where Softmax is over all axes behind; other types than float32; an axis
    that is not known or that may be empty; and what was measured to be slower so: a single axis behind, which ONNX
    Runtime transposes fast, and fewer elements behind than the axis has.
    """

    name = "softmax-over-channels"

    def pattern(self, op: Ops, x: Any) -> Any:
        """The operator."""
        return op.Softmax(x, _name="softmax")

    def check(self, match: Match) -> str | None:
        """Only where the axis is known to be one to transpose for."""
        x = match["x"]
        if x.shape is None:
            return "the shape of its input is not known"
        rank, axis = len(x.shape), match.attribute("softmax", "axis")
        if axis in (-1, rank - 1):
            return NOT_APPLICABLE
        if match.opset() < 13:
            return "before opset 13 it is over all axes behind its own too"
        if dtype_of(x) != np.float32:
            return "its type is not known to be float32"
        if axis not in range(-rank, rank):
            return "its axis is out of range"
        if not isinstance(x.shape[axis], int) or x.shape[axis] < 1:
            return "the size of its axis is not known"
        if self.everything:
            return None
        behind = x.shape[axis % rank + 1 :]
        if len(behind) == 1:
            return "ONNX Runtime transposes two axes fast"
        known = [dim for dim in behind if isinstance(dim, int)]
        elements = np.prod(known) if len(known) == len(behind) else _LIKELY_BEHIND
        if elements < max(_FEWEST_BEHIND, x.shape[axis]):
            return "few elements lie behind its axis"
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """With the maximum taken off first, as ONNX Runtime does, against overflow."""
        x, axis = match["x"], match.attribute("softmax", "axis")
        powers = builder.op("Exp", builder.op("Sub", x, reduce(builder, "ReduceMax", x, axis)))
        return builder.op("Div", powers, reduce(builder, "ReduceSum", powers, axis))
