"""The tilings that are worth trying for a convolution, by what is known of its sizes.

The numbers are for an H100 or H200 (132 multiprocessors, 64 warps each); other devices take the same tilings.  They are
arguments, not measurements: the tuner decides where it can.
"""

from collections.abc import Iterator, Sequence
from math import prod

from onnxfuse.cuda.conv.spec import MAX_SPATIAL_RANK, Convolution
from onnxfuse.cuda.conv.tiling import SHARED_BYTES, Tiling, patch_bytes, shared_bytes

Size = int | None
"""A size that may not be known."""

MULTIPROCESSORS = 132
UNKNOWN = 56
"""What an unknown spatial size is taken to be: the middle of image classifiers."""
UNKNOWN_BATCH = 1
MAX_TAPS = 49
"""The elements of the largest depthwise kernel whose weights fit into registers."""
MAX_SPLIT = 16
STEPS_OF_A_PART = 4
"""Tiles of k that each part of a split sum has at least: fewer do not pay for writing the part."""


def candidates(conv: Convolution, x_shape: Sequence[Size]) -> list[tuple[Tiling, ...]]:
    """Tilings for ``render_conv``, the best by argument first; none if only the family ``any`` has a kernel.

    ``x_shape`` is that of X, as far as it is known.  Each candidate has the kernel that is meant for the shape and, if
    that reads vectors, one that does not, for addresses or sizes that are not aligned.
    """
    found = list(dict.fromkeys(_depthwise(conv, x_shape) if conv.depthwise else _gemm(conv, x_shape)))
    return [own for own in found if own]


def _vectors(conv: Convolution, runs: Sequence[Size]) -> list[int]:
    """Elements to read at once, 16 bytes or fewer, that divide all of the ``runs`` that are known; then 1."""
    widest = 16 // conv.itemsize
    while any(run is not None and run % widest for run in runs):
        widest //= 2
    return [widest, 1] if widest > 1 else [1]


def _spatial(conv: Convolution, x_shape: Sequence[Size]) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
    """The spatial sizes of X and of the result; a size of the result is known if that of X is."""
    guess = (1, conv.in_channels, *(UNKNOWN if size is None else size for size in x_shape[2:]))
    out = conv.output_shape(guess)[2:]
    return tuple(x_shape[2:]), tuple(None if size is None else own for size, own in zip(x_shape[2:], out, strict=True))


def _guessed(sizes: Sequence[Size]) -> tuple[int, ...]:
    """Sizes along D, H, W."""
    known = tuple(UNKNOWN if size is None else max(size, 1) for size in sizes)
    return (1,) * (MAX_SPATIAL_RANK - len(known)) + known


# ------------------------------------------------------------------------------------------------------- depthwise


def _depthwise(conv: Convolution, x_shape: Sequence[Size]) -> Iterator[tuple[Tiling, ...]]:
    inside, outside = _spatial(conv, x_shape)
    if prod(conv.kernel[-2:]) > MAX_TAPS:
        return
    vectors = _vectors(conv, (inside[-1], outside[-1])) if conv.static_pads is not None else [1]
    batch = x_shape[0] or UNKNOWN_BATCH
    for rows in (4, 2, 8, 1):
        for threads in (128, 256):
            tilings = (_depthwise_tiling(conv, _guessed(outside), batch, own, rows, threads) for own in vectors)
            yield tuple(tiling for tiling in tilings if shared_bytes(conv, tiling) <= SHARED_BYTES)


def _depthwise_tiling(
    conv: Convolution, outside: tuple[int, ...], batch: int, vector: int, rows: int, threads: int
) -> Tiling:
    """A tile that is as wide as the result, up to a warp, then as high as it may be, then of several planes.

    It takes up to 128 bytes of shared memory a thread, so that 1792 of a multiprocessor's 2048 threads have their
    share.  Small planes share a block only while there are two blocks for each multiprocessor.
    """
    depth, height, width = outside
    rows = min(rows, height)
    columns = _even(-(-width // vector), 32)
    tall = _even(-(-height // rows), max(1, threads // columns))

    def tiling(planes: int) -> Tiling:
        return Tiling("depthwise", (planes, rows * tall, columns * vector), (rows, vector), vector)

    while tall > 1 and patch_bytes(conv, tiling(1)) > 128 * threads:
        tall //= 2
    tiles = batch * conv.out_channels * depth * -(-height // (rows * tall)) * -(-width // (columns * vector))
    enough = max(-(-32 // (columns * tall)), tiles // (2 * MULTIPROCESSORS))
    room = min(threads // (columns * tall), 128 * threads // patch_bytes(conv, tiling(1)))
    return tiling(max(1, min(enough, room)))


def _even(count: int, most: int) -> int:
    """The size of parts, of ``most`` at the most, that ``count`` things make without a small rest."""
    return -(-count // -(-count // most))


# ------------------------------------------------------------------------------------------------------- gemm

# Channels, positions, products; channels and positions of a thread.  Large tiles read least, small ones fill a device.
_SIMT = (
    ((128, 128, 8), (8, 8)),
    ((64, 128, 16), (8, 8)),
    ((64, 64, 16), (8, 4)),
    ((32, 128, 16), (4, 8)),
    ((32, 64, 16), (4, 4)),
    ((32, 32, 16), (4, 4)),
)


def _gemm(conv: Convolution, x_shape: Sequence[Size]) -> Iterator[tuple[Tiling, ...]]:
    _, outside = _spatial(conv, x_shape)
    positions = None if None in outside else prod(size or 0 for size in outside)
    columns = (x_shape[0] or UNKNOWN_BATCH) * prod(_guessed(outside))
    vectors = [min(vector, 4) for vector in _vectors(conv, (positions,))]
    rows = conv.out_channels // conv.group
    for tile, thread in sorted(_SIMT, key=lambda own: _cost(own[0], conv.group, rows, columns)):
        steps = -(-conv.depth // tile[2])
        split = max(1, min(MAX_SPLIT, steps // STEPS_OF_A_PART))
        yield tuple(Tiling("gemm", tile, thread, vector, split) for vector in vectors)


def _cost(tile: tuple[int, int, int], group: int, rows: int, columns: int) -> float:
    """Roughly, the time of a product: elements computed, in whole waves, with what a tile reads for each on top."""
    first, second, _ = tile
    blocks = group * -(-rows // first) * -(-columns // second)
    waves = max(1.0, blocks / MULTIPROCESSORS)
    return waves * first * second * (1 + 16 / first + 16 / second)
