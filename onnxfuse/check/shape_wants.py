"""What values make a shape, repeats, sizes, scales or pads for the node that reads them."""

import math
from collections.abc import Iterator
from itertools import islice

import numpy as np

from onnxfuse.check.tensor_facts import Dims
from onnxfuse.check.wants import MOST_TRIED, Reader, Want, between, dim, exactly, whole
from onnxfuse.shapes.windows import count, covered, extent

_LARGEST_TRIED = 1 << 12
"""Elements along one dimension of a block: a length of columns may be any number, and no window is larger."""


def reshaped(call: Reader) -> Want | None:
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
    batch = dim(call.shape(0), 0)
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


def expanded(call: Reader) -> Want | None:
    """The declared shape, or the data's with its dimensions of 1 made larger."""
    declared = call.declared()
    count, data = call.count(declared), call.shape(0)
    data = (1,) * count if data is None else data
    aligned = [None] * (count - len(data)) + list(data[max(0, len(data) - count) :])
    if declared is not None and len(declared) >= count:
        aligned = [size if size is not None else old for size, old in zip(declared[-count:], aligned, strict=True)]
    # A size that nothing tells is 2: that of a dimension of 1, too, which could be as it is.
    return exactly(2 if size is None or (size == 1 and declared is None) else size for size in aligned)


def any_shape(call: Reader) -> Want | None:
    """The declared shape, or small sizes."""
    declared = call.declared()
    if declared is None or len(declared) != call.count(declared):
        return between(1, 4)
    return exactly(2 if size is None else size for size in declared)


def repeats(call: Reader) -> Want | None:
    """By which the data has the declared shape; or a few."""
    data, declared = call.whole(0), whole(call.declared())
    if data is not None and declared is not None and len(data) == len(declared) and 0 not in data:
        return exactly(size // old for size, old in zip(declared, data, strict=True))
    return between(1, 2)


def _resized_axes(call: Reader, rank: int) -> list[int]:
    axes = call.integers_of("axes", list(range(rank)))
    return [axis % rank for axis in axes] if rank else []


def resize_sizes(call: Reader) -> Want | None:
    """The sizes of a Resize: those declared, else twice those of the two last dimensions."""
    data, declared = call.whole(0), call.declared()
    if data is None:
        return between(1, 4)
    sizes = [size * 2 if axis >= len(data) - 2 else size for axis, size in enumerate(data)]
    if declared is not None and len(declared) == len(data):
        sizes = [old if size is None else size for size, old in zip(declared, sizes, strict=True)]
    return exactly(sizes[axis] for axis in _resized_axes(call, len(data)))


def resize_scales(call: Reader) -> Want | None:
    """By which the data has the declared shape; or 2 for its last two dimensions."""
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


def resize_region(call: Reader) -> Want | None:
    """The region of interest of a Resize: starts, then ends, as parts of the sizes."""
    half = call.count() // 2
    return Want(np.repeat([0.0, 0.7], half), np.repeat([0.3, 1.0], half)) if half else None


def like_declared_or_data(call: Reader) -> Want | None:
    """Sizes of what is made, or of the data where none are declared, one for each axis of ``axes``."""
    data, declared = call.shape(0), call.declared()
    sizes = declared if declared is not None else data
    if sizes is None:
        return between(1, 4)
    return exactly(2 if sizes[axis] is None else sizes[axis] or 0 for axis in _resized_axes(call, len(sizes)))


def grid_size(call: Reader) -> Want | None:
    """Of AffineGrid: as many batches as there are matrices, and the declared sizes."""
    theta, declared = call.shape(0), call.declared()
    count = call.count(declared)
    batch = dim(theta, 0) or 1
    spatial = [size or 4 for size in declared[1:-1]] if declared is not None else [4] * (count - 2)
    return exactly([batch, 3, *spatial]) if len(spatial) == count - 2 else None


def unpooled(call: Reader) -> Want | None:
    """The declared shape, or what the windows of MaxUnpool cover."""
    declared, data = whole(call.declared()), call.whole(0)
    if declared is not None and len(declared) == call.count(declared):
        return exactly(declared)
    if data is None:
        return None
    kernel = call.integers_of("kernel_shape", [])
    strides = call.integers_of("strides", [1] * len(kernel))
    sizes = [covered(size, width, step) for size, step, width in zip(data[2:], strides, kernel, strict=False)]
    return exactly([*data[:2], *sizes])


def image_of_columns(call: Reader) -> Want | None:
    """Of Col2Im: what the number of columns fits."""
    found = _columns(call)
    return None if found is None else exactly(found[0])


def block_of_columns(call: Reader) -> Want | None:
    """Of Col2Im: what the length of columns fits."""
    found = _columns(call)
    return None if found is None else exactly(found[1])


def _columns(call: Reader) -> tuple[list[int], list[int]] | None:
    """An image and a block of Col2Im that fit the number of columns and their length."""
    data, declared = call.whole(0), call.declared()
    images, blocks = call.integers(1), call.integers(2)
    rank = call.count()
    if data is None or len(data) != 3:
        return None
    channels = dim(declared, 1)
    if images is None:
        known = None if declared is None else whole(declared[2:])
        images = None if known is None else list(known)
    if images is None:  # blocks of one element, of which there are as many as elements in the image
        return [data[2], *[1] * (rank - 1)], [1] * rank
    length = data[1] // channels if channels else data[1]
    tried = [blocks] if blocks is not None else _factors(length, rank)
    for block in islice(tried, MOST_TRIED):
        if math.prod(_positions(call, images, list(block))) == data[2] and data[1] % math.prod(block) == 0:
            return images, list(block)
    return None


def _factors(number: int, count: int) -> Iterator[list[int]]:
    """Sizes whose product is the number, all but the last up to the largest that is tried."""
    if count == 1:
        yield [number]
        return
    for first in range(1, min(number, _LARGEST_TRIED) + 1):
        if number % first == 0:
            yield from ([first, *rest] for rest in _factors(number // first, count - 1))


def _positions(call: Reader, sizes: list[int], kernel: list[int]) -> list[int]:
    """How often a window fits along each dimension."""
    ones = [1] * len(sizes)
    pads = call.integers_of("pads", [0] * (2 * len(sizes)))
    steps, dilations = call.integers_of("strides", ones), call.integers_of("dilations", ones)
    counts = []
    for axis, size in enumerate(sizes):
        window, around = extent(kernel[axis], dilations[axis]), (pads[axis], pads[len(sizes) + axis])
        counts.append(max(0, count(size, window, steps[axis], around)))
    return counts


def pads(call: Reader) -> Want | None:
    """By which the data has the declared shape, half of them before it; or 1 at most."""
    data, declared, half = call.whole(0), call.declared(), call.count() // 2
    axes = call.integers(3) if call.has(3) else list(range(half))
    if data is None or declared is None or len(declared) != len(data) or axes is None or len(axes) != half:
        return between(0, 1)
    added = [(declared[axis] or data[axis]) - data[axis] for axis in axes]
    begins = [more // 2 for more in added]
    return exactly([*begins, *(more - begin for more, begin in zip(added, begins, strict=True))])
