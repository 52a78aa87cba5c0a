"""The Program: a region of elementwise nodes and reductions as typed instructions in static single assignment form.

The text form is the attribute of a fused node and all that the native library reads.  One item a line; the items that
define a value (inputs, constants, instructions) number the values from 0 in their order::

    onnxfuse 1
    input f32 broadcast
    input f32 axis -3
    const f32 3f000000
    mul f32 0 1
    add f32 3 2
    output 4

``input T broadcast`` follows NumPy's broadcasting; ``input T axis k`` is a vector laid along axis k of the region's
shape, with as many dimensions as that has, or -k of them if k is negative.  ``input T slice a:b:e:s,…`` is a part of a
tensor that follows NumPy's broadcasting: along axis a from b up to but not including e every s-th element, as ONNX's
Slice has it, and of that what the next ones leave.  ``input T halves`` is a tensor, broadcast like those, whose last
dimension is read with its second half first, and ``input T slice … halves`` a part of one, every element of that
dimension.  ``contract``, a line of its own behind the first, allows a product to be
added without being rounded before, which ``--fast-math`` asks for.  ``const`` gives the bit pattern of a
scalar in hexadecimal.  In ``op T ids…`` T is the type that the operator's rule speaks of.  Values of type f16 and bf16
are computed in float32 and rounded by ``cast`` and in outputs.

Version 2 of the text, which begins with ``onnxfuse 2``, has more.  Programs that need none of it are written in
version 1::

    onnxfuse 2
    input f32 view split:-3:32:-1
    reduce_mean f32 0 -3,-2,-1
    sub f32 0 1
    output 2 view merge:-4

``reduce_OP T id axes`` reduces a value along axes, which count from the back, in rising order; their dimensions stay
as 1, so that the result meets the elements again by broadcasting.  All reductions of a Program have the same axes, and
what they read has the same sizes along them, which all other values broadcast to.  ``index T id axis`` has the shape of
a value, and as its elements their coordinates along the axis.  ``input T view …`` and ``output id view …`` are tensors
that lie in memory in another shape or order (``onnxfuse.program.view_steps``); outputs in another shape alone.

Version 3, ``onnxfuse 3``, has inputs of type u8 with two elements of 4 bits in each byte, and of Programs that reduce
rows that other inputs name, as of words in a table::

    input u8 view nibbles:-1,unsqueeze:-2
    input i64 view unsqueeze:-1
    input f32 row 1

``input T row id [view …]`` is for each element of the input ``id``, one before it, the row of a tensor with that number
along the first axis, from the end if it is negative.  The steps are those of a view of one row, which is broadcast
with the numbers; these are of i32 or i64, and the same for all that is reduced together.  Where there is no such row
the CPU's run fails, and on a GPU it is zeros, as ONNX Runtime's Gather has it.

An output may be written in parts, one behind the other along an axis of its tensor, as ONNX's Concat joins them::

    output 2 view merge:-4
    append 0 -3

``append id axis [view …]`` behind an ``output`` or an ``append``: what its steps make of the value is the next part
of that tensor, along the axis, which counts from the back and is the same for all parts.  The parts have one type, and
equal sizes along the other axes.
"""

from dataclasses import dataclass

import numpy as np

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.model.slices import AxisSlice
from onnxfuse.program.figures import MAX_INPUTS, MAX_OUTPUTS, MAX_RANK, MAX_SLICES, MAX_TEXT, MAX_VALUES
from onnxfuse.program.operand_types import operand_dtypes, supports
from onnxfuse.program.ops import NUMBERS, OPS, REDUCTIONS, Rule
from onnxfuse.program.outputs import (
    APPEND,
    OUTPUT,
    check_output_view,
    check_part,
    output_line,
    parse_axes,
    parse_id,
    parse_output,
    tensors_of,
)
from onnxfuse.program.view_steps import ViewStep, check_steps, has_nibbles, parse_steps

HEADER = "onnxfuse 1"
HEADER_2 = "onnxfuse 2"
HEADER_3 = "onnxfuse 3"
_VERSIONS = {HEADER: 1, HEADER_2: 2, HEADER_3: 3}
CONTRACT = "contract"


