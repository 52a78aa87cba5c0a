"""What a model's nodes tell of the sizes of its dynamic dimensions: which ones they need, and which they compare with.

A size has the name of the symbol that it is, or that of its input and axis, as ``x[2]``, where it has none.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto

from onnxfuse.check.input_shapes import size_name
from onnxfuse.check.tensor_facts import Facts, Graph, attributes, is_standard, key_of
from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.graph import Model
from onnxfuse.run.inputs import InputSpec
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.windows import extent

_LARGEST = 1 << 20
"""Constants beyond are no sizes: they stand for infinity, or hide what a mask hides."""

_USUAL = 16
"""Of windows of convolutions and pools; sizes that are made up are no smaller."""

_ROUNDS = 2
_WINDOW = re.compile("window", re.IGNORECASE)

_POSITION = re.compile("position", re.IGNORECASE)

Dim = int | str | None


def sizes_of(specs: list[InputSpec], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The dynamic sizes by name, where the inputs have these shapes; those of an input of unknown rank by its axes."""
    found: dict[str, int] = {}
    for spec in specs:
        for axis, size in enumerate(shapes.get(spec.name, ())):
            name = f"{spec.name}[{axis}]" if spec.shape is None else size_name(spec, axis)
            if name is not None:
                found.setdefault(name, size)
    return found


def _is_integer(spec: InputSpec) -> bool:
    return spec.kind == "tensor" and spec.dtype.kind in "iu"


@dataclass(frozen=True)
class Limit:
    """A constant that one of the ``sizes`` is compared with; ``is_table`` if no size may be beyond, for it is that of a
    table that has a row for each."""

    sizes: frozenset[str]
    value: int
    is_table: bool = False


