"""Conv(Conv(x, v), w) → Conv(x, w · v) for a 1x1 convolution followed by another."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.model.graph_ir import Node
from onnxfuse.passes.rules.conv_layout.merged_weights import merged
from onnxfuse.passes.rules.fold_affine.linear import pads
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule


class MergePointwiseConvs(RewriteRule):
    """Multiplies the weights of two 1x1 convolutions with nothing in between where that is no more work.

    Refused: a product with more weights than the two; an inner value that is needed elsewhere; weights of other types
    than float16, bfloat16 and float32; products that overflow or vanish.  Convolutions with groups, strides, padding or
    larger kernels are left as they are.
    """

    name = "merge-pointwise-convs"

    def pattern(self, op: Ops, x: Any) -> Any:
        """Both with or without a bias."""
        first = op.Conv(x, op.constant("v"), op.optional(op.constant("c")), _name="first")
        return op.Conv(first, op.constant("w"), op.optional(op.constant("b")), _name="second")

    def check(self, match: Match) -> str | None:
        """Computes the new weights and bias; ``match.plan`` holds them."""
        constants: dict[str, Any] = {
            name: match.constant(name) for name in ("v", "c", "w", "b") if match.get(name) is not None
        }
        first, second = constants["v"], constants["w"]
        if any(values is None for values in constants.values()) or first.ndim != 4 or second.ndim != 4:
            return NOT_APPLICABLE
        if first.shape[2:] != (1, 1) or second.shape[2:] != (1, 1) or first.shape[0] != second.shape[1]:
            return NOT_APPLICABLE
        if not all(takes_single_places(match.node(name)) for name in ("first", "second")):
            return NOT_APPLICABLE
        one, other = (first[:, :, 0, 0], constants.get("c")), (second[:, :, 0, 0], constants.get("b"))
        weights, bias = merged(one, other, "convolution", at_any_cost=self.everything)
        match.plan = weights[:, :, np.newaxis, np.newaxis], bias
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The second convolution with the product of the weights."""
        weights, bias = match.plan
        hint = match["w"].name
        inputs = [match["x"], builder.initializer(weights, f"{hint}_merged")]
        if bias is not None:
            inputs.append(builder.initializer(bias, f"{hint}_bias_merged"))
        return builder.like(match.node("second"), *inputs)


def takes_single_places(node: Node) -> bool:
    """Whether a 1x1 convolution has neither groups nor strides nor padding."""
    # With a stride of one, auto_pad SAME pads a 1x1 kernel by nothing.
    one_step = all(stride == 1 for stride in node.attrs.get("strides", ()))
    return bool(node.attrs.get("group", 1) == 1 and one_step and not pads(node))