class ProgramError(OnnxfuseError):
    """A Program that does not validate; the message names the line of its text."""


@dataclass(frozen=True)
class Input:
    """A tensor that the region reads: NumPy broadcasting, or a vector along ``axis`` of the region's shape.

    Of the former ``slices`` may leave a part, each of what the ones before it leave; along its last dimension, of an
    even size, the second half may come first (``swaps_halves``); or it is what ``view`` makes of it.  With ``row``, the
    id of another input, it is those rows of the tensor whose numbers that one has, each seen through ``view``.
    """

    dtype: str
    axis: int | None = None
    slices: tuple[AxisSlice, ...] = ()
    swaps_halves: bool = False
    view: tuple[ViewStep, ...] = ()
    row: int | None = None

    @property
    def bits(self) -> int:
        """Of an element in memory."""
        return 4 if has_nibbles(self.view) else 8 * DTYPES[self.dtype].itemsize

    def __str__(self) -> str:
        if self.row is not None:
            steps = " view " + ",".join(map(str, self.view)) if self.view else ""
            return f"input {self.dtype} row {self.row}{steps}"
        if self.view:
            return f"input {self.dtype} view " + ",".join(map(str, self.view))
        if self.axis is not None:
            return f"input {self.dtype} axis {self.axis}"
        if self.slices:
            slices = ",".join(":".join(map(str, part)) for part in self.slices)
            return f"input {self.dtype} slice {slices}{' halves' if self.swaps_halves else ''}"
        return f"input {self.dtype} {'halves' if self.swaps_halves else 'broadcast'}"


@dataclass(frozen=True)
class Const:
    """A scalar immediate, as its bit pattern."""

    dtype: str
    bits: int

    @classmethod
    def of(cls, dtype: str, value: object) -> "Const":
        """The constant of type ``dtype`` nearest to ``value``."""
        with np.errstate(over="ignore"):
            scalar = np.asarray(value).astype(DTYPES[dtype].numpy).reshape(1)
        return cls(dtype, int.from_bytes(scalar.tobytes(), "little"))

    @property
    def value(self) -> np.ndarray:
        """The constant as a rank-0 array of its own type."""
        dtype = DTYPES[self.dtype]
        return np.frombuffer(self.bits.to_bytes(dtype.itemsize, "little"), dtype.numpy).reshape(())

    def __str__(self) -> str:
        return f"const {self.dtype} {self.bits:0{2 * DTYPES[self.dtype].itemsize}x}"


@dataclass(frozen=True)
class Instruction:
    """One operator applied to earlier values; ``dtype`` is the type T of the operator's rule."""

    op: str
    dtype: str
    operands: tuple[int, ...]

    @property
    def result(self) -> str:
        """The type of the value that the instruction defines."""
        return "bool" if OPS[self.op].rule is Rule.COMPARE else self.dtype

    def __str__(self) -> str:
        return " ".join((self.op, self.dtype, *map(str, self.operands)))


@dataclass(frozen=True)
class Reduction:
    """A value reduced along ``axes``, negative and in rising order, whose dimensions stay as 1."""

    op: str
    dtype: str
    operand: int
    axes: tuple[int, ...]

    @property
    def operands(self) -> tuple[int, ...]:
        """The value that is reduced, as a tuple."""
        return (self.operand,)

    def __str__(self) -> str:
        return f"{self.op} {self.dtype} {self.operand} {','.join(map(str, self.axes))}"


@dataclass(frozen=True)
class Index:
    """The coordinates along ``axis``, which is negative, of the elements of a value."""

    dtype: str
    operand: int
    axis: int

    @property
    def operands(self) -> tuple[int, ...]:
        """The value whose elements are counted, as a tuple."""
        return (self.operand,)

    def __str__(self) -> str:
        return f"index {self.dtype} {self.operand} {self.axis}"


Computed = Instruction | Reduction | Index
"""What defines a value by others."""
Value = Input | Const | Computed


