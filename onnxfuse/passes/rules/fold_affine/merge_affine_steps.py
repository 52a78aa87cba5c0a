"""((x · a + b) · c + d) / e → x · (a c / e) + (b c + d) / e, with fast math."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfuse.model.constants import Array, is_constant
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.passes.rules.budget import CopyBudget
from onnxfuse.passes.rules.fold_affine.affine import Affine, compose, read_broadcast_step
from onnxfuse.passes.rules.fold_affine.fold_affine_after import chain_after
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, Refusal, RewriteRule

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.rewrite.base import PassContext

_FAST_DTYPES = (np.float32, np.float64)
_LEAST_REST = 0.75
"""Of the largest offset of a chain.  Who takes back most of an offset may want what it rounded away."""
_FEW = 1024
"""Elements to which an offset may grow: more would be steps of a small tensor that become those of a large one."""
_TO_INTEGERS = frozenset(("Floor", "Ceil", "Round", "Cast"))
"""Operators that may make a whole number, and so a large difference of a small one, of what they read."""


class MergeAffineSteps(RewriteRule):
    """Computes a chain of affine steps as one product and one sum, with fast math: only that rounds otherwise.

    The first step is a product that is rounded already, so that the result is as near to what is meant as that of the
    chain: in x - m, where x is near m, nothing is, and it would be in x · s - m · s.  Powers of two round nothing.
    Refused: constants that together have more elements than each, overflow or are denormal; an offset that takes back
    another, or that becomes large; what is then made an integer; many copies of shared constants.
    """

    name = "merge-affine-steps"

    def begin(self, model: Model, context: PassContext) -> None:
        """Learns whether results may be rounded otherwise."""
        self._may_round = context.fast_math
        self._budget = CopyBudget()
        self._gelus: dict[int, Any] = {}
        if self._may_round:
            from onnxfuse.ort.ort_fusions import find_gelus  # the planner knows these rules

            self._gelus = find_gelus(model)

    def may_end_at(self, node: Node) -> bool:
        """Nowhere without fast math."""
        return self._may_round and id(node) not in self._gelus

    def pattern(self, op: Ops, x: Any) -> Any:
        """The first step; the chain after it is of any length and read in ``check``."""
        k = op.constant("k")
        return op.any_of(op.Mul(x, k), op.Div(x, k))

    def check(self, match: Match) -> str | None:
        """Reads the chain; ``match.plan`` becomes the scale and the offset, None for one that does nothing."""
        constant = match.constant("k")
        if constant is None or constant.dtype not in _FAST_DTYPES:
            return NOT_APPLICABLE
        first = read_broadcast_step(match.root)
        if np.any(np.abs(np.frexp(first.scale)[0]) == 0.5):
            return NOT_APPLICABLE
        followers, step = chain_after(match, first, _Chain().then)
        scale, offset = _constants(step)
        steps = 1 + len(followers)
        divides = any(node.op == "Div" for node in (match.root, *followers))
        if (scale is not None) + (offset is not None) == steps and not divides:
            return NOT_APPLICABLE
        nodes = (match.root, *followers)
        if any(standard_op(reader) in _TO_INTEGERS for reader in nodes[-1].outputs[0].outputs):
            return "what it makes is rounded to integers"
        match.plan = [None if values is None else _rounded(values, constant.dtype) for values in (scale, offset)]
        if any(len(tensor.outputs) > 1 for node in nodes for tensor in node.inputs if is_constant(tensor)):
            self._budget.take(sum(values.nbytes for values in match.plan if values is not None))
        for node in followers:
            match.absorb(node)
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The product and the sum."""
        result = match["x"]
        for op_type, values in zip(("Mul", "Add"), match.plan, strict=True):
            if values is not None:
                before = result
                result = builder.op(op_type, before, builder.initializer(values, match["k"].name or match.root.name))
                result.shape = _broadcast(before.shape, values.shape)  # for the rules that fold these steps
        return result


class _Chain:
    """Puts steps together, and knows the largest offset of those before, as it is behind the later scales."""

    def __init__(self) -> None:
        self._largest: Array = np.zeros(())

    def then(self, step: Affine, node: Node) -> Affine:
        """``step`` followed by that of ``node``.  Raises Refusal."""
        following = read_broadcast_step(node)
        try:
            result = compose(step, following)
        except ValueError as error:
            raise Refusal("the constants cannot be broadcast together") from error
        smaller = Affine(result.scale, following.offset)
        if not step.shifts and _shape(smaller) == _shape(result):
            result = smaller
        if np.prod(_shape(result)) > max(np.prod(_shape(step)), np.prod(_shape(following))):
            raise Refusal("the constants together have more elements than each")
        if result.offset.size > max(step.offset.size, following.offset.size, _FEW):
            raise Refusal("its offset would have more elements")
        if _underflows(step.scale, following.scale) or _underflows(step.offset, following.scale):
            raise Refusal("its constants together overflow or are denormal")
        largest = np.maximum(np.abs(self._largest * following.scale), np.abs(following.offset))
        if np.any(np.abs(result.offset) < _LEAST_REST * largest):
            raise Refusal("its offset takes back one before it")
        self._largest = largest
        return result


def _underflows(first: Array, second: Array) -> bool:
    """Whether a product of what is not zero is no normal number."""
    with np.errstate(under="ignore"):
        small = np.abs(first * second) < np.finfo(np.float64).tiny
    return bool(np.any(small & (first != 0) & (second != 0)))


def _shape(step: Affine) -> tuple[int, ...]:
    return np.broadcast_shapes(step.scale.shape, step.offset.shape)


def _broadcast(data: Sequence[int | str] | None, constant: tuple[int, ...]) -> list[int | str] | None:
    """The shape of the data with a constant; None where that is not the data's own."""
    if data is None or len(constant) > len(data):
        return None
    last = list(data)[len(data) - len(constant) :]
    return list(data) if all(size in (1, known) for size, known in zip(constant, last, strict=True)) else None


def _constants(step: Affine) -> tuple[Array | None, Array | None]:
    """Factor and offset; what does nothing is None, and the other has the shape of both: x may be broadcast."""
    if not step.shifts:
        return np.broadcast_to(step.scale, _shape(step)), None
    if np.all(step.scale == 1):
        return None, np.broadcast_to(step.offset, _shape(step))
    return step.scale, step.offset


def _rounded(values: Array, dtype: Any) -> Array:
    """``values`` in the type of the data.  Raises Refusal where one overflows or is denormal."""
    limits = np.finfo(dtype)
    sizes = np.abs(values[values != 0])
    if np.any(sizes > limits.max) or np.any(sizes < limits.smallest_normal):
        raise Refusal("its constants together overflow or are denormal")
    return values.astype(dtype)
