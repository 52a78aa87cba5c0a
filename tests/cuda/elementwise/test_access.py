"""Classification of operands: letters from shapes, from shapes that are partly unknown, and which kernel takes what."""

from collections.abc import Sequence

import numpy as np
import pytest

from onnxfuse.cuda.elementwise.access import Layout, choose, classify, expected_access
from onnxfuse.cuda.elementwise.renderer import render
from onnxfuse.cuda.kernel import Access
from onnxfuse.cuda.strided import Dim
from onnxfuse.program import Program, ProgramError

ADD = "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nadd f32 0 1\noutput 2\n"
AXIS = "onnxfuse 1\ninput f32 broadcast\ninput f32 axis {}\nadd f32 0 1\noutput 2\n"
APART = "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nneg f32 0\nneg f32 1\nadd f32 2 3\noutput 2\noutput 4\n"


@pytest.mark.parametrize(
    ("shapes", "letters", "dims"),
    [
        (([2, 3, 4], [2, 3, 4]), "ll:l", (24,)),
        (([2, 3, 4], []), "ls:l", (24,)),
        (([2, 3, 4], [1, 1]), "ls:l", (24,)),
        (([2, 3, 4], [4]), "li:l", (4, 6)),
        (([2, 3, 4], [3, 4]), "li:l", (12, 2)),
        (([2, 3, 4], [2, 1, 1]), "lo:l", (12, 2)),
        (([2, 3, 4], [2, 3, 1]), "lo:l", (4, 6)),
        (([2, 3, 4], [3, 1]), "lc:l", (4, 3, 2)),
        (([2, 3, 4], [2, 1, 4]), "lg:l", (4, 3, 2)),
        (([2, 1, 4], [1, 3, 1]), "gc:l", (4, 3, 2)),
        (([1, 3, 4], [3, 1]), "lo:l", (4, 3)),
        (([2, 3, 1], [3, 1]), "li:l", (3, 2)),
        (([5, 1], [1, 7]), "oi:l", (7, 5)),
        (([1], [1, 1, 1]), "ss:l", ()),
        (([], []), "ss:l", ()),
    ],
)
def test_letters(shapes: Sequence[Sequence[int]], letters: str, dims: tuple[int, ...]) -> None:
    layout = classify(Program.parse(ADD), shapes)
    assert (str(layout.access), layout.dims) == (letters, dims)


