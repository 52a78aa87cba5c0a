"""Tensors that are made alike of parts of one tensor, as parts of one tensor themselves.

The queries and the keys of an attention are made of one tensor by two products, whose results go through the same
nodes: they are split into heads, perhaps normalized, and rotated by the same angles.  Of one product's result, all of
that is computed once for all heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.attention.attention_parts import part_of
from onnxfuse.fused.made import Made, Value
from onnxfuse.model.constants import constant_value, dtype_of, integers_of, is_constant
from onnxfuse.model.elementwise_operators import HAVE_AXIS
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import Node, producer_of, standard_op
from onnxfuse.program.lowering import is_elementwise

_REDUCTIONS = {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL2"}
_SPLIT_AXES = 3, 4
"""Dimensions of a tensor before and behind a Reshape that splits its last one into heads."""
_PACKED = 5
"""Dimensions of one that has queries, keys and values."""


@dataclass(frozen=True)
class Span:
    """Columns of a tensor."""

    tensor: gs.Tensor
    start: int
    end: int


@dataclass
class Joiner:
    """Says of what one tensor several are parts, if each is made alike of a part of one tensor.

    ``spans`` are columns of a tensor, by the ids of others that will be these.  ``nodes`` are those, by id, in whose
    place what was found is to be computed.
    """

    model: Model
    spans: Mapping[int, Span]
    nodes: dict[int, Node] = field(default_factory=dict)
    _joined: dict[tuple[int, ...], Value | None] = field(default_factory=dict)

    def join(self, tensors: Sequence[gs.Tensor], axis: int, sizes: Sequence[int]) -> Value | None:
        """What holds all of the ``tensors``, one behind the other along ``axis``, which is negative, or is the same for
        all; None if they are not made alike.

        ``sizes`` are those that parts have along the axis; tensors that are the same along it have one element there,
        or no such axis.
        """
        key = (axis, *map(id, tensors))
        if key not in self._joined:
            self._joined[key] = self._join(tensors, axis, sizes)
        return self._joined[key]

    def _join(self, tensors: Sequence[gs.Tensor], axis: int, sizes: Sequence[int]) -> Value | None:
        first = tensors[0]
        if all(tensor is first for tensor in tensors):
            return first if first.shape is not None and _size(first, axis) == 1 else None
        if all(id(tensor) in self.spans for tensor in tensors):
            return self._columns([self.spans[id(tensor)] for tensor in tensors]) if axis == -1 else None
        if all(map(is_constant, tensors)):
            return self._constant(tensors, axis, sizes)
        if (found := self._parts_of_one(tensors, axis)) is not None:
            return found
        nodes = [producer_of(tensor) for tensor in tensors]
        if any(node is None for node in nodes) or [_size(tensor, axis) for tensor in tensors] != list(sizes):
            return None
        found = self._computed([node for node in nodes if node is not None], tensors, axis, sizes)
        if found is not None:
            self.nodes.update((id(node), node) for node in nodes if node is not None)
        return found

    def _computed(
        self, nodes: Sequence[Node], tensors: Sequence[gs.Tensor], axis: int, sizes: Sequence[int]
    ) -> Made | None:
        first = nodes[0]
        op = standard_op(first)
        if op is None or any(standard_op(node) != op or len(node.inputs) != len(first.inputs) for node in nodes):
            return None
        if op == "Reshape":
            return self._heads(nodes, axis, sizes) or self._reshaped(nodes, axis, sizes)
        if op in ("Slice", "Split"):
            return self._part(tensors, axis, sizes)
        if any(node.attrs != first.attrs or len(node.outputs) != 1 for node in nodes):
            return None
        rank = len(tensors[0].shape)
        if op in _REDUCTIONS:
            axes = integers_of(first, "axes", 1)
            if first.attrs.get("keepdims", 1) != 1 or axes is None or axis % rank in [one % rank for one in axes]:
                return None
            if any(integers_of(node, "axes", 1) != axes for node in nodes):
                return None
            operands = [self.join([node.inputs[0] for node in nodes], axis, sizes), *first.inputs[1:]]
        elif op == "Gather":
            return self._gathered(nodes, axis, sizes)
        elif op == "Concat" and first.attrs["axis"] % rank == axis % rank:
            return None
        elif op == "Concat" or (is_elementwise(first) and op not in HAVE_AXIS and _keeps_type(nodes)):
            columns = zip(*(node.inputs for node in nodes), strict=True)
            operands = [
                self.join(operand, axis, sizes) if any(t.name for t in operand) else operand[0] for operand in columns
            ]
        else:
            return None
        known = [operand for operand in operands if operand is not None]
        return (
            Made(op, tuple(known), _with(tensors[0], axis, sum(sizes)), first.attrs)
            if len(known) == len(operands)
            else None
        )

    def _gathered(self, nodes: Sequence[Node], axis: int, sizes: Sequence[int]) -> Made | None:
        """The same constant indices of another axis, as where halves change places."""
        first = nodes[0]
        values = [constant_value(node.inputs[1]) for node in nodes]
        rank = len(first.outputs[0].shape)
        if values[0] is None or values[0].ndim != 1 or first.attrs.get("axis", 0) % rank == axis % rank:
            return None
        if any(own is None or not np.array_equal(own, values[0]) for own in values):
            return None
        joined = self.join([node.inputs[0] for node in nodes], axis, sizes)
        if joined is None:
            return None
        return Made("Gather", (joined, first.inputs[1]), _with(first.outputs[0], axis, sum(sizes)), first.attrs)

    def _columns(self, spans: Sequence[Span]) -> Value | None:
        """Columns of the whole that are one behind the other."""
        if any(one.end != other.start for one, other in pairwise(spans)):
            return None
        return self._sliced(spans[0].tensor, -1, spans[0].start, spans[-1].end)

    def _parts_of_one(self, tensors: Sequence[gs.Tensor], axis: int) -> Value | None:
        """What holds parts that are taken of one tensor, one behind the other."""
        parts = [part for tensor in tensors if (part := part_of(tensor)) is not None]
        if len(parts) < len(tensors) or any(part.tensor is not parts[0].tensor for part in parts):
            return None
        if any(one.first + one.size != other.first for one, other in pairwise(parts)):
            return None
        first, rank = parts[0], len(parts[0].tensor.shape)
        if any((part.axis, part.squeezed) != (first.axis, first.squeezed) for part in parts):
            return None
        start, end = first.first, parts[-1].first + parts[-1].size
        if not first.squeezed:
            return self._sliced(first.tensor, axis, start, end) if first.axis == axis + rank else None
        # (batch, length, parts, heads, size), of which each part is (batch, length, heads, size)
        if rank != _PACKED or axis != -2 or first.axis != rank + axis - 1:
            return None
        batch, length, count, heads, size = first.tensor.shape
        if not all(isinstance(number, int) for number in (count, heads, size)):
            return None
        target = self.model.constant(np.array([0, 0, count * heads, size], np.int64), "heads")
        merged = Made("Reshape", (first.tensor, target), (batch, length, count * heads, size))
        return self._sliced(merged, -2, start * heads, end * heads)

    def _heads(self, nodes: Sequence[Node], axis: int, sizes: Sequence[int]) -> Made | None:
        """(batch, length, heads · size) → (batch, length, heads, size): of the whole, and the heads of that."""
        shapes = [(node.inputs[0].shape, node.outputs[0].shape) for node in nodes]
        if (
            any(None in pair or tuple(map(len, pair)) != _SPLIT_AXES or None in pair[0] for pair in shapes)
            or axis != -2
        ):
            return None
        if any(
            made[:2] != read[:2] or made[3] != shapes[0][1][3] or made[3] * made[2] != read[2] for read, made in shapes
        ):
            return None
        size = shapes[0][1][3]
        read = [node.inputs[0] for node in nodes]
        joined = self.join(read, -1, [count * size for count in sizes])
        if joined is None:
            return None
        # All columns are split into heads, and some of these taken: fused nodes read a part of a tensor, but not in
        # another shape.
        joined, start = _before_slice(joined)
        columns = joined.shape[-1]
        if columns % size or start % size:
            return None
        target = self.model.constant(np.array([0, 0, columns // size, size], np.int64), "heads")
        split = Made("Reshape", (joined, target), (*joined.shape[:2], columns // size, size))
        return self._sliced(split, -2, start // size, start // size + sum(sizes))

    def _reshaped(self, nodes: Sequence[Node], axis: int, sizes: Sequence[int]) -> Made | None:
        """Other dimensions behind the axis, as where rotary embeddings have pairs of elements."""
        read, made = nodes[0].inputs[0].shape, nodes[0].outputs[0].shape
        if read is None or made is None:
            return None
        place = len(made) + axis
        behind = made[place + 1 :]
        if not place < len(read) - 1 or not all(isinstance(size, int) for size in behind):
            return None
        for node, size in zip(nodes, sizes, strict=True):
            before, after = node.inputs[0].shape, node.outputs[0].shape
            if before is None or after is None or None in before[:place] or before[place] != size:
                return None
            if (
                before[:place] != after[:place]
                or after[place + 1 :] != behind
                or before[place + 1 :] != read[place + 1 :]
            ):
                return None
        joined = self.join([node.inputs[0] for node in nodes], place - len(read), sizes)
        if joined is None:
            return None
        target = self.model.constant(np.array([0] * (place + 1) + list(behind), np.int64), "shape")
        return Made("Reshape", (joined, target), (*made[:place], sum(sizes), *behind))

    def _part(self, tensors: Sequence[gs.Tensor], axis: int, sizes: Sequence[int]) -> Made | None:
        """A part along another axis."""
        parts = [part_of(tensor) for tensor in tensors]
        first, rank = parts[0], len(tensors[0].shape)
        if first is None or first.axis == axis % rank:
            return None
        if any(
            part is None or (part.axis, part.first, part.size) != (first.axis, first.first, first.size)
            for part in parts
        ):
            return None
        joined = self.join([part.tensor for part in parts if part is not None], axis, sizes)
        made = (
            None if joined is None else self._sliced(joined, first.axis - rank, first.first, first.first + first.size)
        )
        return made if isinstance(made, Made) else None

    def _sliced(self, value: Value, axis: int, start: int, end: int) -> Value:
        """Some indices of an axis, of a size that is known; the value itself if these are all."""
        if (start, end) == (0, value.shape[axis]):
            return value
        rank = len(value.shape)
        numbers = [self.model.constant(np.array([number], np.int64), "bound") for number in (start, end, axis % rank)]
        shape = list(value.shape)
        shape[axis] = end - start
        return Made("Slice", (value, *numbers), tuple(shape))

    def _constant(self, tensors: Sequence[gs.Tensor], axis: int, sizes: Sequence[int]) -> Value | None:
        values = [np.asarray(constant_value(tensor)) for tensor in tensors]
        first = values[0]
        alike = all(value.shape == first.shape and np.array_equal(value, first) for value in values)
        if alike and _size(tensors[0], axis) == 1:
            return tensors[0]
        rank = max(-axis, *(value.ndim for value in values))
        spread = []
        for value, size in zip(values, sizes, strict=True):
            shape = [1] * (rank - value.ndim) + list(value.shape)
            if shape[axis] not in (1, size):
                return None
            shape[axis] = size
            spread.append(np.broadcast_to(value, shape))
        if any(np.delete(one.shape, axis).tolist() != np.delete(spread[0].shape, axis).tolist() for one in spread):
            return None
        return self.model.constant(np.concatenate(spread, axis=axis), "joined")


def _before_slice(value: Value) -> tuple[Value, int]:
    """What columns are taken of, and the first of them; the value itself where it is none of ``Joiner._sliced``."""
    if not isinstance(value, Made) or value.op != "Slice":
        return value, 0
    source, start, _, axis = value.operands
    first, place = (int(np.asarray(constant_value(operand)).item()) for operand in (start, axis))
    return (source, first) if place == len(value.shape) - 1 else (value, 0)


def _size(tensor: gs.Tensor, axis: int) -> object:
    """A dimension, counted from the back; 1 where there is none."""
    return None if tensor.shape is None else tensor.shape[axis] if -axis <= len(tensor.shape) else 1


def _with(tensor: gs.Tensor, axis: int, size: int) -> tuple[object, ...]:
    shape = list(tensor.shape)
    shape[axis] = size
    return tuple(shape)


def _keeps_type(nodes: Sequence[Node]) -> bool:
    """Whether all that nodes read and make is of one type."""
    tensors = [tensor for node in nodes for tensor in (*node.inputs, *node.outputs) if tensor.name]
    return len({dtype_of(tensor) for tensor in tensors}) == 1
