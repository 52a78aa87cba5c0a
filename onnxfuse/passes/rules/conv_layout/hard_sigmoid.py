"""Clip(x + 3, 0, 6) / 6 → HardSigmoid(x; 1/6, 1/2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.model.constants import constant_value, is_constant
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import Builder, RewriteRule

ALPHA, BETA = 1 / 6, 0.5
_SIXTH_TOLERANCE = 1e-6  # a float32 sixth however it was rounded; 0.1667, which some models have, is another slope


def bounded(op: Ops, value: Any, low: float, high: float) -> Any:
    """``value`` kept between ``low`` and ``high`` in any of the ways in which exporters write that."""
    lower, upper = op.const(low, 0.0), op.const(high, 0.0)
    forms = [
        op.Clip(value, lower, upper),
        op.Clip(value, min=low, max=high),
        op.Min(op.Max(value, lower), upper),
        op.Max(op.Min(value, upper), lower),
    ]
    if low == 0.0:
        forms += [op.Min(op.Relu(value), upper), op.Relu(op.Min(value, upper))]
    return op.any_of(*forms)


def sixth(op: Ops, value: Any) -> Any:
    """``value`` divided by six."""
    return op.any_of(op.Div(value, op.const(6.0, 0.0)), op.Mul(value, op.const(1 / 6, _SIXTH_TOLERANCE)))


def shifted_and_bounded(op: Ops, x: Any) -> Any:
    """``x + 3`` kept between 0 and 6: six times the hard sigmoid."""
    three = op.any_of(op.Add(x, op.const(3.0, 0.0)), op.Sub(x, op.const(-3.0, 0.0)))
    return bounded(op, three, 0.0, 6.0)


def hard_sigmoid(op: Ops, x: Any) -> Any:
    """The hard sigmoid of slope 1/6 as exporters decompose it."""
    scaled = op.Add(sixth(op, x), op.const(0.5, 0.0))
    return op.any_of(sixth(op, shifted_and_bounded(op, x)), bounded(op, scaled, 0.0, 1.0))


def refuse_constants(match: Match) -> str | None:
    """The reason why the numbers in a match are not plain float32 scalars; None if they are.

    ONNX Runtime's CPU provider has HardSigmoid in float32 alone, and a constant of more dimensions than ``x``
    gives the decomposed form's result more dimensions too.
    """
    x = match["x"]
    rank = 0 if x.shape is None else len(x.shape)
    for node in match.nodes:
        for tensor in node.inputs:
            values = constant_value(tensor) if is_constant(tensor) else None
            if values is None:
                continue
            if values.dtype != np.float32:
                return f"ONNX Runtime has HardSigmoid on the CPU in float32, not in {values.dtype}"
            if values.size != 1 or values.ndim > rank:
                return f"a constant of shape {list(values.shape)} in it may broadcast its input"
    return None


class RecogniseHardSigmoid(RewriteRule):
    """Writes the hard sigmoid as the one node that ONNX Runtime computes inside a convolution.

    Refused: other types than float32; numbers that are tensors rather than scalars; an inner value that is
    needed elsewhere.  A slope other than 1/6 or an offset other than 1/2 is left as it is.
    """

    name = "recognise-hard-sigmoid"

    def pattern(self, op: Ops, x: Any) -> Any:
        """Addition, bounds and division in any order."""
        return hard_sigmoid(op, x)

    def check(self, match: Match) -> str | None:
        """Nothing but float32 scalars."""
        return refuse_constants(match)

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """One HardSigmoid."""
        return builder.op("HardSigmoid", match["x"], alpha=ALPHA, beta=BETA)
