"""What is known of the elements of small integer tensors that a graph computes from the shapes of others."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import constant_value, shape_of, slices_of
from onnxfuse.model.graph_ir import Node, standard_op

Size = str | tuple[int, int]
"""A size that is not known: a symbol, or the id of a tensor and an axis of it."""


class Product(NamedTuple):
    """A size that is not known, ``number`` times: of heads of all texts, say."""

    number: int
    size: Size


Element = int | Size | Product | None
"""An element: its value, the size that it is, a multiple of one, or None for anything else."""

_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
_LONGEST = 64


def size_of(tensor: gs.Tensor, axis: int) -> Element:
    """The size of a tensor of known rank along ``axis``; equal results are equal sizes."""
    size = tensor.shape[axis]
    if isinstance(size, (int, np.integer)):
        return int(size)
    return str(size) if size else (id(tensor), axis)


def constant_target(data: gs.Tensor, elements: Sequence[Element], has_zeros: bool = True) -> list[int] | None:
    """The input of Reshape that means the same as ``elements`` for every shape of ``data``; None if there is none.

    ``has_zeros`` says whether sizes may be zero.
    """
    rank = 0 if data.shape is None else len(data.shape)
    target: list[int | None] = []
    for place, element in enumerate(elements):
        if isinstance(element, int):
            target.append(element)
        else:
            copied = element is not None and place < rank and size_of(data, place) == element
            target.append(0 if copied else None)
    # A size that is left follows from the others, unless one of them may be zero.
    if target.count(None) == 1 and all(size is None or size > 0 or (size == 0 and not has_zeros) for size in target):
        target = [-1 if size is None else size for size in target]
    return None if None in target else [size for size in target if size is not None]


class ShapeValues:
    """Follows shapes through ``nodes``, those of one graph in topological order, whose types have been inferred."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._elements: dict[int, list[Element]] = {}
        for node in nodes:
            follow = _FOLLOWED.get(standard_op(node))
            if follow is None or not node.inputs or not node.outputs or _is_of_floats(node.outputs[0]):
                continue
            elements = follow(self, node)
            if elements is not None and len(elements) <= _LONGEST and (len(elements) == 1 or _is_row(node.outputs[0])):
                self._elements[id(node.outputs[0])] = elements

    def of(self, tensor: gs.Tensor) -> list[Element] | None:
        """The elements of a vector, or the one of a scalar; None if not even their number is known."""
        if id(tensor) in self._elements:
            return self._elements[id(tensor)]
        if tensor.shape is not None and len(tensor.shape) > 1:
            return None
        if (values := _vector(tensor)) is not None:
            return list(values)
        shape = shape_of(tensor)
        return None if shape is None or math.prod(shape) > _LONGEST else [None] * math.prod(shape)

    def _row(self, tensor: gs.Tensor) -> list[Element] | None:
        """The elements of what is known to have no second dimension."""
        return self.of(tensor) if _is_row(tensor) else None

    def _shape(self, node: Node) -> list[Element] | None:
        data = node.inputs[0]
        if data.shape is None:
            return None
        sizes = [size_of(data, axis) for axis in range(len(data.shape))]
        return sizes[node.attrs.get("start", 0) : node.attrs.get("end", None)]

    def _cast(self, node: Node) -> list[Element] | None:
        elements = self.of(node.inputs[0]) if node.attrs.get("to") in _INTEGERS else None
        return None if elements is None else _within_int32(elements)

    def _same(self, node: Node) -> list[Element] | None:
        """One element stays that, whatever the rank."""
        elements = self.of(node.inputs[0])
        return elements if elements is not None and len(elements) == 1 else None

    def _reshaped(self, node: Node) -> list[Element] | None:
        """One element stays that, and a vector made one by -1."""
        elements = self.of(node.inputs[0])
        target = _vector(node.inputs[1]) if len(node.inputs) > 1 else node.attrs.get("shape")
        return elements if elements is not None and (len(elements) == 1 or target == [-1]) else None

    def _equal(self, node: Node) -> list[Element] | None:
        """1 where both are the same, 0 where they are not: no size is negative."""
        pairs = self._pairs(node.inputs)
        return None if pairs is None else [_is_equal(*pair) for pair in pairs]

    def _where(self, node: Node) -> list[Element] | None:
        chosen = self._pairs(node.inputs)
        return None if chosen is None else [yes if flag else None if flag is None else no for flag, yes, no in chosen]

    def _pairs(self, tensors: Sequence[gs.Tensor]) -> list[tuple[Element, ...]] | None:
        """What is at the same place of vectors of one length; None if that is not known of them."""
        operands = [self._row(tensor) for tensor in tensors]
        known = [elements for elements in operands if elements is not None]
        same = len(known) == len(operands) and len({len(elements) for elements in known}) == 1
        return list(zip(*known, strict=True)) if same else None

    def _concat(self, node: Node) -> list[Element] | None:
        parts = [self._row(tensor) for tensor in node.inputs]
        return None if None in parts else [element for part in parts if part is not None for element in part]

    def _gather(self, node: Node) -> list[Element] | None:
        elements, places = self._row(node.inputs[0]), _vector(node.inputs[1])
        if elements is None or places is None:
            return None
        inside = all(-len(elements) <= place < len(elements) for place in places)
        return [elements[place] for place in places] if inside else None

    def _arithmetic(self, node: Node) -> list[Element] | None:
        """A number made of two."""
        numbers: list[Element] = []
        for tensor in node.inputs:
            elements = self.of(tensor)
            if elements is None or len(elements) != 1:
                return None
            numbers += elements
        if len(numbers) != 2:
            return None
        first, second = numbers
        if node.op == "Mul" and isinstance(second, int):
            first, second = second, first
        if node.op == "Mul" and isinstance(first, int) and first > 0 and second is not None:
            return _within_int32([_times(first, second)])
        if not isinstance(first, int) or not isinstance(second, int):
            return None
        if node.op == "Div" and (first < 0 or second <= 0):  # it rounds toward zero
            return None
        return _within_int32([_OPERATIONS[node.op](first, second)])

    def _product(self, node: Node) -> list[Element] | None:
        """All numbers of a vector multiplied, whatever the axes are called: it has but one."""
        elements = self._row(node.inputs[0])
        if not elements or node.attrs.get("noop_with_empty_axes", 0):
            return None
        number = math.prod(element for element in elements if isinstance(element, int))
        sizes = [element for element in elements if element is not None and not isinstance(element, int)]
        if number <= 0 or len(sizes) > 1 or None in elements:
            return None
        return _within_int32([_times(number, element) for element in sizes] or [number])

    def _largest(self, node: Node) -> list[Element] | None:
        """Of numbers, or of what is the same."""
        operands = self._pairs(node.inputs)
        return None if operands is None else [_largest_of(elements) for elements in operands]

    def _slice(self, node: Node) -> list[Element] | None:
        elements, slices = self._row(node.inputs[0]), slices_of(node) or ()
        if elements is None or len(slices) != 1:
            return None
        return [elements[place] for place in slices[0].places(len(elements))]


