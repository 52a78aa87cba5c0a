"""From the nodes of a region that has a common space to its Program."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.fused_node import is_immediate
from onnxfuse.fused.space.layouts import Atom, Layout
from onnxfuse.fused.space.spaces import Space
from onnxfuse.fused.space.steps import steps_into, steps_out_of
from onnxfuse.model.graph_ir import VIEWS, standard_op
from onnxfuse.program import Const, Input, Program, ProgramBuilder
from onnxfuse.program.lowering import lower
from onnxfuse.program.node_lowering import tensor_dtype
from onnxfuse.program.reducing import lower as lower_reducing
from onnxfuse.program.reducing import reduces

_MOST_LOOKED_AT = 1 << 14
"""Elements of a constant."""


class SpaceLowering:
    """Lowers the nodes of a region, in topological order, into one Program; ``inputs`` are what it reads, in order."""

    def __init__(self, space: Space, opset: int, fast_math: bool, outputs: Sequence[gs.Tensor]) -> None:
        self.inputs: list[gs.Tensor] = []
        self._space = space
        self._opset = opset
        self._outputs = outputs
        self._order = space.ordered(outputs)
        self._axes = sorted(self._order.index(atom) - len(self._order) for atom in space.reduced)
        self._builder = ProgramBuilder(fast_math)
        self._values: dict[int, int] = {}
        self._ranks: list[int] = []  # of the inputs, as they are read

    def add(self, node: gs.Node) -> None:
        """Append a node."""
        if standard_op(node) in VIEWS:
            self._values[id(node.outputs[0])] = self._value(node, 0)
            return

        def operand(index: int, axis: int | None = None) -> int:
            return self._value(node, index)

        if reduces(node):
            made = lower_reducing(node, self._opset, self._builder, operand, self._axes)
        else:
            made = (lower(node, self._opset, self._builder, operand),)
        self._values.update((id(tensor), value) for tensor, value in zip(node.outputs, made, strict=False))

    def build(self) -> Program:
        """The Program.  Raises ProgramError if it exceeds a limit, LayoutError if a result is in another order."""
        program = self._builder.build([self._values[id(tensor)] for tensor in self._outputs])
        ranks = _ranks(program, self._ranks)
        views = [
            steps_out_of(self._order, ranks[value], self._space.layout(tensor))
            for value, tensor in zip(program.outputs, self._outputs, strict=True)
        ]
        return Program(program.values, program.outputs, program.contracts, tuple(views) if any(views) else ())

    def _value(self, node: gs.Node, index: int) -> int:
        tensor = node.inputs[index]
        if id(tensor) in self._values:
            return self._values[id(tensor)]
        dtype = tensor_dtype(tensor)
        if is_immediate(tensor, node, self._opset) or (reduces(node) and index > 0 and _is_uniform(tensor)):
            return self._builder.const(dtype, tensor.values.reshape(-1)[0])
        self.inputs.append(tensor)
        spec, rank = _input(dtype, self._space.layout(tensor), self._order)
        self._ranks.append(rank)
        self._values[id(tensor)] = self._builder.view(spec)
        return self._values[id(tensor)]


def _is_uniform(tensor: gs.Tensor) -> bool:
    """Whether it is a constant of one number, as of the scale of a normalization, whose shape is that of the data."""
    if not isinstance(tensor, gs.Constant) or not 0 < math.prod(tensor.shape) <= _MOST_LOOKED_AT:
        return False
    values = np.asarray(tensor.values)
    return bool(np.all(values == values.reshape(-1)[0]))


def _input(dtype: str, layout: Layout, order: Sequence[Atom]) -> tuple[Input, int]:
    """How a tensor of this layout is read, and how many dimensions it has then."""
    steps = steps_into(layout, order)
    rank = len(layout)
    for step in steps:
        rank += {"split": 1, "unsqueeze": 1, "squeeze": -1}.get(step.name, 0)
    return Input(dtype, view=steps), rank


def _ranks(program: Program, of_inputs: Sequence[int]) -> list[int]:
    """How many dimensions each value of a Program has."""
    ranks = list(of_inputs)
    for value in program.values[len(ranks) :]:
        operands = () if isinstance(value, Input | Const) else value.operands
        ranks.append(max((ranks[operand] for operand in operands), default=0))
    return ranks
