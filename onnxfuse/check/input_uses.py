"""What the values of a model's inputs are for, as the nodes tell that read them: shapes, indices, axes, lengths.

``READERS`` says for an operator and the place of an input which values make sense there.  What lies between an input of
the model and such a reader, a Cast, a Concat or some arithmetic, is gone back through (``_BACK``).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, islice

import numpy as np
import onnx
from onnx import NodeProto

from onnxfuse.check.tensor_facts import SMALL, Dims, Facts, Graph, attributes, bodies, is_standard, key_of

_MOST_NODES = 2000
"""Nodes that are visited to find what an input is for."""

_MOST_WAYS = 8
"""On which one comes to a tensor: by each body of an If, say."""

_DEEPEST = 48
_MOST_TRIED = 1 << 14
_FEW = 8


@dataclass(frozen=True)
class Want:
    """Bounds of the elements of a tensor, both included, in arrays that broadcast to its shape.  ``distinct``: no two
    elements of a vector, or rows of a matrix, are the same."""

    low: np.ndarray
    high: np.ndarray
    distinct: bool = False

    def within(self, other: "Want") -> "Want | None":
        """What both want; None if there is no such value."""
        try:
            low, high = np.maximum(self.low, other.low), np.minimum(self.high, other.high)
        except ValueError:  # shapes that do not go together
            return None
        return Want(low, high, self.distinct or other.distinct) if np.all(low <= high) else None

    def is_uniform(self) -> bool:
        """Whether all elements have the same bounds."""
        return self.low.size == 1 and self.high.size == 1

    def is_range(self) -> bool:
        """Whether an element may have several values."""
        return bool(np.all(self.low < self.high))


def between(low: float, high: float) -> Want:
    """The same bounds for every element."""
    return Want(np.array(low, np.float64), np.array(high, np.float64))


def exactly(values: Iterable[float] | np.ndarray | float) -> Want:
    """These values and no others."""
    array = np.array(values if isinstance(values, (np.ndarray, float, int)) else list(values), np.float64)
    return Want(array, array)


@dataclass(frozen=True)
class Reader:
    """A node that reads a tensor, and what is known around it."""

    node: NodeProto
    place: int
    facts: Facts
    wanted: Callable[[str], Want | None]
    """What is wanted of what the node makes, by name."""
    branch: bool
    """Which way a condition goes."""
    direct: bool = False
    """Whether an input of the model is what is read."""

    def shape(self, place: int) -> Dims | None:
        """The shape of an input of the node."""
        return self.facts.shape(self.node.input[place]) if self.has(place) else None

    def whole(self, place: int) -> tuple[int, ...] | None:
        """That shape if every size of it is known."""
        return self.facts.whole_shape(self.node.input[place]) if self.has(place) else None

    def has(self, place: int) -> bool:
        """Whether the node has an input at a place."""
        return place < len(self.node.input) and bool(self.node.input[place])

    def value(self, place: int) -> np.ndarray | None:
        """The value of an input of the node, if it is known."""
        return self.facts.value(self.node.input[place]) if self.has(place) else None

    def integers(self, place: int) -> list[int] | None:
        """The elements of an input of the node, if they are known."""
        value = self.value(place)
        return None if value is None else [int(element) for element in value.reshape(-1)]

    def count(self, declared: Dims | None = None) -> int:
        """How many elements the tensor has; if that is not known one for each size that is declared, or 1."""
        shape = self.whole(self.place)
        if shape is None:
            return 1 if declared is None else len(declared)
        return math.prod(shape)

    def declared(self, place: int = 0) -> Dims | None:
        """The shape that the model declares of a result."""
        return self.facts.declared(self.node.output[place]) if place < len(self.node.output) else None

    def attribute(self, name: str, default: int) -> int:
        """An integer attribute."""
        return int(attributes(self.node).get(name, default))

    def integers_of(self, name: str, default: list[int]) -> list[int]:
        """A list of integers in an attribute."""
        return list(attributes(self.node).get(name, default))


Rule = Callable[[Reader], Want | None]


def _dim(shape: Dims | None, axis: int) -> int | None:
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    return shape[axis]


def _known(shape: Dims | None) -> tuple[int, ...] | None:
    return None if shape is None or None in shape else tuple(size for size in shape if size is not None)


def _up_to(limit: int | None, low: int = 0) -> Want | None:
    return None if limit is None or limit < low else between(low, limit)


# --- shapes ---


def _reshaped(call: Reader) -> Want | None:
    """The declared shape as far as there is one; else the data's own, with dimensions merged, or added as 1."""
    data, declared = call.whole(0), call.declared()
    count = call.count(declared)
    if declared is not None and len(declared) != count:
        declared = None
    total = None if data is None else math.prod(data)
    if declared is None:
        if data is None:
            return _reshaped_partly(call, count)
        if count < len(data):
            return exactly([*data[: count - 1], math.prod(data[count - 1 :])] if count else [])
        return exactly([*data, *[1] * (count - len(data))])
    return exactly(_filled(declared, total))


