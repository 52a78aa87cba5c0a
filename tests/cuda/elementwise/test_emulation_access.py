"""Every way to access operands, by every kernel that accepts it: broadcasts, sizes, alignment, in place."""

import itertools
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from onnxfuse.cuda.elementwise.access import choose, classify
from onnxfuse.cuda.elementwise.renderer import render
from onnxfuse.cuda.kernel import INPUT_LETTERS, Access, Source
from onnxfuse.program import Program, reference
from tests.cuda.elementwise.programs import SMALL
from tests.cuda.emulation.emulator import Emulation, check_program, operand_names
from tests.custom_ops.fused import assert_same_bits, sample

PAIR = "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nmul f32 0 1\nsub f32 2 0\noutput 3\n"
MIXED = (
    "onnxfuse 1\ninput f16 broadcast\ninput i64 broadcast\ninput bool broadcast\ncast f16 1\nadd f16 0 3\n"
    "where f16 2 4 0\ncast u8 1\noutput 5\noutput 6\noutput 2\n"
)
BYTES = "onnxfuse 1\ninput u8 broadcast\ninput u8 broadcast\nadd u8 0 1\nless u8 0 1\noutput 2\noutput 3\n"
AXIS = "onnxfuse 1\ninput f64 broadcast\ninput f64 axis -3\ninput f64 axis 0\nmul f64 0 1\nadd f64 3 2\noutput 4\n"
SMALLER = "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nabs f32 1\nmul f32 0 2\noutput 2\noutput 3\n"
NO_INPUT = "onnxfuse 1\nconst f32 40490fdb\noutput 0\n"

Shapes = Sequence[Sequence[int]]

PAIRS: list[Shapes] = [
    ([1031], [1031]),
    ([1031], []),
    ([], []),
    ([1, 1], [1]),
    ([8, 16], [16]),
    ([16], [8, 16]),
    ([8, 16], [8, 1]),
    ([5, 7], [7]),
    ([3, 5, 8], [5, 1]),
    ([1, 5, 8], [5, 1]),  # outer
    ([3, 5, 1], [5, 1]),  # inner
    ([1, 5, 1], [5, 1]),  # linear
    ([3, 1, 8], [1, 1]),  # scalar
    ([3, 5, 7], [5, 1]),
    ([4, 3, 16, 8], [4, 1, 1, 8]),
    ([4, 3, 5, 3], [4, 1, 1, 3]),
    ([4, 1, 8], [1, 5, 8]),
    ([33, 1], [1, 12]),
    ([2, 3, 1, 2, 2, 1, 2, 4], [3, 1, 2, 1, 1, 2, 1]),
    ([64, 33], [64, 33]),
    ([0, 4], [4]),
]


@cache
def pair_sources(first: str) -> tuple[Emulation, list[Source]]:
    """Kernels for each letter of the second operand, together with a letter of the first."""
    accesses = [Access(first + second, "l") for second in INPUT_LETTERS]
    sources = [render(Program.parse(PAIR), accesses, SMALL)]
    return Emulation(sources), sources


@cache
def sources(text: str, *accesses: str) -> tuple[Emulation, list[Source]]:
    rendered = [render(Program.parse(text), [Access.parse(access) for access in accesses], SMALL)]
    return Emulation(rendered), rendered


def make_inputs(program: Program, shapes: Shapes) -> list[np.ndarray]:
    return [
        sample(spec.dtype, int(np.prod(shape)), seed, special=False).reshape(shape)
        for seed, (spec, shape) in enumerate(zip(program.inputs, shapes, strict=True))
    ]


def run_all(text: str, compiled: tuple[Emulation, list[Source]], shapes: Shapes, shifts: Sequence[int]) -> set[str]:
    program = Program.parse(text)
    inputs = make_inputs(program, shapes)
    expected = reference.run(program, inputs)

    def check(actual: np.ndarray, wanted: np.ndarray, output: int, kernel: str) -> None:
        try:
            assert_same_bits(actual, wanted)
        except AssertionError as error:
            raise AssertionError(f"{kernel} output {output}: {error}") from None

    ran: set[str] = set()
    for source in compiled[1]:
        ran |= check_program(compiled[0], source, program, inputs, expected, check, shifts=shifts)
    return ran


@pytest.mark.parametrize("shapes", PAIRS, ids=str)
@pytest.mark.parametrize("first", INPUT_LETTERS)
def test_two_operands(first: str, shapes: Shapes) -> None:
    for shifts in ((0, 0, 0), (1, 0, 0), (0, 2, 0), (0, 0, 3), (4, 4, 4)):
        run_all(PAIR, pair_sources(first), shapes, shifts)


