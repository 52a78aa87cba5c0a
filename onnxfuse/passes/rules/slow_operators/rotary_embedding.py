"""Concat(-x₂, x₁) · f → Concat(x₂, x₁) · (f · s), where s is -1 for the first half and 1 for the second."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.model.constants import constant_value, dtype_of
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule


class RotaryEmbedding(RewriteRule):
    """Moves the minus of rotary position embeddings (Su et al., RoFormer, 2021) from a vector to the sines.

    The vector with its halves swapped is then a view, which a fused node reads in place, and there are fewer sines than
    elements of vectors.  Results stay the same: a factor of -1 or 1 is exact.
    """

    name = "rotary-embedding"

    def pattern(self, op: Ops, first: Any, second: Any, factor: Any) -> Any:
        """The rotated vector times the sines."""
        return op.Mul(op.Concat(op.Neg(second), first, _name="rotated"), factor)

    def check(self, match: Match) -> str | None:
        """Only of two parts of a tensor that are of one size along the last dimension, in floating point."""
        first, second, factor = match["first"], match["second"], match["factor"]
        dtype = dtype_of(first)
        if dtype is None or dtype.kind in "iu" or not all(tensor.shape for tensor in (first, second, factor)):
            return NOT_APPLICABLE
        size, rank = first.shape[-1], len(first.shape)
        if not isinstance(size, int) or second.shape[-1] != size or factor.shape[-1] != 2 * size:
            return NOT_APPLICABLE
        if match.attribute("rotated", "axis") not in (-1, rank - 1) or not all(map(_is_part, (first, second))):
            return NOT_APPLICABLE
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The halves without the Neg, and the sines with its signs."""
        first = match["first"]
        signs = np.repeat(np.array([-1, 1], dtype_of(first)), first.shape[-1])
        swapped = builder.like(match.node("rotated"), match["second"], first)
        return builder.op("Mul", swapped, signed(builder, match["factor"], signs))


def signed(builder: Builder, factor: Any, signs: np.ndarray) -> Any:
    """Sines times signs."""
    values = constant_value(factor)
    if values is not None:
        return builder.initializer(values * signs, "signed")
    product = builder.op("Mul", factor, builder.initializer(signs, "signs"))
    product.dtype, product.shape = factor.dtype, list(factor.shape)
    return product


def _is_part(tensor: Any) -> bool:
    return bool(tensor.inputs) and tensor.inputs[0].op in ("Slice", "Split")