def _reshaped_partly(call: Reader, count: int) -> Want | None:
    """All elements in one dimension, where that may be said; else any sizes, and as many batches as the data has."""
    if not count:
        return None
    if call.direct:
        return exactly([-1, *[1] * (count - 1)])
    batch = _dim(call.shape(0), 0)
    first = (1, 4) if batch is None else (batch, batch)
    rest = np.ones(count - 1)
    return Want(np.append(first[0], rest), np.append(first[1], 4 * rest))


def _filled(shape: Dims, total: int | None) -> list[int]:
    """The first size that is not known has what the others leave, and further ones are 1."""
    unknown = [axis for axis, size in enumerate(shape) if size is None]
    sizes = [1 if size is None else size for size in shape]
    rest = math.prod(sizes)
    if unknown:
        sizes[unknown[0]] = -1 if total is None or rest == 0 or total % rest else total // rest
    return sizes


def _expanded(call: Reader) -> Want | None:
    declared = call.declared()
    count, data = call.count(declared), call.shape(0)
    data = (1,) * count if data is None else data
    aligned = [None] * (count - len(data)) + list(data[max(0, len(data) - count) :])
    if declared is not None and len(declared) >= count:
        aligned = [size if size is not None else old for size, old in zip(declared[-count:], aligned, strict=True)]
    # A size that nothing tells is 2: that of a dimension of 1, too, which could be as it is.
    return exactly(2 if size is None or (size == 1 and declared is None) else size for size in aligned)


def _any_shape(call: Reader) -> Want | None:
    declared = call.declared()
    if declared is None or len(declared) != call.count(declared):
        return between(1, 4)
    return exactly(2 if size is None else size for size in declared)


