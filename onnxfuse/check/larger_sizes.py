"""Which constants a model compares its sizes with, and which sizes to run it with so that they are beyond these."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import AttributeProto, NodeProto

from onnxfuse.check.dynamic_sizes import DynamicSizes
from onnxfuse.check.tensor_facts import attributes, is_standard, key_of
from onnxfuse.shapes.windows import extent

_LARGEST = 1 << 20
"""Constants beyond are no sizes: they stand for infinity, or hide what a mask hides."""

_USUAL = 16
"""Of windows of convolutions and pools; sizes that are made up are no smaller."""

_ROUNDS = 2
_WINDOW = re.compile("window", re.IGNORECASE)
_MULTIPLE = 64
"""What sizes are often a multiple of, where a model cuts a dimension into blocks."""


@dataclass(frozen=True)
class Limit:
    """A constant that one of the ``sizes`` is compared with; ``is_table`` if no size may be beyond, for it is that of a
    table that has a row for each."""

    sizes: frozenset[str]
    value: int
    is_table: bool = False


@dataclass(frozen=True)
class Goals:
    """What sizes are to go beyond: ``sizes`` has those that may change, as they are."""

    limits: tuple[Limit, ...]
    sizes: Mapping[str, int]

    def __iter__(self) -> Iterator[dict[str, int]]:
        """Sizes to run with, the ones beyond most constants first."""
        levels = {level for limit in self.limits if (level := self._level(limit)) is not None}
        tried = [self._up_to(level) for level in sorted(levels, reverse=True)]
        yield from (goal for place, goal in enumerate(tried) if goal and goal not in tried[:place])

    def _level(self, limit: Limit) -> int | None:
        """A size that is beyond a constant, or all rows of a table; None if all sizes are as they may be."""
        level = limit.value if limit.is_table else beyond(limit.value)
        smaller = (size <= limit.value and size < level for name, size in self.sizes.items() if name in limit.sizes)
        return level if any(smaller) else None

    def _up_to(self, level: int) -> dict[str, int]:
        goal = {}
        for name, size in self.sizes.items():
            levels = [found for limit in self.limits if name in limit.sizes and (found := self._level(limit))]
            wanted = max((found for found in levels if found <= level), default=0)
            # A table of fewer rows than the size that the model ran with is looked up in another way.
            rows = [limit.value for limit in self.limits if limit.is_table and name in limit.sizes]
            wanted = min([wanted, *(row for row in rows if row >= size)])
            if wanted > size:
                goal[name] = wanted
        return goal

    def missed(self, reached: Mapping[str, int]) -> Limit | None:
        """The largest constant that no size compared with it is beyond."""
        missed = [
            limit
            for limit in self.limits
            if not limit.is_table
            and (sizes := [reached.get(name, size) for name, size in self.sizes.items() if name in limit.sizes])
            and max(sizes) <= limit.value
        ]
        return max(missed, key=lambda limit: limit.value, default=None)


def beyond(value: int) -> int:
    """A size so much larger than a constant that what is on its either side shows."""
    return value + value // 2 + 8


def alternatives(goal: Mapping[str, int], sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Sizes as good as those of a goal, for a model that does not run with these.

    Sizes that were the same may have to be so; blocks may have to be whole; and a table may have some rows more than
    there are positions.
    """
    grown = {sizes[name]: size for name, size in goal.items()}
    alike = {name: grown[size] for name, size in sizes.items() if size in grown} | dict(goal)
    for tried in (goal, alike):
        yield dict(tried)
        if goal == alike:
            break
    yield {name: -(-size // _MULTIPLE) * _MULTIPLE for name, size in alike.items()}
    for less in (1, 2, _MULTIPLE):
        yield {name: max(size - less, sizes[name]) for name, size in alike.items()}
    yield {name: max(size // _MULTIPLE * _MULTIPLE, sizes[name]) for name, size in alike.items()}


def limits_of(sizes: DynamicSizes) -> list[Limit]:
    """The constants that sizes, or positions counted by them, are compared with, and the tables that they index."""
    found: dict[Limit, None] = {}
    if not (sizes.positions or any(map(_may_compare, sizes.graph.nodes))):
        return []
    tracer = _Tracer(sizes)
    for _ in range(_ROUNDS):  # what an If gives is known when its bodies were seen
        for node in sizes.graph.nodes:
            tracer.follow(node)
    for node in sizes.graph.nodes:
        for limit in tracer.limits(node):
            if 1 < limit.value < _LARGEST and limit.sizes:
                found[limit] = None
    return list(found)


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
