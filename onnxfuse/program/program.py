"""The Program: a region of elementwise nodes as typed instructions in static single assignment form.

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
dimension is read with its second half first.  ``contract``, a line of its own behind the first, allows a product to be
added without being rounded before, which ``--fast-math`` asks for.  ``const`` gives the bit pattern of a
scalar in hexadecimal.  In ``op T ids…`` T is the type that the operator's rule speaks of.  Values of type f16 and bf16
are computed in float32 and rounded by ``cast`` and in outputs.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program.ops import FLOATS, OPS, Rule

HEADER = "onnxfuse 1"
CONTRACT = "contract"
MAX_TEXT = 1 << 20
MAX_INPUTS = 128
MAX_OUTPUTS = 64
MAX_VALUES = 4096
MAX_SLICES = 32
"""Slices of one input."""
MAX_RANK = 16
"""Dimensions of a tensor that the library takes."""


class ProgramError(OnnxfuseError):
    """A Program that does not validate; the message names the line of its text."""


class AxisSlice(NamedTuple):
    """What is read along an axis of a tensor, as ONNX's Slice reads it; ``step`` is at least 1.

    ``axis``, ``start`` and ``end`` count from the back if they are negative; the latter are moved into the axis.
    """

    axis: int
    start: int
    end: int
    step: int


@dataclass(frozen=True)
class Input:
    """A tensor that the region reads: NumPy broadcasting, or a vector along ``axis`` of the region's shape.

    Of the former ``slices`` may leave a part, each of what the ones before it leave; or along its last dimension, of an
    even size, the second half comes first (``swaps_halves``).
    """

    dtype: str
    axis: int | None = None
    slices: tuple[AxisSlice, ...] = ()
    swaps_halves: bool = False

    def __str__(self) -> str:
        if self.axis is not None:
            return f"input {self.dtype} axis {self.axis}"
        if self.slices:
            return f"input {self.dtype} slice " + ",".join(":".join(map(str, part)) for part in self.slices)
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


Value = Input | Const | Instruction


@dataclass(frozen=True)
class Program:
    """A validated Program: ``values`` in order of their ids, ``outputs`` as ids.

    If it ``contracts``, the native library may round a product and the sum that it is added to once, as CUDA's compiler
    does with fast math; the NumPy reference rounds both.
    """

    values: tuple[Value, ...]
    outputs: tuple[int, ...]
    contracts: bool = False

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The inputs, in the order of the fused node's inputs."""
        return tuple(value for value in self.values if isinstance(value, Input))

    @property
    def reads_views(self) -> bool:
        """Whether an input is no whole tensor in its own order, which kernels for CUDA do not read."""
        return any(spec.slices or spec.swaps_halves for spec in self.inputs)

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The instructions, in the order they run."""
        return tuple(value for value in self.values if isinstance(value, Instruction))

    def dtype(self, value: int) -> str:
        """The type of a value."""
        return value_dtype(self.values[value])

    def __str__(self) -> str:
        outputs = (f"output {output}" for output in self.outputs)
        return "\n".join((*self._head, *map(str, self.values), *outputs)) + "\n"

    @property
    def _head(self) -> tuple[str, ...]:
        """The lines before those of the values."""
        return (HEADER, CONTRACT) if self.contracts else (HEADER,)

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
        if not lines or lines[0] != HEADER:
            raise ProgramError(f"line 1: a Program begins with {HEADER!r}")
        values: list[Value] = []
        outputs: list[int] = []
        contracts = lines[1:2] == [CONTRACT]
        before = 1 + contracts
        for number, line in enumerate(lines[before:], before + 1):
            words = line.split(" ")
            try:
                if words[0] == "output":
                    (word,) = words[1:]
                    outputs.append(_id(word))
                elif outputs:
                    raise ValueError("outputs come last")
                else:
                    values.append(_parse_value(words))
            except ValueError as error:
                raise ProgramError(f"line {number}: {line!r}: {error}") from None
        return cls(tuple(values), tuple(outputs), contracts)


def value_dtype(value: Value) -> str:
    """The type of a value."""
    return value.result if isinstance(value, Instruction) else value.dtype


def operand_dtypes(op: str, dtype: str) -> tuple[str | None, ...]:
    """The types of an instruction's operands; None is any type."""
    row = OPS[op]
    match row.rule:
        case Rule.CAST:
            return (None,)
        case Rule.SELECT:
            return ("bool", dtype, dtype)
        case _:
            return (dtype,) * row.arity


def supports(op: str, dtype: str) -> bool:
    """Whether the operator has a kernel for T = ``dtype``."""
    return DTYPES[dtype].compute in OPS[op].types


def _id(word: str) -> int:
    if not word.isascii() or not word.isdigit() or (len(word) > 1 and word[0] == "0"):
        raise ValueError(f"{word!r} is not a value id")
    return int(word)


def _parse_value(words: list[str]) -> Value:
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
        case ["input", dtype, "slice", slices]:
            return Input(dtype, slices=tuple(map(_parse_slice, slices.split(","))))
        case ["const", dtype, bits]:
            const = Const(dtype, int(bits, 16))
            if dtype not in DTYPES or str(const).split(" ")[2] != bits:
                raise ValueError(f"{bits!r} is not a constant of type {dtype}")
            return const
        case [op, dtype, *operands] if op in OPS:
            return Instruction(op, dtype, tuple(map(_id, operands)))
        case _:
            raise ValueError("not an input, a const, an instruction or an output")


