"""LRN(x) → x / (bias + alpha mean(x²)) ** beta, with the mean over neighbouring channels as an AveragePool."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.model.constants import dtype_of
from onnxfuse.passes.rules.opset_forms import squeeze, unsqueeze
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import Builder, RewriteRule

_LARGEST_SIZE = 15
_LEAST_BIAS = 0.5


class LocalResponseNormalization(RewriteRule):
    """Writes LRN so that its arithmetic becomes fused nodes.

    ONNX Runtime's LRN calls ``pow`` for one element after the other.  The formula is that of ONNX's operator; for the
    usual beta of 3/4 the power is a product of square roots.  Refused: other types than float32; other ranks than 4; an
    even window, which ONNX Runtime refuses, or one of more than 15 channels; an alpha with which the power's base may
    not be positive; a bias of less than 1/2, which is 1 or 2 in networks; images that may be empty, of which ONNX
    Runtime has no pools.
    """

    name = "local-response-normalization"

    def pattern(self, op: Ops, x: Any) -> Any:
        """The operator."""
        return op.LRN(x, _name="lrn")

    def check(self, match: Match) -> str | None:
        """A positive base, and a window of a few channels."""
        x = match["x"]
        if dtype_of(x) != np.float32:
            return "ONNX Runtime has LRN on the CPU in float32 alone"
        if x.shape is None or len(x.shape) != 4:
            return "its input is not known to be of rank 4"
        if not all(isinstance(dim, int) and dim > 0 for dim in x.shape[1:]):
            return "its image may be empty"
        if match.attribute("lrn", "size") not in range(1, _LARGEST_SIZE + 1, 2):
            return f"its window is not of 1, 3, … {_LARGEST_SIZE} channels"
        if match.attribute("lrn", "alpha") < 0:
            return "the base of its power may not be positive"
        if match.attribute("lrn", "bias") < _LEAST_BIAS:
            return "its bias is small, and ONNX Runtime's sums then lose digits that would count as differences"
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The squares as images of one channel and one dimension more, which is pooled; outside counts as 0."""
        x = match["x"]
        size, alpha, beta, bias = (match.attribute("lrn", name) for name in ("size", "alpha", "beta", "bias"))
        squares = unsqueeze(builder, builder.op("Mul", x, x), 1)
        behind = [0] * (len(x.shape) - 2)
        pooled = builder.op(
            "AveragePool",
            squares,
            kernel_shape=[size] + [1] * len(behind),
            pads=[size // 2, *behind] * 2,
            count_include_pad=1,
        )
        scaled = builder.op("Mul", squeeze(builder, pooled, 1), _number(builder, alpha))
        base = builder.op("Add", scaled, _number(builder, bias))
        return builder.op("Div", x, _power(builder, base, beta))


def _power(builder: Builder, base: Any, exponent: float) -> Any:
    root = builder.op("Sqrt", base) if exponent in (0.5, 0.75) else None
    if exponent == 0.5:
        return root
    if exponent == 0.75:
        return builder.op("Mul", root, builder.op("Sqrt", root))
    return builder.op("Pow", base, _number(builder, exponent))


def _number(builder: Builder, value: float) -> Any:
    return builder.initializer(np.array(value, np.float32), "number")
