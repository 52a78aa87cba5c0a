"""Conv(Pad(x), w) → Conv(x, w), which pads by as much more."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.model.graph_ir import Node, text_attribute
from onnxfuse.passes.rules.fold_affine.linear import auto_pad
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, Refusal, RewriteRule


class FoldPadBeforeConv(RewriteRule):
    """Lets a Conv do what a Pad with zeros before it does.

    ONNX Runtime does the same, but not before a fused node.  Refused: other modes and values, negative sizes, sizes
    that are not constant, padding of batch or channels, ``auto_pad`` SAME, and weights that are not finite: their
    products with zeros are no zeros.
    """

    name = "fold-pad-before-conv"

    def pattern(self, op: Ops, x: Any, b: Any) -> Any:
        """With or without a bias; before opset 11 a Pad has only one input."""
        more = (op.optional(op.constant(name)) for name in ("sizes", "value", "axes"))
        return op.Conv(op.Pad(x, *more, _name="pad"), op.constant("w"), op.optional(b), _name="conv")

    def check(self, match: Match) -> str | None:
        """Computes the new padding; ``match.plan`` holds it."""
        conv, weights = match.node("conv"), match.constant("w")
        if weights is None or weights.ndim < 3:
            return NOT_APPLICABLE
        if auto_pad(conv) not in ("NOTSET", "VALID"):
            return "the Conv finds out its padding by itself"
        if not np.all(np.isfinite(weights)):
            return "the weights of Conv are not finite"
        dimensions = weights.ndim - 2
        outer, inner = np.split(_sizes(match, weights.ndim), [2], axis=1)
        if np.any(outer != 0):
            return "it pads the batch or channels"
        if np.any(inner < 0):
            return "it takes something away"
        own = conv.attrs.get("pads", [0] * 2 * dimensions) if auto_pad(conv) == "NOTSET" else [0] * 2 * dimensions
        if len(own) != 2 * dimensions:
            return NOT_APPLICABLE
        match.plan = [int(size) for size in inner.reshape(-1) + np.array(own, np.int64)]
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The Conv with more padding, of what the Pad reads."""
        inputs = [match["x"], match["w"]]
        if match.get("b") is not None:
            inputs.append(match["b"])
        return builder.like(match.node("conv"), *inputs, pads=match.plan, auto_pad="NOTSET")


def _sizes(match: Match, rank: int) -> Any:
    """How much a Pad of zeros adds before and behind each axis, (2, rank).  Raises Refusal for any other Pad."""
    pad: Node = match.node("pad")
    if text_attribute(pad, "mode", "constant") != "constant":
        raise Refusal("it does not pad with zeros")
    sizes, value, axes = (
        match.constant(name) if match.get(name) is not None else None for name in ("sizes", "value", "axes")
    )
    if sizes is None:
        sizes, value = np.array(pad.attrs.get("pads", ()), np.int64), np.array(pad.attrs.get("value", 0.0))
    if value is not None and (value.size != 1 or value.astype(np.float64).item() != 0 or np.signbit(value).item()):
        raise Refusal("it does not pad with zeros")
    places = np.arange(rank) if axes is None else axes.reshape(-1)
    if sizes.size != 2 * places.size or np.any(places < -rank) or np.any(places >= rank):
        raise Refusal("its sizes do not fit the Conv")
    all_sizes = np.zeros((2, rank), np.int64)
    all_sizes[:, places] = sizes.reshape(2, -1)
    return all_sizes
