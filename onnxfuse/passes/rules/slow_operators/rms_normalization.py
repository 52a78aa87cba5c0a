"""x · Reciprocal(Sqrt(mean(x²) + ε)) · scale → x · (1 / Sqrt(mean(x²) + ε)) · scale."""

from __future__ import annotations

from typing import Any

from onnxfuse.passes.rules.deviation import means_in
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule


class RmsNormalization(RewriteRule):
    """Writes the reciprocal in a root-mean-square normalization as the division that ONNX Runtime looks for.

    Both are the same operation, rounded once.  ONNX Runtime then computes the normalization in one kernel, which
    refuses rows without elements: refused are those of a size that is not known.
    """

    name = "rms-normalization"

    def pattern(self, op: Ops, deviation: Any) -> Any:
        """The reciprocal."""
        return op.Reciprocal(deviation)

    def check(self, match: Match) -> str | None:
        """Only that of the root of a mean and a constant."""
        sizes = [(mean.inputs[0].shape or [None])[-1] for mean in means_in(match["deviation"])]
        if not sizes:
            return NOT_APPLICABLE
        return None if all(isinstance(size, int) and size > 0 for size in sizes) else "its rows may be empty"

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """One over the same root."""
        return builder.op("Div", 1.0, match["deviation"])
