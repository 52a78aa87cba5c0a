"""Reshape(Transpose(x)) → Transpose(Reshape(x)) where a convolution reads it: of a sequence, an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxfuse.model.graph_ir import standard_op
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

_FIRST = [0, 3, 1, 2]
"""The order of the dimensions with the channels first, to which a convolution with the channels last is blind, and from
which ONNX Runtime's blocked layout is made at once."""


class TransposeBeforeConv(RewriteRule):
    """Moves the channels of a sequence before its positions after, not before, these become two dimensions.

    So do transformers that convolve images between their layers.  Refused: a result that no convolution reads; a
    Reshape that is not known to keep images and channels apart.
    """

    name = "transpose-before-conv"

    def pattern(self, op: Ops, x: Any) -> Any:
        """(N, L, C) → (N, C, L) → (N, C, H, W)."""
        return op.Reshape(op.Transpose(x, perm=[0, 2, 1]), op.constant("shape"), _name="reshape")

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds the shape with the channels last."""
        x, result, shape = match["x"], match.outputs[0], match.constant("shape")
        convolved = any(standard_op(node) == "Conv" and node.inputs[0] is result for node in result.outputs)
        if not convolved or x.shape is None or len(x.shape) != 3 or shape is None or shape.size != 4:
            return NOT_APPLICABLE
        known = 0 not in shape or not match.attribute("reshape", "allowzero")
        match.plan = _channels_last(x.shape, shape.tolist()) if known else None
        return "it is not known to leave images and channels as they are" if match.plan is None else None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """What makes four dimensions and a Transpose of these."""
        shape = builder.initializer(np.array(match.plan, np.int64), "channels_last")
        return builder.op("Transpose", builder.op("Reshape", match["x"], shape), perm=_FIRST)


def _channels_last(sizes: Sequence[Any], shape: list[int]) -> list[int] | None:
    """The shape (N, H, W, C) for what (N, C, H, W) was for; None where images or channels are not kept apart."""
    images, channels, height, width = shape
    if not isinstance(sizes[2], int) or sizes[2] < 1 or channels not in (0, sizes[2]) or 0 in (height, width):
        return None
    if images not in (0, sizes[0]) and not (images == -1 and height * width == sizes[1]):
        return None
    return [images, height, width, sizes[2]]
