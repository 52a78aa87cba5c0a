"""Transpose(Reshape(Concat(a, …))) → Concat(Unsqueeze(a), …), where the axis of the parts moves alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.passes.rules.opset_forms import unsqueeze
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

_SPLIT_TAKES_SIZES = 13
"""The opset from which on the sizes that Split makes are an input."""


class StackOfParts(RewriteRule):
    """Joins tensors along a new axis where it shall be, not first along another one.

    So the channels of two branches are shuffled: N. Ma et al., ShuffleNet V2: Practical Guidelines for Efficient CNN
    Architecture Design, 2018.  The Transpose is a pass over memory, and the Concat is as fast along any axis.
    Refused: parts that differ in size, or are not known not to; a Transpose that moves other axes too.
    """

    name = "stack-of-parts"

    def pattern(self, op: Ops, first: Any) -> Any:
        """The Transpose; what is joined is read in ``check``."""
        joined = op.Concat(first, _extra_inputs=True, _name="concat")
        return op.Transpose(op.Reshape(joined, _extra_inputs=True, _name="reshape"), _name="transpose")

    def check(self, match: Match) -> str | None:
        """``match.plan`` is the axis of the parts in the result."""
        concat, order = match.node("concat"), match.node("transpose").attrs.get("perm")
        shape, apart = concat.outputs[0].shape, match.node("reshape").outputs[0].shape
        parts = [tensor.shape for tensor in concat.inputs]
        if len(parts) < 2 or order is None or shape is None or apart is None or len(apart) != len(shape) + 1:
            return NOT_APPLICABLE
        axis = concat.attrs.get("axis", 0) % len(shape)
        rest = [own for own in order if own != axis]
        if sorted(order) != list(range(len(apart))) or rest != sorted(rest):
            return NOT_APPLICABLE
        sizes = [None if part is None or len(part) != len(shape) else part[axis] for part in parts]
        if not all(isinstance(size, int) and size == sizes[0] for size in sizes):
            return "its parts are not known to be of one size"
        wanted = [*shape[:axis], len(parts), sizes[0], *shape[axis + 1 :]]
        if None in wanted or list(apart) != wanted:
            return "its parts are not known to get an axis of their own"
        match.plan = list(order).index(axis)
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The Concat along the axis, of parts that have one element there."""
        parts = [unsqueeze(builder, part, match.plan) for part in match.node("concat").inputs]
        return builder.op("Concat", *parts, axis=match.plan)


class HalvesOfStack(RewriteRule):
    """Takes the halves of what is joined along a new axis before that becomes one with another.

    On CUDA a fused node computes both then as it joins them.
    Refused: halves of other axes than those that become one, or that are not known to be halves.
    """

    name = "halves-of-stack"

    def pattern(self, op: Ops, first: Any) -> Any:
        """Both halves."""
        joined = op.Reshape(op.Concat(first, _extra_inputs=True, _name="concat"), _extra_inputs=True, _name="reshape")
        return op.Split(joined, _extra_inputs=True, _outputs=2, _name="split")

    def check(self, match: Match) -> str | None:
        """``match.plan`` is the axis that becomes one with the axis of the parts, its size, and the shape of a half."""
        concat, split = match.node("concat"), match.node("split")
        shape, joined = concat.outputs[0].shape, match.node("reshape").outputs[0].shape
        halves = [tensor.shape for tensor in split.outputs]
        if len(split.outputs) != 2 or shape is None or joined is None or len(joined) != len(shape) - 1:
            return NOT_APPLICABLE
        if None in halves or halves[0] != halves[1] or None in (*shape, *joined, *halves[0]):
            return "its halves are not known to be of one size"
        axis = split.attrs.get("axis", 0) % len(joined)
        around = [*shape[:axis], joined[axis], *shape[axis + 2 :]]
        size, inner = shape[axis : axis + 2]
        if (
            not isinstance(size, int)
            or not isinstance(inner, int)
            or concat.attrs.get("axis", 0) % len(shape) != axis + 1
        ):
            return NOT_APPLICABLE
        if list(joined) != around or joined[axis] != size * inner or size % 2 or halves[0][axis] * 2 != joined[axis]:
            return NOT_APPLICABLE
        if sum(not isinstance(one, int) for one in halves[0]) > 1:
            return "its sizes are not known"
        match.plan = axis, size // 2, [one if isinstance(one, int) else -1 for one in halves[0]]
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The Split along the outer axis, and the halves in their shape."""
        axis, size, shape = match.plan
        whole = match.node("concat").outputs[0]
        if builder.match.opset() >= _SPLIT_TAKES_SIZES:
            sizes = builder.initializer(np.array([size, size]), "sizes")
            halves = builder.op("Split", whole, sizes, axis=axis, _outputs=2)
        else:
            halves = builder.op("Split", whole, axis=axis, split=[size, size], _outputs=2)
        target = builder.initializer(np.array(shape), "shape")
        return tuple(builder.op("Reshape", half, target) for half in halves)
