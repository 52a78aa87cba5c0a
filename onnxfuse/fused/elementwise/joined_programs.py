"""One Program of those of several fused nodes."""

from collections.abc import Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.fused_node import ElementwiseFusion
from onnxfuse.program import Const, Input, Program, ProgramBuilder
from onnxfuse.program.node_lowering import tensor_dtype
from onnxfuse.program.program import Index, Instruction, Reduction
from onnxfuse.program.view_steps import ViewStep

Written = tuple[int, tuple[ViewStep, ...]]
"""A value, and the steps that lead from it to what is written."""


class JoinError(OnnxfuseError):
    """Programs that cannot be one, or not write what they shall."""


class JoinedPrograms:
    """Joins the Programs of fusions, given in an order in which they can run; ``inputs`` are what it reads, in order.

    ``reads`` are the same as they are read, where that is a view of one.
    """

    def __init__(self, fast_math: bool) -> None:
        self.inputs: list[gs.Tensor] = []
        self.reads: list[gs.Tensor] = []
        self._builder = ProgramBuilder(fast_math)
        self._read: dict[tuple[int, Input], int] = {}
        self._made: dict[int, tuple[list[Written], int]] = {}  # by tensor: its parts, and their axis
        self._outputs: list[Written] = []
        self._appends: list[int] = []

    def __len__(self) -> int:
        """How many outputs and parts of outputs it writes."""
        return len(self._outputs)

    def add(self, fusion: ElementwiseFusion) -> None:
        """Append the values of a fusion's Program.  Raises JoinError where they would mean something else."""
        program = fusion.program
        tensors = iter(zip(fusion.inputs, fusion.reads, strict=True))
        values: list[int] = []
        for value in program.values:
            match value:
                case Input():
                    source, read = next(tensors)
                    values.append(self._input(source, read, value))
                case Const(dtype):
                    values.append(self._builder.const(dtype, value.value))
                case Instruction(op, dtype, operands):
                    values.append(self._builder.emit(op, dtype, *(values[operand] for operand in operands)))
                case Reduction(op, _, operand, axes):
                    values.append(self._builder.reduce(op, values[operand], axes))
                case Index(dtype, operand, axis):
                    values.append(self._builder.index(dtype, values[operand], axis))
        for tensor, places in zip(fusion.outputs, program.tensors, strict=True):
            parts = [(values[program.outputs[place]], program.steps_of(place)) for place in places]
            self._made[id(tensor)] = parts, program.appends[places[1]] if len(places) > 1 else 0

    def _input(self, source: gs.Tensor, read: gs.Tensor, spec: Input) -> int:
        if spec.axis is not None and spec.axis >= 0:
            raise JoinError("a vector along an axis that is counted from the front")
        if id(source) in self._made:
            [(value, steps), *others], _ = self._made[id(source)]
            if others or steps or spec != Input(spec.dtype):
                raise JoinError("a view of what is computed")
            return value
        if (id(source), spec) not in self._read:
            self._read[id(source), spec] = self._builder.view(spec)
            self.inputs.append(source)
            self.reads.append(read)
        return self._read[id(source), spec]

    def write(self, tensor: gs.Tensor) -> None:
        """Write a tensor that one of the Programs makes."""
        parts, axis = self._made[id(tensor)]
        self._outputs += parts
        self._appends += [0] + [axis] * (len(parts) - 1)

    def write_parts(self, tensors: Sequence[gs.Tensor], axis: int) -> None:
        """Write tensors, of which some may come from outside, as parts of one along a negative axis.

        Raises JoinError for one that is made of parts along another axis.
        """
        written: list[Written] = []
        for tensor in tensors:
            if id(tensor) not in self._made:
                written.append((self._input(tensor, tensor, Input(tensor_dtype(tensor))), ()))
                continue
            parts, own = self._made[id(tensor)]
            if own not in (0, axis):
                raise JoinError("parts of parts along another axis")
            written += parts
        self._outputs += written
        self._appends += [0] + [axis] * (len(written) - 1)

    def build(self) -> Program:
        """The Program.  Raises ProgramError if it exceeds a limit."""
        values, steps = zip(*self._outputs, strict=True)
        program = self._builder.build(list(values), steps)
        return replace(program, appends=tuple(self._appends)) if any(self._appends) else program
