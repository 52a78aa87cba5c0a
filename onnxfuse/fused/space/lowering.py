"""From the nodes of a region that has a common space to its Program."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.fused_node import is_immediate
from onnxfuse.fused.space.layouts import LayoutError
from onnxfuse.fused.space.spaces import Space
from onnxfuse.fused.space.steps import steps_into, steps_out_of
from onnxfuse.fused.space.view_nodes import is_view, names_rows
from onnxfuse.program import Const, Input, Program, ProgramBuilder
from onnxfuse.program.figures import MAX_RANK
from onnxfuse.program.lowering import lower
from onnxfuse.program.multiplying import lower_product
from onnxfuse.program.node_lowering import tensor_dtype
from onnxfuse.program.reducing import lower as lower_reducing
from onnxfuse.program.reducing import reduces
from onnxfuse.program.view_steps import ViewStep

_ADDED = {"split": 1, "unsqueeze": 1, "merge": -1, "squeeze": -1}
"""Dimensions, by the step of a view."""
_MOST_LOOKED_AT = 1 << 14
"""Elements of a constant."""


class SpaceLowering:
    """Lowers the nodes of a region, in topological order, into one Program; ``inputs`` are what it reads, in order.

    ``reads`` are the same as they are read, where that is a part of one.
    """

    def __init__(self, space: Space, opset: int, fast_math: bool, outputs: Sequence[gs.Tensor]) -> None:
        self.inputs: list[gs.Tensor] = []
        self.reads: list[gs.Tensor] = []
        self._space = space
        self._opset = opset
        self._outputs = outputs
        self._order = space.ordered(outputs)
        self._axes = sorted(self._order.index(atom) - len(self._order) for atom in space.reduced)
        self._builder = ProgramBuilder(fast_math)
        self._values: dict[int, int] = {}
        self._ranks: list[int] = []  # of the inputs, as they are read
        self._places: dict[int, int] = {}  # of their values, among them

    def add(self, node: gs.Node) -> None:
        """Append a node."""
        if is_view(node) or names_rows(node):
            return  # the space has it

        def operand(index: int, axis: int | None = None) -> int:
            return self._value(node, index)

        if reduces(node):
            made = lower_reducing(node, self._opset, self._builder, operand, self._axes)
        elif (product := self._space.products.get(id(node))) is not None:
            made = (lower_product(product, self._opset, self._builder, operand, self._axes),)
        else:
            made = (lower(node, self._opset, self._builder, operand),)
        self._values.update((id(tensor), value) for tensor, value in zip(node.outputs, made, strict=False))

    def build(self) -> Program:
        """The Program.  Raises ProgramError if it exceeds a limit, LayoutError if a result is in another order."""
        if not all(map(self._space.is_whole, self._outputs)):
            raise LayoutError("a result that repeats what is computed")
        program = self._builder.build([self._value_of(tensor) for tensor in self._outputs])
        ranks = _ranks(program, self._ranks)
        views = [
            steps_out_of(self._order, ranks[value], self._space.layout(tensor))
            for value, tensor in zip(program.outputs, self._outputs, strict=True)
        ]
        return Program(program.values, program.outputs, program.contracts, tuple(views) if any(views) else ())

    def _value(self, node: gs.Node, index: int) -> int:
        tensor = node.inputs[index]
        if self._space.is_packed(tensor):
            return self._value_of(tensor)
        if is_immediate(tensor, node, self._opset) or (reduces(node) and index > 0 and _is_uniform(tensor)):
            return self._builder.const(tensor_dtype(tensor), tensor.values.reshape(-1)[0])
        return self._value_of(tensor)

    def _value_of(self, tensor: gs.Tensor) -> int:
        """The value of a tensor: that of what it is a view of, or its own."""
        tensor = self._space.base(tensor)
        return self._values[id(tensor)] if id(tensor) in self._values else self._input(tensor)

    def _input(self, tensor: gs.Tensor) -> int:
        """Read a tensor from outside, perhaps as a part of another."""
        if (rows := self._space.rows(tensor)) is not None:
            return self._named(tensor, *rows)
        source, rank, before = self._space.source(tensor)
        steps = (*before, *steps_into(self._space.layout(tensor), self._order))
        return self._view(tensor, source, _rank_after(steps, rank), Input(tensor_dtype(tensor), view=steps))

    def _named(self, tensor: gs.Tensor, table: gs.Tensor, numbers: gs.Tensor) -> int:
        """Read the rows of a table that have some numbers."""
        row = self._value_of(numbers)
        own = self._space.layout(tensor)[len(self._space.layout(numbers)) :]
        steps = steps_into(own, self._order)
        rank = max(_rank_after(steps, len(own)), self._ranks[self._places[row]])
        return self._view(tensor, table, rank, Input(tensor_dtype(tensor), view=steps, row=row))

    def _view(self, tensor: gs.Tensor, source: gs.Tensor, rank: int, spec: Input) -> int:
        value = self._builder.view(spec)
        self._places[value] = len(self.inputs)
        self.inputs.append(source)
        self.reads.append(tensor)
        self._ranks.append(rank)
        self._values[id(tensor)] = value
        return value


def _rank_after(steps: Sequence[ViewStep], rank: int) -> int:
    """How many dimensions a tensor of ``rank`` has after some steps.  Raises LayoutError for too many on the way."""
    for step in steps:
        rank += _ADDED.get(step.name, 0)
        if rank > MAX_RANK:
            raise LayoutError(f"more than {MAX_RANK} axes")
    return rank


def _is_uniform(tensor: gs.Tensor) -> bool:
    """Whether it is a constant of one number, as of the scale of a normalization, whose shape is that of the data."""
    if not isinstance(tensor, gs.Constant) or not 0 < math.prod(tensor.shape) <= _MOST_LOOKED_AT:
        return False
    values = np.asarray(tensor.values)
    return bool(np.all(values == values.reshape(-1)[0]))


def _ranks(program: Program, of_inputs: Sequence[int]) -> list[int]:
    """How many dimensions each value of a Program has."""
    ranks = list(of_inputs)
    for value in program.values[len(ranks) :]:
        operands = () if isinstance(value, Input | Const) else value.operands
        ranks.append(max((ranks[operand] for operand in operands), default=0))
    return ranks