@pytest.mark.parametrize(
    ("letters", "shapes", "vector"),
    [
        ("ll", ([1031], [1031]), 4),
        ("ls", ([1031], []), 4),
        ("li", ([8, 16], [16]), 4),
        ("li", ([8, 15], [15]), 1),
        ("lo", ([8, 16], [8, 1]), 4),
        ("lc", ([3, 5, 8], [5, 1]), 4),
        ("lc", ([1, 5, 8], [5, 1]), 4),
        ("lc", ([3, 5, 1], [5, 1]), 1),
        ("lc", ([3, 5, 7], [5, 1]), 1),
        ("lg", ([4, 3, 8], [4, 1, 8]), 4),
        ("gg", ([4, 1, 8], [1, 5, 8]), 4),
        ("oi", ([33, 1], [1, 12]), 4),
    ],
)
def test_the_vector_kernel_runs_where_it_can(letters: str, shapes: Shapes, vector: int) -> None:
    program = Program.parse(PAIR)
    source = render(program, [Access(letters, "l")])
    layout = classify(program, shapes)
    kernel = choose(source.kernels, layout, [0, 0, 0])
    assert (kernel.access.inputs, kernel.vector) == (letters, vector)
    for index, letter in enumerate(letters + "l"):
        moved = [4 if i == index else 0 for i in range(3)]
        reads_vectors = letter in "li" or (letter == "g" and layout.operands[index].steps[0] == 1)
        assert choose(source.kernels, layout, moved).vector == (1 if reads_vectors else vector)


@pytest.mark.parametrize(
    "shapes",
    [
        ([515], [515], [515]),
        ([3, 5, 16], [5, 1], []),
        ([3, 5, 16], [16], [3, 1, 1]),
        ([16], [5, 1], [3, 1, 1]),
        ([3, 1, 16], [5, 1], [16]),
        ([2, 3, 4, 4, 4], [1, 4, 4, 4], [2, 1, 1, 4, 1]),
        ([7, 3], [7, 1], [3]),
    ],
    ids=str,
)
def test_mixed_types(shapes: Shapes) -> None:
    some = sources(MIXED, "lll:lll", "lcs:lll", "lio:lll")
    others = sources(MIXED, "gcg:lll", "lcs:llw", "lgg:lll")
    for shifts in ((0,) * 6, (1, 0, 0, 0, 0, 0), (0, 1, 3, 0, 0, 0), (0, 0, 0, 2, 1, 5)):
        assert run_all(MIXED, some, shapes, shifts)
        assert run_all(MIXED, others, shapes, shifts)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 511, 512, 513, 2049])
def test_sixteen_bytes_of_small_elements(count: int) -> None:
    compiled = sources(BYTES, "ll:ll", "ls:ll")
    names = run_all(BYTES, compiled, ([count], [count]), ())
    assert any("_v16" in name for name in names) == (count > 1)
    run_all(BYTES, compiled, ([count], [1]), (0, 1, 16, 3))


@pytest.mark.parametrize("shapes", [([4, 3, 6], [4], [4]), ([4, 3, 1], [4], [1]), ([1, 3, 6], [1], [1])], ids=str)
def test_vectors_along_an_axis(shapes: Shapes) -> None:
    run_all(AXIS, sources(AXIS, "loo:l", "lco:l"), shapes, ())


@pytest.mark.parametrize(
    "shapes",
    [
        ([3, 5, 8], [5, 1]),
        ([3, 5, 8], [8]),
        ([3, 5, 8], [3, 1, 1]),
        ([3, 5, 8], []),
        ([3, 5, 8], [3, 5, 8]),
        ([3, 5, 8], [3, 1, 8]),
        ([1, 5, 8], [8]),
        ([2, 1, 3, 1, 2], [1, 4, 1, 5, 1]),
    ],
    ids=str,
)
def test_outputs_smaller_than_the_space(shapes: Shapes) -> None:
    compiled = sources(SMALLER, "lc:wl", "li:wl", "lg:ww", "ll:ll")
    assert run_all(SMALLER, compiled, shapes, ())


def test_a_program_without_inputs() -> None:
    assert run_all(NO_INPUT, sources(NO_INPUT, ":l"), (), ()) != set()


@pytest.mark.parametrize("shapes", [([1031], [1031]), ([8, 16], [16]), ([6, 8, 4], [8, 1])], ids=str)
def test_outputs_in_the_memory_of_inputs(shapes: Shapes) -> None:
    program = Program.parse(
        "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nadd f32 0 1\nmul f32 0 1\ncast i32 0\n"
        "output 2\noutput 3\noutput 4\n"
    )
    letters = classify(program, shapes).access.inputs
    source = render(program, [Access(letters, "lll")], SMALL)
    emulation = Emulation([source])
    inputs = [
        sample("f32", int(np.prod(shape)), seed, special=False).reshape(shape) for seed, shape in enumerate(shapes)
    ]
    layout = classify(program, shapes)
    expected = reference.run(program, inputs)
    linear = [index for index, letter in enumerate(letters) if letter == "l"]
    for output, place in itertools.product(range(3), linear):
        kernel = choose(source.kernels, layout, [0] * 5)
        results = emulation.run(kernel, program, layout, inputs, in_place={output: place})
        for result, wanted in zip(results, expected, strict=True):
            assert_same_bits(result, wanted.reshape(-1))


def test_names_of_operands_are_those_of_the_text() -> None:
    program = Program.parse(MIXED)
    text = render(program, [Access("lll", "lll")]).body
    assert all(f"* {name}" in text for name in operand_names(program))
