"""The parts of a Program that one launch computes in ranges of blocks of their own, each over its own iteration space.

An output that is one of several parts of a tensor (``append``) is a part alone.  The others are divided by the values
that they are computed from, if they do not have one space in common.  What several parts read is read by each, and
what is computed for several of them is computed by each.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from onnxfuse.cuda.element import live
from onnxfuse.cuda.elementwise.access import Layout, Operand, accepts, classify, expected_access, output_sizes
from onnxfuse.cuda.kernel import Access, JointKernel, Kernel, Source
from onnxfuse.cuda.strided import STAND_INS, Dim
from onnxfuse.program import Input, Instruction, Program, ProgramError
from onnxfuse.program.figures import MAX_PARTS
from onnxfuse.program.ops import OPS
from onnxfuse.program.program import Value
from onnxfuse.program.strides import output_shape


@dataclass(frozen=True)
class Part:
    """One part: the ``program`` of it alone, whose inputs and outputs have these places among those of the whole."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    program: Program


def part_of(program: Program, outputs: Sequence[int]) -> Part:
    """The part that computes the outputs of these places.

    Raises ProgramError if it reads a vector along an axis that is counted from the front, as whose rank only the whole
    Program tells.
    """
    needed = live(program, outputs)
    inputs = tuple(place for place, value in enumerate(program.values) if place in needed and isinstance(value, Input))
    if any(spec.axis is not None and spec.axis >= 0 for spec in program.inputs):
        raise ProgramError("a vector along an axis that is counted from the front")
    numbers: dict[int, int] = {}
    values: list[Value] = []
    for place, value in enumerate(program.values):
        if place in needed:
            numbers[place] = len(values)
            if isinstance(value, Instruction):
                value = replace(value, operands=tuple(numbers[operand] for operand in value.operands))
            values.append(value)
    views = tuple(program.steps_of(output) for output in outputs)
    return Part(
        inputs,
        tuple(outputs),
        Program(
            tuple(values),
            tuple(numbers[program.outputs[output]] for output in outputs),
            program.contracts,
            views if any(views) else (),
        ),
    )


def parts_of(program: Program, shapes: Sequence[Sequence[Dim] | None]) -> tuple[Part, ...]:
    """The parts for inputs of these shapes, in the order of their first outputs; none if the Program is not divided.

    Raises ProgramError if they are more than a launch takes, or if several need what takes long to compute.
    """
    groups = _groups(program)
    if len(groups) < 2 or (not any(program.appends) and _has_one_space(program, shapes)):
        return ()
    if len(groups) > MAX_PARTS:
        raise ProgramError(f"{len(groups)} parts; the limit is {MAX_PARTS}")
    needed = [live(program, group) for group in groups]
    twice = sum(
        (sum(value in own for own in needed) - 1) * OPS[one.op].cost.cuda[one.dtype.endswith("64")]
        for value, one in enumerate(program.values)
        if isinstance(one, Instruction) and sum(value in own for own in needed) > 1
    )
    if twice > _CHEAP:
        raise ProgramError("its parts need the same values, which take long to compute")
    return tuple(part_of(program, group) for group in groups)


_CHEAP = 64
"""Instructions that parts may compute for an element although another part does too: some ten elementary ones, or one
function such as Erf, which are less than a read of what another launch would have written."""


def is_appended(program: Program, output: int) -> bool:
    """Whether an output, by its place, is one of several parts of a tensor."""
    return any(len(tensor) > 1 and output in tensor for tensor in program.tensors)


def part_count(program: Program) -> int:
    """How many parts a Program is divided into at most: by what its outputs are computed from."""
    return len(_groups(program))