def _repeats(call: Reader) -> Want | None:
    data, declared = call.whole(0), _known(call.declared())
    if data is not None and declared is not None and len(data) == len(declared) and 0 not in data:
        return exactly(size // old for size, old in zip(declared, data, strict=True))
    return between(1, 2)


def _resized_axes(call: Reader, rank: int) -> list[int]:
    axes = call.integers_of("axes", list(range(rank)))
    return [axis % rank for axis in axes] if rank else []


def _resized(call: Reader) -> Want | None:
    """The sizes of a Resize: those declared, else twice those of the two last dimensions."""
    data, declared = call.whole(0), call.declared()
    if data is None:
        return between(1, 4)
    sizes = [size * 2 if axis >= len(data) - 2 else size for axis, size in enumerate(data)]
    if declared is not None and len(declared) == len(data):
        sizes = [old if size is None else size for size, old in zip(declared, sizes, strict=True)]
    return exactly(sizes[axis] for axis in _resized_axes(call, len(data)))


def _scales(call: Reader) -> Want | None:
    data, declared = call.whole(0), call.declared()
    rank = call.count() if data is None else len(data)
    scales = [2.0 if axis >= rank - 2 else 1.0 for axis in range(rank)]
    if data is not None and declared is not None and len(declared) == rank:
        pairs = zip(data, declared, scales, strict=True)
        scales = [other if size is None or not old else _scale(old, size) for old, size, other in pairs]
    return exactly(scales[axis] for axis in _resized_axes(call, rank))


def _scale(old: int, new: int) -> float:
    """A float32 by which ``old`` becomes ``new``, rounded down."""
    scale = np.float32(new / old)
    while math.floor(np.float32(old) * scale) < new:
        scale = np.nextafter(scale, np.float32(np.inf))
    return float(scale)


def _region(call: Reader) -> Want | None:
    """The region of interest of a Resize: starts, then ends, as parts of the sizes."""
    half = call.count() // 2
    return Want(np.repeat([0.0, 0.7], half), np.repeat([0.3, 1.0], half)) if half else None


def _like_declared_or_data(call: Reader) -> Want | None:
    """Sizes of what is made, or of the data where none are declared, one for each axis of ``axes``."""
    data, declared = call.shape(0), call.declared()
    sizes = declared if declared is not None else data
    if sizes is None:
        return between(1, 4)
    return exactly(2 if sizes[axis] is None else sizes[axis] or 0 for axis in _resized_axes(call, len(sizes)))


def _grid_size(call: Reader) -> Want | None:
    theta, declared = call.shape(0), call.declared()
    count = call.count(declared)
    batch = _dim(theta, 0) or 1
    spatial = [size or 4 for size in declared[1:-1]] if declared is not None else [4] * (count - 2)
    return exactly([batch, 3, *spatial]) if len(spatial) == count - 2 else None


def _unpooled(call: Reader) -> Want | None:
    declared, data = _known(call.declared()), call.whole(0)
    if declared is not None and len(declared) == call.count(declared):
        return exactly(declared)
    if data is None:
        return None
    kernel = call.integers_of("kernel_shape", [])
    strides = call.integers_of("strides", [1] * len(kernel))
    sizes = [(size - 1) * step + width for size, step, width in zip(data[2:], strides, kernel, strict=False)]
    return exactly([*data[:2], *sizes])


def _image_of_columns(call: Reader) -> Want | None:
    found = _columns(call)
    return None if found is None else exactly(found[0])


def _block_of_columns(call: Reader) -> Want | None:
    found = _columns(call)
    return None if found is None else exactly(found[1])


def _columns(call: Reader) -> tuple[list[int], list[int]] | None:
    """An image and a block of Col2Im that fit the number of columns and their length."""
    data, declared = call.whole(0), call.declared()
    images, blocks = call.integers(1), call.integers(2)
    rank = call.count()
    if data is None or len(data) != 3:
        return None
    channels = _dim(declared, 1)
    if images is None:
        known = None if declared is None else _known(declared[2:])
        images = None if known is None else list(known)
    if images is None:  # blocks of one element, of which there are as many as elements in the image
        return [data[2], *[1] * (rank - 1)], [1] * rank
    length = data[1] // channels if channels else data[1]
    tried = [blocks] if blocks is not None else _factors(length, rank)
    for block in islice(tried, _MOST_TRIED):
        if math.prod(_positions(call, images, list(block))) == data[2] and data[1] % math.prod(block) == 0:
            return images, list(block)
    return None


def _factors(number: int, count: int) -> Iterator[list[int]]:
    if count == 1:
        yield [number]
        return
    for first in range(1, number + 1):
        if number % first == 0:
            yield from ([first, *rest] for rest in _factors(number // first, count - 1))


def _positions(call: Reader, sizes: list[int], kernel: list[int]) -> list[int]:
    """How often a window fits along each dimension."""
    ones = [1] * len(sizes)
    pads = call.integers_of("pads", [0] * (2 * len(sizes)))
    steps, dilations = call.integers_of("strides", ones), call.integers_of("dilations", ones)
    counts = []
    for axis, size in enumerate(sizes):
        padded = size + pads[axis] + pads[len(sizes) + axis]
        counts.append(max(0, (padded - dilations[axis] * (kernel[axis] - 1) - 1) // steps[axis] + 1))
    return counts


def _pads(call: Reader) -> Want | None:
    data, declared, half = call.whole(0), call.declared(), call.count() // 2
    axes = call.integers(3) if call.has(3) else list(range(half))
    if data is None or declared is None or len(declared) != len(data) or axes is None or len(axes) != half:
        return between(0, 1)
    added = [(declared[axis] or data[axis]) - data[axis] for axis in axes]
    begins = [more // 2 for more in added]
    return exactly([*begins, *(more - begin for more, begin in zip(added, begins, strict=True))])


# --- indices ---


def _index(call: Reader) -> Want | None:
    size = _dim(call.shape(0), call.attribute("axis", 0))
    return None if not size else between(0, size - 1)


def _index_of_blocks(call: Reader) -> Want | None:
    size = _dim(call.shape(0), call.attribute("gather_axis", 0))
    return None if not size else between(0, size - 1)


def _rows_of(place: int) -> Rule:
    """Rows of a table that the node reads at another place."""

    def rule(call: Reader) -> Want | None:
        size = _dim(call.shape(place), 0)
        return None if not size else between(0, size - 1)

    return rule


def _coordinates(call: Reader) -> Want | None:
    """Of GatherND and ScatterND: a row has one index for each of the first dimensions; ScatterND's must differ."""
    data, rows = call.shape(0), call.shape(call.place)
    width = _dim(rows, -1)
    first = call.attribute("batch_dims", 0) if call.node.op_type == "GatherND" else 0
    sizes = None if data is None or width is None else data[first : first + width]
    if not sizes or None in sizes or 0 in sizes or len(sizes) != width:
        return None
    high = np.array(sizes, np.float64) - 1
    return Want(np.zeros_like(high), high, distinct=call.node.op_type == "ScatterND")


def _classes(call: Reader) -> Want | None:
    depth = call.integers(1)
    return None if not depth or depth[0] < 1 else between(0, depth[0] - 1)


def _depth(call: Reader) -> Want | None:
    axis = call.attribute("axis", -1)
    declared = _dim(call.declared(), axis)
    return between(2, _FEW) if declared is None else exactly(declared)


def _unpooled_index(call: Reader) -> Want | None:
    declared, data = call.declared(), call.whole(0)
    sizes = _known(declared[2:]) if declared is not None else None
    if sizes is None and data is not None:
        wanted = _unpooled(call)
        sizes = None if wanted is None else tuple(int(size) for size in wanted.low[2:])
    return None if not sizes else between(0, math.prod(sizes) - 1)


def _first(_call: Reader) -> Want | None:
    """Of a sequence, which is made up of one element."""
    return exactly(0)


# --- axes ---


def _axes(call: Reader) -> Want | None:
    """Of a reduction: those by which the declared shape comes of the data's, else the last ones."""
    rank, count = len(call.shape(0) or ()), call.count()
    if not count <= rank:
        return None
    data, declared = call.whole(0), _known(call.declared())
    keep = call.attribute("keepdims", 1)
    if data is not None and declared is not None:
        for axes in islice(combinations(range(rank), count), _MOST_TRIED):
            sizes = [1 if axis in axes else size for axis, size in enumerate(data)]
            if tuple(size for axis, size in enumerate(sizes) if keep or axis not in axes) == declared:
                return exactly(axes)
    return exactly(range(rank - count, rank))


def _removed_axes(call: Reader) -> Want | None:
    data, declared, count = call.shape(0), _known(call.declared()), call.count()
    ones = [] if data is None else [axis for axis, size in enumerate(data) if size == 1]
    tried = islice(combinations(ones, count), _MOST_TRIED)
    fitting = (axes for axes in tried if declared is None or data is None or _without(data, axes) == declared)
    axes = next(fitting, None)
    return None if axes is None else exactly(axes)


def _added_axes(call: Reader) -> Want | None:
    data, declared, count = call.whole(0), _known(call.declared()), call.count()
    if data is None:
        return exactly(range(count))
    for axes in islice(combinations(range(len(data) + count), count), _MOST_TRIED):
        if declared is None or (all(declared[axis] == 1 for axis in axes) and _without(declared, axes) == data):
            return exactly(axes)
    return None


def _without(shape: Dims, axes: Iterable[int]) -> Dims:
    left = set(axes)
    return tuple(size for axis, size in enumerate(shape) if axis not in left)


def _changed_axes(call: Reader) -> Want | None:
    """Those along which the declared shape is another than the data's, then the others."""
    data, declared, count = call.shape(0), call.declared(), call.count()
    if data is None or count > len(data):
        return None
    changed: list[int] = []
    if declared is not None and len(declared) == len(data):
        changed = [axis for axis, size in enumerate(declared) if size is not None and size != data[axis]]
    axes = [*changed, *(axis for axis in range(len(data)) if axis not in changed)][:count]
    return exactly(sorted(axes))


def _axis(call: Reader) -> Want | None:
    shape = call.shape(0)
    return None if not shape else between(0, len(shape) - 1)


def _transformed_axis(call: Reader) -> Want | None:
    """The axis of DFT, none of the first and the last: that of which another size is declared, or any."""
    data, declared = call.shape(0), call.declared()
    if data is None or len(data) < 3:
        return None
    if declared is not None and len(declared) == len(data):
        for axis in range(1, len(data) - 1):
            if declared[axis] is not None and declared[axis] != data[axis]:
                return exactly(axis)
        if attributes(call.node).get("onesided", 0):
            tried = range(1, len(data) - 1)
            halved = (axis for axis in tried if _half_of(data, declared, axis, call.attribute("inverse", 0)))
            return exactly(next(halved, 1))
    return between(1, len(data) - 2)


def _half_of(data: Dims, declared: Dims, axis: int, inverse: int) -> bool:
    whole, half = (declared[axis], data[axis]) if inverse else (data[axis], declared[axis])
    return whole is not None and half == whole // 2 + 1


# --- Slice ---


def _sliced(call: Reader) -> Iterator[tuple[int | None, int, int | None]]:
    """For each axis of a Slice the size of the data, the step and the size that is declared of the result."""
    data, declared, count = call.shape(0), call.declared(), call.count()
    axes = call.integers(3) if call.has(3) else list(range(count))
    steps = call.integers(4) if call.has(4) else [1] * count
    axes = [] if axes is None or len(axes) != count else axes
    for axis, step in zip(axes, steps or [1] * count, strict=False):
        is_declared = declared is not None and data is not None and len(declared) == len(data)
        yield _dim(data, axis), step or 1, _dim(declared, axis) if is_declared else None


def _starts(call: Reader) -> Want | None:
    low: list[int] = []
    high: list[int] = []
    for size, step, wanted in _sliced(call):
        size = 1 if size is None else size
        length = max(1, size // 2) if wanted is None else wanted
        span = size - (length - 1) * abs(step) - 1  # how far the first element may be from its end
        low.append(size - 1 if step < 0 else 0 if wanted != 0 else size)
        high.append(size - 1 if step < 0 else max(0, min(span, size // 4)) if wanted != 0 else size)
    return Want(np.array(low, np.float64), np.array(high, np.float64)) if low else between(0, 0)


def _ends(call: Reader) -> Want | None:
    starts = call.integers(1)
    low: list[int] = []
    high: list[int] = []
    for index, (size, step, wanted) in enumerate(_sliced(call)):
        start = starts[index] if starts is not None and index < len(starts) else 0
        if size is None:
            low, high = [*low, start + 1], [*high, start + _FEW]
        elif wanted is None:
            low.append(-size - 1 if step < 0 else (start + size) // 2 + 1)
            high.append(-size - 1 if step < 0 else size)
        else:
            end = start + wanted * step
            low, high = [*low, end if end >= 0 else -size - 1], [*high, end if end >= 0 else -size - 1]
    return Want(np.array(low, np.float64), np.array(np.maximum(low, high), np.float64)) if low else between(1, 2)


# --- lengths ---


def _parts(call: Reader) -> Want | None:
    """Sizes of the parts of a Split: the declared ones, or equal ones."""
    axis, count = call.attribute("axis", 0), call.count()
    size = _dim(call.shape(0), axis)
    if size is None:
        return None
    declared = [_dim(call.declared(place), axis) for place in range(len(call.node.output))]
    if call.node.op_type == "Split" and None not in declared and len(declared) == count:
        return exactly(part or 0 for part in declared)
    if call.node.op_type == "SplitToSequence" and call.whole(1) == ():
        return between(1, max(1, size))
    if count < 1:
        return None
    parts = [size // count] * count
    parts[-1] += size - sum(parts)
    return exactly(parts)


def _count_along(default: int) -> Rule:
    """A number of elements along the node's axis, such as the k of TopK."""

    def rule(call: Reader) -> Want | None:
        axis = call.attribute("axis", default)
        declared, size = _dim(call.declared(), axis), _dim(call.shape(0), axis)
        if declared is not None:
            return exactly(declared)
        return between(1, 1 if size is None else max(1, min(size, _FEW)))

    return rule


def _lengths_of_sequences(call: Reader) -> Want | None:
    """Of a recurrent network, whose layout puts the time first or second."""
    return _up_to(_dim(call.shape(0), 1 if call.attribute("layout", 0) else 0), 1)


def _reversed_lengths(call: Reader) -> Want | None:
    return _up_to(_dim(call.shape(0), call.attribute("time_axis", 0)), 1)


def _lengths_of_keys(call: Reader) -> Want | None:
    return _up_to(_dim(call.shape(1), -2), 1)


def _written_at(call: Reader) -> Want | None:
    """Where TensorScatter writes its update into the cache."""
    axis = call.attribute("axis", -2)
    cache, update = _dim(call.shape(0), axis), _dim(call.shape(1), axis)
    return None if cache is None or update is None else _up_to(cache - update)


def _last_keys(call: Reader) -> Want | None:
    """Of GroupQueryAttention: the place of the last key of each sequence."""
    total = _total_length(call)
    return None if total is None else exactly(total.low - 1)


def _total_length(call: Reader) -> Want | None:
    new, past = _dim(call.shape(0), 1), _dim(call.shape(3), 2) if call.has(3) else 0
    return None if new is None or past is None else exactly(new + past)


def _range_start(_call: Reader) -> Want | None:
    return between(0, 2)


def _range_delta(_call: Reader) -> Want | None:
    return exactly(1)


def _range_limit(call: Reader) -> Want | None:
    start, delta = call.value(0), call.value(2)
    first = 0.0 if start is None else float(start.reshape(-1)[0])
    step = 1.0 if delta is None else float(delta.reshape(-1)[0])
    declared = _dim(call.declared(), 0)
    if declared is not None:
        return exactly(first + declared * step)
    wanted = call.wanted(call.node.output[0])
    if wanted is not None and step > 0 and math.isfinite(most := float(wanted.high.min(initial=math.inf))):
        return between(min(first + 1, most + 1), min(first + 4 * _FEW, most + 1))
    return between(*sorted((first + step, first + _FEW * step)))


def _trips(_call: Reader) -> Want | None:
    return between(1, 4)


def _length_or(default_low: int, default_high: int) -> Rule:
    """The first size that is declared of the result, or one of these."""

    def rule(call: Reader) -> Want | None:
        declared = _dim(call.declared(), 0)
        return between(default_low, default_high) if declared is None else exactly(declared)

    return rule


def _transformed_length(call: Reader) -> Want | None:
    """The length of a DFT, whose axis may be an input too."""
    axis = call.integers(2)
    place = axis[0] if axis else call.attribute("axis", 1)
    size = _dim(call.declared(), place) if not call.attribute("onesided", 0) else None
    size = _dim(call.shape(0), place) if size is None else size
    return None if size is None else exactly(size)


def _frame_step(call: Reader) -> Want | None:
    size = _dim(call.shape(0), 1)
    return None if size is None else between(1, max(1, size // 4))


def _frame_length(call: Reader) -> Want | None:
    size, window = _dim(call.shape(0), 1), _dim(call.shape(2), 0)
    if window is not None:
        return exactly(window)
    return None if size is None else exactly(max(1, size // 2))


def _mel_bins(call: Reader) -> Want | None:
    declared = _dim(call.declared(), 1)
    return between(2, _FEW) if declared is None else exactly(declared)


def _mel_length(call: Reader) -> Want | None:
    declared = _dim(call.declared(), 0)
    return exactly(64 if declared is None else 2 * (declared - 1))


def _same(low: float, high: float) -> Rule:
    """The same bounds wherever the operator is."""
    want = between(low, high)
    return lambda _call: want


def _steps_between(call: Reader) -> Want | None:
    """Boxes and their scores: one box is kept at least, and all may be."""
    return _up_to(_dim(call.shape(0), 1), 1)


def _boxes(call: Reader) -> Want | None:
    """Regions of an image, the first corner in its first half and the second in the other."""
    image = call.whole(0)
    if image is None or len(image) != 4 or _dim(call.shape(call.place), -1) not in (4, 5):
        return None
    height, width = image[2:]
    low, high = [0, 0, width / 2, height / 2], [width / 2, height / 2, width, height]
    if call.node.op_type == "MaxRoiPool":
        low, high = [0, *low], [image[0] - 1, *high]
    return Want(np.array(low, np.float64), np.array(high, np.float64))


def _shifted(call: Reader) -> Want | None:
    proto = call.facts.graph.declared.get(call.node.input[0])
    size = 8 if proto is None else 8 * onnx.helper.tensor_dtype_to_np_dtype(proto.tensor_type.elem_type).itemsize
    return between(0, size - 1)


def _condition(call: Reader) -> Want | None:
    return exactly(float(call.branch))


def _divisor(call: Reader) -> Want | None:
    """No integer zero."""
    return between(1, 15) if call.facts.is_integer(call.node.input[1]) else None


def _exponent(call: Reader) -> Want | None:
    """Small, or integers overflow."""
    return between(0, 3) if call.facts.is_integer(call.node.input[1]) else between(-3, 3)


def _zero_point(call: Reader) -> Want | None:
    """0 where it is of a type of 8 bits that is no integer, of which no other is taken."""
    return None if call.facts.is_integer(call.node.input[call.place]) else exactly(0)


_Places = Mapping[int, Rule]

_QUANTIZER: _Places = {2: _zero_point}
_REDUCTION: _Places = {1: _axes}
_RECURRENT: _Places = {4: _lengths_of_sequences}
_WINDOW: _Places = {0: _length_or(4, 16)}
_ROWS_OF_POSITIONS: _Places = {3: _rows_of(1)}

READERS: dict[str, _Places] = {
    # Dictionaries are in the order in which the values are made up where several are inputs: an end after its start.
    "Acosh": {0: _same(1, math.inf)},
    "AffineGrid": {1: _grid_size},
    "ArrayFeatureExtractor": {1: lambda call: _up_to((_dim(call.shape(0), -1) or 0) - 1)},
    "Attention": {6: _lengths_of_keys},
    "BitShift": {1: _shifted},
    "BlackmanWindow": _WINDOW,
    "CenterCropPad": {1: _like_declared_or_data},
    "Col2Im": {1: _image_of_columns, 2: _block_of_columns},
    "ConstantOfShape": {0: _any_shape},
    "CumProd": {1: _axis},
    "CumSum": {1: _axis},
    "DFT": {2: _transformed_axis, 1: _transformed_length},
    "DequantizeLinear": _QUANTIZER,
    "Div": {1: _divisor},
    "Expand": {1: _expanded},
    "GRU": _RECURRENT,
    "Gather": {1: _index},
    "GatherElements": {1: _index},
    "GatherND": {1: _coordinates},
    "HammingWindow": _WINDOW,
    "HannWindow": _WINDOW,
    "If": {0: _condition},
    "LSTM": _RECURRENT,
    "Loop": {0: _trips, 1: _condition},
    "MaxRoiPool": {1: _boxes},
    "MaxUnpool": {2: _unpooled, 1: _unpooled_index},
    "MelWeightMatrix": {
        0: _mel_bins,
        1: _mel_length,
        2: _same(16000, 16000),
        3: _same(0, 100),
        4: _same(4000, 8000),
    },
    "Mod": {1: _divisor},
    "NonMaxSuppression": {2: _steps_between, 3: _same(0.3, 0.6), 4: _same(0, 0.1)},
    "OneHot": {1: _depth, 0: _classes},
    "Pad": {3: _changed_axes, 1: _pads},
    "Pow": {1: _exponent},
    "QuantizeLinear": _QUANTIZER,
    "RNN": _RECURRENT,
    "Range": {0: _range_start, 2: _range_delta, 1: _range_limit},
    "Reshape": {1: _reshaped},
    "Resize": {1: _region, 2: _scales, 3: _resized},
    "ReverseSequence": {1: _reversed_lengths},
    "RoiAlign": {2: _rows_of(0), 1: _boxes},
    "RotaryEmbedding": _ROWS_OF_POSITIONS,
    "STFT": {1: _frame_step, 3: _frame_length},
    "Scatter": {1: _index},
    "ScatterElements": {1: _index},
    "ScatterND": {1: _coordinates},
    "SequenceAt": {1: _first},
    "SequenceErase": {1: _first},
    "SequenceInsert": {2: _first},
    "Slice": {3: _changed_axes, 4: _same(1, 1), 1: _starts, 2: _ends},
    "Split": {1: _parts},
    "SplitToSequence": {1: _parts},
    "Squeeze": {1: _removed_axes},
    "TensorScatter": {2: _written_at},
    "Tile": {1: _repeats},
    "TopK": {1: _count_along(-1)},
    "Trilu": {1: _same(-1, 1)},
    "Unsqueeze": {1: _added_axes},
    "Upsample": {1: _scales},
    **{
        f"Reduce{kind}": _REDUCTION
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
    "com.microsoft.DequantizeLinear": _QUANTIZER,
    "com.microsoft.EmbedLayerNormalization": {0: _rows_of(2), 1: _rows_of(4)},
    "com.microsoft.GatherBlockQuantized": {1: _index_of_blocks},
    "com.microsoft.GroupQueryAttention": {5: _last_keys, 6: _total_length},
    "com.microsoft.QuantizeLinear": _QUANTIZER,
    "com.microsoft.RotaryEmbedding": {1: _rows_of(2)},
}
"""By operator, and by the place of an input of it, what its values are to be."""


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
    "Concat": (tuple(range(_FEW)), _moved),
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