class DynamicSizes:
    """The dynamic sizes of a model's inputs, followed through its graph."""

    def __init__(self, graph: Graph, specs: list[InputSpec]) -> None:
        self._graph = graph
        self._specs = [spec for spec in specs if spec.kind == "tensor" and spec.shape is not None]
        self.names = {
            name for spec in self._specs for axis in range(len(spec.shape or ())) if (name := size_name(spec, axis))
        }
        self.positions = {
            spec.name: f"values of {spec.name}" for spec in specs if _POSITION.search(spec.name) and _is_integer(spec)
        }
        """By the names of inputs that are positions: what stands for their values in a limit."""
        self._facts = Facts(graph, {}, {})

    @cached_property
    def _shapes(self) -> dict[str, tuple[Dim, ...]]:
        """The shapes of tensors in terms of these sizes; None for one that is not known."""
        proto = ModelProto()
        proto.CopyFrom(self._graph.proto)
        shapes: dict[str, list[int | str]] = {}
        for spec in self._specs:
            names = [size_name(spec, axis) for axis in range(len(spec.shape or ()))]
            shapes[spec.name] = [
                dim if isinstance(dim, int) else str(name) for dim, name in zip(spec.shape or (), names, strict=True)
            ]
        found: dict[str, tuple[Dim, ...]] = {name: tuple(shape) for name, shape in shapes.items()}
        found |= {name: tuple(tensor.dims) for name, tensor in self._graph.constants.items()}
        try:
            model = Model.from_proto(proto)
            infer(model, shapes)
        except (OnnxfuseError, ValueError):
            return found
        for graph in model.graphs():
            for tensor in (*graph.inputs, *(tensor for node in graph.nodes for tensor in node.outputs)):
                if tensor.shape is not None and tensor.name not in found:
                    found[tensor.name] = tuple(map(self._dim, tensor.shape))
        return found

    def _dim(self, size: object) -> Dim:
        if isinstance(size, (int, np.integer)):
            return int(size)
        return str(size) if size in self.names else None

    def shape(self, name: str) -> tuple[Dim, ...] | None:
        """The shape of a tensor."""
        return self._shapes.get(name)

    # --- sizes that nodes need ---

    def needed(self) -> dict[str, int]:
        """Sizes without which a node cannot run, for the sizes of its weights are others."""
        found: dict[str, int] = {}
        for node in self._graph.nodes:
            for one, other in self._pairs(node):
                if isinstance(one, int):
                    one, other = other, one
                if isinstance(one, str) and isinstance(other, int) and other > 0:
                    found.setdefault(one, other)
        return found

    def _pairs(self, node: NodeProto) -> Iterator[tuple[Dim, Dim]]:
        """Sizes that must be the same for the node to run."""
        pairs = _PAIRS.get(node.op_type)
        shapes = [self.shape(name) if name else None for name in node.input]
        if not is_standard(node) or pairs is None or None in shapes[:2]:
            return
        try:
            yield from pairs(self, node, shapes)
        except (ArithmeticError, IndexError):  # a node of fewer inputs or dimensions than it has to have
            return

    def _reshaped(self, node: NodeProto, shapes: list[tuple[Dim, ...] | None]) -> Iterator[tuple[Dim, Dim]]:
        data, target = shapes[0] or (), self._facts.value(node.input[1])
        open_dims = [dim for dim in data if not isinstance(dim, int)]
        if target is None or len(open_dims) != 1:
            return
        wanted = [int(size) for size in target.reshape(-1)]
        kept = [data[axis] if size == 0 else size for axis, size in enumerate(wanted)]
        known = math.prod(dim for dim in data if isinstance(dim, int))
        total = math.prod(size for size in kept if isinstance(size, int) and size != -1)
        if open_dims[0] in kept or not known:  # it stays as it is
            return
        if -1 in kept:
            yield open_dims[0], total // math.gcd(total, known)
        elif total % known == 0:
            yield open_dims[0], total // known

    def _split(self, node: NodeProto, shapes: list[tuple[Dim, ...] | None]) -> Iterator[tuple[Dim, Dim]]:
        parts = self._facts.value(node.input[1]) if len(node.input) > 1 else attributes(node).get("split")
        if parts is not None and shapes[0] is not None:
            yield shapes[0][attributes(node).get("axis", 0)], int(np.sum(parts))

    # --- constants that sizes are compared with ---

    def limits(self) -> list[Limit]:
        """The constants that sizes, or positions counted by them, are compared with, and the tables that they index."""
        found: dict[Limit, None] = {}
        if not (self.positions or any(map(_may_compare, self._graph.nodes))):
            return []
        tracer = _Tracer(self)
        for _ in range(_ROUNDS):  # what an If gives is known when its bodies were seen
            for node in self._graph.nodes:
                tracer.follow(node)
        for node in self._graph.nodes:
            for limit in tracer.limits(node):
                if 1 < limit.value < _LARGEST and limit.sizes:
                    found[limit] = None
        return list(found)

    def dims(self, name: str, axes: Sequence[int] | None = None) -> frozenset[str]:
        """The dynamic sizes in a tensor's shape, or along some axes; any at all where that is not known."""
        shape = self.shape(name)
        if shape is None:
            return frozenset(self.names)
        chosen = shape if axes is None else [shape[axis] for axis in axes if -len(shape) <= axis < len(shape)]
        found = frozenset(dim for dim in chosen if isinstance(dim, str))
        return frozenset(self.names) if None in chosen else found

    def value(self, name: str) -> np.ndarray | None:
        """The value of a small constant, or of what is computed of such."""
        return self._facts.value(name)

    def is_constant(self, name: str) -> bool:
        """Whether a tensor, however large, is a constant."""
        producer = self._graph.producers.get(name)
        return name in self._graph.constants or (producer is not None and producer.op_type == "Constant")

    @property
    def graph(self) -> Graph:
        """The model's nodes."""
        return self._graph


_Shapes = list[tuple[Dim, ...] | None]


def _matmul(_sizes: DynamicSizes, _node: NodeProto, shapes: _Shapes) -> Iterator[tuple[Dim, Dim]]:
    left, right = shapes[0] or (), shapes[1] or ()
    yield left[-1], right[-2 if len(right) > 1 else -1]


