"""How the operands of a Program step through its iteration space.

The space is the broadcast of all inputs.  Given shapes, ``classify`` collapses its dimensions and finds for each
operand the tightest letter (see ``onnxfuse.cuda.kernel``) and the numbers that go with it; ``choose`` then picks a
kernel, as the native library does at run time.  ``expected_access`` foretells the letters from shapes with unknown
dimensions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnxfuse.cuda.kernel import MAX_COUNT_32, Access, Kernel
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Input, Instruction, Program, ProgramError

Dim = int | str | None
"""A dimension that may be known only by name, or not at all."""


@dataclass(frozen=True)
class Operand:
    """An input or output in an iteration space of n elements.

    ``letter`` is the tightest one that describes it.  Unless that is ``g`` or ``w``, element i of the space is element
    (i div ``inner``) mod ``extent`` of the operand.  ``steps`` are its strides in elements, 0 where it is broadcast, in
    the order of the layout's ``dims``.
    """

    dtype: str
    letter: str
    inner: int
    extent: int
    steps: tuple[int, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Layout:
    """A collapsed iteration space: ``count`` elements, ``dims`` from the innermost outwards, inputs, then outputs."""

    count: int
    dims: tuple[int, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The inputs, then the outputs."""
        return self.inputs + self.outputs

    @property
    def access(self) -> Access:
        """The tightest letters."""
        return Access("".join(o.letter for o in self.inputs), "".join(o.letter for o in self.outputs))


def classify(program: Program, shapes: Sequence[Sequence[int]]) -> Layout:
    """The layout of ``program`` for inputs of these shapes.

    Raises ProgramError for shapes that do not broadcast or do not lie along their axis, and for a space without
    elements one of whose outputs has some: no thread would write it.
    """
    inputs, outputs = _operand_shapes(program, shapes)
    space = _broadcast_all(inputs)
    count = math.prod(space)
    dtypes = [spec.dtype for spec in program.inputs] + [program.dtype(output) for output in program.outputs]
    if count == 0 and any(math.prod(shape) > 0 for shape in outputs):
        raise ProgramError(f"the inputs' broadcast {list(space)} is empty and an output is not")
    dims, steps = _collapse(space, inputs + outputs)
    operands = [
        _operand(dtype, dims, own, index >= len(inputs))
        for index, (dtype, own) in enumerate(zip(dtypes, steps, strict=True))
    ]
    return Layout(count, dims, tuple(operands[: len(inputs)]), tuple(operands[len(inputs) :]))


def expected_access(program: Program, shapes: Sequence[Sequence[Dim] | None]) -> Access:
    """The letters if dimensions that are not known to be 1 are more than 1 and broadcast with nothing but 1.

    A kernel of these letters also serves a size of 1 at run time where that only merges dimensions.  Inputs of unknown
    rank (None) are taken to have the shape of the space.
    """
    specs = program.inputs
    broadcast = [shape for shape, spec in zip(shapes, specs, strict=True) if shape is not None and spec.axis is None]
    region = _broadcast_all([_sizes(shape) for shape in broadcast])
    sizes = []
    for shape, spec in zip(shapes, specs, strict=True):
        if spec.axis is None:
            sizes.append((2,) * max(len(region), 1) if shape is None else _sizes(shape))
        else:
            inside = -len(region) <= spec.axis < len(region)
            sizes.append((min(_sizes(shape or (None,))[0], region[spec.axis] if inside else 1),))
    return classify(program, sizes).access


def _sizes(shape: Sequence[Dim]) -> tuple[int, ...]:
    """Any size but 1 as 2: only whether a dimension is broadcast matters to a letter."""
    return tuple(1 if dim == 1 else 2 for dim in shape)


def accepts(kernel: Kernel, layout: Layout, addresses: Sequence[int]) -> bool:
    """Whether ``kernel`` computes ``layout`` with operands (inputs, then outputs) at these addresses."""
    if kernel.index == 32 and layout.count > MAX_COUNT_32:
        return False
    return all(
        _letter_accepts(letter, operand) and _vector_accepts(letter, operand, layout, kernel.vector, address)
        for letter, operand, address in zip(kernel.access.letters, layout.operands, addresses, strict=True)
    )


def choose(kernels: Sequence[Kernel], layout: Layout, addresses: Sequence[int]) -> Kernel:
    """The first kernel that accepts; the last one of a source always does."""
    return next(kernel for kernel in kernels if accepts(kernel, layout, addresses))


