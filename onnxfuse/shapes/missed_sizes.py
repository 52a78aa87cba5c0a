"""Sizes that follow from a model and that onnx's shape inference does not find: it makes a symbol up for each.

Range(0, n, 1) has n elements, where n is a size of another tensor; Tile leaves the sizes that it repeats once, and
Slice those of other axes; what -1 stands for in a Reshape is what the other sizes leave; and what is broadcast,
multiplied or put together has the sizes of its operands, which may only now be known to be equal.  Without these
nothing would be known of the sizes behind rotary embeddings, masks, and heads that serve several queries.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import onnx_graphsurgeon as gs
from onnx import TensorProto

from onnxfuse.model.constants import constant_value, single_number
from onnxfuse.model.elementwise_operators import BROADCASTING
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.model.graph_order import sorted_nodes
from onnxfuse.model.symbols import is_made_up
from onnxfuse.shapes.shape_values import Element, Product, ShapeValues

Size = int | str | None
Shape = Sequence[Size]
_Known = TypeVar("_Known", bound=Hashable)

# Those of floats hold sizes up to 2**24 exactly.  Beyond, a Range counts others than its limit's, and ONNX Runtime
# refuses to add them to what has that size.
_NUMBERS = (TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT, TensorProto.DOUBLE)

_ROUNDS = 4


class MissedSizes:
    """Gives the tensors of a model's graphs, outer ones first, the sizes that inference made symbols up for."""

    def __init__(self) -> None:
        self._known: dict[str, Size] = {}

    def name(self, graph: gs.Graph) -> None:
        """Names those of one graph, whose types have been inferred."""
        if not _behind_missed(graph.nodes):
            return
        nodes = sorted_nodes(graph)
        missed = _behind_missed(nodes)
        for _ in range(_ROUNDS):  # what is computed of the sizes of a round gives others in the next
            known = len(self._known)
            self._values = ShapeValues(nodes)
            self._name(missed)
            missed = _behind_missed(missed)
            if len(self._known) == known or not missed:
                break

    def _name(self, missed: Sequence[Node]) -> None:
        for node in missed:
            for tensor in node.outputs:
                if _is_missed(tensor):
                    tensor.shape = [self._resolved(size) for size in tensor.shape]
            find = _FOUND.get(standard_op(node))
            if find is not None and _is_missed(made := node.outputs[0]):
                self._learn(made, find(self, node))

    def _learn(self, made: gs.Tensor, found: Shape | None) -> None:
        if found is None or len(found) != len(made.shape):
            return
        for size, own in zip(made.shape, map(self._resolved, found), strict=True):
            if is_made_up(size) and own is not None and own != size:
                self._known[size] = own
        made.shape = [self._resolved(size) for size in made.shape]

    def _resolved(self, size: Size) -> Size:
        while isinstance(size, str) and size in self._known:
            size = self._known[size]
        return size

    def _shape(self, tensor: gs.Tensor) -> list[Size] | None:
        return None if tensor.shape is None else [self._resolved(size) for size in tensor.shape]

    def _elements(self, tensor: gs.Tensor) -> list[Size] | None:
        elements = self._values.of(tensor)
        return None if elements is None else [self._resolved(_size(element)) for element in elements]

    def _one(self, tensor: gs.Tensor) -> Size:
        elements = self._elements(_uncast(tensor))
        return elements[0] if elements is not None and len(elements) == 1 else None

    def _ranged(self, node: Node) -> Shape | None:
        """One after the other from 0, or from a number that is added to how many there are."""
        start, limit, step = node.inputs
        if not _is_number(step, 1):
            return None
        if _is_number(start, 0):
            return [self._one(limit)]
        total = _uncast(limit).inputs
        if not total or standard_op(total[0]) != "Add":
            return None
        first, terms = self._one(start), [self._one(tensor) for tensor in total[0].inputs]
        if first is None or first not in terms:
            return None
        terms.remove(first)
        return terms

    def _tiled(self, node: Node) -> Shape | None:
        shape, repeats = self._shape(node.inputs[0]), constant_value(node.inputs[1]) if len(node.inputs) == 2 else None
        if shape is None or repeats is None or repeats.shape != (len(shape),):
            return None
        return [size if count == 1 else None for size, count in zip(shape, repeats.tolist(), strict=True)]

    def _reshaped(self, node: Node) -> Shape | None:
        """Sizes that are copied, and the one that is left for -1."""
        source, target = self._shape(node.inputs[0]), self._values.of(node.inputs[1]) if len(node.inputs) == 2 else None
        if source is None or target is None:
            return None
        copies = not node.attrs.get("allowzero", 0)
        copied = [
            source[place] if size == 0 and copies and place < len(source) else size for place, size in enumerate(target)
        ]
        rest = None
        if copied.count(-1) == 1:
            rest = _quotient(source, [self._resolved(one) for size in copied if size != -1 for one in _factors(size)])
        return [rest if size == -1 else self._resolved(_size(size)) for size in copied]

    def _sliced(self, node: Node) -> Shape | None:
        """All but those along its axes."""
        shape = self._shape(node.inputs[0])
        axes = constant_value(node.inputs[3]) if len(node.inputs) > 3 else None
        if not shape or axes is None:
            return None
        taken = {axis % len(shape) for axis in axes.reshape(-1).tolist()}
        return [None if place in taken else size for place, size in enumerate(shape)]

    def _expanded(self, node: Node) -> Shape | None:
        sizes = self._elements(node.inputs[1])
        if sizes is None or any(isinstance(size, int) and size < 0 for size in sizes):
            return None
        return _broadcast([self._shape(node.inputs[0]), sizes])

    def _combined(self, node: Node) -> Shape | None:
        return _broadcast([self._shape(tensor) for tensor in node.inputs])

    def _multiplied(self, node: Node) -> Shape | None:
        first, second = map(self._shape, node.inputs)
        if first is None or second is None or min(len(first), len(second)) < 2:
            return None
        batch = _broadcast([first[:-2], second[:-2]])
        return None if batch is None else [*batch, first[-2], second[-1]]

    def _joined(self, node: Node) -> Shape | None:
        shapes = [self._shape(tensor) for tensor in node.inputs]
        known = [shape for shape in shapes if shape is not None]
        if not known or not known[0] or len({len(shape) for shape in known}) > 1:
            return None
        axis = node.attrs.get("axis", 0) % len(known[0])
        sizes = [{size for size in each if _is_known(size)} for each in zip(*known, strict=True)]
        return [None if place == axis or len(each) != 1 else next(iter(each)) for place, each in enumerate(sizes)]


