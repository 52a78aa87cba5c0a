"""One Program of those of several fused nodes."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import onnx_graphsurgeon as gs

from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.fused_node import ProgramFusion, program_fusion
from onnxfuse.fused.kinds import ELEMENTWISE
from onnxfuse.fused.likely_shapes import LikelyShapes
from onnxfuse.fused.sizes import Size
from onnxfuse.fused.space.layouts import layout_of, reshaped, settled
from onnxfuse.fused.space.steps import steps_between
from onnxfuse.model.slices import AxisSlice
from onnxfuse.program import Const, Input, Program, ProgramBuilder
from onnxfuse.program.figures import MAX_INPUTS, MAX_OUTPUTS, MAX_SLICES
from onnxfuse.program.nests import needed
from onnxfuse.program.program import Index, Instruction, Reduction
from onnxfuse.program.view_steps import ViewStep

Written = tuple[int, tuple[ViewStep, ...]]
"""A value, and the steps that lead from it to what is written."""


class JoinError(OnnxfuseError):
    """Programs that cannot be one, or not write what they shall."""


@dataclass(frozen=True)
class Joinable:
    """The fusions of one graph, of which some may become one.

    nodes: the graph's, in topological order.
    fusions: what is planned.
    lone: fusions of single nodes, which are worth it beside others only.
    opset, fast_math: what their Programs are made with.
    likely: the shapes of tensors.
    is_read_outside: whether anything but some nodes (their ids) reads a tensor.
    check: raises ProgramError for a fusion that has no good kernel.
    """

    nodes: Sequence[gs.Node]
    fusions: Sequence[ProgramFusion]
    lone: Sequence[ProgramFusion]
    opset: int
    fast_math: bool
    likely: LikelyShapes
    is_read_outside: Callable[[gs.Tensor, set[int]], bool]
    check: Callable[[ProgramFusion], None]


def _of_part(
    spec: Input, read: gs.Tensor, rank: int, axis: int, whole: object, places: tuple[int, int] | None
) -> Input:
    """How an input is read of which elements from one place to another along an axis meet a part of a tensor.

    ``rank`` is that of the Program, ``whole`` how many elements the tensor has along the axis.  Raises JoinError where
    that is not known.
    """
    if read.shape is None or spec.view or spec.swaps_halves:
        raise JoinError("a view of what meets a part")
    if spec.axis is not None:
        along = spec.axis if spec.axis < 0 else spec.axis - rank
        if along != axis or read.shape[0] == 1:
            return replace(spec, axis=along)
        size = read.shape[0]
    elif len(read.shape) < -axis or read.shape[axis] == 1:
        return spec
    else:
        size = read.shape[axis]
    if places is None or not isinstance(size, int) or size != whole:
        raise JoinError("sizes that are not known")
    if spec.axis is not None:
        behind = [ViewStep("unsqueeze", (-1,))] * (-axis - 1)
        return Input(spec.dtype, view=(ViewStep("slice", (-1, *places, 1)), *behind))
    if len(spec.slices) == MAX_SLICES:
        raise JoinError("too many slices")
    return replace(spec, slices=(*spec.slices, AxisSlice(axis, *places, 1)))


def _dependent(fusion: ProgramFusion, source: gs.Tensor) -> set[int]:
    """The values of a fusion's Program that are made of what it reads of ``source``."""
    tensors = iter(fusion.inputs)
    found: set[int] = set()
    for number, value in enumerate(fusion.program.values):
        if isinstance(value, Input):
            is_made = next(tensors) is source
        else:
            is_made = isinstance(value, Instruction) and not found.isdisjoint(value.operands)
        if is_made:
            found.add(number)
    return found


def _sizes(tensor: gs.Tensor) -> tuple[Size, ...]:
    """The sizes of a tensor of a known rank; each that is not known is a size of its own."""
    return tuple((tensor.name, axis) if size is None else size for axis, size in enumerate(tensor.shape))


