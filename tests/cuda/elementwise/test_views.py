"""Inputs that are read through views: how they are classified, and that every kernel that takes them reads them so."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from onnxfuse.cuda.elementwise.access import choose, classify, expected_access
from onnxfuse.cuda.elementwise.renderer import render
from onnxfuse.cuda.embed import is_elementwise
from onnxfuse.cuda.kernel import Source
from onnxfuse.cuda.strided import Dim
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program, ProgramError, reference
from tests.cuda.elementwise.programs import SMALL
from tests.cuda.elementwise.test_access import element
from tests.cuda.emulation.emulator import Emulation, check_program
from tests.custom_ops.fused import assert_same_bits, sample

Shape = Sequence[int]


def pair(view: str, dtype: str = "f32", output: str = "") -> Program:
    """The sum of a tensor that is read through a view and of a whole one."""
    return Program.parse(
        f"onnxfuse 2\ninput {dtype} {view}\ninput {dtype} broadcast\nadd {dtype} 0 1\noutput 2{output}\n"
    )


CASES: list[tuple[str, tuple[Shape, Shape], str, tuple[int, ...], int]] = [
    # a view, the shapes of both tensors: letters, collapsed dimensions, offset of the first
    ("slice 0:1:3:1", ([4, 6], [2, 6]), "ll:l", (12,), 6),
    ("slice 0:1:2:1", ([4, 6], [2, 6]), "il:l", (6, 2), 6),
    ("slice 1:2:6:1", ([4, 6], [4, 4]), "gl:l", (4, 4), 2),
    ("slice 1:0:6:2", ([4, 6], [4, 3]), "gl:l", (12,), 0),
    ("slice 0:-2:99:1,1:3:5:1", ([4, 6], [2, 2]), "gl:l", (2, 2), 15),
    ("slice -1:5:6:1", ([4, 6], [4, 8]), "gl:l", (8, 4), 5),
    ("slice 0:2:3:1", ([4, 1], [5, 8]), "sl:l", (40,), 2),
    ("view permute:1.0", ([6, 4], [4, 6]), "gl:l", (6, 4), 0),
    ("view permute:0.2.1.3", ([2, 3, 5, 8], [2, 5, 3, 8]), "gl:l", (8, 3, 5, 2), 0),
    ("view permute:1.0", ([1, 4], [4, 1]), "ll:l", (4,), 0),
    ("view split:-1:3:-1", ([2, 12], [2, 3, 4]), "ll:l", (24,), 0),
    ("view merge:-2", ([2, 3, 4], [2, 12]), "ll:l", (24,), 0),
    ("view slice:-1:4:8:1,split:-1:2:2", ([2, 12], [2, 2, 2]), "gl:l", (4, 2), 4),
    ("view squeeze:-2", ([5, 1, 4], [3, 5, 4]), "il:l", (20, 3), 0),
    ("view unsqueeze:-2", ([5, 4], [5, 3, 4]), "gl:l", (4, 3, 5), 0),
    ("halves", ([3, 8], [3, 8]), "gl:l", (4, 2, 3), 4),
    ("halves", ([2], [3, 2]), "gl:l", (2, 3), 1),
    ("slice -1:2:6:1 halves", ([3, 8], [3, 4]), "gl:l", (2, 2, 3), 4),
]


def viewed(program: Program, tensor: np.ndarray) -> np.ndarray:
    """What the first input reads of a tensor, by the reference."""
    spec = program.inputs[0]
    alone = Program((spec,), (0,))
    return reference.run(alone, [tensor])[0]


@pytest.mark.parametrize(("view", "shapes", "letters", "dims", "offset"), CASES)
def test_letters_and_elements(
    view: str, shapes: tuple[Shape, Shape], letters: str, dims: tuple[int, ...], offset: int
) -> None:
    program = pair(view)
    layout = classify(program, shapes)
    read = layout.inputs[0]
    assert (str(layout.access), layout.dims, read.offset) == (letters, dims, offset)
    assert str(expected_access(program, shapes)) == letters
    tensor = np.arange(np.prod(shapes[0]), dtype=np.float32).reshape(shapes[0])
    wanted = np.broadcast_to(viewed(program, tensor), shapes[1]).reshape(-1)
    assert list(wanted) == [offset + element(layout, read.steps, i) for i in range(layout.count)]
    if read.letter != "g":
        assert list(wanted) == [offset + i // read.inner % read.extent for i in range(layout.count)]


@pytest.mark.parametrize(
    ("view", "shapes", "letters"),
    [
        ("slice -1:0:64:1", (["n", "s", 128], ["n", "s", 64]), "gl:l"),
        ("slice 0:0:1:1", (["n", "s"], ["n", "s"]), "il:l"),
        ("slice 1:1:2:1", (["n", 3, "s"], ["n", 1, "s"]), "gl:l"),
        ("view split:-1:12:64,permute:0.2.1.3", (["n", "s", 768], ["n", 12, "s", 64]), "gl:l"),
        ("view split:-1:-1:32", (["n", 96], ["n", 3, 32]), "ll:l"),
        ("halves", (["s", 64], ["n", 8, "s", 64]), "gl:l"),
        ("halves", (["s", None], ["n", 8, "s", 64]), "gl:l"),
        ("halves", (None, None), "gg:l"),
    ],
)
def test_letters_of_unknown_shapes(view: str, shapes: Sequence[Sequence[Dim] | None], letters: str) -> None:
    assert str(expected_access(pair(view), shapes)) == letters


@pytest.mark.parametrize(
    ("view", "shapes", "message"),
    [
        ("halves", ([3, 5], [3, 5]), "has no halves in its last dimension"),
        ("halves", ([], []), "has no halves in its last dimension"),
        ("slice -1:0:8:2 halves", ([3, 8], [3, 4]), "are not side by side"),
        ("view merge:-2", ([4], [4]), "there is no axis"),
        ("slice 1:0:1:1", ([4], [4]), "there is no axis"),
        ("view permute:1.0,merge:-2", ([4, 6], [24]), "does not step evenly"),
        ("slice 0:0:2:1", ([4, 6], [4, 6]), "do not broadcast"),
    ],
)
def test_views_that_do_not_fit(view: str, shapes: tuple[Shape, Shape], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        classify(pair(view), shapes)


def test_a_space_of_more_dimensions_than_kernels_have() -> None:
    shape = (*(2 for _ in range(15)), 4)
    with pytest.raises(ProgramError, match="17 dimensions"):
        classify(pair("halves"), (shape, shape))
    assert classify(pair("halves"), ((2,) * 16, (2,) * 16)).count == 1 << 16


def test_outputs_are_written_in_the_order_of_the_space() -> None:
    assert is_elementwise(pair("broadcast", output=" view merge:-2,unsqueeze:-1,split:-1:1:-1,squeeze:-2"))
    assert not is_elementwise(Program.parse("onnxfuse 2\ninput f32 broadcast\nindex f32 0 -1\noutput 1\n"))


@pytest.mark.parametrize(
    ("view", "shapes", "address", "vector"),
    [
        ("slice 1:4:12:1", ([4, 12], [4, 8]), 0, 4),
        ("slice 1:4:12:1", ([4, 16], [4, 8]), 16, 4),
        ("slice 1:4:12:1", ([4, 14], [4, 8]), 0, 1),  # rows are not aligned
        ("slice 1:2:10:1", ([4, 12], [4, 8]), 0, 1),  # nor is the first
        ("slice 1:2:10:1", ([4, 12], [4, 8]), 8, 4),
        ("slice 1:4:12:1", ([4, 12], [4, 8]), 8, 1),
        ("slice 0:1:3:1", ([4, 6], [2, 6]), 0, 1),
        ("slice 0:1:3:1", ([4, 6], [2, 6]), 8, 4),
        ("slice 1:0:16:2", ([4, 16], [4, 8]), 0, 1),  # no neighbours
        ("view permute:1.0", ([8, 4], [4, 8]), 0, 1),
        ("view permute:0.2.1.3", ([2, 3, 5, 8], [2, 5, 3, 8]), 0, 4),
        ("view unsqueeze:-1", ([4], [4, 8]), 4, 4),
        ("halves", ([3, 8], [3, 8]), 0, 4),
        ("halves", ([3, 12], [3, 12]), 0, 1),
        ("slice -1:4:12:1 halves", ([3, 16], [3, 8]), 0, 4),
    ],
)
def test_vectors_where_strides_allow(view: str, shapes: tuple[Shape, Shape], address: int, vector: int) -> None:
    program = pair(view)
    layout = classify(program, shapes)
    source = render(program, [layout.access])
    assert choose(source.kernels, layout, [address, 0, 0]).vector == vector


def test_indices_of_32_bits_are_those_of_the_tensor() -> None:
    """What is read may lie further apart than its number says."""
    program = pair("slice -1:0:8:1")
    layout = classify(program, ([2, 1 << 31], [2, 8]))
    assert choose(render(program, [layout.access]).kernels, layout, [0, 0, 0]).index == 64
    layout = classify(program, ([2, (1 << 31) - 8], [2, 8]))
    assert choose(render(program, [layout.access]).kernels, layout, [0, 0, 0]).index == 32


# ------------------------------------------------------------------------------------------------ in the emulation

SHIFTED = "slice:-1:31:3071:1,split:-1:32:-1,slice:-1:0:64:1,split:-1:2:-1"
"""64 of the 96 columns of 32 rows in two blocks: from number 31 on of the first row, and from one before in each."""
VIEWS: dict[str, tuple[str, list[tuple[Shape, ...]]]] = {
    "rows": ("slice 0:1:-1:1", [([5, 24], [3, 24]), ([3, 7], [7]), ([4, 8], [2, 1])]),
    "columns": ("slice -1:8:24:1", [([5, 32], [5, 16]), ([5, 29], [16]), ([2, 3, 24], [3, 1])]),
    "steps": ("slice -1:1:99:3,0:0:4:2", [([5, 32], [2, 11]), ([4, 3], [])]),
    "heads": ("view split:-1:3:16,permute:1.0.2", [([5, 48], [3, 5, 16]), ([5, 48], [16]), ([1, 48], [3, 4, 1])]),
    "transposed": ("view permute:0.2.1", [([2, 33, 5], [2, 5, 33]), ([2, 8, 16], [8]), ([3, 1, 7], [])]),
    "shuffle": ("view split:-2:2:3,permute:0.2.1.3", [([2, 6, 16], [2, 3, 2, 16]), ([1, 6, 5], [])]),
    "pixels": ("view split:-3:2:-1,permute:1.2.0.3", [([4, 3, 5], [2, 3, 2, 5]), ([4, 8, 16], [])]),
    "halves": ("halves", [([5, 32], [5, 32]), ([6], [5, 6]), ([2, 3, 2], [2, 3, 1]), ([4, 1, 16], [1, 5, 16])]),
    "halves of a slice": ("slice -1:16:48:1 halves", [([5, 64], [5, 32]), ([3, 50], [3, 1])]),
    "relative positions": (f"view {SHIFTED}", [([2, 2, 3072], [2, 2, 32, 2, 32]), ([1, 2, 3072], [])]),
    "those of keys": (f"view {SHIFTED},permute:0.3.4.1.2", [([2, 2, 3072], [2, 2, 32, 2, 32]), ([1, 2, 3072], [])]),
    "nothing": ("slice 0:2:2:1", [([4, 6], [6])]),
}
UNALIGNED = ("steps", "transposed", "relative positions", "those of keys", "nothing")


@cache
def compiled(dtype: str) -> tuple[Emulation, dict[str, tuple[Program, Source]]]:
    """Kernels of a type for the patterns of every case."""
    sources = {}
    for name, (view, shapes) in VIEWS.items():
        program = pair(view, dtype)
        accesses = dict.fromkeys(classify(program, own).access for own in shapes)
        sources[name] = program, render(program, list(accesses), SMALL)
    return Emulation(source for _, source in sources.values()), sources


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bool"])
def test_every_kernel_reads_what_the_reference_does(dtype: str, name: str) -> None:
    emulation, sources = compiled(dtype)
    program, source = sources[name]

    def check(actual: np.ndarray, wanted: np.ndarray, output: int, kernel: str) -> None:
        assert_same_bits(actual, wanted)

    ran: set[str] = set()
    for shapes in VIEWS[name][1]:
        inputs = [
            sample(dtype, int(np.prod(shape)), seed, special=False).reshape(shape) for seed, shape in enumerate(shapes)
        ]
        expected = reference.run(program, inputs)
        for shifts in ((0, 0, 0), (1, 0, 0), (0, 3, 0), (0, 0, 2), (8, 8, 8)):
            ran |= check_program(emulation, source, program, inputs, expected, check, shifts)
    assert ran or name == "nothing"
    assert any("_v1" not in kernel for kernel in ran) or name in UNALIGNED