@dataclass(frozen=True)
class Program:
    """A validated Program: ``values`` in order of their ids, ``outputs`` as ids.

    ``output_views`` has for each output the steps that lead to its tensor; it is empty where there are none at all.
    ``appends`` has for each output 0 if it begins a tensor, and the axis, which is negative, if it is part of the same
    tensor as the output before and lies behind that along the axis; it is empty where each has its own tensor.  If it
    ``contracts``, the native library may round a product and the sum that it is added to once, as CUDA's compiler
    does with fast math; the NumPy reference rounds both.
    """

    values: tuple[Value, ...]
    outputs: tuple[int, ...]
    contracts: bool = False
    output_views: tuple[tuple[ViewStep, ...], ...] = ()
    appends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The inputs, in the order of the fused node's inputs."""
        return tuple(value for value in self.values if isinstance(value, Input))

    @property
    def reads_views(self) -> bool:
        """Whether an input is no whole tensor in its own order."""
        return any(spec.slices or spec.swaps_halves or spec.view for spec in self.inputs)

    @property
    def reads_nibbles(self) -> bool:
        """Whether an input has two elements in each byte."""
        return any(has_nibbles(spec.view) for spec in self.inputs)

    @property
    def names_rows(self) -> bool:
        """Whether an input is rows whose numbers another one has."""
        return any(spec.row is not None for spec in self.inputs)

    @property
    def reductions(self) -> tuple[Reduction, ...]:
        """The reductions, in the order they run."""
        return tuple(value for value in self.values if isinstance(value, Reduction))

    @property
    def indices(self) -> tuple[Index, ...]:
        """The coordinates that it computes with."""
        return tuple(value for value in self.values if isinstance(value, Index))

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes along which it reduces; none if it does not."""
        return self.reductions[0].axes if self.reductions else ()

    def steps_of(self, output: int) -> tuple[ViewStep, ...]:
        """The steps that lead to the tensor of an output, by its place among them."""
        return self.output_views[output] if self.output_views else ()

    @property
    def tensors(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor that the fused node makes the places of its parts among the outputs, in their order."""
        return tensors_of(self.appends or (0,) * len(self.outputs))

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The instructions, in the order they run."""
        return tuple(value for value in self.values if isinstance(value, Instruction))

    def dtype(self, value: int) -> str:
        """The type of a value."""
        return value_dtype(self.values[value])

    def __str__(self) -> str:
        places = range(len(self.outputs))
        outputs = map(output_line, self.outputs, self.appends or (0,) * len(places), map(self.steps_of, places))
        return "\n".join((*self._head, *map(str, self.values), *outputs)) + "\n"

    @property
    def _head(self) -> tuple[str, ...]:
        """The lines before those of the values."""
        is_newest = self.reads_nibbles or self.names_rows
        header = HEADER_3 if is_newest else HEADER_2 if self._needs_version_2 else HEADER
        return (header, CONTRACT) if self.contracts else (header,)

    @property
    def _needs_version_2(self) -> bool:
        return (
            any(isinstance(value, Reduction | Index) for value in self.values)
            or any(spec.view for spec in self.inputs)
            or any(self.output_views)
            or any(self.appends)
        )

    def line_of(self, value: int) -> int:
        """The number of a value's line in the text form."""
        return len(self._head) + 1 + value

    @classmethod
    def parse(cls, text: str) -> "Program":
        """Read the text form.  Raises ProgramError, which names the line, for anything that does not validate."""
        if len(text) > MAX_TEXT:
            raise ProgramError(f"the Program is longer than {MAX_TEXT} characters")
        lines = text.split("\n")
        if lines.pop() != "":
            raise ProgramError("the last line of the Program is not ended")
        if not lines or lines[0] not in _VERSIONS:
            raise ProgramError(f"line 1: a Program begins with {HEADER!r}, {HEADER_2!r} or {HEADER_3!r}")
        version = _VERSIONS[lines[0]]
        is_newer = version > 1
        values: list[Value] = []
        outputs: list[int] = []
        views: list[tuple[ViewStep, ...]] = []
        appends: list[int] = []
        contracts = lines[1:2] == [CONTRACT]
        before = 1 + contracts
        for number, line in enumerate(lines[before:], before + 1):
            words = line.split(" ")
            try:
                if words[0] == OUTPUT or (is_newer and words[0] == APPEND):
                    output, axis, steps = parse_output(words, is_newer)
                    outputs.append(output)
                    views.append(steps)
                    appends.append(axis)
                elif outputs:
                    raise ValueError("outputs come last")
                else:
                    values.append(_parse_value(words, version))
                    if version < 3 and isinstance(values[-1], Input) and has_nibbles(values[-1].view):
                        raise ValueError("elements of 4 bits are of version 3")
            except ValueError as error:
                raise ProgramError(f"line {number}: {line!r}: {error}") from None
        return cls(
            tuple(values),
            tuple(outputs),
            contracts,
            tuple(views) if any(views) else (),
            tuple(appends) if any(appends) else (),
        )


