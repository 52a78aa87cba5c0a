"""Conv(x, w, b) · scale + offset → Conv(x, w · scale, b · scale + offset)."""

from __future__ import annotations

from typing import Any

from onnxfuse.passes.rules.fold_affine.fold_affine_after import FoldAffineAfter
from onnxfuse.rewrite.pattern import Ops


class FoldAffineAfterConv(FoldAffineAfter):
    """Folds scalar and per-channel Mul, Add, Sub, Div and BatchNormalization after a Conv into it.

    A Conv without a bias gets one if the steps shift.  Refused: constants that are neither scalar nor per
    channel, not finite or zero divisors; a value in between that is needed elsewhere; new weights that
    overflow or are denormal.
    """

    name = "fold-affine-after-conv"

    def pattern(self, op: Ops, x: Any) -> Any:
        """A Conv with constant weights; the chain of steps after it may be long and is read in ``check``."""
        return op.Conv(x, op.constant("w"), op.optional(op.constant("b")), _name="linear")
