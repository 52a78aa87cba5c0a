"""ConvTranspose(x, w, b) · scale + offset → ConvTranspose(x, w · scale, b · scale + offset)."""

from __future__ import annotations

from typing import Any

from onnxfuse.passes.rules.fold_affine.fold_affine_after import FoldAffineAfter
from onnxfuse.rewrite.pattern import Ops


class FoldAffineAfterConvTranspose(FoldAffineAfter):
    """Folds scalar and per-channel Mul, Add, Sub, Div and BatchNormalization after a ConvTranspose into it.

    As for Conv; the output channels lie along the weights' second axis, group by group.
    """

    name = "fold-affine-after-conv-transpose"

    def pattern(self, op: Ops, x: Any) -> Any:
        """A ConvTranspose with constant weights; the chain of steps after it is of any length and read in
        ``check``.
        """
        return op.ConvTranspose(x, op.constant("w"), op.optional(op.constant("b")), _name="linear")
