"""Kernels that turn tiles in shared memory: when they are chosen, and that they compute what the reference does."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from onnxfuse.cuda.elementwise.access import accepts, choose, classify, expected_access
from onnxfuse.cuda.elementwise.renderer import compile_options, render
from onnxfuse.cuda.kernel import Source
from onnxfuse.cuda.recipe import Recipe
from onnxfuse.cuda.strided import Dim
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program, reference
from tests.cuda.compilers import nvrtc
from tests.cuda.emulator import Emulation, check_program
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
        [([66, 96], [64, 64]), ([35, 90], [64, 1][:1] and [64])][:1],
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