def _letter_accepts(letter: str, operand: Operand) -> bool:
    own = operand.letter
    match letter:
        case "i":
            return own in "isl"
        case "o":
            return own in "osl"
        case "c":
            return own in "ciosl"
        case "g":
            return True
        case "w":
            return own in "lw"
        case _:
            return own == letter


def _vector_accepts(letter: str, operand: Operand, layout: Layout, vector: int, address: int) -> bool:
    if vector == 1:
        return True
    aligned = address % min(16, vector * operand.itemsize) == 0
    match letter:
        case "l":
            return aligned
        case "i":
            return aligned and operand.extent % vector == 0
        case "o" | "c":
            return operand.inner % vector == 0
        case "g":
            return bool(layout.dims) and layout.dims[0] % vector == 0 and (operand.steps[0] == 0 or aligned)
        case "w":
            return False
        case _:
            return True


def _operand_shapes(
    program: Program, shapes: Sequence[Sequence[int]]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The shapes of inputs, vectors along an axis in the region's rank, and of outputs."""
    specs = program.inputs
    if len(shapes) != len(specs):
        raise ProgramError(f"{len(shapes)} shapes for {len(specs)} inputs")
    region = _broadcast_all([tuple(shape) for shape, spec in zip(shapes, specs, strict=True) if spec.axis is None])
    given = iter(shapes)
    values: list[tuple[int, ...]] = []
    for value in program.values:
        match value:
            case Input():
                values.append(_input_shape(value, tuple(next(given)), region))
            case Instruction():
                values.append(_broadcast_all([values[operand] for operand in value.operands]))
            case _:
                values.append(())
    return values[: len(specs)], [values[output] for output in program.outputs]


def _input_shape(spec: Input, shape: tuple[int, ...], region: tuple[int, ...]) -> tuple[int, ...]:
    if spec.axis is None:
        return shape
    axis = spec.axis + len(region) if spec.axis < 0 else spec.axis
    if len(shape) != 1 or not 0 <= axis < len(region) or shape[0] not in (1, region[axis]):
        raise ProgramError(f"an input of shape {list(shape)} does not lie along axis {spec.axis} of {list(region)}")
    return tuple(shape[0] if index == axis else 1 for index in range(len(region)))


def _broadcast_all(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for index, size in enumerate(shape, rank - len(shape)):
            if size != 1 and result[index] not in (1, size):
                raise ProgramError(f"shapes {', '.join(str(list(shape)) for shape in shapes)} do not broadcast")
            result[index] = size if size != 1 else result[index]
    return tuple(result)


def _collapse(
    space: tuple[int, ...], shapes: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Drops dimensions of 1 and merges neighbours that all shapes step through alike; innermost first."""
    dims: list[int] = []
    columns: list[list[int]] = []  # for each kept dimension, the step of every shape
    inner = [1] * len(shapes)  # elements of every shape inside the current dimension
    for back, size in enumerate(reversed(space), 1):
        if size == 1:
            continue
        own = [shape[-back] if back <= len(shape) else 1 for shape in shapes]
        steps = [0 if extent == 1 else step for extent, step in zip(own, inner, strict=True)]
        inner = [step * extent for step, extent in zip(inner, own, strict=True)]
        if dims and all(step == last * dims[-1] for step, last in zip(steps, columns[-1], strict=True)):
            dims[-1] *= size
        else:
            dims.append(size)
            columns.append(steps)
    return tuple(dims), [tuple(column[index] for column in columns) for index in range(len(shapes))]


def _operand(dtype: str, dims: tuple[int, ...], steps: tuple[int, ...], is_output: bool) -> Operand:
    wide = [index for index, step in enumerate(steps) if step != 0]
    if len(wide) == len(dims) and (dims or is_output):
        return Operand(dtype, "l", 1, math.prod(dims), steps)
    if is_output:
        return Operand(dtype, "w", 0, 0, steps)
    if not wide:
        return Operand(dtype, "s", math.prod(dims), 1, steps)
    first, last = wide[0], wide[-1]
    if len(wide) != last - first + 1:
        return Operand(dtype, "g", 0, 0, steps)
    letter = "i" if first == 0 else "o" if last == len(dims) - 1 else "c"
    return Operand(dtype, letter, math.prod(dims[:first]), math.prod(dims[first : last + 1]), steps)
