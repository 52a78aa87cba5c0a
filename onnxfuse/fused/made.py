"""Nodes that a rewrite would make, before it is known whether it does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import Node, permutation_of

_SPLIT_TAKES_SIZES = 13
"""The opset from which on the sizes that Split makes are an input."""


@dataclass(frozen=True)
class Made:
    """The tensor of ``shape`` that a node would make of ``operands``: of tensors, or of what others would make."""

    op: str
    operands: tuple["Value", ...]
    shape: tuple[object, ...]
    attributes: Mapping[str, object] = field(default_factory=dict)


Value: TypeAlias = Made | gs.Tensor


def transposed(value: Value, perm: Sequence[int]) -> Made:
    """``value`` with its dimensions in another order; of what a Transpose makes, that of what this one reads."""
    shape = tuple(value.shape[axis] for axis in perm)
    source, before = _before_transpose(value)
    return Made("Transpose", (source,), shape, {"perm": [before[axis] for axis in perm]})


def _before_transpose(value: Value) -> tuple[Value, Sequence[int]]:
    """What a Transpose makes ``value`` of, and its order of the dimensions; ``value`` itself if none does."""
    if isinstance(value, Made):
        if value.op == "Transpose":
            return value.operands[0], cast(Sequence[int], value.attributes["perm"])
    elif len(value.inputs) == 1 and (order := permutation_of(value.inputs[0])) is not None:
        return value.inputs[0].inputs[0], order
    return value, range(len(value.shape))


def make_nodes(model: Model, value: Made, result: gs.Tensor, name: str) -> list[Node]:
    """The nodes, in topological order, whose last one makes ``result``, of which no other does.

    All that they make has the type of ``result``; ``name`` is what their names begin with.  What is an operand several
    times is made once.
    """
    nodes: list[Node] = []
    tensors: dict[int, gs.Tensor] = {}

    waiting = [value]  # each an operand of the one before: no recursion, since a chain may be long
    while waiting:
        made = waiting[-1]
        operand = next((one for one in made.operands if isinstance(one, Made) and id(one) not in tensors), None)
        if isinstance(operand, Made):
            waiting.append(operand)
            continue
        waiting.pop()
        inputs = [tensors[id(one)] if isinstance(one, Made) else one for one in made.operands]
        node = Node(made.op, model.unique_name(f"{name}_{made.op}"), dict(made.attributes), inputs)
        if made is value:
            tensor = result
        else:
            tensor = gs.Variable(model.unique_name(f"{node.name}_output"), result.dtype, list(made.shape))
        node.outputs.append(tensor)
        nodes.append(node)
        tensors[id(made)] = tensor
    return nodes


def split_node(model: Model, tensor: gs.Tensor, axis: int, sizes: Sequence[int], name: str) -> Node:
    """A Split of a tensor, still without outputs."""
    if model.opsets[""] < _SPLIT_TAKES_SIZES:
        return Node("Split", model.unique_name(name), {"axis": axis, "split": list(sizes)}, [tensor])
    constant = model.constant(np.array(sizes, np.int64), f"{name}_sizes")
    return Node("Split", model.unique_name(name), {"axis": axis}, [tensor, constant])
