"""Conv(Resize(x), w) → Resize(Conv(x, w)) where Resize interpolates, alone or among others in a Concat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import Array, constant_value
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.passes.rules.conv_layout.joined_channels import producer_beside, split_weights
from onnxfuse.passes.rules.conv_layout.merged_weights import are_rounded_once
from onnxfuse.passes.rules.conv_layout.upsampling import stretches
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

_LEAST_GROWTH = 2
"""Of the elements of a channel, by which a Resize makes more of them."""

_LEAST_SAVED = 32
"""Products of a result that must be saved where the results are added to others: that is a pass over memory."""

_SIZES = 3
"""Which input of a Resize its sizes are."""


@dataclass(frozen=True)
class _Part:
    """Channels of a convolution's input with the weights for them, and the Resize, if there is one, that is to come
    behind the convolution and not before it."""

    tensor: gs.Tensor
    weights: Array
    resize: Node | None = None


class ConvOfInterpolated(RewriteRule):
    """Multiplies the channels of an image before it is made larger, not after.

    A 1x1 convolution and a linear interpolation are sums, one over channels and one over places, and change places up
    to rounding; the weights of a mean add up to 1, so that a bias does too.  So begin the heads of networks for
    segmentation, which join what was seen at several scales (E. Xie et al., SegFormer, arXiv:2105.15203; T. Xiao et
    al., UPerNet, arXiv:1807.10221).
    Refused: kernels of more than one tap, groups, strides, padding; weights of other types than float16, bfloat16 and
    float32, or not finite; more filters than channels, which it would be more to interpolate; few products to save.
    """

    name = "conv-of-interpolated"
    keep_shared_nodes = True

    def pattern(self, op: Ops, x: Any, b: Any) -> Any:
        """What makes ``x`` is read in ``check``."""
        return op.Conv(x, op.constant("w"), op.optional(b), _name="conv")

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds the parts of the input."""
        x, weights = match["x"], match.constant("w")
        if weights is None or weights.ndim < 3 or weights.size == 0:
            return NOT_APPLICABLE
        concat = producer_beside(x, match)
        if concat is not None and standard_op(concat) != "Concat":
            concat = None
        tensors = [x] if concat is None else list(concat.inputs)
        makers = [producer_beside(tensor, match) for tensor in tensors]
        if not any(_growth(node, weights.ndim, match.model.opsets) for node in makers):
            return NOT_APPLICABLE
        if not are_rounded_once([weights]) or not np.all(np.isfinite(weights)):
            return "the weights of Conv are not float16, bfloat16 or float32, or not finite"
        if not _is_product(match.node("conv"), weights.shape[2:]):
            return "Conv is more than a product of channels"
        shares = [weights] if concat is None else split_weights(weights, concat)
        parts = []
        for tensor, own, node in zip(tensors, shares, makers, strict=True):
            growth = _growth(node, weights.ndim, match.model.opsets)
            if (
                growth
                and node is not None
                and (self.everything or _is_worth(own, growth))
                and _may_be_behind(node, own)
            ):
                match.nodes.append(node)
                parts.append(_Part(node.inputs[0], own, node))
            else:
                parts.append(_Part(tensor, own))
        if not any(part.resize for part in parts):
            return "too few products would be saved"
        if concat is not None:
            match.nodes.append(concat)
        match.plan = parts
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """What is interpolated of one convolution for each part, and to these that of all other parts."""
        parts: list[_Part] = match.plan
        conv, hint = match.node("conv"), match["w"].name
        bias = [match["b"]] if match.get("b") is not None else []
        rest = [part for part in parts if part.resize is None]
        sums = []
        for part in parts:
            if part.resize is None:
                continue
            weights = builder.initializer(part.weights, f"{hint}_part")
            made = builder.like(conv, part.tensor, weights, *([] if rest else bias))
            bias = bias if rest else []
            others = list(part.resize.inputs[1:])
            if (sizes := _given_sizes(part.resize)) is not None:
                others[_SIZES - 1] = builder.initializer(_with_channels(sizes, part.weights), "sizes")
            sums.append(builder.like(part.resize, made, *others))
        if rest:
            weights = builder.initializer(np.concatenate([part.weights for part in rest], axis=1), f"{hint}_rest")
            tensors = [part.tensor for part in rest]
            data = tensors[0] if len(tensors) == 1 else builder.op("Concat", *tensors, axis=1)
            sums.append(builder.like(conv, data, weights, *bias))
        total = sums[0]
        for one in sums[1:]:
            total = builder.op("Add", total, one)
        # All sums have the shape of the result: those that a Concat takes have one size along the other axes.
        result = match.outputs[0].name
        added = [tensor.name for node in builder.nodes if node.op == "Add" for tensor in node.outputs]
        match.model.same_shapes |= dict.fromkeys([*(one.name for one in sums), *added, result], result)
        return total


def _growth(node: Node | None, rank: int, opsets: dict[str, int]) -> float:
    """How many elements a node interpolates of one, along the spatial axes alone; 0 where it does anything else."""
    scales = None if node is None else stretches(node, opsets)
    if scales is None or len(scales) != rank or scales[:2] != [1, 1]:
        return 0.0
    return math.prod(scales[2:])


def _is_product(conv: Node, kernel: Sequence[int]) -> bool:
    """Whether a convolution computes each place of the result from that of the input."""
    if any(taps != 1 for taps in kernel) or conv.attrs.get("group", 1) != 1:
        return False
    return all(step == 1 for step in conv.attrs.get("strides", ())) and not any(conv.attrs.get("pads", ()))


def _is_worth(weights: Array, growth: float) -> bool:
    filters, channels = weights.shape[:2]
    saved = (1 - 1 / growth) * channels
    return growth >= _LEAST_GROWTH and filters <= channels and saved >= _LEAST_SAVED


def _given_sizes(resize: Node) -> gs.Tensor | None:
    given = resize.inputs[_SIZES] if len(resize.inputs) > _SIZES else None
    return given if given is not None and given.name else None


def _may_be_behind(resize: Node, weights: Array) -> bool:
    """Whether a Resize takes as many channels as there are filters: sizes that it is given name their number."""
    sizes = _given_sizes(resize)
    return sizes is None or constant_value(sizes) is not None or weights.shape[0] == weights.shape[1]


def _with_channels(sizes: gs.Tensor, weights: Array) -> Array:
    values = np.array(constant_value(sizes), np.int64)
    values[1] = weights.shape[0]
    return values