def _groups(program: Program) -> list[list[int]]:
    """The outputs of each part, by their places: those that are parts of a tensor alone, the others by their values."""
    alone = {place for places in program.tensors if len(places) > 1 for place in places}
    groups: list[tuple[set[int], list[int]]] = []
    for place, output in enumerate(program.outputs):
        own = {value for value in live(program, [place]) if isinstance(program.values[value], Instruction)} | {output}
        met = [] if place in alone else [group for group in groups if group[0] & own]
        for group in met:
            groups.remove(group)
        values = own.union(*(group[0] for group in met))
        places = sorted([place, *(one for group in met for one in group[1])])
        groups.append((set() if place in alone else values, places))
    return sorted(group[1] for group in groups)


def _has_one_space(program: Program, shapes: Sequence[Sequence[Dim] | None]) -> bool:
    """Whether all outputs have the elements of one space, for all that is known of the shapes of the inputs."""
    if any(shape is None for shape in shapes):
        return True
    # Each dimension without a name has one of its own here.
    named = [
        [f"?{place} {axis}" if dim is None else dim for axis, dim in enumerate(shape or ())]
        for place, shape in enumerate(shapes)
    ]
    names = sorted({dim for shape in named for dim in shape if isinstance(dim, str)})
    for size in STAND_INS:
        sizes = {name: size * (number + 1) for number, name in enumerate(names)}
        numbers = [[sizes[dim] if isinstance(dim, str) else dim for dim in shape] for shape in named]
        with suppress(ProgramError):
            layout = classify(program, numbers)
            return all(operand.letter == "l" for operand in layout.outputs)
        if not names:
            break
    return False


def part_shapes(part: Part, shapes: Sequence[Sequence[Dim] | None]) -> list[Sequence[Dim] | None]:
    """Of all inputs' shapes those of a part's."""
    return [shapes[place] for place in part.inputs]


def classify_parts(program: Program, parts: Sequence[Part], shapes: Sequence[Sequence[int]]) -> list[Layout]:
    """The layout of each part, its outputs where they lie in their tensors.

    Raises ProgramError as ``classify`` does, for parts that do not fit, and for one that is not as large as its space.
    """
    own_shapes = [[shapes[place] for place in part.inputs] for part in parts]
    layouts = [classify(part.program, own) for part, own in zip(parts, own_shapes, strict=True)]
    sizes: dict[int, tuple[int, ...]] = {}
    for part, own in zip(parts, own_shapes, strict=True):
        for place, size in zip(part.outputs, output_sizes(part.program, own), strict=True):
            sizes[place] = output_shape(size, program.steps_of(place))
    places = {
        place: where
        for tensor in program.tensors
        if len(tensor) > 1
        for place, where in _places(program, tensor, sizes)
    }
    return [
        replace(
            layout,
            outputs=tuple(_placed(layout, number, places.get(place)) for number, place in enumerate(part.outputs)),
        )
        for part, layout in zip(parts, layouts, strict=True)
    ]


