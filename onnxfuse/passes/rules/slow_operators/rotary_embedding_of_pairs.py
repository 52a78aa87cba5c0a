"""x · cos + Reshape(Stack(-x₂, x₁)) · sin, of every second element → the same of pairs, whose halves change places."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.model.constants import constant_value, dtype_of, integers_of, slices_of
from onnxfuse.model.graph_ir import Node
from onnxfuse.passes.rules.slow_operators.rotary_embedding import signed
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

_SLICE_TAKES_BOUNDS = 10
"""The opset from which on the bounds of a Slice are inputs."""


class RotaryEmbeddingOfPairs(RewriteRule):
    """Rotates neighbouring elements (Su et al., RoFormer, 2021; GPT-J, Cohere, EVA) in a shape that has pairs of them.

    (…, size) is (…, size / 2, 2) then, of which the halves of the last dimension change places: a view, which a fused
    node reads in place, where the graph takes every second element twice, and puts them together again.  The minus goes
    to the sines, as in ``rotary-embedding``.  Results stay the same.
    """

    name = "rotary-embedding-of-pairs"

    def pattern(self, op: Ops, x: Any, cosines: Any, sines: Any) -> Any:
        """The rotation."""
        even = op.Slice(x, _extra_inputs=True, _name="even")
        odd = op.Slice(x, _extra_inputs=True, _name="odd")
        first = op.Unsqueeze(op.Neg(odd), _extra_inputs=True, _name="first")
        second = op.Unsqueeze(even, _extra_inputs=True, _name="second")
        pairs = op.Concat(first, second, _name="pairs")
        rotated = op.Reshape(pairs, _extra_inputs=True, _name="rotated")
        return op.Add(op.Mul(x, cosines), op.Mul(rotated, sines))

    def check(self, match: Match) -> str | None:
        """Only of a last dimension that is known, in floating point, of which cosines and sines have as many."""
        x, factors, rotated = match["x"], (match["cosines"], match["sines"]), match.node("rotated").outputs[0]
        dtype = dtype_of(x)
        if match.opset() < _SLICE_TAKES_BOUNDS or dtype is None or dtype.kind in "iu" or not x.shape:
            return NOT_APPLICABLE
        rank, size = len(x.shape), x.shape[-1]
        if not isinstance(size, int) or size % 2 or None in x.shape or list(rotated.shape or ()) != list(x.shape):
            return NOT_APPLICABLE
        if any(not factor.shape or factor.shape[-1] != size or len(factor.shape) > rank for factor in factors):
            return NOT_APPLICABLE
        if not all(_is_stacked(match.node(name), rank) for name in ("first", "second")):
            return NOT_APPLICABLE
        if match.attribute("pairs", "axis") not in (-1, rank):
            return NOT_APPLICABLE
        halves = (("even", 0), ("odd", 1))
        return (
            None
            if all(_takes_every_second(match.node(name), start, rank) for name, start in halves)
            else NOT_APPLICABLE
        )

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The rotation of pairs."""
        x = match["x"]
        size = x.shape[-1]

        def pairs(tensor: Any) -> Any:
            values = constant_value(tensor)
            if values is not None:
                return builder.initializer(values.reshape(*values.shape[:-1], size // 2, 2), "pairs")
            target = np.array([0] * (len(tensor.shape) - 1) + [size // 2, 2], np.int64)
            made = builder.op("Reshape", tensor, builder.initializer(target, "pairs_shape"))
            made.dtype, made.shape = tensor.dtype, [*tensor.shape[:-1], size // 2, 2]
            return made

        def part(place: int) -> Any:
            bounds = [builder.initializer(np.array([number], np.int64), "bound") for number in (place, place + 1, axis)]
            return builder.op("Slice", apart, *bounds)

        apart, axis = pairs(x), len(x.shape)
        swapped = builder.op("Concat", part(1), part(0), axis=axis)
        signs = np.array([-1, 1], dtype_of(x))
        turned = builder.op("Mul", swapped, signed(builder, pairs(match["sines"]), signs))
        rotated = builder.op("Add", builder.op("Mul", apart, pairs(match["cosines"])), turned)
        target = np.array([0] * (len(x.shape) - 1) + [size], np.int64)
        return builder.op("Reshape", rotated, builder.initializer(target, "shape"))


def _is_stacked(unsqueeze: Node, rank: int) -> bool:
    """Whether a last dimension is added to a tensor of so many."""
    axes = integers_of(unsqueeze, "axes", 1)
    return axes is not None and axes in ([-1], [rank])


def _takes_every_second(node: Node, start: int, rank: int) -> bool:
    """Whether a Slice takes every second element of the last dimension from ``start`` on."""
    slices = slices_of(node) or ()
    if len(slices) != 1 or slices[0].axis not in (-1, rank - 1):
        return False
    size = node.inputs[0].shape[-1]
    return slices[0].places(size) == range(start, size, 2)
