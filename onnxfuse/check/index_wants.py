"""What values make an index, an axis or a bound of a slice for the node that reads them."""

import math
from collections.abc import Iterable, Iterator
from itertools import combinations, islice

import numpy as np

from onnxfuse.check.shape_wants import unpooled
from onnxfuse.check.tensor_facts import Dims, attributes
from onnxfuse.check.wants import FEW, MOST_TRIED, Reader, Rule, Want, between, dim, exactly, whole


def gathered(call: Reader) -> Want | None:
    """Rows along the node's axis, all of which exist."""
    size = dim(call.shape(0), call.attribute("axis", 0))
    return None if not size else between(0, size - 1)


def gathered_from_blocks(call: Reader) -> Want | None:
    """The same for rows of quantized blocks."""
    size = dim(call.shape(0), call.attribute("gather_axis", 0))
    return None if not size else between(0, size - 1)


def rows_of(place: int) -> Rule:
    """Rows of a table that the node reads at another place."""

    def rule(call: Reader) -> Want | None:
        size = dim(call.shape(place), 0)
        return None if not size else between(0, size - 1)

    return rule


def coordinates(call: Reader) -> Want | None:
    """Of GatherND and ScatterND: a row has one index for each of the first dimensions; ScatterND's must differ."""
    data, rows = call.shape(0), call.shape(call.place)
    width = dim(rows, -1)
    first = call.attribute("batch_dims", 0) if call.node.op_type == "GatherND" else 0
    sizes = None if data is None or width is None else data[first : first + width]
    if not sizes or None in sizes or 0 in sizes or len(sizes) != width:
        return None
    high = np.array(sizes, np.float64) - 1
    return Want(np.zeros_like(high), high, distinct=call.node.op_type == "ScatterND")


def one_hot_classes(call: Reader) -> Want | None:
    """Below the depth."""
    depth = call.integers(1)
    return None if not depth or depth[0] < 1 else between(0, depth[0] - 1)


def one_hot_depth(call: Reader) -> Want | None:
    """The declared size along the axis of the classes, or a small one."""
    axis = call.attribute("axis", -1)
    declared = dim(call.declared(), axis)
    return between(2, FEW) if declared is None else exactly(declared)


def unpooled_places(call: Reader) -> Want | None:
    """Places in the image that MaxUnpool makes, counted through."""
    declared, data = call.declared(), call.whole(0)
    sizes = whole(declared[2:]) if declared is not None else None
    if sizes is None and data is not None:
        wanted = unpooled(call)
        sizes = None if wanted is None else tuple(int(size) for size in wanted.low[2:])
    return None if not sizes else between(0, math.prod(sizes) - 1)


def only_element(_call: Reader) -> Want | None:
    """Of a sequence, which is made up of one element."""
    return exactly(0)


# --- axes ---


def reduced_axes(call: Reader) -> Want | None:
    """Of a reduction: those by which the declared shape comes of the data's, else the last ones."""
    rank, count = len(call.shape(0) or ()), call.count()
    if not count <= rank:
        return None
    data, declared = call.whole(0), whole(call.declared())
    keep = call.attribute("keepdims", 1)
    if data is not None and declared is not None:
        for axes in islice(combinations(range(rank), count), MOST_TRIED):
            sizes = [1 if axis in axes else size for axis, size in enumerate(data)]
            if tuple(size for axis, size in enumerate(sizes) if keep or axis not in axes) == declared:
                return exactly(axes)
    return exactly(range(rank - count, rank))


def removed_axes(call: Reader) -> Want | None:
    """Dimensions of 1, without which the data has the declared shape."""
    data, declared, count = call.shape(0), whole(call.declared()), call.count()
    ones = [] if data is None else [axis for axis, size in enumerate(data) if size == 1]
    tried = islice(combinations(ones, count), MOST_TRIED)
    fitting = (axes for axes in tried if declared is None or data is None or _without(data, axes) == declared)
    axes = next(fitting, None)
    return None if axes is None else exactly(axes)


def added_axes(call: Reader) -> Want | None:
    """Where dimensions of 1 give the declared shape."""
    data, declared, count = call.whole(0), whole(call.declared()), call.count()
    if data is None:
        return exactly(range(count))
    for axes in islice(combinations(range(len(data) + count), count), MOST_TRIED):
        if declared is None or (all(declared[axis] == 1 for axis in axes) and _without(declared, axes) == data):
            return exactly(axes)
    return None


def _without(shape: Dims, axes: Iterable[int]) -> Dims:
    left = set(axes)
    return tuple(size for axis, size in enumerate(shape) if axis not in left)


def changed_axes(call: Reader) -> Want | None:
    """Those along which the declared shape is another than the data's, then the others."""
    data, declared, count = call.shape(0), call.declared(), call.count()
    if data is None or count > len(data):
        return None
    changed: list[int] = []
    if declared is not None and len(declared) == len(data):
        changed = [axis for axis, size in enumerate(declared) if size is not None and size != data[axis]]
    axes = [*changed, *(axis for axis in range(len(data)) if axis not in changed)][:count]
    return exactly(sorted(axes))


def one_axis(call: Reader) -> Want | None:
    """Any of the data's."""
    shape = call.shape(0)
    return None if not shape else between(0, len(shape) - 1)


def transformed_axis(call: Reader) -> Want | None:
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
        yield dim(data, axis), step or 1, dim(declared, axis) if is_declared else None


def slice_starts(call: Reader) -> Want | None:
    """From the first quarter on, as far as the declared size leaves room."""
    low: list[int] = []
    high: list[int] = []
    for size, step, wanted in _sliced(call):
        size = 1 if size is None else size
        length = max(1, size // 2) if wanted is None else wanted
        span = size - (length - 1) * abs(step) - 1  # how far the first element may be from its end
        low.append(size - 1 if step < 0 else 0 if wanted != 0 else size)
        high.append(size - 1 if step < 0 else max(0, min(span, size // 4)) if wanted != 0 else size)
    return Want(np.array(low, np.float64), np.array(high, np.float64)) if low else between(0, 0)


def slice_ends(call: Reader) -> Want | None:
    """Where the declared size ends, or in the last half."""
    starts = call.integers(1)
    low: list[int] = []
    high: list[int] = []
    for index, (size, step, wanted) in enumerate(_sliced(call)):
        start = starts[index] if starts is not None and index < len(starts) else 0
        if size is None:
            low, high = [*low, start + 1], [*high, start + FEW]
        elif wanted is None:
            low.append(-size - 1 if step < 0 else (start + size) // 2 + 1)
            high.append(-size - 1 if step < 0 else size)
        else:
            end = start + wanted * step
            low, high = [*low, end if end >= 0 else -size - 1], [*high, end if end >= 0 else -size - 1]
    return Want(np.array(low, np.float64), np.array(np.maximum(low, high), np.float64)) if low else between(1, 2)
