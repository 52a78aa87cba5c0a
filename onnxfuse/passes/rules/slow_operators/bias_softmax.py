"""BiasSoftmax(x, bias) of ONNX Runtime → Softmax(x + bias)."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.model.constants import dtype_of
from onnxfuse.model.known_operators import CONTRIB_OPERATORS
from onnxfuse.passes.rules.slow_operators.ort_activations import DOMAIN, NOT_FLOAT32, UNKNOWN_ATTRIBUTE
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import Builder, RewriteRule


class BiasSoftmax(RewriteRule):
    """Writes the Softmax of a sum, which ONNX Runtime has as one operator on GPUs, in two nodes, which are fused.

    The operator counts rows, of which those of the bias are repeated one by one (is_inner_broadcast) or all together;
    Add repeats the same ones where the bias has a single element in the dimensions behind its own, or before.
    Refused: along other axes than the last; a bias whose shape does not say so; other types than float32.
    """

    name = "bias-softmax"

    def pattern(self, op: Ops, x: Any, bias: Any) -> Any:
        """The operator."""
        return op(DOMAIN).BiasSoftmax(x, bias, _name="own")

    def check(self, match: Match) -> str | None:
        """The rows that meet have to be known."""
        node, x, bias = match.node("own"), match["x"], match["bias"]
        if not node.attrs.keys() <= CONTRIB_OPERATORS[node.op]:
            return UNKNOWN_ATTRIBUTE
        if dtype_of(x) != np.float32:
            return NOT_FLOAT32
        if x.shape is None or bias.shape is None or not 0 < len(bias.shape) <= len(x.shape):
            return "the shapes of what it adds are not known"
        rank = len(x.shape)
        if node.attrs.get("axis", 1) not in (-1, rank - 1):
            return "it is along other axes than the last"
        sizes = [1] * (rank - len(bias.shape)) + list(bias.shape)
        if sizes[-1] is None or sizes[-1] != x.shape[-1]:
            return "the sizes of what it adds are not known to be the same"
        ones = [size == 1 for size in sizes[:-1]]
        if any(not one and size != own for one, size, own in zip(ones, sizes, x.shape, strict=False)):
            return "the sizes of what it adds are not known to be the same"
        first_first = node.attrs.get("is_inner_broadcast", 0)
        if ones != sorted(ones, reverse=not first_first):
            return "its bias is not repeated along dimensions side by side"
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The sum and its Softmax along the last axis."""
        return builder.op("Softmax", builder.op("Add", match["x"], match["bias"]), axis=-1)
