"""What the values of a model's inputs are for, as the nodes tell that read them: shapes, indices, axes, lengths.

``onnxfuse.check.readers`` says for an operator and the place of an input which values make sense there.  What lies
between an input of the model and such a reader, a Cast, a Concat or some arithmetic, is gone back through (``_BACK``).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxfuse.check.readers import READERS
from onnxfuse.check.tensor_facts import SMALL, Facts, Graph, bodies, is_standard, key_of
from onnxfuse.check.wants import FEW, Reader, Want, between

_MOST_NODES = 2000
"""Nodes that are visited to find what an input is for."""

_MOST_WAYS = 8
"""On which one comes to a tensor: by each body of an If, say."""

_DEEPEST = 48


# --- back through what lies between ---

Back = Callable[[Reader, str, Want], Want | None]
"""What is wanted of an input of a node, by what is wanted of one of its results, given by its name."""


def _unchanged(_call: Reader, _output: str, want: Want) -> Want | None:
    return want


def _reduced(_call: Reader, _output: str, want: Want) -> Want | None:
    return between(float(want.low.max(initial=-math.inf)), float(want.high.min(initial=math.inf)))


def _moved(call: Reader, output: str, want: Want) -> Want | None:
    """Through a node that only puts elements elsewhere, which is run on their places to learn where each comes from."""
    places = _places(call, output)
    if places is None:
        return Want(want.low.reshape(()), want.high.reshape(())) if want.is_uniform() and want.is_range() else None
    try:
        low_there, high_there = (np.broadcast_to(bound, places.shape) for bound in (want.low, want.high))
    except ValueError:
        return None
    shape = call.whole(call.place) or ()
    low, high = np.full(math.prod(shape), -math.inf), np.full(math.prod(shape), math.inf)
    chosen = places >= 0
    np.maximum.at(low, places[chosen], low_there[chosen])
    np.minimum.at(high, places[chosen], high_there[chosen])
    return Want(low.reshape(shape), high.reshape(shape), want.distinct)


def _places(call: Reader, output: str) -> np.ndarray | None:
    """For each element of a result which element of the input it is, counted through; -1 for none of them."""
    shape = call.whole(call.place)
    if shape is None or math.prod(shape) > SMALL:
        return None
    values: dict[str, np.ndarray | None] = {}
    for place, name in enumerate(call.node.input):
        others = call.whole(place) if call.node.op_type == "Concat" else None
        values[name] = call.value(place) if others is None else np.full(others, -1, np.int64)
    values[call.node.input[call.place]] = np.arange(math.prod(shape)).reshape(shape)
    results = call.facts.evaluate(call.node, values)
    return None if results is None else results[list(call.node.output).index(output)]


def _through(step: Callable[[Reader, np.ndarray, Want], Want | None]) -> Back:
    """Through arithmetic with a second operand, whose value is given."""

    def back(call: Reader, _output: str, want: Want) -> Want | None:
        other = call.value(1 - call.place)
        if other is None or other.dtype.kind not in "iufb":
            return None
        with np.errstate(all="ignore"):
            found = step(call, other.astype(np.float64), want)
        return None if found is None else _fitted(call, found)

    return back


def _fitted(call: Reader, want: Want) -> Want | None:
    """What is wanted of an operand that is broadcast: of an element, what all want that it becomes."""
    shape = call.whole(call.place)
    if shape is None:
        return want if want.is_uniform() else None
    low, high = np.broadcast_arrays(want.low, want.high)
    if np.broadcast_shapes(low.shape, shape) == shape:
        return want
    more = low.ndim - len(shape)
    aligned = low.shape[more:]
    axes = (*range(more), *(more + axis for axis, size in enumerate(shape) if size == 1 != aligned[axis]))
    low, high = low.max(axis=axes, keepdims=True), high.min(axis=axes, keepdims=True)
    return Want(low.reshape(low.shape[more:]), high.reshape(high.shape[more:]))


def _added(_call: Reader, other: np.ndarray, want: Want) -> Want | None:
    return Want(want.low - other, want.high - other, want.distinct)


def _subtracted(call: Reader, other: np.ndarray, want: Want) -> Want | None:
    if call.place == 0:
        return Want(want.low + other, want.high + other, want.distinct)
    return Want(other - want.high, other - want.low, want.distinct)


def _multiplied(_call: Reader, other: np.ndarray, want: Want) -> Want | None:
    one, two = want.low / other, want.high / other
    low, high = np.minimum(one, two), np.maximum(one, two)
    return Want(np.where(other == 0, -math.inf, low), np.where(other == 0, math.inf, high))


def _divided(call: Reader, other: np.ndarray, want: Want) -> Want | None:
    if call.place != 0 or np.any(other <= 0):
        return None
    rest = other - 1 if call.facts.is_integer(call.node.output[0]) else 0.0
    return Want(want.low * other, want.high * other + rest)


def _negated(_call: Reader, _output: str, want: Want) -> Want | None:
    return Want(-want.high, -want.low, want.distinct)


def _inverted(_call: Reader, _output: str, want: Want) -> Want | None:
    return Want(1 - want.high, 1 - want.low)


def _compared(equal: bool, less: bool) -> Back:
    """Through a comparison: ``less`` than the other operand is true, or more, if it is not ``equal`` alone."""

    def step(call: Reader, other: np.ndarray, want: Want) -> Want | None:
        true, false = want.low > 0, want.high < 1
        if not (true.all() or false.all()):
            return None
        at_most = (less == bool(true.all())) == (call.place == 0)
        inclusive = equal == bool(true.all())
        gap = 0.0 if inclusive else (1.0 if call.facts.is_integer(call.node.input[call.place]) else 1e-3)
        ends = np.full_like(other, math.inf)
        return Want(-ends, other - gap) if at_most else Want(other + gap, ends)

    return _through(step)


def _equal(_call: Reader, other: np.ndarray, want: Want) -> Want | None:
    if (want.low > 0).all():
        return Want(other, other)
    return Want(other + 1, other + 1) if (want.high < 1).all() else None


_BACK: dict[str, tuple[tuple[int, ...], Back]] = {
    **dict.fromkeys(
        ("Abs", "Cast", "CastLike", "Ceil", "Clip", "Floor", "Identity", "Relu", "Round"), ((0,), _unchanged)
    ),
    **dict.fromkeys(("Max", "Min", "And", "Or"), ((0, 1), _unchanged)),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), ((0,), _reduced)),
    **dict.fromkeys(
        ("Expand", "Flatten", "Gather", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
        ((0,), _moved),
    ),
    "Concat": (tuple(range(FEW)), _moved),
    "Add": ((0, 1), _through(_added)),
    "Sub": ((0, 1), _through(_subtracted)),
    "Mul": ((0, 1), _through(_multiplied)),
    "Div": ((0,), _through(_divided)),
    "Neg": ((0,), _negated),
    "Not": ((0,), _inverted),
    "Where": ((1, 2), _unchanged),
    "Equal": ((0, 1), _through(_equal)),
    "Less": ((0, 1), _compared(equal=False, less=True)),
    "LessOrEqual": ((0, 1), _compared(equal=True, less=True)),
    "Greater": ((0, 1), _compared(equal=False, less=False)),
    "GreaterOrEqual": ((0, 1), _compared(equal=True, less=False)),
}
"""By operator the places of the inputs that are followed, and how one goes back to them."""


# --- the search ---


@dataclass(frozen=True)
class Use:
    """A reader of what an input becomes: its place in the file, and that of its rule; and the nodes between, each with
    the place that is read and the result that goes on, the one next to the input first."""

    node: NodeProto
    place: int
    order: tuple[int, int]
    between: tuple[tuple[NodeProto, int, str], ...]


def uses(graph: Graph, name: str) -> list[Use]:
    """What a tensor is for, in the order of the file."""
    found: list[Use] = []
    pending: list[tuple[str, tuple[tuple[NodeProto, int, str], ...]]] = [(name, ())]
    seen = Counter([name])
    visited = 0
    while pending:
        tensor, path = pending.pop()
        for node, place in graph.readers[tensor]:
            visited += 1
            if visited > _MOST_NODES:
                break
            rules = READERS.get(key_of(node), {})
            if place in rules:
                order = (graph.order[id(node)], list(rules).index(place))
                found.append(Use(node, place, order, path))
            for next_name, through in _followed(graph, node, place):
                if seen[next_name] < _MOST_WAYS and len(path) < _DEEPEST:
                    seen[next_name] += 1
                    pending.append((next_name, (*path, (node, place, through))))
    return sorted(found, key=lambda use: use.order)


def _followed(graph: Graph, node: NodeProto, place: int) -> Iterator[tuple[str, str]]:
    """The tensors to go on to from an input of a node, and the results that they are; "" for what a Loop's body takes.

    The result of a body of an If is one of the If too.
    """
    if is_standard(node) and node.op_type == "Loop" and place >= 2:
        for body in bodies(node):
            if place < len(body.input):
                yield body.input[place].name, ""
    if is_standard(node) and place in _BACK.get(node.op_type, ((), _unchanged))[0]:
        for name in filter(None, node.output):
            yield name, name
            if name in graph.passed_on:
                yield graph.passed_on[name][1], name


def wanted(graph: Graph, facts: Facts, name: str, branch: bool, found: Iterable[Use] | None = None) -> Want | None:
    """What is wanted of the values of a tensor; None if nothing is known of it.

    Where readers want what no value is, the first ones count.
    """
    total: Want | None = None
    for use in uses(graph, name) if found is None else found:
        want = _wanted_by(graph, facts, use, branch)
        if want is not None:
            total = want if total is None else total.within(want) or total
    return total


def _wanted_by(graph: Graph, facts: Facts, use: Use, branch: bool) -> Want | None:
    def of(name: str) -> Want | None:
        return wanted(graph, facts, name, branch)

    nodes = (use.node, *(node for node, _, _ in use.between))
    try:
        if not all(map(facts.may_run, nodes)):
            return None
        reader = Reader(use.node, use.place, facts, of, branch, direct=not use.between)
        want = READERS[key_of(use.node)][use.place](reader)
        for node, place, output in reversed(use.between):
            if want is not None and output:
                want = _BACK[node.op_type][1](Reader(node, place, facts, of, branch), output, want)
    except (ArithmeticError, LookupError, TypeError, ValueError):  # a node that is wrong; ONNX Runtime will say how
        return None
    return want
