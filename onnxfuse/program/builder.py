"""Building Programs, value by value."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program.ops import FLOATS
from onnxfuse.program.program import Computed, Const, Index, Input, Instruction, Program, Reduction, Value, value_dtype
from onnxfuse.program.view_steps import ViewStep


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
        self._rest: list[tuple[Const | Computed, int]] = []
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

    def reduce(self, op: str, value: int, axes: Sequence[int]) -> int:
        """Append a reduction of ``value`` along negative ``axes`` (or find the equal one) and return its value."""
        reduction = Reduction(op, self.dtype(value), value, tuple(sorted(axes)))
        return self._define((op, value, reduction.axes), reduction)

    def index(self, dtype: str, value: int, axis: int) -> int:
        """The coordinates of the elements of ``value`` along a negative ``axis``."""
        return self._define(("index", dtype, value, axis), Index(dtype, value, axis))

    def cast(self, value: int, dtype: str) -> int:
        """``value`` as type ``dtype``; the value itself when it has that type."""
        return value if self.dtype(value) == dtype else self.emit("cast", dtype, value)

    def dtype(self, value: int) -> str:
        """The type of a value."""
        return self._dtypes[value]

    def constant(self, value: int) -> Const | None:
        """The constant that a value is, if it is one."""
        return self._constants.get(value)

    def __len__(self) -> int:
        return len(self._dtypes)

    def _define(self, key: tuple[object, ...], value: Const | Computed) -> int:
        if key in self._known:
            return self._known[key]
        handle = len(self._dtypes)
        self._known[key] = handle
        self._dtypes[handle] = value_dtype(value)
        if isinstance(value, Const):
            self._constants[handle] = value
        self._rest.append((value, handle))
        return handle

    def build(self, outputs: list[int], views: Sequence[tuple[ViewStep, ...]] = ()) -> Program:
        """The Program with these outputs: inputs renumbered to the front, values that no output needs left out.

        ``views`` has for each output the steps that lead to its tensor, or is empty.
        """
        needed = set(outputs)
        for value, handle in reversed(self._rest):
            if handle in needed and not isinstance(value, Const):
                needed.update(value.operands)
        numbers: dict[int, int] = {}
        values: list[Value] = []
        for spec, handle in self._inputs:
            numbers[handle] = len(values)
            values.append(spec if spec.row is None else replace(spec, row=numbers[spec.row]))
        for value, handle in self._rest:
            if handle not in needed:
                continue
            numbers[handle] = len(values)
            match value:
                case Instruction():
                    value = replace(value, operands=tuple(numbers[operand] for operand in value.operands))
                case Reduction() | Index():
                    value = replace(value, operand=numbers[value.operand])
            values.append(value)
        steps = tuple(views) if any(views) else ()
        return Program(tuple(values), tuple(numbers[output] for output in outputs), self.fast_math, steps)