def _gemm(_sizes: DynamicSizes, node: NodeProto, shapes: _Shapes) -> Iterator[tuple[Dim, Dim]]:
    left, right, settings = shapes[0] or (), shapes[1] or (), attributes(node)
    yield left[0 if settings.get("transA", 0) else 1], right[1 if settings.get("transB", 0) else 0]


def _conv(_sizes: DynamicSizes, node: NodeProto, shapes: _Shapes) -> Iterator[tuple[Dim, Dim]]:
    channels = (shapes[1] or ())[1]
    if isinstance(channels, int):
        yield (shapes[0] or ())[1], channels * attributes(node).get("group", 1)


def _by_channel(_sizes: DynamicSizes, _node: NodeProto, shapes: _Shapes) -> Iterator[tuple[Dim, Dim]]:
    yield (shapes[0] or ())[1], (shapes[1] or ())[0]


def _broadcast(_sizes: DynamicSizes, _node: NodeProto, shapes: _Shapes) -> Iterator[tuple[Dim, Dim]]:
    known = [shape for shape in shapes if shape]
    for axis in range(1, 1 + max(map(len, known), default=0)):
        dims = [shape[-axis] for shape in known if len(shape) >= axis and shape[-axis] != 1]
        yield from pairwise(dims)


def _concat(_sizes: DynamicSizes, node: NodeProto, shapes: _Shapes) -> Iterator[tuple[Dim, Dim]]:
    known = [shape for shape in shapes if shape is not None]
    axis = attributes(node).get("axis", 0) % len(known[0])
    for one, other in pairwise(known):
        yield from (pair for place, pair in enumerate(zip(one, other, strict=False)) if place != axis)


def _recurrent(_sizes: DynamicSizes, _node: NodeProto, shapes: _Shapes) -> Iterator[tuple[Dim, Dim]]:
    yield (shapes[0] or ())[2], (shapes[1] or ())[2]
    for state in shapes[5:7]:
        if state is not None and shapes[2] is not None:
            yield state[0], shapes[2][0]
            yield state[2], shapes[2][2]


_Pairs = Callable[[DynamicSizes, NodeProto, _Shapes], Iterator[tuple[Dim, Dim]]]
_BROADCAST = (
    *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "LayerNormalization", "Less", "LessOrEqual", "Max"),
    *("Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "RMSNormalization", "Sub", "Sum", "Where", "Xor"),
)
_PAIRS: dict[str, _Pairs] = {
    **dict.fromkeys(_BROADCAST, _broadcast),
    **dict.fromkeys(("BatchNormalization", "ConvTranspose", "InstanceNormalization"), _by_channel),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    "Concat": _concat,
    "Conv": _conv,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Reshape": DynamicSizes._reshaped,
    "Split": DynamicSizes._split,
}


# --- what is counted by sizes ---