def _is_of_floats(tensor: gs.Tensor) -> bool:
    """Whether a tensor is known to have no integers, as nearly all of a model that are not computed from shapes."""
    return isinstance(tensor.dtype, np.dtype) and tensor.dtype.kind == "f"


def _is_row(tensor: gs.Tensor) -> bool:
    return tensor.shape is not None and len(tensor.shape) < 2


def _times(number: int, element: int | Size | Product) -> Element:
    if isinstance(element, int):
        return number * element
    if isinstance(element, Product):
        return Product(number * element.number, element.size)
    return element if number == 1 else Product(number, element)


def _is_equal(first: Element, second: Element) -> Element:
    numbers = [element for element in (first, second) if isinstance(element, int)]
    if len(numbers) == 2:
        return int(numbers[0] == numbers[1])
    if first is None or second is None:
        return None
    if not numbers:
        return 1 if first == second else None
    return 0 if numbers[0] < 0 else None


def _largest_of(elements: Sequence[Element]) -> Element:
    if all(element == elements[0] for element in elements):
        return elements[0]
    numbers = [element for element in elements if isinstance(element, int)]
    return max(numbers) if len(numbers) == len(elements) else None


def _within_int32(elements: list[Element]) -> list[Element] | None:
    """The elements, unless one is a number that an integer type may not hold."""
    return None if any(isinstance(element, int) and abs(element) >= 1 << 31 for element in elements) else elements


def _vector(tensor: gs.Tensor) -> list[int] | None:
    """The values of a constant vector or scalar of integers."""
    if tensor.shape is not None and len(tensor.shape) > 1:
        return None
    values = constant_value(tensor)
    if values is None or values.ndim > 1 or values.size > _LONGEST or values.dtype not in (np.int32, np.int64):
        return None
    return [int(value) for value in values.reshape(-1)]


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.floordiv,
}
_FOLLOWED: dict[str, Callable[[ShapeValues, Node], list[Element] | None]] = {
    "Shape": ShapeValues._shape,
    "Cast": ShapeValues._cast,
    "Squeeze": ShapeValues._same,
    "Unsqueeze": ShapeValues._same,
    "Reshape": ShapeValues._reshaped,
    "Identity": ShapeValues._same,
    "Concat": ShapeValues._concat,
    "Gather": ShapeValues._gather,
    "Slice": ShapeValues._slice,
    "ReduceProd": ShapeValues._product,
    "Max": ShapeValues._largest,
    "Equal": ShapeValues._equal,
    "Where": ShapeValues._where,
    **dict.fromkeys(_OPERATIONS, ShapeValues._arithmetic),
}
