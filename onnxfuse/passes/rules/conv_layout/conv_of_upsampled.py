"""Conv(Resize(x), w) → ConvTranspose(x, w'), where Resize repeats elements, alone or among others in a Concat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import Array
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.passes.rules.conv_layout.joined_channels import producer_beside, split_weights
from onnxfuse.passes.rules.conv_layout.upsampling import repeats
from onnxfuse.passes.rules.fold_affine.linear import auto_pad
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, Refusal, RewriteRule
from onnxfuse.shapes.windows import sides

_MOST_PRODUCTS = 0.7
"""Of those before, that a rewrite may leave: with more, what it saves is not worth another operator."""

_LEAST_SAVED = 32
"""Products of a result that must be saved where the results are added to others: that is a pass over memory."""

_MOST_GROWTH, _LITTLE_ADDED, _MOST_ADDED = 2, 4 << 20, 64 << 20
"""How much larger weights may become: so many times, or by a few bytes, and by so many at most."""


@dataclass(frozen=True)
class _Part:
    """Channels of a convolution's input with the weights for them; with ``scales`` they are to be read from ``tensor``,
    whose elements are repeated so often along each spatial axis."""

    tensor: gs.Tensor
    weights: Array
    scales: tuple[int, ...] = ()


class ConvOfUpsampled(RewriteRule):
    """Convolves what is repeated before it is repeated: taps that meet the same element are added up beforehand.

    Repeating each element s times is a ConvTranspose of stride s with a kernel of s ones, and one convolution after
    the other is one with the convolution of both kernels, which has k + s - 1 taps.  A result is then a sum of
    (k + s - 1) / s products along each axis, not k.  The convolution of a Concat is the sum of one for each input.
    Refused: groups, strides and dilations; weights that are not float32, not finite, or would become much larger; more
    padding than the kernel reaches; kernels with few products to save.

    Where dynamic sizes of the inputs do not fit each other, the Add fails as the Concat did, unless one of them is 1.
    """

    name = "conv-of-upsampled"
    keep_shared_nodes = True

    def pattern(self, op: Ops, x: Any, b: Any) -> Any:
        """What makes ``x`` is read in ``check``."""
        return op.Conv(x, op.constant("w"), op.optional(b), _name="conv")

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds the parts of the input, and the padding before and behind each axis."""
        x, conv, weights = match["x"], match.node("conv"), match.constant("w")
        if weights is None or weights.ndim not in (3, 4) or weights.size == 0:
            return NOT_APPLICABLE
        concat = producer_beside(x, match)
        if concat is not None and standard_op(concat) != "Concat":
            concat = None
        tensors = [x] if concat is None else list(concat.inputs)
        scales = [_scales(producer_beside(tensor, match), weights.ndim, match.model.opsets) for tensor in tensors]
        if not any(scales):
            return NOT_APPLICABLE
        if weights.dtype != np.float32 or not np.all(np.isfinite(weights)):
            return "the weights of Conv are not float32, or not finite"
        if conv.attrs.get("group", 1) != 1:
            return "Conv has groups"
        if any(step != 1 for name in ("strides", "dilations") for step in conv.attrs.get(name, ())):
            return "Conv has strides or dilations"
        padding = _padding(conv, weights.shape[2:])
        shares = [weights] if concat is None else split_weights(weights, concat)
        parts = []
        for tensor, own, times in zip(tensors, shares, scales, strict=True):
            if times and (self.everything or _is_worth(own, times, alone=concat is None)):
                match.nodes.append(tensor.inputs[0])
                parts.append(_Part(tensor.inputs[0].inputs[0], own, times))
            else:
                parts.append(_Part(tensor, own))
        if not any(part.scales for part in parts):
            return "too few products would be saved"
        if concat is not None:
            match.nodes.append(concat)
        match.plan = parts, padding
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The convolution of what is not repeated, and to it one of each part that is."""
        parts, (begins, ends) = match.plan
        conv, hint = match.node("conv"), match["w"].name
        bias = [match["b"]] if match.get("b") is not None else []
        total = None
        if rest := [part for part in parts if not part.scales]:
            weights = builder.initializer(np.concatenate([part.weights for part in rest], axis=1), f"{hint}_rest")
            tensors = [part.tensor for part in rest]
            data = tensors[0] if len(tensors) == 1 else builder.op("Concat", *tensors, axis=1)
            total = builder.like(conv, data, weights, *bias)
            bias = []
        for part in parts:
            if not part.scales:
                continue
            weights = builder.initializer(_spread(part.weights, part.scales), f"{hint}_upsampled")
            kernel = part.weights.shape[2:]
            made = builder.op(
                "ConvTranspose",
                part.tensor,
                weights,
                *bias,
                kernel_shape=list(weights.shape[2:]),
                strides=list(part.scales),
                pads=[taps - 1 - pad for pads in (begins, ends) for taps, pad in zip(kernel, pads, strict=True)],
            )
            bias = []
            total = made if total is None else builder.op("Add", total, made)
        # All sums have the shape of the result: those that a Concat takes have one size along the other axes.
        result = match.outputs[0].name
        names = [tensor.name for node in builder.nodes if node.op != "Concat" for tensor in node.outputs]
        match.model.same_shapes |= dict.fromkeys([*names, result], result)
        return total


def _scales(node: Node | None, rank: int, opsets: dict[str, int]) -> tuple[int, ...]:
    """How often a node repeats elements along each spatial axis; nothing if it does not, or along another axis too."""
    times = None if node is None else repeats(node, opsets)
    if times is None or len(times) != rank or times[:2] != [1, 1] or max(times) == 1:
        return ()
    return tuple(times[2:])


def _padding(conv: Node, kernel: Sequence[int]) -> tuple[list[int], list[int]]:
    """The zeros before and behind each axis, for a stride of one.  Raises Refusal if there are more than can be met."""
    mode, reach = auto_pad(conv), [taps - 1 for taps in kernel]
    if mode.startswith("SAME"):
        begins, ends = zip(*(sides(size, mode) for size in reach), strict=True)
        return list(begins), list(ends)
    pads = list(conv.attrs.get("pads", ())) if mode == "NOTSET" else []
    pads = pads or [0] * 2 * len(reach)
    if len(pads) != 2 * len(reach) or not all(0 <= pad <= most for pad, most in zip(pads, reach * 2, strict=True)):
        raise Refusal("Conv pads by more than its kernel reaches")
    return pads[: len(reach)], pads[len(reach) :]


def _is_worth(weights: Array, scales: Sequence[int], *, alone: bool) -> bool:
    """Whether a convolution saves enough if it reads its input as it was before it was repeated."""
    taps = math.prod(weights.shape[2:])
    spread = math.prod(size + scale - 1 for size, scale in zip(weights.shape[2:], scales, strict=True))
    left = spread / math.prod(scales) / taps
    added = (spread / taps - 1) * weights.nbytes
    small = added <= (_MOST_ADDED if spread <= _MOST_GROWTH * taps else _LITTLE_ADDED)
    saved = (1 - left) * weights.shape[1] * taps
    return left <= _MOST_PRODUCTS and small and (alone or saved >= _LEAST_SAVED)


def _spread(weights: Array, scales: Sequence[int]) -> Array:
    """The weights of the ConvTranspose, of shape (inputs, outputs, *kernel).  Raises Refusal if one is not finite."""
    total: Array = weights.astype(np.float64)
    for axis, scale in enumerate(scales, start=2):
        # ConvTranspose has the kernel turned round, and that is convolved with as many ones as an element is repeated.
        turned = np.flip(total, axis)
        size = turned.shape[axis] + scale - 1
        wider = np.zeros((*turned.shape[:axis], size, *turned.shape[axis + 1 :]))
        for shift in range(scale):
            places = [slice(None)] * turned.ndim
            places[axis] = slice(shift, shift + turned.shape[axis])
            wider[tuple(places)] += turned
        total = wider
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(total.swapaxes(0, 1)).astype(np.float32)
    if not np.all(np.isfinite(rounded)):
        raise Refusal("the weights of taps that meet the same element add up to more than float32 holds")
    return rounded