def _behind_missed(nodes: Iterable[Node]) -> list[Node]:
    """Those of some nodes that make what inference made a symbol up for a size of."""
    return [node for node in nodes if any(map(_is_missed, node.outputs))]


def _is_missed(tensor: gs.Tensor) -> bool:
    return tensor.shape is not None and any(map(is_made_up, tensor.shape))


def _broadcast(shapes: Iterable[Shape | None]) -> Shape | None:
    known = []
    for shape in shapes:
        if shape is None:
            return None
        known.append(shape)
    return broadcast(known)


def broadcast(shapes: Sequence[Sequence[_Known]]) -> list[_Known | int | None]:
    """What shapes are broadcast to, with None for a size that is not known; equal sizes are equal objects."""
    rank = max(map(len, shapes), default=0)
    found: list[_Known | int | None] = []
    for axis in range(-rank, 0):
        sizes: set[_Known | int] = {shape[axis] for shape in shapes if -axis <= len(shape)}
        found.append(_common(sizes - {1}))
    return found


def _common(sizes: set[_Known | int]) -> _Known | int | None:
    """What sizes are broadcast to of which none is known to be 1."""
    if len(sizes) < 2:
        return next(iter(sizes), 1)
    numbers = [size for size in sizes if isinstance(size, int)]
    return numbers[0] if len(numbers) == 1 else None  # the others are that number or 1


def _quotient(sizes: Shape, divisors: Shape) -> Size:
    """The product of some sizes over that of others, if it is a size; None if it is not known."""
    left = [size for size in sizes if not isinstance(size, int)]
    for size in divisors:
        if isinstance(size, str) and size in left:
            left.remove(size)
        elif not isinstance(size, int):
            return None
    number, divisor = (math.prod(size for size in some if isinstance(size, int)) for some in (sizes, divisors))
    if divisor < 1 or number < 1 or number % divisor:
        return None
    if not left:
        return number // divisor
    return left[0] if len(left) == 1 and number == divisor else None


def _is_known(size: Size) -> bool:
    return size is not None and not is_made_up(size)


def _is_number(tensor: gs.Tensor, number: int) -> bool:
    return bool(single_number(tensor) == number)


def _size(element: Element) -> Size:
    return element if isinstance(element, (int, str)) else None


def _factors(element: Element) -> list[Size]:
    """Sizes whose product an element is."""
    return [element.number, _size(element.size)] if isinstance(element, Product) else [_size(element)]


def _uncast(tensor: gs.Tensor) -> gs.Tensor:
    """What a tensor was before conversions between types of numbers."""
    while tensor.inputs and standard_op(tensor.inputs[0]) == "Cast" and tensor.inputs[0].attrs.get("to") in _NUMBERS:
        tensor = tensor.inputs[0].inputs[0]
    return tensor


_FOUND: dict[str, Callable[[MissedSizes, Node], Shape | None]] = {
    "Concat": MissedSizes._joined,
    "Expand": MissedSizes._expanded,
    "MatMul": MissedSizes._multiplied,
    "Range": MissedSizes._ranged,
    "Reshape": MissedSizes._reshaped,
    "Slice": MissedSizes._sliced,
    "Tile": MissedSizes._tiled,
    **dict.fromkeys(BROADCASTING, MissedSizes._combined),
}
