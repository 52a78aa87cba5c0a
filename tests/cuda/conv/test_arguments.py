"""Launching convolutions: letters, conditions, grids and parameters."""

import struct
from dataclasses import replace

import pytest

from onnxfuse.cuda.arguments import pack_divider
from onnxfuse.cuda.conv.arguments import (
    ConvLayout,
    accepts,
    grid_size,
    layout_access,
    pack,
    parameter_bytes,
    resolve,
    splits,
    sum_grid_size,
    workspace_bytes,
)
from onnxfuse.cuda.conv.kernel import ConvAccess, ConvKernel
from onnxfuse.program import Program, ProgramBuilder, ProgramError
from tests.cuda.conv.convolutions import convolution

CONV = convolution("f32", (6, 10), (3, 3), strides=(1, 2), pads=(1, 1, 1, 1))
GEMM = ConvKernel("k", "gemm", (8, 32, 8), 64, 4, 4, 32, ConvAccess("o", "clg"))
ALIGNED = (0,) * 7


def add(dtypes: list[str], axes: list[int | None]) -> Program:
    """The sum of inputs of a type."""
    builder = ProgramBuilder()
    total, *rest = [builder.input(dtype, axis) for dtype, axis in zip(dtypes, axes, strict=True)]
    for value in rest:
        total = builder.emit("add", "f32", total, value)
    return builder.build([total])


PROLOGUE = add(["f32"] * 2, [None] * 2)
EPILOGUE = add(["f32"] * 4, [None, 1, None, None])


def layout(batch: int = 2, height: int = 5, width: int = 8, row: int | None = None) -> ConvLayout:
    """X [batch, 6, height, width], a gate, a bias, a residual and a row of the result."""
    out = (width + 1) // 2
    shapes = [(10,), (batch, 10, height, out), (out if row is None else row,)]
    return resolve(CONV, (batch, 6, height, width), EPILOGUE, shapes, PROLOGUE, [(batch, 6, 1, 1)])


def test_the_letters_of_operands() -> None:
    assert layout_access(layout()) == ConvAccess("o", "clg")
    assert layout_access(layout(batch=1, row=1)) == ConvAccess("c", "cls")
    steps = [operand.steps for operand in layout().epilogue]
    assert steps == [(0, 1, 0, 0, 0), (200, 20, 0, 4, 1), (0, 0, 0, 0, 1)]


def test_a_letter_accepts_what_looks_the_same() -> None:
    own = layout(batch=1, height=1, width=1)
    assert layout_access(own) == ConvAccess("c", "ccs")  # one position: a residual has an element a channel
    assert accepts(replace(GEMM, vector=1), own, ALIGNED)
    assert not accepts(GEMM, own, ALIGNED)


@pytest.mark.parametrize(
    "shapes", [[(9,), (1,), (1,)], [(10,), (3, 10, 5, 4), (1,)], [(10,), (1,), (1, 2, 10, 5, 4)], [(10,), (1,)]]
)
def test_operands_that_do_not_fit_the_result_are_refused(shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(ProgramError):
        resolve(CONV, (2, 6, 5, 8), EPILOGUE, shapes)


def test_vectors_want_alignment_and_multiples() -> None:
    own = layout()
    assert accepts(GEMM, own, ALIGNED)
    for place, wants in enumerate((16, 16, 4, 4, 16, 4, 16)):
        addresses = [0] * 7
        addresses[place] = 8
        assert accepts(GEMM, own, addresses) == (wants < 16)
        assert accepts(replace(GEMM, vector=1), own, addresses) == (place != 1)  # W is aligned in any case
    assert not accepts(GEMM, layout(height=3, width=2), ALIGNED)  # 3 positions
    depthwise = replace(GEMM, family="depthwise", split=1, tile=(1, 4, 4))
    assert accepts(depthwise, own, ALIGNED)
    assert not accepts(depthwise, layout(width=12), ALIGNED)  # rows of 6
    assert not accepts(replace(GEMM, access=ConvAccess("c", "clg")), own, ALIGNED)


def test_32_bits_suffice_for_so_many_elements() -> None:
    scalar = replace(GEMM, vector=1)
    assert accepts(scalar, layout(batch=8, height=1 << 12, width=1 << 13), ALIGNED)
    assert not accepts(scalar, layout(batch=16, height=1 << 12, width=1 << 13), ALIGNED)
    everything = ConvKernel("any", "any", (1, 1, 1), 256, 1, 1, 64, ConvAccess("g", "ggg"))
    assert accepts(everything, layout(batch=16, height=1 << 12, width=1 << 13), (1,) * 7)


def test_grids() -> None:
    own = layout()  # 20 positions in each of 2 images
    assert grid_size(replace(GEMM, split=1), own, 132) == 2 * 2
    assert splits(GEMM, own, 132) == 4
    assert splits(GEMM, own, 4) == 2
    assert splits(GEMM, own, 1) == 1
    assert grid_size(GEMM, own, 4) == 8
    assert workspace_bytes(own, 2) == 2 * 400 * 4
    assert workspace_bytes(own, 1) == 0
    assert sum_grid_size(GEMM, layout(batch=32), 132) == 7
    assert sum_grid_size(GEMM, layout(batch=32000), 1) == 32
    assert grid_size(replace(GEMM, family="depthwise", split=1, tile=(3, 2, 3)), own, 132) == 7 * 3 * 2
    assert grid_size(replace(GEMM, family="direct", split=1, tile=(4, 2, 3)), own, 132) == 2 * 3 * 3 * 2
    everything = replace(GEMM, family="any", split=1, tile=(1, 1, 1), block=64)
    assert grid_size(everything, own, 132) == 7
    assert grid_size(everything, layout(batch=320), 1) == 32
    grouped = convolution("f32", (6, 10), (1,), group=2)
    lone = resolve(grouped, (3, 6, 11), add(["f32"], [None]), [])
    assert grid_size(replace(GEMM, split=1, tile=(4, 8, 8)), lone, 132) == 2 * 2 * 5


def test_parameters() -> None:
    arguments = pack(GEMM, layout(), range(16, 128, 16), 3, 256)
    assert arguments[:8] == [struct.pack("<Q", address) for address in (*range(16, 128, 16), 256)]
    numbers = struct.pack("<11I", 2, 1, 5, 8, 1, 5, 4, 0, 1, 1, 3)
    assert arguments[8] == numbers + pack_divider(4, 32) + pack_divider(5, 32) + pack_divider(20, 32)
    assert arguments[9:] == [struct.pack("<5I", 0, 0, 0, 0, 1)]
    assert parameter_bytes(GEMM, 1) == sum(map(len, arguments))
    wide = replace(GEMM, index=64)
    arguments = pack(wide, layout(), range(16, 128, 16))
    assert arguments[8] == struct.pack("<14Q", 2, 1, 5, 8, 1, 5, 4, 0, 1, 1, 1, 4, 5, 20)
    assert parameter_bytes(wide, 1) == sum(map(len, arguments))
