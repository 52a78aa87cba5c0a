"""How the operands of a Program that reduces step through its rows.

The space is the broadcast of all values.  Its dimensions are the reduced ones, which are those of a row, and the
others, whose product is the number of rows.  Neighbours among either that all operands step through alike are
collapsed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnxfuse.cuda.nest.kernel import Along, NestAccess, NestKernel
from onnxfuse.cuda.strided import broadcast, collapse, read_inputs, steps_in
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program, ProgramError
from onnxfuse.program.figures import LIMIT_32, MAX_COUNT_32, MAX_RANK, WIDEST_ACCESS
from onnxfuse.program.program import Const, Index, Input, Instruction, Reduction
from onnxfuse.program.strides import Strided, dense, output_shape


@dataclass(frozen=True)
class NestOperand:
    """An input, an index or an output: what element (0, 0, …) of the space is, and the steps along its dimensions.

    ``kept`` and ``reduced`` are in the order of the layout's dimensions; a step is 0 where the operand is broadcast.
    ``bits`` of an element are 0 of an index, whose elements are numbers and in no memory.  Of a ``table`` of so many
    rows, which another input names, the operand is the first; the others follow in steps of ``table_step``.
    """

    bits: int
    offset: int
    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    count: int
    is_output: bool = False
    table: int | None = None
    table_step: int = 0

    def step(self, dims: Sequence[int]) -> int | None:
        """The step from one element of a row to the next, if it is the same for all."""
        if not dims:
            return 0
        step, size = self.reduced[0], 1
        for own, dim in zip(self.reduced, dims, strict=True):
            if own != step * size:
                return None
            size *= dim
        return step


@dataclass(frozen=True)
class NestLayout:
    """``rows`` rows of ``length`` elements; the dimensions from the innermost outwards, inputs, indices, outputs."""

    rows: int
    length: int
    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    operands: tuple[NestOperand, ...]
    output_shapes: tuple[tuple[int, ...], ...]
    """Of the tensors that are written."""

    def letter(self, operand: NestOperand) -> str:
        """The tightest letter of an operand."""
        step = operand.step(self.reduced)
        if step is None:
            return "g" if operand.reduced[0] or operand.is_output else "b"
        return "l" if step else "s"


def lay_out(program: Program, shapes: Sequence[Sequence[int]]) -> NestLayout:
    """The layout of ``program`` for inputs of these shapes.

    Raises ProgramError for shapes that do not fit, views that do not step evenly through memory, and rows that are
    none although an output has elements.
    """
    inputs = read_inputs(program.inputs, shapes)
    sizes = _value_shapes(program, inputs)
    space = broadcast([size for size in sizes if size is not None])
    if len(space) > MAX_RANK:
        raise ProgramError(f"{len(space)} dimensions; the limit is {MAX_RANK}")
    rank = len(space)
    if rank < -min(program.axes, default=0):
        raise ProgramError(f"shape {list(space)} has no axis {program.axes[0]}")
    is_reduced = [dim - rank in program.axes for dim in range(rank)]
    strided = [*inputs, *_indices(program, sizes), *(dense(sizes[output]) for output in program.outputs)]
    bits = [spec.bits for spec in program.inputs]
    bits += [0] * (len(strided) - len(bits) - len(program.outputs))
    bits += [8 * DTYPES[program.dtype(output)].itemsize for output in program.outputs]
    counts = [
        math.prod(one if spec.row is None else size) * (8 * DTYPES[spec.dtype].itemsize // spec.bits)
        for spec, one, size in zip(program.inputs, shapes, sizes, strict=False)
    ]
    counts += [0] * (len(strided) - len(shapes) - len(program.outputs))
    counts += [math.prod(sizes[output]) for output in program.outputs]
    rows = math.prod(size for size, reduced in zip(space, is_reduced, strict=True) if not reduced)
    length = math.prod(size for size, reduced in zip(space, is_reduced, strict=True) if reduced)
    if rows == 0 and any(math.prod(sizes[output]) for output in program.outputs):
        raise ProgramError(f"the space {list(space)} has no rows and an output has elements")
    steps = [steps_in(tensor, rank) for tensor in strided]
    parts = []
    for wanted in (False, True):
        own = [dim for dim in range(rank) if is_reduced[dim] is wanted]
        is_none = (length if wanted else rows) == 0
        parts.append(collapse([] if is_none else [(space[dim], [step[dim] for step in steps]) for dim in own]))
    (kept, kept_steps), (reduced, reduced_steps) = parts
    tables = [
        (None, 0) if spec.row is None else (shape[0], math.prod(shape[1:]) if shape[0] else 0)
        for spec, shape in zip(program.inputs, shapes, strict=True)
    ]
    tables += [(None, 0)] * (len(strided) - len(tables))
    operands = tuple(
        NestOperand(
            bits[index],
            tensor.offset,
            tuple(steps[index] for steps in kept_steps),
            tuple(steps[index] for steps in reduced_steps),
            counts[index],
            index >= len(strided) - len(program.outputs),
            *tables[index],
        )
        for index, tensor in enumerate(strided)
    )
    tensors = tuple(
        output_shape(sizes[output], program.steps_of(place)) for place, output in enumerate(program.outputs)
    )
    return NestLayout(rows, length, kept, reduced, operands, tensors)


def accepts(kernel: NestKernel, layout: NestLayout, addresses: Sequence[int]) -> bool:
    """Whether ``kernel`` computes ``layout`` with operands (inputs, then outputs) at these addresses.

    Whether it is worth it to share rows among blocks is not asked here.
    """
    if kernel.index == 32 and not _fits_32_bits(layout):
        return False
    if kernel.items and layout.length > kernel.capacity:
        return False
    if kernel.tile > 1 and (not layout.kept or layout.kept[-1] != kernel.tile):
        return False
    memory = iter(addresses)
    for letter, operand in zip(kernel.access.letters, layout.operands, strict=True):
        step = operand.step(layout.reduced)
        if letter.isupper() and operand.kept[-1]:
            return False
        letter = letter.lower()
        if letter == "b" and operand.reduced and operand.reduced[0] != 0:
            return False
        if (letter == "s" and step != 0) or (letter == "l" and step is None):
            return False
        if kernel.along == "rows" and letter == "l" and step != 1 and layout.length > 1:
            return False
        address = next(memory) if operand.bits else 0
        if kernel.vector > 1 and not _takes_vectors(kernel, letter, operand, layout, address):
            return False
    return True


def _fits_32_bits(layout: NestLayout) -> bool:
    if layout.rows * max(layout.length, 1) > MAX_COUNT_32:
        return False
    dims = (*layout.kept, *layout.reduced)
    return all(
        operand.offset
        + sum((dim - 1) * step for dim, step in zip(dims, (*operand.kept, *operand.reduced), strict=True))
        + max((operand.table or 0) - 1, 0) * operand.table_step
        < LIMIT_32
        and (operand.table or 0) < LIMIT_32
        for operand in layout.operands
    )


def _takes_vectors(kernel: NestKernel, letter: str, operand: NestOperand, layout: NestLayout, address: int) -> bool:
    """Whether groups of neighbours are in a row each, and neighbours in the operand too, or one element of it."""
    vector = kernel.vector
    along = layout.reduced if kernel.along == "rows" else layout.kept
    own, other = (operand.reduced, operand.kept) if kernel.along == "rows" else (operand.kept, operand.reduced)
    if not along or along[0] % vector:
        return False
    if kernel.along == "rows" and letter == "s":
        return True
    if operand.bits == 0:
        return True
    if own[0] == 0:
        return not operand.is_output  # one thread's neighbours would all write it
    alignment = min(WIDEST_ACCESS, vector * operand.bits // 8)
    aligned = address % alignment == 0 and operand.offset * operand.bits % (8 * alignment) == 0
    return own[0] == 1 and aligned and all(step % vector == 0 for step in (*own[1:], *other, operand.table_step))


def _value_shapes(program: Program, inputs: Sequence[Strided]) -> list[tuple[int, ...]]:
    given = iter(inputs)
    shapes: list[tuple[int, ...]] = []
    for value, spec in enumerate(program.values):
        match spec:
            case Input(row=int(numbers)):
                if any(len(shapes[numbers]) >= -axis and shapes[numbers][axis] != 1 for axis in program.axes):
                    raise ProgramError(f"line {program.line_of(value)}: numbers of rows that differ within a row")
                shapes.append(broadcast([shapes[numbers], next(given).sizes]))
            case Input():
                shapes.append(next(given).sizes)
            case Const():
                shapes.append(())
            case Instruction(operands=operands):
                shapes.append(broadcast([shapes[operand] for operand in operands]))
            case Reduction(operand=operand, axes=axes):
                shape = list(shapes[operand])
                if len(shape) < -axes[0]:
                    raise ProgramError(f"line {program.line_of(value)}: shape {shape} has no axis {axes[0]}")
                for axis in axes:
                    shape[axis] = 1
                shapes.append(tuple(shape))
            case Index(operand=operand, axis=axis):
                if len(shapes[operand]) < -axis:
                    raise ProgramError(f"line {program.line_of(value)}: shape {list(shapes[operand])} has no {axis}")
                shapes.append(shapes[operand])
    space = broadcast(shapes)
    for value, spec in enumerate(program.values):
        if isinstance(spec, Reduction):
            own = shapes[spec.operand]
            if any(own[axis] != space[axis] for axis in spec.axes):
                raise ProgramError(
                    f"line {program.line_of(value)}: shape {list(own)} has not all elements of {list(space)} along "
                    f"{list(spec.axes)}"
                )
    return shapes


def _indices(program: Program, shapes: Sequence[tuple[int, ...]]) -> list[Strided]:
    """Coordinates as tensors: of steps of 1 along their axis and 0 along others."""
    found = []
    for value, spec in enumerate(program.values):
        if isinstance(spec, Index):
            shape = shapes[value]
            at = len(shape) + spec.axis
            found.append(Strided(0, shape, tuple(int(dim == at) for dim in range(len(shape)))))
    return found


def access_of(program: Program, layout: NestLayout, row_values: frozenset[int], along: Along) -> NestAccess:
    """The tightest letters, where outputs that are row values are known to be."""
    letters = [layout.letter(operand) for operand in layout.operands]
    if along == "columns":
        letters = ["g" if letter == "b" else letter for letter in letters]
    count, outputs = len(program.inputs), len(program.outputs)
    written = "".join(
        "s" if output in row_values else "g" if letter == "s" else letter
        for output, letter in zip(program.outputs, letters[len(letters) - outputs :], strict=True)
    )
    return NestAccess("".join(letters[:count]), "".join(letters[count : len(letters) - outputs]), written)