def _before(axis: int, steps: Sequence[ViewStep]) -> int:
    """The axis, counted from the back, of what steps that add and leave out dimensions of one element begin with.

    Raises JoinError for other steps.
    """
    for step in reversed(steps):
        at = step.numbers[0]
        if step.name == "unsqueeze" and at != axis:
            axis += axis < at
        elif step.name == "squeeze":
            axis -= axis <= at
        else:
            raise JoinError("a piece of another shape")
    return axis


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
        self._makers: dict[int, tuple[ProgramFusion, int]] = {}  # by a number below 0: what is to be in pieces
        self._outputs: list[Written] = []
        self._appends: list[int] = []

    def add(self, fusion: ProgramFusion) -> None:
        """Append the values of a fusion's Program.  Raises JoinError where they would mean something else."""
        program = fusion.program
        values = self._append(fusion, self._input)
        for tensor, places in zip(fusion.outputs, program.tensors, strict=True):
            parts = [(values[program.outputs[place]], program.steps_of(place)) for place in places]
            self._made[id(tensor)] = parts, program.appends[places[1]] if len(places) > 1 else 0

    def add_for_pieces(self, fusion: ProgramFusion) -> None:
        """Have what a fusion makes written by pieces alone: its Program is appended for each of them."""
        for tensor, places in zip(fusion.outputs, fusion.program.tensors, strict=True):
            parts: list[Written] = []
            for place in places:
                parts.append((-1 - len(self._makers), fusion.program.steps_of(place)))
                self._makers[parts[-1][0]] = fusion, place
            self._made[id(tensor)] = parts, fusion.program.appends[places[1]] if len(places) > 1 else 0

    def add_by_parts(self, fusion: ProgramFusion, whole: gs.Tensor, parts: Sequence[gs.Tensor], axis: int) -> None:
        """Append the values of a fusion's Program once for each part, along a negative ``axis``, of a tensor that it
        reads, ``whole``; what it makes is in parts along the same axis.  Raises JoinError where it is not.
        """
        program = fusion.program
        shapes = [read.shape for read, spec in zip(fusion.reads, program.inputs, strict=True) if spec.axis is None]
        if program.appends or any(program.output_views) or any(shape is None for shape in shapes):
            raise JoinError("results in other shapes")
        rank = max(map(len, shapes))
        if not _dependent(fusion, whole).issuperset(program.outputs):
            raise JoinError("a result that has nothing of what is joined")
        end: int | None = 0
        made: list[list[int]] = []
        for part in parts:
            size = part.shape[axis]
            start, end = end, end + size if end is not None and isinstance(size, int) else None
            places = None if start is None or end is None else (start, end)
            take = partial(self._input_beside, whole, part, rank, axis, places)
            values = self._append(fusion, take, "coordinates of what is joined")
            made.append([values[output] for output in program.outputs])
        for tensor, own in zip(fusion.outputs, zip(*made, strict=True), strict=True):
            self._made[id(tensor)] = [(value, ()) for value in own], axis

    def _input_beside(
        self,
        whole: gs.Tensor,
        part: gs.Tensor,
        rank: int,
        axis: int,
        places: tuple[int, int] | None,
        source: gs.Tensor,
        read: gs.Tensor,
        spec: Input,
    ) -> int:
        """An input as it is read with a ``part`` in the place of a tensor that is ``whole``."""
        if source is not whole:
            return self._input(source, read, _of_part(spec, read, rank, axis, whole.shape[axis], places))
        if spec != Input(spec.dtype):
            raise JoinError("a view of what is joined")
        return self._input(part, part, spec)

    def add_view(self, node: gs.Node) -> None:
        """Give what is made another shape.  Raises JoinError or LayoutError where that is not known to be one."""
        source, tensor = node.inputs[0], node.outputs[0]
        parts, _ = self._made[id(source)]
        if len(parts) > 1 or source.shape is None or tensor.shape is None:
            raise JoinError("a view of what is made in parts, or of an unknown shape")
        layout = layout_of(_sizes(source))
        ((value, steps),) = parts
        made = reshaped(layout, _sizes(tensor))
        steps = (*steps, *steps_between(settled(layout), made))
        self._made[id(tensor)] = [(value, steps)], 0

    def _append(
        self,
        fusion: ProgramFusion,
        take: Callable[[gs.Tensor, gs.Tensor, Input], int],
        refused: str = "",
        live: Collection[int] | None = None,
    ) -> list[int]:
        """Append the values of a fusion's Program, or those that are ``live``; each, as a value of this one, else -1.

        ``take`` gives the value of an input.  Raises JoinError, saying what is ``refused``, where coordinates and
        reductions would mean something else.
        """
        tensors = iter(zip(fusion.inputs, fusion.reads, strict=True))
        values: list[int] = []
        for number, value in enumerate(fusion.program.values):
            read = next(tensors) if isinstance(value, Input) else None
            if live is not None and number not in live:
                values.append(-1)
                continue
            match value:
                case Input():
                    assert read is not None
                    values.append(take(*read, value))
                case Const(dtype):
                    values.append(self._builder.const(dtype, value.value))
                case Instruction(op, dtype, operands):
                    values.append(self._builder.emit(op, dtype, *(values[operand] for operand in operands)))
                case Reduction() | Index() if refused:
                    raise JoinError(refused)
                case Reduction(op, _, operand, axes):
                    values.append(self._builder.reduce(op, values[operand], axes))
                case Index(dtype, operand, axis):
                    values.append(self._builder.index(dtype, values[operand], axis))
        return values

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

    def write_parts(self, dtype: str, tensors: Sequence[gs.Tensor], axis: int) -> None:
        """Write tensors, of which some may come from outside, as parts of one of type ``dtype`` along a negative axis.

        Raises JoinError for one that is made of parts along another axis.
        """
        written: list[Written] = []
        for tensor in tensors:
            if id(tensor) not in self._made:
                written.append((self._input(tensor, tensor, Input(dtype)), ()))
                continue
            parts, own = self._made[id(tensor)]
            if own not in (0, axis):
                raise JoinError("parts of parts along another axis")
            written += parts
        self._outputs += written
        self._appends += [0] + [axis] * (len(written) - 1)

    def write_pieces(
        self,
        dtype: str,
        tensors: Sequence[gs.Tensor],
        axis: int,
        along: int,
        whole: int,
        bounds: Sequence[tuple[int, int]],
    ) -> None:
        """Write pieces of what :meth:`write_parts` writes, a tensor for each of the ``bounds`` of places along another
        negative axis, of ``whole`` elements.  Raises JoinError where they cannot be computed by themselves.
        """
        for places in bounds:
            made: list[Written] = []
            for tensor in tensors:
                if id(tensor) not in self._made:
                    spec = Input(dtype, slices=(AxisSlice(along, *places, 1),))
                    made.append((self._input(tensor, tensor, spec), ()))
                    continue
                parts, own = self._made[id(tensor)]
                if own not in (0, axis):
                    raise JoinError("parts of parts along another axis")
                made += [(self._piece(value, _before(along, steps), whole, places), steps) for value, steps in parts]
            self._outputs += made
            self._appends += [0] + [axis] * (len(made) - 1)

    def _piece(self, made: int, axis: int, whole: int, places: tuple[int, int]) -> int:
        """The value of the elements from one place to another along an axis of what one of the Programs makes."""
        fusion, place = self._makers[made]
        program = fusion.program
        shapes = [read.shape for read, spec in zip(fusion.reads, program.inputs, strict=True) if spec.axis is None]
        if any(shape is None for shape in shapes):
            raise JoinError("a piece of an unknown shape")
        rank = max(map(len, shapes))
        if any(id(source) in self._made for source in fusion.inputs):
            raise JoinError("a piece of what another one makes")

        def read_piece(source: gs.Tensor, read: gs.Tensor, spec: Input) -> int:
            return self._input(source, read, _of_part(spec, read, rank, axis, whole, places))

        values = self._append(fusion, read_piece, "coordinates of a piece", needed(program))
        return values[program.outputs[place]]

    def fusion(self, nodes: Sequence[gs.Node], outputs: Sequence[gs.Tensor], opset: int) -> ProgramFusion:
        """The fused node in the place of ``nodes``, with what was written as its ``outputs``.

        Raises JoinError or ProgramError if it exceeds a limit.
        """
        if len(self.inputs) > MAX_INPUTS or len(self._outputs) > MAX_OUTPUTS:
            raise JoinError("more inputs and outputs than a Program has")
        return program_fusion(ELEMENTWISE, nodes, self.inputs, self.reads, outputs, self._build(), opset)

    def _build(self) -> Program:
        values, steps = zip(*self._outputs, strict=True)
        program = self._builder.build(list(values), steps)
        return replace(program, appends=tuple(self._appends)) if any(self._appends) else program
