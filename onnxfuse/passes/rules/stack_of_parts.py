"""Transpose(Reshape(Concat(a, …))) → Concat(Unsqueeze(a), …), where the axis of the parts moves alone."""

from __future__ import annotations

from typing import Any

from onnxfuse.passes.rules.opset_forms import unsqueeze
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule


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
