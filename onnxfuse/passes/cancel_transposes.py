"""The pass cancel-transposes: elementwise nodes between two Transposes that undo each other are computed without these.

Exporters of networks with the channels last leave them so, around activations and sums (tf2onnx of what TFLite has,
for one).  ONNX Runtime cancels such Transposes too, but not around fused nodes, and only when it is too late to fuse
what then follows one another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import constant_value, is_constant
from onnxfuse.model.elementwise_operators import BROADCASTING, HAVE_AXIS, Operands, operators_that
from onnxfuse.model.graph_ir import Node, permutation_of, standard_op
from onnxfuse.model.graph_order import sorted_nodes
from onnxfuse.program.lowering import is_elementwise
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model

NAME = "cancel-transposes"

_OF_SEVERAL = BROADCASTING | operators_that(lambda row: row.operands is Operands.ONE_WAY)
_BROADCAST_OPSET = 7
"""The opset from which on operands are broadcast from the last dimension."""
_MOST_NODES = 512


class CancelTransposes:
    """Removes Transposes around elementwise nodes where those after these undo those before.

    Where anything else reads one of these nodes, or they read anything else, all stays.  So do results.
    """

    name = NAME
    description = "Computes elementwise nodes between Transposes that undo each other without these."

    def run(self, model: Model, context: PassContext) -> None:
        """Goes through each graph once, in topological order."""
        if model.opsets.get("", 0) < _BROADCAST_OPSET:
            return
        editor = GraphEditor(model)
        try:
            for graph in model.fusible_graphs():
                for node in sorted_nodes(graph):
                    region = _region(node, editor) if editor.graph_index(node) is not None else None
                    if region is not None:
                        context.rewrote(NAME, [*region.nodes, *region.behind])
                        _cancel(model, editor, region)
        finally:
            editor.finish()


def cancel_behind(model: Model, editor: GraphEditor, behind: Node) -> bool:
    """Computes the elementwise nodes that a Transpose reads without the Transposes before them, and it; whether that
    could be done.
    """
    region = _region(behind, editor)
    if region is not None:
        _cancel(model, editor, region)
    return region is not None


@dataclass
class _Region:
    """Elementwise ``nodes`` in topological order, which only they read and ``behind``, Transposes by ``perm``."""

    perm: list[int]
    nodes: list[Node]
    behind: list[Node]


class _Mixed(Exception):  # noqa: N818 - not an error
    """A region that something else reads, or that reads something else, than Transposes that undo each other."""


def _region(behind: Node, editor: GraphEditor) -> _Region | None:
    """The region that a Transpose reads; None if there is none."""
    perm = permutation_of(behind)
    if perm is None or not behind.inputs[0].inputs:
        return None
    graph = editor.graph_index(behind)
    found: dict[int, Node] = {}
    exits: dict[int, Node] = {}
    pending = [behind.inputs[0].inputs[0]]

    def take(node: Node) -> None:
        if id(node) in found:
            return
        if len(found) == _MOST_NODES or editor.graph_index(node) != graph or not is_for_any_order(node, len(perm)):
            raise _Mixed
        found[id(node)] = node
        pending.append(node)

    try:
        take(pending.pop())
        while pending:
            node = pending.pop()
            for tensor in node.inputs:
                if tensor.name and not is_constant(tensor):
                    if len(tensor.inputs) != 1:
                        raise _Mixed
                    if not _is_undone(tensor.inputs[0], perm):
                        take(tensor.inputs[0])
            if editor.is_graph_output(node.outputs[0]):
                raise _Mixed
            for reader in node.outputs[0].outputs:
                if permutation_of(reader) == perm and editor.graph_index(reader) == graph:
                    exits[id(reader)] = reader
                else:
                    take(reader)
    except _Mixed:
        return None
    returned = [node.inputs[0] for node in exits.values() if editor.is_graph_output(node.outputs[0])]
    if len(returned) > len(set(map(id, returned))):
        return None  # one tensor cannot be two outputs
    return _Region(perm, _sorted(found, list(exits.values())), list(exits.values()))


def _is_undone(node: Node, perm: list[int]) -> bool:
    """Whether a Transpose by ``perm`` undoes a node."""
    before = permutation_of(node)
    return before is not None and len(before) == len(perm) and [before[axis] for axis in perm] == sorted(perm)


def _sorted(found: dict[int, Node], behind: Sequence[Node]) -> list[Node]:
    """The nodes in topological order."""
    order: list[Node] = []
    seen: set[int] = set()
    pending = [(node.inputs[0].inputs[0], False) for node in behind]
    while pending:
        node, done = pending.pop()
        if done:
            order.append(node)
        elif id(node) in found and id(node) not in seen:
            seen.add(id(node))
            pending.append((node, True))
            pending += [(tensor.inputs[0], False) for tensor in node.inputs if tensor.inputs]
    return order


def is_for_any_order(node: Node, rank: int) -> bool:
    """Whether a node computes the same of tensors of ``rank`` whose dimensions are in another order."""
    if not is_elementwise(node) or node.op in HAVE_AXIS or "axis" in node.attrs or len(node.outputs) != 1:
        return False
    operands = [tensor for tensor in node.inputs if tensor.name and is_constant(tensor)]
    if any(tensor.shape is None or len(tensor.shape) > rank for tensor in operands):
        return False
    return standard_op(node) in _OF_SEVERAL or all(_is_single(tensor) for tensor in operands)


def _is_single(tensor: gs.Tensor) -> bool:
    return all(size == 1 for size in tensor.shape)


def _cancel(model: Model, editor: GraphEditor, region: _Region) -> None:
    """Makes the nodes anew where the last of the Transposes behind them is."""
    results = {id(node.inputs[0]): node.outputs[0] for node in region.behind}
    results |= {
        id(node.inputs[0]): node.outputs[0] for node in region.behind if editor.is_graph_output(node.outputs[0])
    }
    for node in region.behind:
        if node.outputs[0] is not results[id(node.inputs[0])]:
            editor.replace_uses(node.outputs[0], results[id(node.inputs[0])])
        node.outputs.clear()
    moved: dict[int, gs.Tensor] = {}
    made: list[Node] = []
    for node in region.nodes:
        operands = [_operand(model, tensor, moved, region.perm) for tensor in node.inputs]
        old = node.outputs[0]
        new = results.get(id(old))
        if new is None:
            shape = None if old.shape is None else [old.shape[axis] for axis in region.perm]
            new = gs.Variable(model.unique_name(f"{old.name}_moved"), old.dtype, shape)
        made.append(Node(node.op, model.unique_name(f"{label(node)}_moved"), dict(node.attrs), operands, [new]))
        moved[id(old)] = new
    editor.insert(made, at=region.behind[-1])
    editor.sort(region.behind[-1])
    editor.remove(region.behind)


def _operand(model: Model, tensor: gs.Tensor, moved: Mapping[int, gs.Tensor], perm: Sequence[int]) -> gs.Tensor:
    """What a node reads in the place of ``tensor``."""
    if not tensor.name:
        return tensor
    if is_constant(tensor):
        return in_order(model, tensor, perm)
    if id(tensor) in moved:
        return moved[id(tensor)]
    before: gs.Tensor = tensor.inputs[0].inputs[0]
    return before


def in_order(model: Model, tensor: gs.Tensor, perm: Sequence[int]) -> gs.Tensor:
    """A constant with its dimensions in the order of ``perm``; one of one element as it is."""
    if _is_single(tensor):
        return tensor
    values = np.asarray(constant_value(tensor))
    return model.constant(values.reshape((1,) * (len(perm) - values.ndim) + values.shape).transpose(perm), tensor.name)
