"""The tilings that are worth trying for a convolution, by what is known of its sizes.

The numbers are for an H100 or H200 (132 multiprocessors, 64 warps each); other devices take the same tilings.  Those
for matrix products without tensor cores were measured on an H100, 42 pointwise layers in every tile and split
(benchmarks/h100/pointwise.md); the others are arguments.  The tuner decides where it can.
"""

from collections.abc import Iterator, Sequence
from math import prod

from onnxfuse.cuda.conv.kernel import Tile
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.cuda.conv.tiling import Tiling, patch_bytes, shared_bytes
from onnxfuse.program.figures import MAX_SPATIAL_RANK, SHARED_BYTES

Size = int | None
"""A size that may not be known."""

MULTIPROCESSORS = 132
WARPS = 8
"""Warps that a multiprocessor has at least, if there is work for so many: fewer cannot hide how long memory takes."""
UNKNOWN = 56
"""What an unknown spatial size is taken to be: the middle of image classifiers."""
UNKNOWN_BATCH = 1
UNKNOWN_LENGTH = 128
"""What the rows of a product, or the sizes between the first one and the channels, are taken to be: tokens."""
MAX_TAPS = 49
"""The elements of the largest depthwise kernel whose weights fit into registers."""
FEW_CHANNELS = 4
"""The channels of X for which a matrix product is not worth its tiles."""
SHORT_DEPTH = 32
"""The longest sum for which tensor cores do not make up for the tiles that they need."""
MAX_SPLIT = 16
LEAST_SPLIT = 4
"""Two parts do not make up for adding them: 5.1 us against 4.0 for 64 to 384 channels at 14x14."""
STEPS_OF_A_PART = 2
"""Tiles of k that each part of a split sum has at least: fewer do not pay for writing the part."""
BLOCKS_OF_PARTS = 5 * MULTIPROCESSORS // 2
"""A sum is not split into more blocks than these, with those of the tiles themselves."""
BLOCKS_OF_LARGE_TILES = 3 * MULTIPROCESSORS
"""Blocks that a tile has to leave to be taken rather than a smaller one: the smallest is the fastest for all else."""


