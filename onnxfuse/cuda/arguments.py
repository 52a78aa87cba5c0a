"""The arguments of a kernel launch, as the native library makes them: for the tests, the emulation and the tuner."""

import struct
from collections.abc import Iterator, Sequence

from onnxfuse.cuda.elementwise.access import Layout
from onnxfuse.cuda.kernel import Kernel

MAX_RANK = 16
"""The dimensions that ``Space`` and ``Strides`` of custom_ops/cuda/device/indexing.cuh hold."""

MAX_BYTES = 4096
"""The most that the parameters of a kernel may take, on every architecture."""


def grid_size(kernel: Kernel, count: int) -> int:
    """Blocks to launch for ``count`` elements: one group a thread, none for no elements."""
    return -(-count // (kernel.block * kernel.vector))


def pack(kernel: Kernel, layout: Layout, addresses: Sequence[int]) -> list[bytes]:
    """The kernel's parameters in order, each as its bytes; ``addresses`` are those of inputs, then outputs."""
    index = "I" if kernel.index == 32 else "Q"
    arguments = [
        struct.pack("<Q", operand.first(address)) for operand, address in zip(layout.operands, addresses, strict=True)
    ]
    arguments.append(struct.pack(f"<{index}", layout.count))
    strided = []
    for letter, operand in zip(kernel.access.letters, layout.operands, strict=True):
        if letter in "oc":
            arguments.append(pack_divider(operand.inner, kernel.index))
        if letter in "ic":
            arguments.append(pack_divider(operand.extent, kernel.index))
        if letter in "gw":
            strided.append(operand)
    if strided:
        rank = struct.pack("<I" if kernel.index == 32 else "<I4x", len(layout.dims))
        arguments.append(rank + b"".join(pack_divider(size, kernel.index) for size in _padded(layout.dims, 1)))
        mask = (1 << kernel.index) - 1  # a step backwards is what wraps around
        arguments.extend(
            struct.pack(f"<{MAX_RANK}{index}", *_padded([step & mask for step in operand.steps], 0))
            for operand in strided
        )
    return arguments


def parameter_bytes(kernel: Kernel) -> int:
    """The size of the kernel's parameters, each aligned as C++ does."""
    size = 0
    for length, alignment in _sizes(kernel):
        size = -(-size // alignment) * alignment + length
    return size


def _sizes(kernel: Kernel) -> Iterator[tuple[int, int]]:
    word = kernel.index // 8
    divider = 12 if kernel.index == 32 else 8
    letters = kernel.access.letters
    yield from ((8, 8) for _ in letters)
    yield word, word
    for letter in letters:
        yield from ((divider, word) for _ in range({"i": 1, "o": 1, "c": 2}.get(letter, 0)))
    if kernel.access.strided:
        yield word + MAX_RANK * divider, word
        yield from ((MAX_RANK * word, word) for letter in letters if letter in "gw")


def pack_divider(divisor: int, index: int) -> bytes:
    """The bytes of a ``Divider`` of cuda/device/indexing.cuh; 1 <= divisor, and < 2^31 where ``index`` is 32."""
    if index == 64:
        return struct.pack("<Q", divisor)
    shift = (divisor - 1).bit_length()
    multiplier = (1 << 32) * ((1 << shift) - divisor) // divisor + 1
    return struct.pack("<3I", divisor, multiplier, shift)


def _padded(values: Sequence[int], filler: int) -> list[int]:
    return [*values, *[filler] * (MAX_RANK - len(values))]