def tensor_shapes(program: Program, parts: Sequence[Part], shapes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The shapes of the tensors that a Program makes in parts.  Raises ProgramError as above."""
    sizes: dict[int, tuple[int, ...]] = {}
    for part in parts:
        found = output_sizes(part.program, [shapes[place] for place in part.inputs])
        for place, size in zip(part.outputs, found, strict=True):
            sizes[place] = output_shape(size, program.steps_of(place))
    made = []
    for tensor in program.tensors:
        shape = list(sizes[tensor[0]])
        for place in tensor[1:]:
            shape[program.appends[place]] += sizes[place][program.appends[place]]
        made.append(tuple(shape))
    return made


def _places(
    program: Program, tensor: Sequence[int], sizes: dict[int, tuple[int, ...]]
) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """For each part of a tensor its offset, the elements of a run, and those from one run to the next."""
    axis = program.appends[tensor[1]]
    rank = len(sizes[tensor[0]])
    if any(len(sizes[place]) != rank for place in tensor) or rank < -axis:
        raise ProgramError(f"the parts of an output do not lie along axis {axis}")
    at = rank + axis
    others = {(*sizes[place][:at], *sizes[place][at + 1 :]) for place in tensor}
    if len(others) > 1:
        raise ProgramError(f"the parts of an output have other sizes beside axis {axis}")
    inner = math.prod(sizes[tensor[0]][at + 1 :])
    step = sum(sizes[place][at] for place in tensor) * inner
    offset = 0
    for place in tensor:
        run = sizes[place][at] * inner
        yield place, (offset, run, step)
        offset += run


def _placed(layout: Layout, number: int, where: tuple[int, int, int] | None) -> Operand:
    operand = layout.outputs[number]
    if where is None or layout.count == 0:
        return operand
    if operand.letter != "l":
        raise ProgramError("a part of an output is smaller than what it is computed from")
    offset, run, step = where
    if run == layout.count:
        return replace(operand, offset=offset)
    return replace(operand, letter="p", inner=run, extent=step, offset=offset)


def part_addresses(program: Program, parts: Sequence[Part], addresses: Sequence[int]) -> list[list[int]]:
    """Of the addresses of all inputs, then of the tensors that are made, those of each part's operands."""
    inputs = len(program.inputs)
    tensor_of = {place: tensor for tensor, places in enumerate(program.tensors) for place in places}
    return [
        [
            *(addresses[place] for place in part.inputs),
            *(addresses[inputs + tensor_of[place]] for place in part.outputs),
        ]
        for part in parts
    ]


def choose_joint(source: Source, layouts: Sequence[Layout], addresses: Sequence[Sequence[int]]) -> JointKernel | None:
    """The first kernel for all parts whose members accept these layouts and addresses; None if there is none."""
    for joint in source.joint:
        members = [source.kernels[place] for place in joint.members]
        of_parts = zip(members, layouts, addresses, strict=True)
        if all(layout.count == 0 or accepts(kernel, layout, own) for kernel, layout, own in of_parts):
            return joint
    return None


def expected_accesses(program: Program, parts: Sequence[Part], shapes: Sequence[Sequence[Dim] | None]) -> list[Access]:
    """The letters of each part, as ``expected_access`` has them."""
    placed = _expected_layouts(program, parts, shapes)
    known = all(isinstance(dim, int) for shape in shapes for dim in shape or ()) and None not in shapes
    found = []
    for number, part in enumerate(parts):
        access = expected_access(part.program, part_shapes(part, shapes))
        if is_appended(program, part.outputs[0]) and not (known and placed and placed[number].outputs[0].letter == "l"):
            access = Access(access.inputs.replace("t", "g"), "p")
        found.append(access)
    return found


def _expected_layouts(
    program: Program, parts: Sequence[Part], shapes: Sequence[Sequence[Dim] | None]
) -> list[Layout] | None:
    """The layouts for the first size of dimensions that are not known that fits; None if there is none."""
    if None in shapes:
        return None
    for size in STAND_INS:
        numbers = [[dim if isinstance(dim, int) else size for dim in shape or ()] for shape in shapes]
        with suppress(ProgramError):
            return classify_parts(program, parts, numbers)
    return None


def first_members(
    program: Program,
    parts: Sequence[Part],
    kernels: Sequence[Sequence[Kernel]],
    shapes: Sequence[Sequence[Dim] | None],
) -> tuple[int, ...]:
    """The places among the parts' own ``kernels`` of the first that take aligned tensors of these shapes, if they are
    known; else of the first of each.  Raises ProgramError if none takes those of a part."""
    if None in shapes or not all(isinstance(dim, int) for shape in shapes for dim in shape or ()):
        return (0,) * len(parts)
    layouts = classify_parts(program, parts, [[int(dim or 0) for dim in shape or ()] for shape in shapes])
    found = []
    for own, layout in zip(kernels, layouts, strict=True):
        places = (place for place, kernel in enumerate(own) if accepts(kernel, layout, [0] * len(layout.operands)))
        if (first := next(places, None)) is None:
            raise ProgramError("a part has a shape that none of its kernels takes")
        found.append(first)
    return tuple(found)