def candidates(conv: Convolution, x_shape: Sequence[Size], tf32: bool = False) -> list[tuple[Tiling, ...]]:
    """Tilings for ``render_conv``, the best by argument first; none if only the family ``any`` has a kernel.

    ``x_shape`` is that of X, as far as it is known.  Each candidate has the kernel that is meant for the shape and, if
    that reads vectors, one that does not, for addresses or sizes that are not aligned.  ``tf32`` allows kernels that
    round X and W of type f32 to 11 significant bits; all others sum exact products.
    """
    tensor_cores = tf32 or conv.dtype != "f32"
    if conv.channels_last:
        found = [*_product(conv, x_shape, tensor_cores)]
    elif conv.depthwise:
        found = [*_depthwise(conv, x_shape)]
    elif conv.depth <= SHORT_DEPTH or not tensor_cores:
        found = [*_direct(conv, x_shape), *_gemm(conv, x_shape, tensor_cores)]
    else:
        found = [*_gemm(conv, x_shape, tensor_cores), *_direct(conv, x_shape)]
    return [own for own in dict.fromkeys(found) if own]


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
    depth, height, width = _guessed(outside)

    def is_little(rows: int) -> bool:
        warps = batch * conv.out_channels * depth * -(-height // rows) * -(-width // vectors[0]) / 32
        return warps < WARPS * MULTIPROCESSORS

    # Where there is little work, as for one image, more threads count for more than rows that one keeps for the next.
    for rows in sorted((4, 2, 8, 1), key=lambda rows: rows if is_little(rows) else 0):
        for threads in (128, 256):
            tilings = (_depthwise_tiling(conv, _guessed(outside), batch, own, rows, threads) for own in vectors)
            yield tuple(tiling for tiling in tilings if shared_bytes(conv, tiling) <= SHARED_BYTES)


def _depthwise_tiling(
    conv: Convolution, outside: tuple[int, ...], batch: int, vector: int, rows: int, threads: int
) -> Tiling:
    """A tile that is as wide as the result, up to a warp, then as high as it may be, then of several planes.

    It takes up to 128 bytes of shared memory a thread, so that 1792 of a multiprocessor's 2048 threads have their
    share.  It is lower, down to a warp, where there would not be two blocks for each multiprocessor, and small planes
    share a block only while there are.
    """
    depth, height, width = outside
    rows = min(rows, height)
    columns = _even(-(-width // vector), 32)
    tall = _even(-(-height // rows), max(1, threads // columns))

    def tiling(planes: int) -> Tiling:
        return Tiling("depthwise", (planes, rows * tall, columns * vector), (rows, vector), vector)

    def tiles() -> int:
        return batch * conv.out_channels * depth * -(-height // (rows * tall)) * -(-width // (columns * vector))

    while tall > 1 and patch_bytes(conv, tiling(1)) > 128 * threads:
        tall //= 2
    while columns * tall >= 64 and tiles() < 2 * MULTIPROCESSORS:
        tall = -(-tall // 2)
    enough = max(-(-32 // (columns * tall)), tiles() // (2 * MULTIPROCESSORS))
    room = min(threads // (columns * tall), 128 * threads // patch_bytes(conv, tiling(1)))
    return tiling(max(1, min(enough, room)))


def _even(count: int, most: int) -> int:
    """The size of parts, of ``most`` at the most, that ``count`` things make without a small rest."""
    return -(-count // -(-count // most))


# ------------------------------------------------------------------------------------------------------- direct


def _direct(conv: Convolution, x_shape: Sequence[Size]) -> Iterator[tuple[Tiling, ...]]:
    if conv.group > 1 or conv.transposed or conv.in_channels > FEW_CHANNELS:
        return
    inside, outside = _spatial(conv, x_shape)
    vectors = _vectors(conv, (inside[-1], outside[-1])) if conv.static_pads is not None else [1]
    for threads in (128, 256):
        tilings = (_direct_tiling(conv, _guessed(outside), vector, threads) for vector in vectors)
        yield tuple(tiling for tiling in tilings if shared_bytes(conv, tiling) <= SHARED_BYTES)


def _direct_tiling(conv: Convolution, outside: tuple[int, ...], vector: int, threads: int) -> Tiling:
    """As many channels as there are, up to 64 and half of the shared memory; as wide as the result, up to a warp."""
    _, height, width = outside
    own = 4 if vector == 8 else 8  # channels of a thread: at most 32 sums
    channels = min(64, -(-conv.out_channels // own) * own)
    while channels > own and 4 * conv.depth * channels > SHARED_BYTES // 2:
        channels = -(-channels // (2 * own)) * own
    columns = _even(-(-width // vector), 32)

    def tiling(rows: int) -> Tiling:
        return Tiling("direct", (channels, rows, columns * vector), (own, vector), vector)

    rows = min(height, max(1, threads // (columns * channels // own)))
    while rows > 1 and shared_bytes(conv, tiling(rows)) > SHARED_BYTES:
        rows //= 2
    return tiling(rows)


# ------------------------------------------------------------------------------------------------------- gemm

# Channels, positions, products; channels and positions of a thread, or of a warp.  Large tiles read least, small ones
# fill a device.  Each thread has 64 results at most, and as many products at a time as its registers hold twice.
_SIMT = (
    ((128, 128, 8), (8, 8)),
    ((64, 128, 16), (8, 8)),
    ((64, 64, 16), (8, 4)),
    ((32, 128, 16), (4, 8)),
    ((32, 64, 16), (4, 4)),
    ((32, 32, 16), (4, 4)),
)
_LARGE = (64, 64, 16), (32, 64, 16)
_SMALL = (32, 32, 16)
_TENSOR_CORES = (
    ((128, 128, 32), (64, 32)),
    ((128, 64, 32), (32, 32)),
    ((64, 128, 32), (32, 32)),
    ((64, 64, 32), (32, 32)),
    ((32, 128, 16), (32, 32)),
    ((32, 64, 16), (32, 32)),
)


def _gemm(conv: Convolution, x_shape: Sequence[Size], tensor_cores: bool) -> Iterator[tuple[Tiling, ...]]:
    _, outside = _spatial(conv, x_shape)
    positions = None if None in outside else prod(size or 0 for size in outside)
    columns = (x_shape[0] or UNKNOWN_BATCH) * prod(_guessed(outside))
    return _tiles(conv, conv.out_channels // conv.group, columns, positions, tensor_cores)


def _product(conv: Convolution, x_shape: Sequence[Size], tensor_cores: bool) -> Iterator[tuple[Tiling, ...]]:
    rows = prod(UNKNOWN_LENGTH if size is None else max(size, 1) for size in x_shape[1:-1])
    rows *= x_shape[0] or (UNKNOWN_BATCH if len(x_shape) > 2 else UNKNOWN_LENGTH)
    return _tiles(conv, rows, conv.out_channels, conv.out_channels, tensor_cores)


def _tiles(conv: Convolution, rows: int, columns: int, run: Size, tensor_cores: bool) -> Iterator[tuple[Tiling, ...]]:
    """For a product of so many rows and columns in each group, of whose columns ``run`` elements lie in one piece."""
    most = 16 if conv.dtype == "f32" else 32  # products at a time: 64 bytes

    def blocks(tile: Tile) -> int:
        return conv.group * -(-rows // tile[0]) * -(-columns // tile[1])

    def cost(own: tuple[Tile, tuple[int, int]]) -> tuple[bool, float]:
        return not tensor_cores and own[0] != first, _cost(own[0], conv.group, rows, columns)

    first = next((tile for tile in _LARGE if blocks(tile) >= BLOCKS_OF_LARGE_TILES and _fills(tile, rows)), _SMALL)
    for (height, width, deep), thread in sorted(_TENSOR_CORES if tensor_cores else _SIMT, key=cost):
        tile = height, width, min(deep, most)
        split = _parts(blocks(tile), -(-conv.depth // tile[2]))
        yield tuple(Tiling("gemm", tile, thread, vector, split, tensor_cores) for vector in _vectors(conv, (run,)))


def _fills(tile: Tile, rows: int) -> bool:
    """Whether at least three quarters of a tile's channels are any."""
    return 4 * rows >= 3 * tile[0] * -(-rows // tile[0])


def _parts(blocks: int, steps: int) -> int:
    """Into how many parts to split sums of so many tiles of k, for as many ``blocks``."""
    parts = 1
    while 2 * parts <= min(MAX_SPLIT, steps // STEPS_OF_A_PART) and 2 * parts * blocks <= BLOCKS_OF_PARTS:
        parts *= 2
    return parts if parts >= LEAST_SPLIT else 1


def _cost(tile: Tile, group: int, rows: int, columns: int) -> float:
    """Roughly, the time of a product: elements computed, in whole waves, with what a tile reads for each on top."""
    first, second, _ = tile
    blocks = group * -(-rows // first) * -(-columns // second)
    waves = max(1.0, blocks / MULTIPROCESSORS)
    return waves * first * second * (1 + 16 / first + 16 / second)
