"""Products of few rows with matrices, as Programs that reduce, in the emulation against the reference."""

import itertools
import re
from collections.abc import Iterator

import numpy as np
import pytest

from onnxfuse.cuda.nest.recipe import NestRecipe
from onnxfuse.cuda.nest.renderer import case_of, render_nest
from onnxfuse.program import Program
from tests.cuda.emulation.emulator import Emulation
from tests.cuda.nest.emulator import check_nest
from tests.cuda.nest.product_programs import Shapes, dequantized, product
from tests.cuda.nest.programs import arrays

TOLERANCE = {"f32": 1e-5, "f16": 4e-3, "bf16": 3e-2}
SIZES = ((3, 17), (64, 33), (100, 77), (296, 12), (1048, 9))
"""K and N, of which most are no multiples of what a thread reads at once."""
TAILS = ("", "bias", "residual", "gate", "quantized")


def _cases(dtype: str) -> Iterator[tuple[Program, Shapes]]:
    """Each size with two numbers of rows, so that all of these, all tails and both orders of matrices are there."""
    rows = itertools.cycle(range(1, 9))
    tails = itertools.cycle(TAILS)
    for number, (inner, columns) in enumerate(SIZES * 2):
        yield product(dtype, next(rows), inner, columns, next(tails), normalized=number % 3 == 0, turned=number == 3)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_products_of_few_rows(dtype: str) -> None:
    cases = list(_cases(dtype))
    sources = [render_nest(case_of(*case)) for case in cases]
    emulation = Emulation(sources)
    tiles = set()
    for seed, ((program, shapes), source) in enumerate(zip(cases, sources, strict=True)):
        inputs = arrays(program, shapes, seed)
        scale = max(1.0, float(np.sqrt(shapes[0][1])))
        tolerance = TOLERANCE[dtype] * scale
        tiles |= {one.tile for one in check_nest(emulation, source, program, inputs, tolerance, tolerance, every=2)}
    assert {1, 2, 3, 5, 7, 8} <= tiles


BLOCKS = ((1, 16, 9), (3, 32, 20), (5, 16, 12), (2, 128, 7), (6, 64, 5), (3, 256, 4), (40, 32, 3))
"""Blocks of a column, elements of a block, and columns."""


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_products_with_matrices_of_blocks(dtype: str) -> None:
    """Of 4 bits and of 8, with zero points of either kind or without, of one row and of several."""
    rows, zeros = itertools.cycle((1, 1, 2, 1, 4, 8)), itertools.cycle(("packed", "", "scale"))
    cases = [
        dequantized(dtype, next(rows), *size, 8 if number % 5 == 4 else 4, next(zeros), "gate" if number == 3 else "")
        for number, size in enumerate(BLOCKS)
    ]
    sources = [render_nest(case_of(*case)) for case in cases]
    emulation = Emulation(sources)
    for seed, ((program, shapes), source) in enumerate(zip(cases, sources, strict=True)):
        inputs = arrays(program, shapes, seed)
        scale = 30 * float(np.sqrt(shapes[0][1]))
        used = check_nest(emulation, source, program, inputs, TOLERANCE[dtype], TOLERANCE[dtype] * scale, every=2)
        assert "b" in used[0].access.inputs.lower() or "s" in used[0].access.inputs.lower()


def test_four_bits_are_read_sixteen_bytes_at_a_time() -> None:
    program, shapes = dequantized("f16", 1, 128, 32, 64, zeros="packed")
    source = render_nest(case_of(program, shapes))
    main = source.kernels[0]
    text = source.body[source.body.index(f"{main.name}(") :].split("__global__")[0]
    assert (main.vector, str(main.access)) == (32, "llbb::s")
    assert len(re.findall(r"load_pack<32>\(in1,", text)) == 1 and text.count("load_pack<1>(in2,") == 1
    assert NestRecipe.parse(str(NestRecipe.of(source))).kernels == source.kernels


@pytest.mark.parametrize("shifts", [(1, 0, 0), (0, 3, 0), (0, 0, 1)])
def test_unaligned_products(shifts: tuple[int, ...]) -> None:
    program, shapes = product("f16", 4, 64, 40)
    source = render_nest(case_of(program, shapes))
    used = check_nest(Emulation([source]), source, program, arrays(program, shapes), 1e-1, 1e-1, shifts)
    assert used[0].tile == 4


def test_a_matrix_is_read_once() -> None:
    """In the kernel that a launch takes, and 16 bytes at a time, whatever the number of rows."""
    for rows, vector in ((1, 8), (4, 8)):
        program, shapes = product("f16", rows, 4096, 64)
        source = render_nest(case_of(program, shapes))
        main = source.kernels[0]
        text = source.body[source.body.index(f"{main.name}(") :].split("__global__")[0]
        assert (main.vector, main.tile) == (vector, rows) and main.capacity >= 4096
        assert len(re.findall(r"load_pack<8>\(in1,", text)) == 1 and text.count("load_pack<8>(in0,") == rows
        assert NestRecipe.parse(str(NestRecipe.of(source))).kernels == source.kernels


def test_tiles_are_for_what_most_is_read_of() -> None:
    """Not where each row has elements of its own, where there are more than eight, or where sizes are not known."""
    program, shapes = product("f32", 9, 64, 40)
    assert all(kernel.tile == 1 for kernel in render_nest(case_of(program, shapes)).kernels)
    program, shapes = product("f32", 4, 64, 40)
    unknown = [("n", 64), *shapes[1:]]
    assert all(kernel.tile == 1 for kernel in render_nest(case_of(program, unknown)).kernels)
    sums = Program.parse(
        "onnxfuse 2\ninput f32 broadcast\ninput f32 broadcast\nmul f32 0 1\nreduce_sum f32 2 -1\noutput 3\n"
    )
    assert all(kernel.tile == 1 for kernel in render_nest(case_of(sums, [(4, 64), (64,)])).kernels)
