"""Kernels of Programs that reduce, in the emulation, against the reference."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from onnxfuse.cuda.nest.kernel import NestSource
from onnxfuse.cuda.nest.layout import lay_out
from onnxfuse.cuda.nest.renderer import case_of, render_nest
from onnxfuse.program import Program
from tests.cuda.emulation.emulator import Emulation
from tests.cuda.nest.emulator import accepting, check_nest, run_kernel
from tests.cuda.nest.programs import Chain, arrays, chains, integers, random_nest

TOLERANCE = {"f32": 3e-5, "f64": 1e-12, "f16": 4e-3, "bf16": 3e-2}
SIZES = (*range(1, 71, 3), 32, 64, 69)
RANDOM = 48
SHARDS = 6


@cache
def emulated(dtype: str, name: str) -> tuple[NestSource, Emulation]:
    """The kernels of a chain for rows of any length."""
    chain = _chain(dtype, name)
    shapes = [[size if size else "n" for size in shape] for shape in chain.shapes(0)]
    source = render_nest(case_of(chain.program, shapes))
    return source, Emulation([source])


def _chain(dtype: str, name: str) -> Chain:
    return integers(dtype) if name == "integers" else chains(dtype)[name]


def check(
    dtype: str, name: str, size: int, every: int = 1, shifts: Sequence[int] = (), least: int = 1
) -> set[tuple[str, int, int]]:
    """Check a chain on rows of a size: with the kernel that a launch takes, and with each ``every``-th other one."""
    chain = _chain(dtype, name)
    source, emulation = emulated(dtype, name)
    inputs = arrays(chain.program, chain.shapes(size), size)
    tolerance = TOLERANCE.get(dtype, 0)
    kernels = check_nest(emulation, source, chain.program, inputs, tolerance, tolerance, shifts, every, size)
    assert len(kernels) >= least
    return {(kernel.along, kernel.threads, kernel.items) for kernel in kernels}


@pytest.mark.parametrize("name", chains("f32"))
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_rows_of_all_small_sizes(dtype: str, name: str) -> None:
    used = set[tuple[str, int, int]]()
    for size in SIZES:
        used |= check(dtype, name, size, every=5)
    assert len(used) > 2


@pytest.mark.parametrize("name", ["softmax, scale, mask", "layer norm, residual, gelu", "softmax over channels"])
@pytest.mark.parametrize("dtype", ["bf16", "f64"])
def test_rows_of_other_types(dtype: str, name: str) -> None:
    for size in (3, 31, 64):
        check(dtype, name, size, every=4)


@pytest.mark.parametrize("dtype", ["i8", "u8", "i32", "i64"])
def test_rows_of_integers(dtype: str) -> None:
    for size in (1, 5, 33, 300):
        check(dtype, "integers", size, every=4)


@pytest.mark.parametrize("size", [1023, 4097, 20000])
@pytest.mark.parametrize("name", ["log softmax", "l2 normalize", "group norm, silu", "deviation of rows"])
def test_long_rows(name: str, size: int) -> None:
    """Rows of which a block keeps each, and rows that several blocks share."""
    check("f32", name, size, every=3)


@pytest.mark.parametrize("name", ["mean over channels", "channels last mean", "softmax over channels"])
def test_long_columns(name: str) -> None:
    for size in (127, 1024):
        used = check("f32", name, size, every=1)
    assert ("columns", 8, 0) in used


@pytest.mark.parametrize("shifts", [(1, 0), (0, 1), (1, 3)])
def test_unaligned_rows(shifts: tuple[int, int]) -> None:
    for size in (24, 35):
        check("f32", "l2 normalize", size, every=1, shifts=shifts)
        check("f16", "softmax over channels", size, every=1, shifts=shifts)


@pytest.mark.parametrize("size", [48, 768, 1030])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_length_that_is_known(dtype: str, size: int) -> None:
    """There is one kernel that keeps it then, of as many threads as it takes, and it is what a launch takes."""
    chain = chains(dtype)["layer norm, residual, gelu"]
    shapes = [["n", *shape[1:]] if len(shape) > 1 else shape for shape in chain.shapes(size)]
    source = render_nest(case_of(chain.program, shapes))
    main = source.kernels[0]
    assert size <= main.capacity and (main.capacity < 2 * size or main.threads <= 32)
    inputs = arrays(chain.program, chain.shapes(size))
    kernels = check_nest(
        Emulation([source]), source, chain.program, inputs, TOLERANCE[dtype], TOLERANCE[dtype], every=1
    )
    assert kernels[0] == main


@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_nests(shard: int) -> None:
    """Of every fourth the sizes are not known when its kernels are rendered."""
    seeds = range(shard, RANDOM, SHARDS)
    sources = []
    for seed in seeds:
        program, shapes = random_nest(seed)
        unknown = [["?" if size > 2 and seed % 4 == 0 else size for size in shape] for shape in shapes]
        sources.append(render_nest(case_of(program, unknown)))
    emulation = Emulation(sources)
    for seed, source in zip(seeds, sources, strict=True):
        program, shapes = random_nest(seed)
        inputs = arrays(program, shapes, seed)
        assert check_nest(emulation, source, program, inputs, 1e-4, 1e-4, every=3, start=seed), seed


def _run_text(text: str, *shapes: tuple[int, ...]) -> None:
    program = Program.parse(text)
    source = render_nest(case_of(program, shapes))
    inputs = arrays(program, list(shapes))
    assert check_nest(Emulation([source]), source, program, inputs, 1e-5, 1e-5, every=1)


def test_rows_of_no_elements() -> None:
    text = "onnxfuse 2\ninput f32 broadcast\nreduce_sum f32 0 -1\nreduce_max f32 0 -1\nreduce_mean f32 0 -1\n"
    _run_text(f"{text}output 1\noutput 2\noutput 3\n", (3, 0))


def test_rows_of_one_element() -> None:
    _run_text("onnxfuse 2\ninput f32 broadcast\nreduce_sum f32 0 -1\nsub f32 0 1\noutput 2\n", (3, 1))


def test_one_row_of_all_elements() -> None:
    _run_text("onnxfuse 2\ninput f32 broadcast\nreduce_mean f32 0 -2,-1\nsub f32 0 1\noutput 2\noutput 1\n", (3, 20))


def test_axes_apart() -> None:
    """Reduced dimensions with another one between them."""
    _run_text("onnxfuse 2\ninput f32 broadcast\nreduce_sum f32 0 -3,-1\ndiv f32 0 1\noutput 2\n", (3, 4, 5))


def test_outputs_that_are_smaller_than_the_space() -> None:
    text = (
        "onnxfuse 2\ninput f32 broadcast\ninput f32 broadcast\nreduce_sum f32 0 -1\nadd f32 0 1\n"
        "mul f32 1 1\noutput 2\noutput 3\noutput 4\n"
    )
    _run_text(text, (4, 1, 8), (1, 3, 8))


def test_inputs_through_views() -> None:
    text = (
        "onnxfuse 2\ninput f32 view permute:0.2.1\ninput f32 view slice:-1:1:9:2\nadd f32 0 1\n"
        "reduce_max f32 2 -1\nsub f32 2 3\noutput 4\n"
    )
    _run_text(text, (2, 4, 6), (6, 9))


@pytest.mark.parametrize("shape", [(1, 32, 70), (2, 5, 64), (3, 64, 4)])
def test_rows_whose_neighbours_in_memory_are_in_other_rows(shape: tuple[int, int, int]) -> None:
    """As channels that a convolution has first, before a normalization."""
    text = (
        "onnxfuse 2\ninput f32 view permute:0.2.1\ninput f32 broadcast\nreduce_mean f32 0 -1\nsub f32 0 2\n"
        "mul f32 3 3\nreduce_mean f32 4 -1\nsqrt f32 5\ndiv f32 3 6\nmul f32 7 1\noutput 8\n"
    )
    _run_text(text, shape, (shape[1],))


@pytest.mark.parametrize("length", [8, 33])
def test_a_row_that_there_is_not_is_zeros(length: int) -> None:
    """As ONNX Runtime's Gather has it on CUDA; nothing is read outside the table, of which the emulation makes sure."""
    text = "onnxfuse 3\ninput i64 broadcast\ninput f32 row 0\nreduce_sum f32 1 -1\nadd f32 1 2\noutput 3\noutput 2\n"
    program = Program.parse(text)
    numbers = np.array([[0], [-1], [4], [-6], [5], [1 << 40], [-(1 << 63)], [(1 << 63) - 1]])
    table = np.random.default_rng(0).standard_normal((5, length)).astype(np.float32)
    is_there = (numbers >= -5) & (numbers < 5)
    rows = np.where(is_there, table[np.where(is_there, numbers, 0)[:, 0]], 0)
    source = render_nest(case_of(program, [("n", 1), ("v", "m")]))
    emulation = Emulation([source])
    layout = lay_out(program, [numbers.shape, table.shape])
    kernels = accepting(source, layout, [0] * 4)
    assert len(kernels) > 3 and {kernel.index for kernel in kernels} == {32, 64}
    for kernel in kernels:
        total, sums = run_kernel(emulation, kernel, program, layout, [numbers, table])
        wanted = rows.sum(-1, keepdims=True)
        np.testing.assert_allclose(sums, wanted, 1e-5, 1e-5)
        np.testing.assert_allclose(total, rows + wanted, 1e-5, 1e-5)


def test_nan_wins() -> None:
    text = "onnxfuse 2\ninput f32 broadcast\nreduce_max f32 0 -1\nreduce_min f32 0 -1\noutput 1\noutput 2\n"
    program = Program.parse(text)
    source = render_nest(case_of(program, [("n", "m")]))
    x = np.ones((2, 65), np.float32)
    x[1, 40] = np.nan
    assert check_nest(Emulation([source]), source, program, [x], 0, 0, every=2)
