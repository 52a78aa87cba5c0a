"""Kernels that turn tiles in shared memory: when they are chosen, and that they compute what the reference does."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from onnxfuse.cuda.arguments import grid_size
from onnxfuse.cuda.elementwise.access import choose, classify, expected_access
from onnxfuse.cuda.elementwise.renderer import render
from onnxfuse.cuda.kernel import Access, Kernel, Source
from onnxfuse.cuda.prelude import transpose_prelude
from onnxfuse.cuda.recipe import Recipe
from onnxfuse.cuda.strided import Dim
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program, ProgramError, reference
from tests.cuda.emulation.emulator import Emulation, aligned, check_program
from tests.custom_ops.fused import assert_same_bits, sample

Shapes = Sequence[Sequence[int]]


def program_of(dtype: str, *views: str, op: str = "add") -> Program:
    """Operands that are read through views, put together one after the other."""
    lines = ["onnxfuse 2", *(f"input {dtype} {view}" for view in views)]
    count = len(views)
    lines += [f"{op} {dtype} {count + at - 2 if at > 1 else 0} {at}" for at in range(1, count)]
    return Program.parse("\n".join([*lines, f"output {2 * count - 2}"]) + "\n")


TURN = "view permute:1.0"
CASES: dict[str, tuple[tuple[str, ...], Shapes, list[Shapes]]] = {
    # views, expected shapes, shapes to run
    "matrix": (
        (TURN, "broadcast"),
        ([128, 96], [96, 128]),
        [([64, 64], [64, 64]), ([33, 67], [67, 33]), ([96, 32], [32, 1]), ([48, 160], [48])],
    ),
    "two and a scalar": (
        (TURN, "broadcast", TURN),
        ([128, 96], [], [128, 96]),
        [([64, 32], [], [64, 32]), ([35, 65], [1], [35, 65]), ([64, 32], [], [64, 1])],
    ),
    "channels last": (
        ("view merge:-2,permute:0.2.1,split:-2:-1:8", "broadcast"),
        ([2, 64, 8, 8], [2, 8, 8, 64]),
        [([2, 32, 8, 8], [2, 8, 8, 32]), ([1, 65, 5, 8], [65])],
    ),
    "heads": (
        ("view split:-1:2:-1,permute:1.2.0", "slice 0:1:3:1"),
        ([96, 128], [4, 64, 1]),
        [([64, 128], [4, 64, 1]), ([40, 66], [4, 1, 40])],
    ),
    "part of a tensor": (
        ("view slice:-1:16:80:1,slice:-2:1:-1:1,permute:1.0", "halves"),
        ([98, 96], [64, 96]),
        [([66, 96], [64, 64]), ([36, 96], [64, 34]), ([40, 90], [1, 38])],
    ),
}


@cache
def compiled(dtype: str) -> tuple[Emulation, dict[str, tuple[Program, Source]]]:
    """The kernels of a type."""
    sources = {}
    for name, (views, shapes, _) in CASES.items():
        program = program_of(dtype, *views)
        sources[name] = program, render(program, [expected_access(program, shapes)])
    return Emulation(source for _, source in sources.values()), sources


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bool"])
def test_every_kernel_computes_what_the_reference_does(dtype: str, name: str) -> None:
    emulation, sources = compiled(dtype)
    program, source = sources[name]

    def check(actual: np.ndarray, wanted: np.ndarray, output: int, kernel: str) -> None:
        assert_same_bits(actual, wanted)

    tiled = {kernel.name for kernel in source.kernels if kernel.tile}
    assert len(tiled) == 2
    ran: set[str] = set()
    for shapes in CASES[name][2]:
        inputs = [
            sample(dtype, int(np.prod(shape)), seed, special=False).reshape(shape) for seed, shape in enumerate(shapes)
        ]
        expected = reference.run(program, inputs)
        for shift in (0, 1):
            shifts = [shift] + [0] * len(shapes)
            ran |= check_program(emulation, source, program, inputs, expected, check, shifts)
    assert tiled <= ran


@pytest.mark.parametrize(
    ("views", "dtype", "shapes", "letters"),
    [
        ((TURN, "broadcast"), "f32", ([64, 96], [96, 64]), "tg:l"),
        ((TURN, "broadcast"), "f32", (["n", "m"], ["m", "n"]), "tg:l"),
        (("broadcast", TURN), "f32", ([], ["n", "m"]), "st:l"),
        ((TURN, "broadcast"), "f32", ([64, 16], [16, 64]), "tg:l"),
        ((TURN, "broadcast"), "f32", ([64, 15], [15, 64]), "gl:l"),  # tiles would be mostly empty
        ((TURN, "broadcast"), "f32", ([3, 4096], [4096, 3]), "gl:l"),
        ((TURN, "broadcast"), "f16", ([64, 31], [31, 64]), "gl:l"),
        ((TURN, "broadcast"), "f16", ([64, 32], [32, 64]), "tg:l"),
        (("view permute:0.2.1.3", "broadcast"), "f32", ([2, 64, 12, 64], [2, 12, 64, 64]), "gl:l"),
        (("view permute:2.1.0", "view permute:0.2.1"), "f32", ([64, 64, 64], [64, 64, 64]), "tg:l"),
        (("view permute:2.1.0", TURN, "view permute:0.2.1"), "f32", ([64, 64, 64], [64, 64], [64, 64, 64]), "gtt:l"),
        (("slice -1:0:99:2", "broadcast"), "f32", ([64, 64], [64, 32]), "gl:l"),
        (("view slice:-1:0:99:2,permute:1.0", "broadcast"), "f32", ([64, 64], [32, 64]), "gl:l"),
    ],
)
def test_when_tiles_are_turned(
    views: tuple[str, ...], dtype: str, shapes: Sequence[Sequence[Dim]], letters: str
) -> None:
    assert str(expected_access(program_of(dtype, *views), shapes)) == letters


def test_operands_that_shared_memory_does_not_hold_are_read_by_strides() -> None:
    shapes = ([64, 64],) * 6
    assert str(expected_access(program_of("f64", *[TURN] * 5, "broadcast"), shapes)) == "tttttg:l"
    assert str(expected_access(program_of("f64", *[TURN] * 6), shapes)) == "gggggg:l"
    with pytest.raises(ProgramError, match="do not fit in shared memory"):
        render(program_of("f64", *[TURN] * 6), [Access("tttttt", "l")])
    tiles = {
        count: render(program_of("f16", *[TURN] * count), [Access("t" * count, "l")]).kernels[0].tile
        for count in (1, 5, 6)
    }
    assert tiles == {1: 64, 5: 64, 6: 32}


@pytest.mark.parametrize(
    ("shapes", "addresses", "name", "grid"),
    [
        (([64, 96], [96, 64]), (0, 0, 0), "tg_l_v4", 6),
        (([64, 96], [96, 64]), (4, 0, 0), "tg_l_v1", 6),
        (([64, 96], [96, 64]), (0, 4, 0), "tg_l_v1", 6),
        (([64, 96], [96, 64]), (0, 0, 8), "tg_l_v1", 6),
        (([66, 96], [96, 66]), (0, 0, 0), "tg_l_v1", 9),
        (([64, 98], [98, 64]), (0, 0, 0), "tg_l_v1", 8),
        (([64, 96], [96, 1]), (0, 4, 0), "tg_l_v4", 6),  # one element for a vector
        (([8, 96], [96, 8]), (0, 0, 0), "gg_l_v1", 3),
        (([1, 96], [96, 1]), (0, 0, 0), "gg_l_v1", 1),
        (([1, 1 << 31], [1 << 31, 1]), (0, 0, 0), "gg_w_v1_i64", 1 << 23),
        (([1 << 16, 1 << 15], [1 << 15, 1 << 16]), (0, 0, 0), "gg_w_v1_i64", 1 << 23),
    ],
)
def test_choice(shapes: Shapes, addresses: Sequence[int], name: str, grid: int) -> None:
    program = program_of("f32", TURN, "broadcast")
    source = render(program, [Access("tg", "l")])
    assert Recipe.parse(str(Recipe.of(source))).kernels == source.kernels
    layout = classify(program, shapes)
    kernel = choose(source.kernels, layout, addresses)
    assert (kernel.name.split("_", 2)[2], grid_size(kernel, layout)) == (name, grid)


def test_mixed_types_and_several_outputs() -> None:
    program = Program.parse(
        "onnxfuse 2\ninput f16 view permute:0.2.1\ninput bool view permute:0.2.1\ninput i64 broadcast\n"
        "cast f16 2\nadd f16 0 3\nwhere f16 1 4 0\ncast u8 2\noutput 5\noutput 1\noutput 6 view unsqueeze:-1\n"
    )
    shapes = [([2, 64, 64], [2, 64, 64], [2, 64, 64]), ([1, 70, 33], [1, 70, 33], [33, 70])]
    source = render(program, [Access("ttg", "lll")])
    emulation = Emulation([source])
    ran: set[str] = set()
    for own in shapes:
        inputs = [
            sample(spec.dtype, int(np.prod(shape)), seed, special=False).reshape(shape)
            for seed, (spec, shape) in enumerate(zip(program.inputs, own, strict=True))
        ]
        ran |= check_program(
            emulation,
            source,
            program,
            inputs,
            reference.run(program, inputs),
            lambda actual, wanted, output, kernel: assert_same_bits(actual, wanted),
        )
    assert {kernel.name for kernel in source.kernels if kernel.tile} <= ran


# ------------------------------------------------------------------------------------------------ banks

TILES = [("u8", 64, 16), ("f16", 64, 8), ("f32", 32, 4), ("f64", 32, 2), *((t, 64, 1) for t in ("u8", "f16"))]
TILES += [("f32", 32, 1), ("f64", 32, 1)]


@cache
def places() -> Emulation:
    """Kernels that write where an element of a tile lies, for thread (column, row), and which column comes as which."""
    sources = []
    for dtype, size, vector in TILES:
        name = f"places_{dtype}_{size}_{vector}"
        text = (
            f'namespace onnxfuse {{\nextern "C" __global__ void {name}(u32* out0, u32* out1) {{\n'
            f"  using Tile = TransposedTile<{dtype}, {size}, {vector}>;\n"
            "  store(out0, blockIdx.x * blockDim.x + threadIdx.x, u32(Tile::place(blockIdx.x, threadIdx.x)));\n"
            "  if (blockIdx.x == 0) store(out1, threadIdx.x, u32(Tile::column_of(threadIdx.x)));\n}\n}\n"
        )
        sources.append(Source(transpose_prelude(), text, (Kernel(name, 1, size, 32, Access("", "ll")),)))
    return Emulation(sources)


@pytest.mark.parametrize(("dtype", "size", "vector"), TILES)
def test_no_two_lanes_use_different_words_of_a_bank(dtype: str, size: int, vector: int) -> None:
    """But for two of types of 1 byte, in one access of 16."""
    outputs = [aligned("u32", size * size, 0), aligned("u32", size, 0)]
    arguments = [output.ctypes.data.to_bytes(8, "little") for output in outputs]
    operands = [(f"out{index}", output.ctypes.data, output.nbytes) for index, output in enumerate(outputs)]
    places().launch(f"places_{dtype}_{size}_{vector}", arguments, size, size, operands)
    place, columns = outputs[0].reshape(size, size), outputs[1]
    assert len(set(place.reshape(-1))) == size * size and sorted(columns) == list(range(size))
    itemsize = DTYPES[dtype].itemsize
    lanes, word = (16, 8) if itemsize == 8 else (32, 4)  # what accesses shared memory at once, and of a bank
    groups = size // vector
    for first in range(0, size * groups, lanes):
        own = range(first, first + lanes)
        for j in range(vector):
            put = [place[n % groups * vector + j, columns[n // groups]] for n in own]
            got = [place[n // groups, n % groups * vector + j] for n in own]
            for used in (put, got):
                words = {int(at) * itemsize // word for at in used}
                assert len({at % (128 // word) for at in words}) >= len(words) - (itemsize == 1)
