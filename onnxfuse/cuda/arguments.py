"""The arguments of a kernel launch, as the native library makes them: for the tests, the emulation and the tuner."""

import math
import struct
from collections.abc import Iterator, Sequence

from onnxfuse.cuda.elementwise.access import Layout, Operand, row_dim, runs
from onnxfuse.cuda.kernel import Kernel
from onnxfuse.program.figures import MAX_RANK


def grid_size(kernel: Kernel, layout: Layout) -> int:
    """Blocks to launch: one group a thread, or one tile a block; none for no elements."""
    if not kernel.tile:
        return -(-layout.count // (kernel.block * kernel.vector))
    columns, rows = _tile_counts(kernel, layout)
    return columns * rows * (layout.count // math.prod(_tiled_dims(kernel, layout)))


def split_row(length: int, group: int, wanted: int) -> tuple[int, int]:
    """How many blocks share a row, ``wanted`` at the most and one for fewer than two, and the elements of each: of
    whole groups, but for the last."""
    if wanted < 2:
        return 1, length
    chunk = -(-length // wanted)
    chunk = -(-chunk // group) * group
    return -(-length // chunk), chunk


def _tiled_dims(kernel: Kernel, layout: Layout) -> tuple[int, int]:
    """The columns and the rows of the space, which tiles have."""
    return layout.dims[0], layout.dims[row_dim(kernel, layout)]


def _tile_counts(kernel: Kernel, layout: Layout) -> tuple[int, int]:
    """The tiles along columns, and along rows."""
    columns, rows = _tiled_dims(kernel, layout)
    return -(-columns // kernel.tile), -(-rows // kernel.tile)


def pack(kernel: Kernel, layout: Layout, addresses: Sequence[int]) -> list[bytes]:
    """The kernel's parameters in order, each as its bytes; ``addresses`` are those of inputs, then outputs."""
    arguments = [
        struct.pack("<Q", operand.first(address)) for operand, address in zip(layout.operands, addresses, strict=True)
    ]
    arguments.append(struct.pack("<I" if kernel.index == 32 else "<Q", layout.count))
    letters = kernel.access.letters
    if kernel.tile:
        arguments += [pack_divider(count, 32) for count in _tile_counts(kernel, layout)]
        rows = row_dim(kernel, layout)
        order = [0, rows, *(dim for dim in range(1, len(layout.dims)) if dim != rows)]
        strided = [operand for letter, operand in zip(letters, layout.operands, strict=True) if letter != "s"]
        return arguments + _strides(kernel, layout, strided, order)
    strided = []
    for letter, operand in zip(letters, layout.operands, strict=True):
        if letter in "oc":
            arguments.append(pack_divider(operand.inner, kernel.index))
        if letter in "ic":
            arguments.append(pack_divider(operand.extent, kernel.index))
        if letter == "p":
            run, gap = runs(operand, layout)
            arguments += [pack_divider(run, kernel.index), struct.pack("<I" if kernel.index == 32 else "<Q", gap)]
        if letter in "gw":
            strided.append(operand)
    return arguments + (_strides(kernel, layout, strided, range(len(layout.dims))) if strided else [])


def _strides(kernel: Kernel, layout: Layout, strided: Sequence[Operand], order: Sequence[int]) -> list[bytes]:
    """The Space, its dimensions in this ``order``, and the Strides of some operands."""
    index = "I" if kernel.index == 32 else "Q"
    rank = struct.pack("<I" if kernel.index == 32 else "<I4x", len(order))
    sizes = _padded([layout.dims[dim] for dim in order], 1)
    mask = (1 << kernel.index) - 1  # a step backwards is what wraps around
    steps = [_padded([operand.steps[dim] & mask for dim in order], 0) for operand in strided]
    return [
        rank + b"".join(pack_divider(size, kernel.index) for size in sizes),
        *(struct.pack(f"<{MAX_RANK}{index}", *own) for own in steps),
    ]


def parameter_bytes(kernel: Kernel) -> int:
    """The size of the kernel's parameters, each aligned as C++ does."""
    return sum(parameter_places(kernel)[-1])


def parameter_places(kernel: Kernel) -> list[tuple[int, int]]:
    """The offset and the size of each of the kernel's parameters."""
    places: list[tuple[int, int]] = []
    for length, alignment in _sizes(kernel):
        end = sum(places[-1]) if places else 0
        places.append((-(-end // alignment) * alignment, length))
    return places


def joint_bytes(members: Sequence[Kernel]) -> int:
    """The size of the parameters of a kernel that computes what these do, each a part."""
    return sum(joint_places(members)[-1])


def joint_places(members: Sequence[Kernel]) -> list[tuple[int, int]]:
    """The offset and the size of each of its parameters: the ends of the ranges of blocks, then those of each part."""
    places = [(4 * part, 4) for part in range(len(members))]
    for kernel in members:
        begin = -(-sum(places[-1]) // 8) * 8
        places += [(begin + offset, size) for offset, size in parameter_places(kernel)]
    return places


def pack_joint(
    members: Sequence[Kernel], layouts: Sequence[Layout], addresses: Sequence[Sequence[int]]
) -> tuple[list[bytes], int]:
    """The parameters of a kernel of these members, and its blocks; ``addresses`` are those of each part's operands."""
    ends: list[bytes] = []
    arguments: list[bytes] = []
    blocks = 0
    for kernel, layout, own in zip(members, layouts, addresses, strict=True):
        blocks += grid_size(kernel, layout) if layout.count else 0
        ends.append(struct.pack("<I", blocks))
        arguments += pack(kernel, layout, own)
    return ends + arguments, blocks


def _sizes(kernel: Kernel) -> Iterator[tuple[int, int]]:
    word = kernel.index // 8
    divider = 12 if kernel.index == 32 else 8
    letters = kernel.access.letters
    yield from ((8, 8) for _ in letters)
    yield word, word
    if kernel.tile:
        yield from ((divider, word) for _ in range(2))
    else:
        for letter in letters:
            yield from ((divider, word) for _ in range({"i": 1, "o": 1, "c": 2, "p": 1}.get(letter, 0)))
            if letter == "p":
                yield word, word
    if kernel.access.strided:
        yield word + MAX_RANK * divider, word
        without = "s" if kernel.tile else "lsiocp"
        yield from ((MAX_RANK * word, word) for letter in letters if letter not in without)


def pack_divider(divisor: int, index: int) -> bytes:
    """The bytes of a ``Divider`` of cuda/device/indexing.cuh; 1 <= divisor, and < 2^31 where ``index`` is 32."""
    if index == 64:
        return struct.pack("<Q", divisor)
    shift = (divisor - 1).bit_length()
    multiplier = (1 << 32) * ((1 << shift) - divisor) // divisor + 1
    return struct.pack("<3I", divisor, multiplier, shift)


def _padded(values: Sequence[int], filler: int) -> list[int]:
    return [*values, *[filler] * (MAX_RANK - len(values))]
