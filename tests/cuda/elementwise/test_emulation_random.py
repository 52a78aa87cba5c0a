"""Random Programs on random shapes: every kernel that accepts them gives the bits of the reference."""

import random
from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfuse.cuda.elementwise.access import classify, expected_access
from onnxfuse.cuda.elementwise.renderer import render
from onnxfuse.cuda.kernel import Source
from onnxfuse.program import Program, reference
from tests.cuda.elementwise.programs import SMALL, random_program
from tests.cuda.emulation.emulator import Emulation, check_program
from tests.custom_ops.fused import assert_same_bits, sample

PROGRAMS = 40


def random_shapes(rng: random.Random, count: int) -> list[list[int]]:
    """Shapes that broadcast, seldom empty, sometimes of many dimensions."""
    rank = rng.choice((0, 1, 2, 3, 3, 4, 8))
    sizes = (1, 2, 3) if rank == 8 else (1, 2, 3, 4, 5, 8, 16)
    full = [0 if rng.random() < 0.01 else rng.choice(sizes) for _ in range(rank)]
    shapes = []
    for _ in range(count):
        own = [1 if rng.random() < rng.choice((0.0, 0.1, 0.5)) else size for size in full]
        shapes.append(own[rng.randint(0, rank) if rng.random() < 0.2 else 0 :])
    return shapes


def random_source(seed: int) -> Source:
    """A random Program with kernels for the patterns of a few random shapes."""
    program = random_program(seed)
    rng = random.Random(seed)
    shapes = [random_shapes(rng, len(program.inputs)) for _ in range(3)]
    return render(program, [expected_access(program, own) for own in shapes], SMALL)


@cache
def compiled() -> tuple[Emulation, list[tuple[Program, Source]]]:
    """A pool of them."""
    pool = [(random_program(seed), random_source(seed)) for seed in range(PROGRAMS)]
    return Emulation(source for _, source in pool), pool


@settings(max_examples=300, derandomize=True)
@given(st.integers(0, PROGRAMS - 1), st.integers(0, 2**32))
def test_random_programs(index: int, seed: int) -> None:
    emulation, pool = compiled()
    program, source = pool[index]
    rng = random.Random(seed)
    shapes = random_shapes(rng, len(program.inputs))
    inputs = [
        sample(spec.dtype, int(np.prod(shape)), seed % 1000 + i, special=rng.random() < 0.5).reshape(shape)
        for i, (spec, shape) in enumerate(zip(program.inputs, shapes, strict=True))
    ]
    expected = reference.run(program, inputs)
    if any(array.size for array in expected) and not np.prod(np.broadcast_shapes(*shapes)):
        return  # refused: see test_access.py
    operands = len(program.inputs) + len(program.outputs)
    shifts = [rng.choice((0, 0, 0, 1, 2, 16)) for _ in range(operands)]

    def check(actual: np.ndarray, wanted: np.ndarray, output: int, kernel: str) -> None:
        assert_same_bits(actual, wanted)

    ran = check_program(emulation, source, program, inputs, expected, check, shifts)
    assert len(ran) >= (1 if classify(program, shapes).count else 0)
