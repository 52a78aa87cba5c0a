"""x · Clip(x + 3, 0, 6) / 6 → x · HardSigmoid(x; 1/6, 1/2)."""

from __future__ import annotations

from typing import Any

from onnxfuse.passes.rules.conv_layout.hard_sigmoid import (
    ALPHA,
    BETA,
    hard_sigmoid,
    refuse_constants,
    shifted_and_bounded,
    sixth,
)
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import Builder, RewriteRule


class RecogniseHardSwish(RewriteRule):
    """Writes HardSwish in the form that ONNX Runtime 1.31 computes inside a convolution.

    That form exists at every opset; the operator HardSwish, since opset 14, is left as it is.  Refused: other
    types than float32; numbers that are tensors rather than scalars; an inner value that is needed elsewhere.
    """

    name = "recognise-hard-swish"

    def pattern(self, op: Ops, x: Any) -> Any:
        """The division by six before, between or after the other steps."""
        gate = shifted_and_bounded(op, x)
        return op.any_of(
            sixth(op, op.Mul(x, gate)),
            op.Mul(sixth(op, x), gate),
            op.Mul(x, hard_sigmoid(op, x)),
        )

    def check(self, match: Match) -> str | None:
        """Nothing but float32 scalars."""
        return refuse_constants(match)

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """HardSigmoid and Mul."""
        x = match["x"]
        return builder.op("Mul", x, builder.op("HardSigmoid", x, alpha=ALPHA, beta=BETA))
