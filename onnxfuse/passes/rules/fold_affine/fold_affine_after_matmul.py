"""MatMul(x, w) · scale + offset → MatMul(x, w · scale) + offset."""

from __future__ import annotations

from typing import Any

from onnxfuse.model.graph_ir import Node
from onnxfuse.passes.rules.fold_affine.affine import Affine
from onnxfuse.passes.rules.fold_affine.fold_affine_after import FoldAffineAfter
from onnxfuse.passes.rules.fold_affine.linear import Linear
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, Refusal


class FoldAffineAfterMatMul(FoldAffineAfter):
    """Folds a chain of scalar and per-column Mul, Add, Sub and Div after a MatMul into its weights and one
    Add.

    Refused besides what Conv refuses: a chain that is one Add already, and a constant of more dimensions than
    the result is known to have.
    """

    name = "fold-affine-after-matmul"

    def pattern(self, op: Ops, x: Any) -> Any:
        """A MatMul with constant weights on the right."""
        return op.MatMul(x, op.constant("w"), _name="linear")

    def fold(self, match: Match, linear: Linear, nodes: list[Node], step: Affine) -> None:
        """As for the others, but only where it leaves fewer nodes."""
        if step.shifts and len(nodes) == 1:
            raise Refusal(NOT_APPLICABLE)
        super().fold(match, linear, nodes, step)

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """MatMul, and an Add if the steps shift."""
        linear, weight, bias = match.plan
        new_weight = linear.weight_tensor
        if weight is not None:
            new_weight = builder.initializer(weight, f"{linear.weight_tensor.name}_folded")
        product = builder.like(linear.node, linear.node.inputs[0], new_weight)
        if bias is None:
            return product
        return builder.op("Add", product, builder.initializer(bias, f"{linear.weight_tensor.name}_bias_folded"))
