"""Conv(Conv(x, v), w) → Conv(x, w · v) for a 1x1 convolution followed by another."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.passes.matcher import Match
from onnxfuse.passes.pattern import Ops
from onnxfuse.passes.rule import NOT_APPLICABLE, Builder, RewriteRule


class MergePointwiseConvs(RewriteRule):
    """Multiplies the weights of two 1x1 convolutions with nothing in between where that is no more work.

    Refused: a product with more weights than the two; an inner value that is needed elsewhere; weights that
    are not float32; products that overflow.  Convolutions with groups, strides, padding or larger kernels are
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
        if not all(_plain(match.node(name).attrs) for name in ("first", "second")):
            return NOT_APPLICABLE
        if not all(values is not None and values.dtype == np.float32 for values in constants.values()):
            return "the weights are not float32"
        inner, inputs, outputs = first.shape[0], first.shape[1], second.shape[0]
        if inputs * outputs > inner * (inputs + outputs):
            return f"one convolution from {inputs} to {outputs} channels is more work than two by way of {inner}"
        wide = {name: values.astype(np.float64) for name, values in constants.items() if values is not None}
        product = wide["w"][:, :, 0, 0]
        with np.errstate(all="ignore"):
            weights = (product @ wide["v"][:, :, 0, 0])[:, :, np.newaxis, np.newaxis].astype(np.float32)
            bias = None
            if "b" in wide or "c" in wide:
                offset = product @ wide["c"] if "c" in wide else np.zeros(outputs)
                bias = (offset + wide.get("b", 0.0)).astype(np.float32)
        if not (np.all(np.isfinite(weights)) and (bias is None or np.all(np.isfinite(bias)))):
            return "the weights of one convolution in place of two would not be finite"
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


def _plain(attributes: dict[str, Any]) -> bool:
    """Whether a 1x1 convolution has neither groups nor strides nor padding."""
    padding = attributes.get("auto_pad", "NOTSET")
    padding = padding.decode() if isinstance(padding, bytes) else padding
    # With a stride of one, SAME pads a 1x1 kernel by nothing.
    return (
        attributes.get("group", 1) == 1
        and all(stride == 1 for stride in attributes.get("strides", ()))
        and (padding != "NOTSET" or not any(attributes.get("pads", ())))
    )
