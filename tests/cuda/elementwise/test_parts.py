"""Programs in several parts: their kernels in the emulation against the reference, alone and all at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from onnxfuse.cuda.arguments import pack_joint
from onnxfuse.cuda.elementwise.fitting import Fitter
from onnxfuse.cuda.elementwise.parts import (
    Part,
    choose_joint,
    classify_parts,
    part_addresses,
    part_of,
    parts_of,
    tensor_shapes,
)
from onnxfuse.cuda.kernel import Source
from onnxfuse.cuda.parts_recipe import PartsRecipe
from onnxfuse.cuda.recipe import RecipeError
from onnxfuse.cuda.rerender import source_of_parts
from onnxfuse.cuda.strided import Dim
from onnxfuse.cuda.tuned import TunedKernels
from onnxfuse.program import Program, ProgramError, reference
from tests.cuda.emulation.emulator import Emulation, aligned
from tests.custom_ops.fused import assert_same_bits, sample

Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Case:
    text: str
    shapes: tuple[Shapes, ...]
    count: int
    expected: Sequence[Sequence[Dim] | None] | None = None

    @property
    def program(self) -> Program:
        return Program.parse(self.text)


CONCAT = "onnxfuse 2\ninput f32 broadcast\ninput f32 broadcast\nabs f32 0\nneg f32 1\noutput 2\nappend 3 {axis}\n"
CASES = {
    "maps of different shapes": Case(
        "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\ninput f16 broadcast\nabs f32 0\nadd f32 3 1\n"
        "neg f16 2\noutput 4\noutput 5\noutput 3\n",
        (([3, 8], [8], [5, 7, 2]), ([2, 9], [9], [4]), ([1, 8], [1], [640])),
        2,
    ),
    "pieces of a Concat": Case(
        "onnxfuse 2\ninput f32 slice -2:0:2:1\ninput f32 slice -2:0:2:1\ninput f32 slice -2:2:6:1\n"
        "input f32 slice -2:2:6:1\nabs f32 0\nneg f32 1\nabs f32 2\nneg f32 3\noutput 4 view unsqueeze:-2\n"
        "append 5 -2 view unsqueeze:-2\noutput 6 view unsqueeze:-2\nappend 7 -2 view unsqueeze:-2\n",
        (([2, 6, 4],) * 4, ([1, 6, 7],) * 4),
        4,
    ),
    "a shared input": Case(
        "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\ninput f32 axis -1\nabs f32 0\nneg f32 0\nmul f32 4 1\n"
        "add f32 5 2\noutput 3\noutput 6\n",
        (([3, 8], [4, 3, 8], [8]), ([1, 12], [2, 3, 12], [1])),
        2,
    ),
    "two activations": Case(
        CONCAT.format(axis=-2), (([2, 3, 8], [2, 4, 8]), ([1, 3, 5], [1, 4, 5]), ([2, 1, 3], [2, 2, 3])), 2
    ),
    "along the last axis": Case(CONCAT.format(axis=-1), (([6, 8], [6, 4]), ([6, 3], [6, 5]), ([1, 4], [1, 8])), 2),
    "along the first axis": Case(CONCAT.format(axis=-2), (([6, 8], [6, 8]),), 2, ([6, 8], [6, 8])),
    "with names": Case(
        CONCAT.format(axis=-2),
        (([2, 5, 4, 8], [2, 5, 1, 8]), ([1, 1, 4, 8], [1, 1, 3, 8])),
        2,
        (["batch", 5, "past", 8], ["batch", 5, 1, 8]),
    ),
    "copies, views and a map": Case(
        "onnxfuse 2\ninput f16 broadcast\ninput f16 view permute:1.0.2\ninput f32 broadcast\nabs f32 2\n"
        "output 0\nappend 1 -2\nappend 0 -2\noutput 3 view split:-1:2:-1\n",
        (([2, 3, 8], [5, 2, 8], [10]), ([1, 1, 4], [2, 1, 4], [16])),
        4,
    ),
    "heads that are put first": Case(
        "onnxfuse 2\ninput f32 view permute:1.0.2\ninput f16 view permute:1.0.2\noutput 0\noutput 1\n",
        (([5, 4, 6], [7, 2, 16]), ([128, 12, 8], [1, 3, 5])),
        2,
    ),
    "transposed": Case(
        "onnxfuse 2\ninput f32 view permute:1.0\ninput f32 broadcast\ninput f32 broadcast\nadd f32 0 1\nabs f32 2\n"
        "output 3\noutput 4\n",
        (([64, 40], [40, 64], [7]), ([33, 70], [70, 33], [3, 5])),
        2,
        ([64, 40], [40, 64], [7]),
    ),
    "empty parts": Case(CONCAT.format(axis=-1), (([2, 0], [2, 4]), ([2, 4], [2, 0])), 2),
}


@cache
def fitted(name: str) -> tuple[tuple[Part, ...], Source]:
    case = CASES[name]
    shapes = case.expected or case.shapes[0]
    parts = parts_of(case.program, shapes)
    fitter = Fitter(None, ("sm_90",), False, TunedKernels(()))
    return parts, fitter.fit(case.program, shapes).source


@cache
def emulation() -> Emulation:
    return Emulation({source.sha256: source for _, source in map(fitted, CASES)}.values())


def arrays_of(program: Program, shapes: Shapes) -> list[np.ndarray]:
    return [
        sample(spec.dtype, int(np.prod(shape)), seed, special=False).reshape(shape)
        for seed, (spec, shape) in enumerate(zip(program.inputs, shapes, strict=True))
    ]


def memories_of(program: Program, parts: Sequence[Part], inputs: Sequence[np.ndarray], shift: int) -> list[np.ndarray]:
    memories = []
    for array, spec in zip(inputs, program.inputs, strict=True):
        memories.append(aligned(spec.dtype, array.size, shift))
        memories[-1][...] = array.reshape(-1)
    shapes = tensor_shapes(program, parts, [array.shape for array in inputs])
    for shape, places in zip(shapes, program.tensors, strict=True):
        memories.append(aligned(program.dtype(program.outputs[places[0]]), math.prod(shape), shift))
    return memories


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_one_launch_computes_all_parts(name: str, shift: int) -> None:
    case, (parts, source) = CASES[name], fitted(name)
    program = case.program
    assert len(parts) == case.count == len(source.parts)
    launched = 0
    for shapes in case.shapes:
        inputs = arrays_of(program, shapes)
        layouts = classify_parts(program, parts, shapes)
        memories = memories_of(program, parts, inputs, shift)
        addresses = part_addresses(program, parts, [memory.ctypes.data for memory in memories])
        joint = choose_joint(source, layouts, addresses)
        if joint is None:
            continue
        launched += 1
        members = [source.kernels[place] for place in joint.members]
        arguments, blocks = pack_joint(members, layouts, addresses)
        operands = [
            ("in" if place < len(inputs) else "out", memory.ctypes.data, memory.nbytes)
            for place, memory in enumerate(memories)
        ]
        emulation().launch(joint.name, arguments, blocks, members[0].block, operands)
        for result, wanted in zip(memories[len(inputs) :], reference.run(program, inputs), strict=True):
            assert_same_bits(result.reshape(wanted.shape), wanted)
    assert launched


@pytest.mark.parametrize("name", CASES)
def test_each_part_alone(name: str) -> None:
    """Its last kernel takes everything: what is launched where no kernel computes all parts."""
    case, (parts, source) = CASES[name], fitted(name)
    program = case.program
    for shapes in case.shapes:
        inputs = arrays_of(program, shapes)
        layouts = classify_parts(program, parts, shapes)
        memories = memories_of(program, parts, inputs, 1)
        addresses = part_addresses(program, parts, [memory.ctypes.data for memory in memories])
        operands = [
            ("in" if place < len(inputs) else "out", memory.ctypes.data, memory.nbytes)
            for place, memory in enumerate(memories)
        ]
        for own, layout, at in zip(source.parts, layouts, addresses, strict=True):
            kernel = source.kernels[own.end - 1]
            if layout.count:
                arguments, blocks = pack_joint([kernel], [layout], [at])
                emulation().launch(kernel.name, arguments[1:], blocks, kernel.block, operands, in_part=True)
        for result, wanted in zip(memories[len(inputs) :], reference.run(program, inputs), strict=True):
            assert_same_bits(result.reshape(wanted.shape), wanted)


@pytest.mark.parametrize("name", CASES)
def test_the_recipe_is_read_and_the_source_rendered_again(name: str) -> None:
    _, source = fitted(name)
    recipe = PartsRecipe.of(source)
    assert PartsRecipe.parse(str(recipe)) == recipe
    assert source_of_parts(CASES[name].program, recipe) == source


def test_vectors_follow_the_offset_and_the_runs() -> None:
    _, source = fitted("two activations")
    first = [source.kernels[place] for place in source.joint[0].members]
    assert [(str(kernel.access), kernel.vector) for kernel in first] == [("l:p", 4), ("l:p", 4)]
    _, source = fitted("along the first axis")
    assert [source.kernels[place].access.outputs for place in source.joint[0].members] == ["l", "l"]


def test_what_is_known_decides_whether_there_are_parts() -> None:
    text = "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nabs f32 0\nneg f32 1\noutput 2\noutput 3\n"
    program = Program.parse(text)
    assert not parts_of(program, [[3, 4], [3, 4]])
    assert not parts_of(program, [["n", 4], ["n", 4]])
    assert len(parts_of(program, [["n", 4], ["m", 4]])) == 2
    assert len(parts_of(program, [[3, 4], [4]])) == 2
    joined = Program.parse(text.replace("neg f32 1", "add f32 1 2"))
    assert not parts_of(joined, [[3, 4], [2, 3, 4]])


def test_what_is_expensive_is_not_computed_twice() -> None:
    text = "onnxfuse 2\ninput f32 broadcast\n{} f32 0\nneg f32 1\noutput 1\nappend 2 -1\n"
    assert len(parts_of(Program.parse(text.format("abs")), [[4, 4]])) == 2
    with pytest.raises(ProgramError, match="take long to compute"):
        text = "onnxfuse 2\ninput f64 broadcast\n" + "".join(f"sin f64 {i}\n" for i in range(9))
        parts_of(Program.parse(text + "neg f64 9\noutput 9\nappend 10 -1\n"), [[4, 4]])
    with pytest.raises(ProgramError, match="counted from the front"):
        part_of(Program.parse("onnxfuse 1\ninput f32 broadcast\ninput f32 axis 0\nadd f32 0 1\noutput 2\n"), [0])


RECIPE = str(PartsRecipe.of(fitted("two activations")[1]))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("part 1\n", "part 0\n", "not in exactly one part"),
        ("part 0\n", "", "neither a part"),
        ("_joint0 0 ", "_joint0 1 1 ", "one kernel of each part"),
        ("_joint0 0 ", "_joint0 9999 ", "one kernel of each part"),
        ("_joint0 0 ", "_joint0 0,1 ", "numbers of kernels"),
        ("joint fused", "joint 9fused", "not the name of a kernel"),
        ("access g:p", "access g:l", "does not accept everything"),
        ("\njoint", "\njoint a\njoint", "is not a kernel"),
    ],
)
def test_what_is_no_recipe(old: str, new: str, message: str) -> None:
    assert old in RECIPE
    with pytest.raises(RecipeError, match=message):
        PartsRecipe.parse(RECIPE.replace(old, new, 1))
