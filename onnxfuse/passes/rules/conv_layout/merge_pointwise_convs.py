"""Conv(Conv(x, v), w) → Conv(x, w · v) for a 1x1 convolution followed by another."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.model.constants import Array
from onnxfuse.model.graph_ir import Node
from onnxfuse.passes.rules.fold_affine.linear import pads
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule


class MergePointwiseConvs(RewriteRule):
    """Multiplies the weights of two 1x1 convolutions with nothing in between where that is no more work.

    Refused: a product with more weights than the two; an inner value that is needed elsewhere; weights that
    are not float32; products that overflow or vanish.  Convolutions with groups, strides, padding or larger kernels are
    left as they are.
    """

    name = "merge-pointwise-convs"

    def pattern(self, op: Ops, x: Any) -> Any:
        """Both with or without a bias."""
        first = op.Conv(x, op.constant("v"), op.optional(op.constant("c")), _name="first")
        return op.Conv(first, op.constant("w"), op.optional(op.constant("b")), _name="second")

    def check(self, match: Match) -> str | None:
        """Computes the new weights and bias; ``match.plan`` holds them."""
        constants = {name: match.constant(name) for name in ("v", "c", "w", "b") if match.get(name) is not None}
        first, second = constants["v"], constants["w"]
        if first is None or second is None or first.ndim != 4 or second.ndim != 4:
            return NOT_APPLICABLE
        if first.shape[2:] != (1, 1) or second.shape[2:] != (1, 1) or first.shape[0] != second.shape[1]:
            return NOT_APPLICABLE
        if not all(takes_single_places(match.node(name)) for name in ("first", "second")):
            return NOT_APPLICABLE
        if not all(values is not None and values.dtype == np.float32 for values in constants.values()):
            return "the weights are not float32"
        inner, inputs, outputs = first.shape[0], first.shape[1], second.shape[0]
        if inputs * outputs > inner * (inputs + outputs) and not self.everything:
            return f"one convolution from {inputs} to {outputs} channels is more work than two by way of {inner}"
        wide = {name: values.astype(np.float64) for name, values in constants.items() if values is not None}
        left, right = wide["w"][:, :, 0, 0], wide["v"][:, :, 0, 0]
        with np.errstate(all="ignore"):
            product = left @ right
            weights = product[:, :, np.newaxis, np.newaxis].astype(np.float32)
            bias = None
            if "b" in wide or "c" in wide:
                offset = left @ wide["c"] if "c" in wide else np.zeros(outputs)
                bias = (offset + wide.get("b", 0.0)).astype(np.float32)
        if not (np.all(np.isfinite(weights)) and (bias is None or np.all(np.isfinite(bias)))):
            return "the weights of one convolution in place of two would not be finite"
        if product_vanishes(product, left, right):
            return "the weights of one convolution in place of two would be denormal"
        match.plan = (weights, bias)
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


def product_vanishes(weights: Array, *factors: Array) -> bool:
    """Whether an output channel of the product has nothing but denormal numbers left, and the factors had others."""
    tiny = float(np.finfo(np.float32).smallest_normal)
    largest = np.abs(weights).max(axis=1, initial=0.0)
    normal = all(np.abs(factor).max(initial=0.0) >= tiny for factor in factors)
    return bool(normal and np.any((largest > 0) & (largest < tiny)))
