"""How the operands of a Program step through its iteration space.

The space is the broadcast of what all inputs read of their tensors.  Given shapes, ``classify`` collapses its
dimensions and finds for each operand the tightest letter (see ``onnxfuse.cuda.kernel``) and the numbers that go with
it; ``choose`` then picks a kernel, as the native library does at run time.  ``expected_access`` foretells the letters
from shapes with unknown dimensions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxfuse.cuda.kernel import TRANSPOSED, Access, Kernel
from onnxfuse.cuda.strided import STAND_INS, Dim, broadcast, collapse, read_inputs, steps_in
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Input, Instruction, Program, ProgramError
from onnxfuse.program.figures import MAX_COUNT_32, MAX_RANK
from onnxfuse.program.strides import Strided, dense


@dataclass(frozen=True)
class Operand:
    """An input or output in an iteration space of n elements.

    ``letter`` is the tightest one that describes it.  Of ``p`` the elements follow one another in runs of ``inner``,
    the first of each ``extent`` behind that of the one before.  Unless that is ``g``, ``w`` or ``p``, element i of the
    space is element (i div ``inner``) mod ``extent`` of the operand, whose first is element ``offset`` of the tensor.
    ``steps`` are its strides in elements, 0 where it is broadcast, in the order of the layout's ``dims``; of halves
    that change places one is negative.
    """

    dtype: str
    letter: str
    inner: int
    extent: int
    steps: tuple[int, ...]
    offset: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype].itemsize

    def first(self, address: int) -> int:
        """The address of its first element, of a tensor at this address."""
        return address + self.offset * self.itemsize


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

    Raises ProgramError for shapes that do not broadcast or do not lie along their axis, for views that do not fit
    them, and for a space without elements one of whose outputs has some: no thread would write it.
    """
    inputs = read_inputs([replace(spec, swaps_halves=False) for spec in program.inputs], shapes)
    outputs = _output_sizes(program, inputs)
    space = broadcast([tensor.sizes for tensor in inputs])
    count = math.prod(space)
    dtypes = [spec.dtype for spec in program.inputs] + [program.dtype(output) for output in program.outputs]
    if count == 0 and any(math.prod(sizes) > 0 for sizes in outputs):
        raise ProgramError(f"the inputs' broadcast {list(space)} is empty and an output is not")
    tensors = [*inputs, *map(dense, outputs)]
    if any(spec.swaps_halves for spec in program.inputs):
        for spec, tensor in zip(program.inputs, inputs, strict=True):
            _check_halves(spec, tensor)
        swapped = [spec.swaps_halves for spec in program.inputs] + [False] * len(outputs)
        tensors = [_in_halves(tensor, swaps) for tensor, swaps in zip(tensors, swapped, strict=True)]
        space = (*space[:-1], 2, space[-1] // 2)
    rank = sum(size != 1 for size in space)
    if rank > MAX_RANK:
        raise ProgramError(f"{rank} dimensions; the limit is {MAX_RANK}")
    steps = [steps_in(tensor, len(space)) for tensor in tensors]
    dims, columns = collapse([(size, [own[dim] for own in steps]) for dim, size in enumerate(space)])
    operands = tuple(
        _operand(dtype, dims, tensor.offset, tuple(column[index] for column in columns), index >= len(inputs))
        for index, (dtype, tensor) in enumerate(zip(dtypes, tensors, strict=True))
    )
    return Layout(count, dims, operands[: len(inputs)], operands[len(inputs) :])


def expected_access(program: Program, shapes: Sequence[Sequence[Dim] | None]) -> Access:
    """The letters if dimensions that are not known to be 1 are more than 1 and broadcast with nothing but 1.

    A kernel of these letters also serves a size of 1 at run time where that only merges dimensions.  Inputs of unknown
    rank (None) are taken to have the shape of the space.
    """
    if program.reads_views:
        return _expected_of_views(program, shapes)
    specs = program.inputs
    known = [shape for shape, spec in zip(shapes, specs, strict=True) if shape is not None and spec.axis is None]
    region = broadcast([_sizes(shape) for shape in known])
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


def _expected_of_views(program: Program, shapes: Sequence[Sequence[Dim] | None]) -> Access:
    """The letters for the first size of those that are not known that fits; else those that every shape has."""
    if all(shape is not None for shape in shapes):
        for size in STAND_INS:
            try:
                layout = classify(
                    program, [[dim if isinstance(dim, int) else size for dim in shape or ()] for shape in shapes]
                )
            except ProgramError:
                continue
            if layout.count:
                known = all(isinstance(dim, int) for shape in shapes for dim in shape or ())
                return _transposed(program, layout, known) or layout.access
    return Access("g" * len(program.inputs), "l" * len(program.outputs))


def _transposed(program: Program, layout: Layout, known: bool) -> Access | None:
    """The letters of a kernel that transposes, if inputs have their neighbours along another dimension than outputs.

    That is the one along which most bytes are read so.  None if there is none, if it or the innermost has too few
    elements for tiles to be mostly full, as far as sizes are ``known``, or where the tiles do not fit in shared memory.
    """
    bytes_along: dict[int, int] = {}
    for operand in layout.inputs:
        if operand.steps and operand.steps[0] not in (0, 1) and 1 in operand.steps:
            rows = operand.steps.index(1)
            bytes_along[rows] = bytes_along.get(rows, 0) + operand.itemsize
    if not bytes_along or set(layout.access.outputs) != {"l"}:
        return None
    rows = max(bytes_along, key=lambda dim: bytes_along[dim])
    letters = "".join(
        TRANSPOSED
        if operand.steps[rows] == 1 and operand.steps[0] not in (0, 1)
        else "s"
        if operand.letter == "s"
        else "g"
        for operand in layout.inputs
    )
    access = Access(letters, layout.access.outputs)
    tile = tile_of(program, access)
    if not tile or (known and min(layout.dims[0], layout.dims[rows]) * 2 < tile):
        return None
    return access


def tile_of(program: Program, access: Access) -> int:
    """How many elements the tiles of a kernel that transposes have each way; 0 if they do not fit in shared memory.

    64, so that rows of elements of 2 bytes or less are long enough for whole sectors of memory, else 32.
    """
    sizes = [
        DTYPES[spec.dtype].itemsize
        for spec, letter in zip(program.inputs, access.inputs, strict=True)
        if letter == TRANSPOSED
    ]
    least = min(*sizes, *(DTYPES[program.dtype(output)].itemsize for output in program.outputs))
    for tile in (64, 32) if least <= 2 else (32,):
        if sum(sizes) * tile * (tile + _MOST_PADDING) <= _SHARED:
            return tile
    return 0


def tile_bytes(program: Program, kernel: Kernel) -> int:
    """The bytes of shared memory that the tiles of a kernel take at most; 0 if it does not transpose."""
    sizes = (
        DTYPES[spec.dtype].itemsize
        for spec, letter in zip(program.inputs, kernel.access.inputs, strict=True)
        if letter == TRANSPOSED
    )
    return sum(sizes) * kernel.tile * (kernel.tile + _MOST_PADDING)


_MOST_PADDING = 4
_SHARED = 48 << 10
"""Bytes of shared memory that every block may have."""


def row_dim(kernel: Kernel, layout: Layout) -> int:
    """The dimension along which a kernel that transposes reads neighbours: that of its first transposed input's.

    0, as of the innermost, if there is none.
    """
    operand = layout.inputs[kernel.access.inputs.index(TRANSPOSED)]
    return operand.steps.index(1) if 1 in operand.steps else 0


def accepts(kernel: Kernel, layout: Layout, addresses: Sequence[int]) -> bool:
    """Whether ``kernel`` computes ``layout`` with operands (inputs, then outputs) at these addresses."""
    if kernel.index == 32 and not _fits_32_bits(kernel, layout):
        return False
    if kernel.tile:
        return _accepts_tiles(kernel, layout, addresses)
    return all(
        _letter_accepts(letter, operand) and _vector_accepts(letter, operand, layout, kernel.vector, address)
        for letter, operand, address in zip(kernel.access.letters, layout.operands, addresses, strict=True)
    )


def choose(kernels: Sequence[Kernel], layout: Layout, addresses: Sequence[int]) -> Kernel:
    """The first kernel that accepts; the last one of a source always does."""
    return next(kernel for kernel in kernels if accepts(kernel, layout, addresses))


def _fits_32_bits(kernel: Kernel, layout: Layout) -> bool:
    """Whether no index is beyond 31 bits, those of the last block's threads without an element included."""
    return layout.count <= MAX_COUNT_32 and all(
        _reach(letter, operand, layout) < _LIMIT_32
        for letter, operand in zip(kernel.access.letters, layout.operands, strict=True)
        if letter in "gwtp" or kernel.tile
    )


def _reach(letter: str, operand: Operand, layout: Layout) -> int:
    """How far behind its first element an operand has others."""
    if letter == "p":
        run, gap = runs(operand, layout)
        return layout.count + layout.count // run * gap
    return sum((dim - 1) * abs(step) for dim, step in zip(layout.dims, operand.steps, strict=True))


def runs(operand: Operand, layout: Layout) -> tuple[int, int]:
    """Of an output that is written in runs the elements of a run, and those between two runs."""
    if operand.letter != "p":
        return max(layout.count, 1), 0
    return operand.inner, operand.extent - operand.inner


_LIMIT_32 = 1 << 31


def _accepts_tiles(kernel: Kernel, layout: Layout, addresses: Sequence[int]) -> bool:
    """The same of a kernel that transposes: whether tiles are mostly full, and groups whole."""
    rows = row_dim(kernel, layout)
    if not rows or min(layout.dims[0], layout.dims[rows]) * 2 < kernel.tile:
        return False
    for letter, operand, address in zip(kernel.access.letters, layout.operands, addresses, strict=True):
        along = rows if letter == TRANSPOSED else 0
        if letter in "ls" and operand.letter != letter:
            return False
        if letter == TRANSPOSED and (operand.steps[rows] != 1 or operand.steps[0] in (0, 1)):
            return False
        if kernel.vector > 1 and letter != "s" and not _has_groups(operand, layout, along, kernel.vector, address):
            return False
    return True


def _has_groups(operand: Operand, layout: Layout, along: int, vector: int, address: int) -> bool:
    """Whether groups of a dimension are neighbours in an operand and aligned, or one element of it."""
    if len(layout.dims) <= along or layout.dims[along] % vector:
        return False
    if operand.steps[along] == 0:
        return True
    others = (step for dim, step in enumerate(operand.steps) if dim != along)
    aligned = operand.first(address) % min(16, vector * operand.itemsize) == 0
    return operand.steps[along] == 1 and aligned and all(step % vector == 0 for step in others)


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
        case "p":
            return own in "lp"
        case _:
            return own == letter


def _vector_accepts(letter: str, operand: Operand, layout: Layout, vector: int, address: int) -> bool:
    if vector == 1:
        return True
    aligned = operand.first(address) % min(16, vector * operand.itemsize) == 0
    match letter:
        case "l":
            return aligned
        case "i":
            return aligned and operand.extent % vector == 0
        case "p":
            run, gap = runs(operand, layout)
            return aligned and run % vector == 0 and gap % vector == 0
        case "o" | "c":
            return operand.inner % vector == 0
        case "g":
            return _has_groups(operand, layout, 0, vector, address)
        case "w":
            return False
        case _:
            return True


def _check_halves(spec: Input, tensor: Strided) -> None:
    """Raises ProgramError for an input of halves that has none, or whose halves are not runs of neighbours."""
    if not spec.swaps_halves:
        return
    if not tensor.sizes or tensor.sizes[-1] % 2:
        raise ProgramError(f"shape {list(tensor.sizes)} has no halves in its last dimension")
    if 0 not in tensor.sizes and tensor.steps[-1] != 1:
        raise ProgramError(f"'{spec}' has halves that are not side by side")


def _in_halves(tensor: Strided, swapped: bool) -> Strided:
    """The same with its last dimension as two, of which the outer steps backwards where halves are ``swapped``."""
    if not tensor.sizes or tensor.sizes[-1] == 1:
        return replace(tensor, sizes=(*tensor.sizes, 1), steps=(*tensor.steps, 0)) if tensor.sizes else tensor
    half, step = tensor.sizes[-1] // 2, tensor.steps[-1]
    return Strided(
        tensor.offset + (half * step if swapped else 0),
        (*tensor.sizes[:-1], 2, half),
        (*tensor.steps[:-1], -half * step if swapped else half * step, step),
    )


def output_sizes(program: Program, shapes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The sizes of what is computed of inputs of these shapes.  Raises ProgramError for shapes that do not fit."""
    return _output_sizes(program, read_inputs([replace(spec, swaps_halves=False) for spec in program.inputs], shapes))


def _output_sizes(program: Program, inputs: Sequence[Strided]) -> list[tuple[int, ...]]:
    """The sizes of what is computed."""
    given = iter(inputs)
    values: list[tuple[int, ...]] = []
    for value in program.values:
        match value:
            case Input():
                values.append(next(given).sizes)
            case Instruction():
                values.append(broadcast([values[operand] for operand in value.operands]))
            case _:
                values.append(())
    return [values[output] for output in program.outputs]


def _operand(dtype: str, dims: tuple[int, ...], offset: int, steps: tuple[int, ...], is_output: bool) -> Operand:
    wide = [index for index, step in enumerate(steps) if step != 0]
    if is_output and len(wide) < len(dims):
        return Operand(dtype, "w", 0, 0, steps)
    if not wide:
        return Operand(dtype, "l" if is_output else "s", math.prod(dims), 1, steps, offset)
    first, end = wide[0], wide[-1] + 1
    extent = 1
    for size, step in zip(dims[first:end], steps[first:end], strict=True):
        if step != extent:
            return Operand(dtype, "g", 0, 0, steps, offset)
        extent *= size
    letter = "l" if len(wide) == len(dims) else "i" if first == 0 else "o" if end == len(dims) else "c"
    return Operand(dtype, letter, math.prod(dims[:first]), extent, steps, offset)