def value_dtype(value: Value) -> str:
    """The type of a value."""
    return value.result if isinstance(value, Instruction) else value.dtype


def _parse_newer(words: list[str], version: int) -> Value | None:
    """What version 1 does not have; None if it is not of that."""
    match words:
        case ["input", dtype, "row", row, *view] if version > 2 and (not view or view[:-1] == ["view"]):
            return Input(dtype, view=parse_steps(view[1]) if view else (), row=parse_id(row))
        case ["input", dtype, "view", steps]:
            return Input(dtype, view=parse_steps(steps))
        case [op, dtype, operand, axes] if op in REDUCTIONS:
            return Reduction(op, dtype, parse_id(operand), parse_axes(axes))
        case ["index", dtype, operand, axis]:
            (number,) = parse_axes(axis)
            return Index(dtype, parse_id(operand), number)
        case _:
            return None


def _parse_value(words: list[str], version: int) -> Value:
    if version > 1 and (newer := _parse_newer(words, version)) is not None:
        return newer
    match words:
        case ["input", dtype, "broadcast"]:
            return Input(dtype)
        case ["input", dtype, "axis", axis]:
            value = int(axis)
            if str(value) != axis:
                raise ValueError(f"{axis!r} is not an axis")
            return Input(dtype, value)
        case ["input", dtype, "halves"]:
            return Input(dtype, swaps_halves=True)
        case ["input", dtype, "slice", slices, *halves] if halves in ([], ["halves"]):
            return Input(dtype, slices=tuple(map(AxisSlice.parse, slices.split(","))), swaps_halves=bool(halves))
        case ["const", dtype, bits]:
            const = Const(dtype, int(bits, 16))
            if dtype not in DTYPES or str(const).split(" ")[2] != bits:
                raise ValueError(f"{bits!r} is not a constant of type {dtype}")
            return const
        case [op, dtype, *operands] if op in OPS:
            return Instruction(op, dtype, tuple(map(parse_id, operands)))
        case _:
            raise ValueError("not an input, a const, an instruction or an output")


def _validate(program: Program) -> None:
    """Check types, arities, order and limits.  Line numbers are those of the text form."""
    counts = (
        ("inputs", len(program.inputs), MAX_INPUTS),
        ("values", len(program.values), MAX_VALUES),
        ("outputs", len(program.outputs), MAX_OUTPUTS),
    )
    for what, count, limit in counts:
        if count > limit:
            raise ProgramError(f"{count} {what}; the limit is {limit}")
    if not program.outputs:
        raise ProgramError("the Program has no output")
    for index, value in enumerate(program.values):
        try:
            _validate_value(program, index, value)
        except ValueError as error:
            raise ProgramError(f"line {program.line_of(index)}: '{value}': {error}") from None
    if (wrong := next((one for one in program.outputs if not 0 <= one < len(program.values)), None)) is not None:
        raise ProgramError(f"output {wrong} is not a value")
    if program.output_views and len(program.output_views) != len(program.outputs):
        raise ProgramError("the Program has not one view for each output")
    if program.appends and (len(program.appends) != len(program.outputs) or program.appends[0] != 0):
        raise ProgramError("the Program has not one place for each output")
    for parts in program.tensors:
        for place in parts:
            output = program.outputs[place]
            try:
                check_output_view(program.steps_of(place))
                if place != parts[0]:
                    whole = program.dtype(program.outputs[parts[0]])
                    check_part(program.appends[place], program.appends[parts[1]], program.dtype(output), whole)
            except ValueError as error:
                line = program.line_of(len(program.values) + place)
                raise ProgramError(f"line {line}: output {output}: {error}") from None