@pytest.mark.parametrize("shapes", [([2, 3, 4], [3, 1]), ([2, 3, 4], [4]), ([2, 1, 4], [1, 3, 1]), ([6], [])])
def test_elements_lie_where_the_layout_says(shapes: Sequence[Sequence[int]]) -> None:
    layout = classify(Program.parse(ADD), shapes)
    full = np.broadcast_shapes(*shapes)
    for operand, shape in zip(layout.inputs, shapes, strict=True):
        elements = np.broadcast_to(np.arange(np.prod(shape)).reshape(shape), full).reshape(-1)
        assert list(elements) == [element(layout, operand.steps, i) for i in range(layout.count)]
        if operand.letter != "g":
            assert list(elements) == [i // operand.inner % operand.extent for i in range(layout.count)]


def element(layout: Layout, steps: Sequence[int], i: int) -> int:
    total = 0
    for size, step in zip(layout.dims, steps, strict=True):
        total, i = total + i % size * step, i // size
    return total


@pytest.mark.parametrize(("axis", "letters"), [(0, "lo:l"), (1, "lc:l"), (-1, "li:l")])
def test_a_vector_along_an_axis(axis: int, letters: str) -> None:
    layout = classify(Program.parse(AXIS.format(axis)), ([2, 3, 4], [(2, 3, 4)[axis]]))
    assert str(layout.access) == letters


@pytest.mark.parametrize(
    ("program", "shapes", "message"),
    [
        (ADD, ([2, 3], [4]), r"\[2, 3\], \[4\] do not broadcast"),
        (AXIS.format(1), ([2, 3], [4]), r"\[4\] does not lie along axis 1 of \[2, 3\]"),
        (AXIS.format(2), ([2, 3], [3]), "does not lie along axis 2"),
        (AXIS.format(0), ([2, 3], [2, 1]), "does not lie along axis 0"),
        (ADD, ([2, 3],), "1 shapes for 2 inputs"),
        (APART, ([1], [0]), "is empty and an output is not"),
    ],
)
def test_shapes_that_no_kernel_computes(program: str, shapes: Sequence[Sequence[int]], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        classify(Program.parse(program), shapes)


def test_an_output_smaller_than_the_space() -> None:
    assert str(classify(Program.parse(APART), ([3, 1], [2, 3, 4])).access) == "cl:wl"
    assert str(classify(Program.parse(APART), ([], [])).access) == "ss:ll"


@pytest.mark.parametrize(
    ("program", "shapes", "letters"),
    [
        (ADD, (["n", 3, "h", "w"], ["n", 3, "h", "w"]), "ll:l"),
        (ADD, (["n", 3, None, None], [3, 1, 1]), "lc:l"),
        (ADD, (["n", "s", 768], [768]), "li:l"),
        (ADD, (["n", "heads", "s", "s"], ["n", 1, 1, "s"]), "lg:l"),
        (ADD, ([None, None], []), "ls:l"),
        (ADD, (None, ["n", "c", 1, 1]), "lo:l"),
        (ADD, (None, [1]), "ls:l"),
        (ADD, (None, None), "ll:l"),
        (ADD, ([0, 4], [4]), "li:l"),
        (AXIS.format(1), (["n", "c", "h", "w"], ["c"]), "lc:l"),
        (AXIS.format(-1), (["n", "c", "h", "w"], None), "li:l"),
        (AXIS.format(1), (["n", 1, "h", "w"], ["c"]), "ls:l"),
        (APART, (["c", 1], ["n", "c", "w"]), "cl:wl"),
    ],
)
def test_letters_of_unknown_shapes(program: str, shapes: Sequence[Sequence[Dim] | None], letters: str) -> None:
    assert str(expected_access(Program.parse(program), shapes)) == letters


def test_kernels_are_tried_in_order() -> None:
    program = Program.parse(ADD)
    kernels = render(program, [Access.parse("lc:l")]).kernels

    def chosen(shapes: Sequence[Sequence[int]], addresses: Sequence[int] = (0, 0, 0)) -> tuple[str, int, int]:
        kernel = choose(kernels, classify(program, shapes), addresses)
        return str(kernel.access), kernel.vector, kernel.index

    assert chosen(([2, 3, 8], [3, 1])) == ("lc:l", 4, 32)
    assert chosen(([1, 3, 8], [3, 1])) == ("lc:l", 4, 32)
    assert chosen(([2, 3, 8], [])) == ("lc:l", 4, 32)
    assert chosen(([2, 3, 8], [3, 1]), (0, 4, 0)) == ("lc:l", 4, 32)
    assert chosen(([2, 3, 8], [3, 1]), (4, 0, 0)) == ("lc:l", 1, 32)
    assert chosen(([2, 3, 8], [3, 1]), (0, 0, 8)) == ("lc:l", 1, 32)
    assert chosen(([2, 3, 7], [3, 1])) == ("lc:l", 1, 32)
    assert chosen(([2, 3, 8], [2, 1, 8])) == ("gg:l", 1, 32)
    assert chosen(([3, 1], [2, 3, 8])) == ("gg:l", 1, 32)
    assert chosen(([1 << 31], [])) == ("gg:w", 1, 64)
    assert chosen(([(1 << 31) - (1 << 24)], [])) == ("gg:w", 1, 64)
    assert chosen(([(1 << 31) - (1 << 24) - 8], [])) == ("lc:l", 4, 32)