def _parse_slice(text: str) -> AxisSlice:
    numbers = [int(word) for word in text.split(":")]
    if len(numbers) != len(AxisSlice._fields) or ":".join(map(str, numbers)) != text:
        raise ValueError(f"{text!r} is not a slice of an axis")
    return AxisSlice(*numbers)


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
    for output in program.outputs:
        if not 0 <= output < len(program.values):
            raise ProgramError(f"output {output} is not a value")


def _validate_value(program: Program, index: int, value: Value) -> None:
    if value.dtype not in DTYPES:
        raise ValueError(f"unknown type {value.dtype!r}")
    match value:
        case Input(axis=axis, slices=slices, swaps_halves=swaps_halves):
            if index > 0 and not isinstance(program.values[index - 1], Input):
                raise ValueError("inputs come first")
            if axis is not None and not -64 <= axis < 64:
                raise ValueError("the axis is out of range")
            if len(slices) > MAX_SLICES or (slices and axis is not None):
                raise ValueError("too many slices")
            if swaps_halves and (slices or axis is not None):
                raise ValueError("halves of a part or of a vector")
            if not all(_is_valid_slice(part) for part in slices):
                raise ValueError("a slice is out of range")
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


def _is_valid_slice(part: AxisSlice) -> bool:
    within = all(-(1 << 63) <= number < 1 << 63 for number in part)
    return within and -64 <= part.axis < 64 and part.step >= 1


def _faster(op: str, second: Const) -> tuple[str, float] | None:
    """The operator and constant that compute what ``op`` does with its second operand, if that is faster.

    A division stays where the constant's reciprocal is zero, denormal or infinite, and where it would be rounded to
    fewer bits than are computed with.
    """
    if op not in ("div", "sub") or DTYPES[second.dtype].numpy.kind in "iu":
        return None
    value = float(second.value)
    if op == "sub":
        return "add", -value
    if second.dtype not in FLOATS:
        return None
    limits = np.finfo(DTYPES[second.dtype].numpy)
    if not 1 / float(limits.max) <= abs(value) <= 1 / float(limits.smallest_normal):
        return None
    return "mul", 1 / value


class ProgramBuilder:
    """Builds a Program; equal constants and equal instructions become one value.

    With ``fast_math`` a division by a constant becomes a multiplication by its reciprocal, which is faster and off by
    one rounding, and the Program contracts: a difference from a constant becomes a sum for that.
    """

    def __init__(self, fast_math: bool = False) -> None:
        self.fast_math = fast_math
        self._inputs: list[tuple[Input, int]] = []
        self._rest: list[tuple[Const | Instruction, int]] = []
        self._dtypes: dict[int, str] = {}
        self._known: dict[tuple[object, ...], int] = {}
        self._constants: dict[int, Const] = {}

    def input(self, dtype: str, axis: int | None = None) -> int:
        """Declare the next input, by broadcasting or as a vector along ``axis``, and return its value."""
        return self.view(Input(dtype, axis))

    def view(self, spec: Input) -> int:
        """The same for an input of any kind."""
        handle = len(self._dtypes)
        self._inputs.append((spec, handle))
        self._dtypes[handle] = spec.dtype
        return handle

    def const(self, dtype: str, value: object) -> int:
        """A scalar constant of type ``dtype``."""
        const = Const.of(dtype, value)
        return self._define((const,), const)

    def emit(self, op: str, dtype: str, *operands: int) -> int:
        """Append an instruction (or find the equal one) and return its value."""
        if self.fast_math and operands[-1] in self._constants:
            faster = _faster(op, self._constants[operands[-1]])
            if faster is not None:
                op, operands = faster[0], (operands[0], self.const(dtype, faster[1]))
        instruction = Instruction(op, dtype, operands)
        return self._define((op, dtype, *operands), instruction)

    def cast(self, value: int, dtype: str) -> int:
        """``value`` as type ``dtype``; the value itself when it has that type."""
        return value if self.dtype(value) == dtype else self.emit("cast", dtype, value)

    def dtype(self, value: int) -> str:
        """The type of a value."""
        return self._dtypes[value]

    def __len__(self) -> int:
        return len(self._dtypes)

    def _define(self, key: tuple[object, ...], value: Const | Instruction) -> int:
        if key in self._known:
            return self._known[key]
        handle = len(self._dtypes)
        self._known[key] = handle
        self._dtypes[handle] = value_dtype(value)
        if isinstance(value, Const):
            self._constants[handle] = value
        self._rest.append((value, handle))
        return handle

    def build(self, outputs: list[int]) -> Program:
        """The Program with these outputs: inputs renumbered to the front, values that no output needs left out."""
        needed = set(outputs)
        for value, handle in reversed(self._rest):
            if handle in needed and isinstance(value, Instruction):
                needed.update(value.operands)
        numbers: dict[int, int] = {}
        values: list[Value] = []
        for spec, handle in self._inputs:
            numbers[handle] = len(values)
            values.append(spec)
        for value, handle in self._rest:
            if handle not in needed:
                continue
            numbers[handle] = len(values)
            if isinstance(value, Instruction):
                value = Instruction(value.op, value.dtype, tuple(numbers[operand] for operand in value.operands))
            values.append(value)
        return Program(tuple(values), tuple(numbers[output] for output in outputs), self.fast_math)