_NOTHING: frozenset[str] = frozenset()
_COUNTED = {
    *("Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Concat", "CumSum", "Div", "Equal", "Expand", "Flatten"),
    *("Floor", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod"),
    *("Mul", "Neg", "Not", "Or", "Range", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Slice"),
    *("Split", "Squeeze", "Sub", "Sum", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where"),
}
"""What is made of sizes, and of positions counted by them, by these operators is one too."""

_BY_ELEMENT = {"Cast", "Concat", "Gather", "Identity", "Slice", "Split", "Squeeze", "Unsqueeze"}
_PLACES = {"ArgMax", "ArgMin", "CumSum", "NonZero", "TopK"}
"""What counts the places of a tensor."""

_SOURCES = {"Shape", "Size", "Slice", "Trilu"}
"""What tells sizes, or cuts to a constant."""

_WEIGHTED = {"Conv", "ConvTranspose"}
_COMPARED = {
    *("Add", "Clip", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod", "Sub"),
}
_TABLES: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "Gather": (1, (0,)),
    "OneHot": (0, ()),
    "RotaryEmbedding": (3, (1,)),
    "com.microsoft.RotaryEmbedding": (1, (2,)),
}
"""The place of the positions, and those of the tables that they look up."""


def _may_compare(node: NodeProto) -> bool:
    """Whether sizes are compared at a node, or known from there on."""
    if node.op_type in _SOURCES | _PLACES:
        return True
    settings = attributes(node)
    if node.op_type in _WEIGHTED and "kernel_shape" not in settings:
        return True
    widest = max(settings.get("kernel_shape", ()), default=_USUAL) * max(settings.get("dilations", ()), default=1)
    return widest > _USUAL or any(map(_WINDOW.search, settings))


class _Tracer:
    """Follows sizes and positions from Shape, Range and the like; of a short vector each element by itself."""

    def __init__(self, sizes: DynamicSizes) -> None:
        self._sizes = sizes
        self._of: dict[str, frozenset[str]] = {}
        self._of.update((name, frozenset([values])) for name, values in sizes.positions.items())
        self._elements: dict[str, list[frozenset[str]]] = {}
        self._passed_on: dict[str, list[str]] = {}
        for inner, (_, outer) in sizes.graph.passed_on.items():
            self._passed_on.setdefault(outer, []).append(inner)

    def of(self, name: str) -> frozenset[str]:
        """The sizes that a tensor's values count."""
        return self._of.get(name, _NOTHING)

    def follow(self, node: NodeProto) -> None:
        """Learn what the node makes of what is known."""
        if not is_standard(node):
            return
        if node.op_type == "If":
            for name in node.output:
                self._set(name, _NOTHING.union(*map(self.of, self._passed_on.get(name, ()))))
        elif node.op_type in ("Shape", "Size"):
            self._measure(node)
        elif node.op_type in _COUNTED | _PLACES:
            found = _NOTHING.union(*map(self.of, node.input))
            if node.op_type in _PLACES and node.input:
                found |= self._sizes.dims(node.input[0])
            for name in node.output:
                self._set(name, found)
            if found and node.op_type in _BY_ELEMENT:
                self._select(node)

    def _set(self, name: str, sizes: frozenset[str]) -> None:
        if name and sizes:
            self._of[name] = sizes

    def _measure(self, node: NodeProto) -> None:
        settings, shape = attributes(node), self._sizes.shape(node.input[0])
        if shape is None or node.op_type == "Size":
            self._set(node.output[0], self._sizes.dims(node.input[0]))
            return
        part = range(len(shape))[settings.get("start", 0) : settings.get("end", None)]
        elements = [self._sizes.dims(node.input[0], [axis]) for axis in part]
        self._elements[node.output[0]] = elements
        self._set(node.output[0], _NOTHING.union(*elements))

    def _select(self, node: NodeProto) -> None:
        """Through what takes some elements of a vector, and leaves others."""
        data = self._elements.get(node.input[0])
        name = node.output[0]
        if node.op_type == "Concat":
            parts = [self._elements_of(one) for one in node.input]
            if None not in parts:
                self._give(name, [element for part in parts for element in part or ()])
        elif data is None:
            return
        elif node.op_type == "Gather":
            places = self._sizes.value(node.input[1])
            if places is not None and all(-len(data) <= place < len(data) for place in places.reshape(-1)):
                self._give(name, [data[int(place)] for place in places.reshape(-1)])
        elif node.op_type == "Slice" and len(node.input) > 2:
            bounds = [self._sizes.value(one) for one in node.input[1:5] if one]
            if all(bound is not None and bound.size == 1 for bound in bounds):
                start, end, *rest = (int(bound.item()) for bound in bounds if bound is not None)
                self._give(name, data[start : end : rest[1] if len(rest) > 1 and rest[1] else 1])
        elif node.op_type != "Split":
            self._give(name, data)

    def _elements_of(self, name: str) -> list[frozenset[str]] | None:
        if name in self._elements:
            return self._elements[name]
        value = self._sizes.value(name)
        return None if value is None or value.ndim > 1 else [_NOTHING] * value.size

    def _give(self, name: str, elements: list[frozenset[str]]) -> None:
        self._elements[name] = elements
        self._of[name] = _NOTHING.union(*elements)

    def limits(self, node: NodeProto) -> Iterator[Limit]:
        """The constants that the node compares sizes with."""
        yield from self._attribute_limits(node)
        counted = {place: self.of(name) for place, name in enumerate(node.input) if self.of(name)}
        if key_of(node) in _TABLES:
            yield from self._table_limits(node)
        if not is_standard(node):
            return
        if node.op_type in _COMPARED and counted:
            sizes = _NOTHING.union(*counted.values())
            for name in node.input:
                yield from (Limit(sizes, number) for number in self._numbers(name, node.op_type == "Div"))
        elif node.op_type == "Slice":
            yield from self._slice_limits(node, counted)
        elif node.op_type in ("Trilu", "TopK") and len(node.input) > 1:
            axes = [-2, -1] if node.op_type == "Trilu" else [attributes(node).get("axis", -1)]
            dims = self._sizes.dims(node.input[0], axes)
            yield from (Limit(dims, number) for number in self._numbers(node.input[1], False))

    def _numbers(self, name: str, whole: bool) -> list[int]:
        """The size of the largest whole number in a constant; of an integer type only, if ``whole``."""
        value = self._sizes.value(name) if name else None
        if value is None or value.size == 0 or value.dtype.kind not in ("iu" if whole else "iuf"):
            return []
        numbers = np.abs(value.astype(np.float64))
        numbers = numbers[(numbers < _LARGEST) & (numbers == np.floor(numbers))]
        return [int(numbers.max())] if numbers.size else []

    def _attribute_limits(self, node: NodeProto) -> Iterator[Limit]:
        """Windows of attention, by whatever name an operator has them, and of convolutions and pools."""
        if not node.input:
            return
        for item in node.attribute:
            if item.type == AttributeProto.INT and _WINDOW.search(item.name):
                yield Limit(_NOTHING.union(*map(self._sizes.dims, filter(None, node.input))), item.i)
        settings, weights = attributes(node), self._sizes.shape(node.input[1]) if len(node.input) > 1 else None
        kernel = settings.get("kernel_shape", (weights or ())[2:] if node.op_type in _WEIGHTED else ())
        for axis, (size, step) in enumerate(zip(kernel, settings.get("dilations", [1] * len(kernel)), strict=False)):
            if isinstance(size, int) and (window := extent(size, step)) > _USUAL:
                yield Limit(self._sizes.dims(node.input[0], [axis + 2]), window)

    def _table_limits(self, node: NodeProto) -> Iterator[Limit]:
        place, tables = _TABLES[key_of(node)]
        sizes = self.of(node.input[place]) if place < len(node.input) else _NOTHING
        axis = attributes(node).get("axis", 0) if node.op_type == "Gather" else 0
        for name in (node.input[table] for table in tables if table < len(node.input)):
            shape = self._sizes.shape(name)
            if self._sizes.is_constant(name) and shape is not None and -len(shape) <= axis < len(shape):
                rows = shape[axis]
                yield from [Limit(sizes, rows, is_table=True)] if isinstance(rows, int) else []

    def _slice_limits(self, node: NodeProto, counted: Mapping[int, frozenset[str]]) -> Iterator[Limit]:
        """A table that is cut to a size, or what has a size cut to a constant."""
        shape = self._sizes.shape(node.input[0])
        bounds = [self._sizes.value(name) if name else None for name in (*node.input[1:4], *[""] * 3)]
        old = attributes(node)
        starts, ends, axes = bounds[:3] if len(node.input) > 1 else (np.array(old.get(key)) for key in _SLICE)
        if shape is None:
            return
        cut = sorted({int(axis) for axis in axes.reshape(-1)}) if axes is not None and axes.shape else range(len(shape))
        if counted and self._sizes.is_constant(node.input[0]):
            rows = [shape[axis] for axis in cut if -len(shape) <= axis < len(shape)]
            for row in rows:
                if isinstance(row, int):
                    yield Limit(_NOTHING.union(*counted.values()), row, is_table=True)
        for bound in (starts, ends):
            for axis, number in zip(cut, [] if bound is None or not bound.shape else bound.reshape(-1), strict=False):
                yield Limit(self._sizes.dims(node.input[0], [axis]), abs(int(number)))


_SLICE = ("starts", "ends", "axes")
