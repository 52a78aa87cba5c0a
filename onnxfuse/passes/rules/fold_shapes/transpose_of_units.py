"""Transpose(x) → Reshape(x) where only dimensions of 1 change places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.kinds import NHWC_CONV
from onnxfuse.fused.nhwc.nhwc_layout import permutes
from onnxfuse.model.graph_ir import moves_ones, permutation_of, producer_of, standard_op
from onnxfuse.program.lowering import is_elementwise
from onnxfuse.rewrite.base import PassContext
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule
from onnxfuse.shapes.shape_values import constant_target, size_of

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model


class TransposeOfUnits(RewriteRule):
    """Renames memory instead of copying it: of one token, heads are in the same place before and behind its position.

    Not applicable where the shape of the result does not follow from that of the data, nor to what a convolution makes
    that may have its channels last instead: then the Transpose names the layout that it writes at no cost.
    """

    name = "transpose-of-units"

    def begin(self, model: Model, context: PassContext) -> None:
        """Nodes of the target may have their channels last."""
        self._lays_out = NHWC_CONV in context.on.kinds

    def pattern(self, op: Ops, x: Any) -> Any:
        """The Transpose."""
        return op.Transpose(x, _name="transpose")

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds the shape that the Reshape is given."""
        x = match["x"]
        if x.shape is None or 0 in x.shape:  # which in the shape of a Reshape stands for another size
            return NOT_APPLICABLE
        if self._lays_out and permutes(match.node("transpose")) is not None and _is_of_convolution(x):
            return NOT_APPLICABLE
        order = permutation_of(match.node("transpose"))
        if order is None or not moves_ones(match.node("transpose")):
            return NOT_APPLICABLE
        match.plan = constant_target(x, [size_of(x, axis) for axis in order])
        return NOT_APPLICABLE if match.plan is None else None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The Reshape."""
        shape = builder.initializer(np.array(match.plan, np.int64), "in_order")
        return builder.op("Reshape", match["x"], shape)


def _is_of_convolution(tensor: gs.Tensor) -> bool:
    """Whether a tensor is the result of a Conv, with elementwise operators behind it."""
    node = producer_of(tensor)
    while node is not None and is_elementwise(node) and node.inputs:
        node = producer_of(node.inputs[0])
    return node is not None and standard_op(node) == "Conv"