def _validate_value(program: Program, index: int, value: Value) -> None:
    if value.dtype not in DTYPES:
        raise ValueError(f"unknown type {value.dtype!r}")
    match value:
        case Input(axis=axis, slices=slices, swaps_halves=swaps_halves, view=view):
            if index > 0 and not isinstance(program.values[index - 1], Input):
                raise ValueError("inputs come first")
            if axis is not None and not -64 <= axis < 64:
                raise ValueError("the axis is out of range")
            if len(slices) > MAX_SLICES or ((slices or swaps_halves) and axis is not None):
                raise ValueError("too many slices, or halves of a vector")
            if not all(part.is_valid() for part in slices):
                raise ValueError("a slice is out of range")
            if view and (slices or swaps_halves or axis is not None):
                raise ValueError("a view of a part or of a vector")
            check_steps(view)
            if has_nibbles(view) and (value.dtype != "u8" or value.row is not None):
                raise ValueError("halves of what are no bytes, or of rows")
            if value.row is not None:
                _validate_row(program, index, value.row)
        case Const(dtype, bits):
            if not 0 <= bits < 1 << (8 * DTYPES[dtype].itemsize) or (dtype == "bool" and bits > 1):
                raise ValueError("the bits do not fit the type")
        case Instruction(op, dtype, operands):
            if op not in OPS:
                raise ValueError(f"unknown operator {op!r}")
            if len(operands) != OPS[op].arity:
                raise ValueError(f"{op} takes {OPS[op].arity} operands")
            if not supports(op, dtype):
                raise ValueError(f"{op} is not defined for {dtype}")
            for operand, expected in zip(operands, operand_dtypes(op, dtype), strict=True):
                if not 0 <= operand < index:
                    raise ValueError(f"operand {operand} is not an earlier value")
                actual = program.dtype(operand)
                if expected is not None and actual != expected:
                    raise ValueError(f"operand {operand} is {actual}, not {expected}")
        case Reduction(op, dtype, operand, axes):
            if op not in REDUCTIONS:
                raise ValueError(f"unknown operator {op!r}")
            if DTYPES[dtype].compute not in REDUCTIONS[op].types:
                raise ValueError(f"{op} is not defined for {dtype}")
            if not 0 <= operand < index:
                raise ValueError(f"operand {operand} is not an earlier value")
            if program.dtype(operand) != dtype:
                raise ValueError(f"operand {operand} is {program.dtype(operand)}, not {dtype}")
            if not axes or list(axes) != sorted(set(axes)) or not -MAX_RANK <= axes[0] <= axes[-1] < 0:
                raise ValueError("the axes are not negative numbers in rising order")
            if axes != program.axes:
                raise ValueError("the reductions of a Program have the same axes")
        case Index(dtype, operand, axis):
            if DTYPES[dtype].compute not in NUMBERS:
                raise ValueError(f"index is not defined for {dtype}")
            if not 0 <= operand < index:
                raise ValueError(f"operand {operand} is not an earlier value")
            if not -MAX_RANK <= axis < 0:
                raise ValueError("the axis is not a negative number")


def _validate_row(program: Program, index: int, row: int) -> None:
    numbers = program.values[row] if 0 <= row < index else None
    if not isinstance(numbers, Input) or numbers.row is not None or numbers.axis is not None or numbers.swaps_halves:
        raise ValueError(f"{row} is no earlier input that can have the numbers of rows")
    if numbers.dtype not in ("i32", "i64"):
        raise ValueError(f"numbers of rows that are {numbers.dtype}")
    if not program.axes:
        raise ValueError("rows of a Program that does not reduce")
