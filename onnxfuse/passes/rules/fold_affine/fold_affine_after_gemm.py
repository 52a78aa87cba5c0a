"""Gemm(x, w, b) · scale + offset → Gemm(x, w · scale, b · scale + offset)."""

from __future__ import annotations

from typing import Any

from onnxfuse.passes.rules.fold_affine.fold_affine_after import FoldAffineAfter
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import Builder


class FoldAffineAfterGemm(FoldAffineAfter):
    """Folds scalar and per-channel Mul, Add, Sub, Div and BatchNormalization after a Gemm into it.

    The bias takes beta in.  Refused besides what Conv refuses: a bias that differs from row to row.
    """

    name = "fold-affine-after-gemm"

    def pattern(self, op: Ops, x: Any) -> Any:
        """A Gemm with constant weights; the chain of steps after it may be long and is read in ``check``."""
        return op.Gemm(x, op.constant("w"), op.optional(op.constant("b")), _name="linear")

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The new bias has beta in it already."""
        result = super().rewrite(match, builder)
        _, _, bias = match.plan
        if bias is not None:
            result.inputs[0].attrs["beta"] = 1.0
        return result
