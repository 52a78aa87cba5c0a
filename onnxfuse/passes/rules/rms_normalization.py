"""x · Reciprocal(Sqrt(mean(x²) + ε)) · scale → x · (1 / Sqrt(mean(x²) + ε)) · scale."""

from __future__ import annotations

from typing import Any

from onnxfuse.passes.matcher import Match
from onnxfuse.passes.pattern import Ops
from onnxfuse.passes.rule import NOT_APPLICABLE, Builder, RewriteRule
from onnxfuse.passes.rules.deviation import is_deviation


class RmsNormalization(RewriteRule):
    """Writes the reciprocal in a root-mean-square normalization as the division that ONNX Runtime looks for.

    Both are the same operation, rounded once.  ONNX Runtime then computes the normalization in one kernel.
    """

    name = "rms-normalization"

    def pattern(self, op: Ops, deviation: Any) -> Any:
        """The reciprocal."""
        return op.Reciprocal(deviation)

    def check(self, match: Match) -> str | None:
        """Only that of the root of a mean and a constant."""
        return None if is_deviation(match["deviation"]) else NOT_APPLICABLE

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """One over the same root."""
        return builder.op("Div", 1.0, match["deviation"])
