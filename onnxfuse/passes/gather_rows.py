"""The pass gather-rows: nodes that only move whole rows of one tensor, computed as one Gather or as one Reshape.

A Swin Transformer rolls an image (``torch.roll``: four slices, put together again in two Concats), divides it into
windows (a Transpose between Reshapes), and puts together every second row and column of it: passes over memory, one
after the other, of which each only says where a row of channels comes from.  Where it comes from in the end is known in
advance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import Array, constant_value, dtype_of, shape_of, slices_of
from onnxfuse.model.graph import sorted_nodes
from onnxfuse.model.graph_ir import VIEWS, Node, producer_of, standard_op
from onnxfuse.passes.fold_constants import FoldConstants
from onnxfuse.passes.fold_shapes import FoldShapes
from onnxfuse.passes.rules.fold_shapes.transpose_of_units import TransposeOfUnits
from onnxfuse.program.lowering import is_elementwise
from onnxfuse.program.reducing import reduces
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor
from onnxfuse.rewrite.rewriter import RulePass
from onnxfuse.shapes.inference import infer

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model

NAME = "gather-rows"

_MOVING = VIEWS | {"Transpose", "Slice", "Gather", "Concat"}
_FEWEST = 2
"""Kernels in whose place there is one."""
_SHORTEST_ROW = 64
"""Bytes: two sectors of a GPU's memory, a line of a processor's cache."""
_MOST_PLACES = 1 << 25
"""Elements of all tensors of a chain, for each of which a number of 8 bytes is held."""
_MOST_ROWS = 1 << 20


class GatherRows:
    """Gathers rows once that several nodes move one after the other, and moves none where all stay in their place.

    Rows are whole ones of the last dimension, of 64 bytes or more, of shapes that are known.  What nodes that are fused
    read where it lies stays as it is: a Transpose or a part alone, without a Concat or a Gather that is no part.
    """

    name = NAME
    description = "Moves rows of a tensor once that several nodes move one after the other."

    def run(self, model: Model, context: PassContext) -> None:
        """Goes through each graph once, from its end."""
        if not any(standard_op(node) in ("Gather", "Concat", "Transpose") for node in model.graph.nodes):
            return
        infer(model)
        RulePass([TransposeOfUnits()], NAME).run(model, context)
        editor = GraphEditor(model)
        try:
            for graph in model.fusible_graphs():
                for node in reversed(sorted_nodes(graph)):
                    if editor.graph_index(node) is None or not _is_last(node):
                        continue
                    chain = _chain(node, editor)
                    made = None if chain is None else _made(model, chain)
                    if chain is not None and made is not None:
                        context.rewrote(NAME, chain.nodes)
                        _replace(editor, chain, made)
        finally:
            editor.finish()
        if any(_is_needless(node) for graph in model.graphs() for node in graph.nodes):
            FoldShapes().run(model, context)
            FoldConstants().run(model, context)
            infer(model)  # sizes that the model declares to be one are not taken for that while shapes are folded


def _is_needless(node: Node) -> bool:
    """Whether a node is a view that FoldShapes may leave out: a Reshape to its shape, or one beside another view."""
    if standard_op(node) not in VIEWS:
        return False
    before = producer_of(node.inputs[0])
    beside = "" if before is None else standard_op(before)
    if beside in VIEWS and "Reshape" in (standard_op(node), beside):
        return True
    shapes = node.inputs[0].shape, node.outputs[0].shape
    return standard_op(node) == "Reshape" and None not in shapes and shapes[0] == shapes[1]


@dataclass
class _Chain:
    """``nodes`` in topological order that move elements of ``root`` to ``result``, and how many kernels that takes
    which are not needed then."""

    root: gs.Tensor
    result: gs.Tensor
    nodes: list[Node]
    kernels: int


def _moves(node: Node | None) -> bool:
    """Whether a node puts elements of known places of one tensor, or of several, elsewhere."""
    op = None if node is None else standard_op(node)
    if node is None or op not in _MOVING or len(node.outputs) != 1:
        return False
    if op == "Slice":
        return slices_of(node) is not None
    if op == "Gather":
        indices = constant_value(node.inputs[1])
        return indices is not None and indices.ndim == 1
    return True


def _is_last(node: Node) -> bool:
    return _moves(node) and not any(_moves(reader) for reader in node.outputs[0].outputs)


def _chain(last: Node, editor: GraphEditor) -> _Chain | None:
    """What moves the elements of one tensor to the result of ``last``; None where there are several tensors, or sizes
    that are not known.
    """
    graph = editor.graph_index(last)
    order: list[Node] = []
    seen: set[int] = set()
    roots: dict[int, gs.Tensor] = {}

    pending: list[gs.Tensor | Node] = [last.outputs[0]]
    while pending:  # by a list, for a chain may be longer than Python's stack
        step = pending.pop()
        if isinstance(step, gs.Node):
            order.append(step)
            continue
        node = producer_of(step)
        if node is None or not _moves(node) or editor.graph_index(node) != graph:
            roots[id(step)] = step
        elif id(node) not in seen:
            seen.add(id(node))
            pending += [node, *reversed(_data(node))]
    moving = sum(standard_op(node) not in VIEWS for node in order)
    if len(roots) != 1 or moving < _FEWEST:  # one alone that moves nothing is no Transpose any more
        return None
    (root,) = roots.values()
    tensors = [root, *(node.outputs[0] for node in order)]
    shapes = [shape_of(tensor) for tensor in tensors]
    if any(shape is None or 0 in shape for shape in shapes) or dtype_of(root) in (None, np.dtype(object)):
        return None
    needless: set[int] = set()
    for node in reversed(order):
        read = node.outputs[0].outputs
        inner = all(id(reader) in needless for reader in read) and not editor.is_graph_output(node.outputs[0])
        if node is last or inner:
            needless.add(id(node))
    kernels = sum(id(node) in needless and standard_op(node) not in VIEWS for node in order)
    return _Chain(root, last.outputs[0], order, kernels)


def _data(node: Node) -> Sequence[gs.Tensor]:
    """What a node moves elements of."""
    return node.inputs if standard_op(node) == "Concat" else node.inputs[:1]


def _made(model: Model, chain: _Chain) -> list[Node] | None:
    """The nodes in place of a chain, of which the last is still to be given its result; None where it is better as it
    is."""
    shape, made = shape_of(chain.root), shape_of(chain.result)
    assert shape is not None and made is not None
    size, count = math.prod(shape), math.prod(made)
    if chain.kernels < 1 or not shape or _elements(chain) > _MOST_PLACES:
        return None
    places = _places(chain, size)
    if places is None:
        return None
    if size == count and np.array_equal(places, np.arange(size)):
        return [_reshape(model, chain, chain.root, None, made)]
    row = shape[-1]
    rows = places.reshape(-1, row) if count % row == 0 else None
    if chain.kernels < _FEWEST or rows is None or row * np.dtype(dtype_of(chain.root)).itemsize < _SHORTEST_ROW:
        return None
    first = rows[:, 0]
    if len(first) > _MOST_ROWS or np.any(first % row) or not np.array_equal(rows - first[:, None], _all(rows.shape)):
        return None
    if _is_read_where_it_lies(chain):
        return None
    data, nodes = chain.root, []
    if len(shape) != 2:
        data = gs.Variable(model.unique_name(f"{chain.result.name}_rows"), chain.root.dtype, [size // row, row])
        nodes.append(_reshape(model, chain, chain.root, data, [-1, row]))
    taken = gs.Variable(model.unique_name(f"{chain.result.name}_taken"), chain.root.dtype, [len(first), row])
    indices = model.constant((first // row).astype(np.int64), "rows")
    name = model.unique_name(f"{label(chain.nodes[-1])}_gathered")
    if len(made) == 2 and made[-1] == row:
        return [*nodes, Node("Gather", name, {"axis": 0}, [data, indices])]
    nodes.append(Node("Gather", name, {"axis": 0}, [data, indices], [taken]))
    return [*nodes, _reshape(model, chain, taken, None, made)]


def _elements(chain: _Chain) -> int:
    """Of all tensors of a chain, also of those between, which may be larger than both ends."""
    shapes = [shape_of(chain.root), *(shape_of(node.outputs[0]) for node in chain.nodes)]
    return sum(math.prod(shape) for shape in shapes if shape is not None)


def _all(shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(np.arange(shape[1]), shape)


def _reshape(model: Model, chain: _Chain, data: gs.Tensor, result: gs.Tensor | None, shape: Sequence[int]) -> Node:
    name = model.unique_name(f"{label(chain.nodes[-1])}_Reshape")
    outputs = [] if result is None else [result]
    return Node("Reshape", name, {}, [data, model.constant(np.array(shape, np.int64), "shape")], outputs)


def _replace(editor: GraphEditor, chain: _Chain, made: Sequence[Node]) -> None:
    last = chain.nodes[-1]
    last.outputs.clear()
    made[-1].outputs.append(chain.result)
    editor.insert(made, at=last)
    editor.remove([last])


def _is_read_where_it_lies(chain: _Chain) -> bool:
    """Whether nodes that are fused may read what a chain makes as a view."""
    if not any(is_elementwise(reader) or reduces(reader) for reader in chain.result.outputs):
        return False
    return not any(standard_op(node) == "Concat" or _is_no_part(node) for node in chain.nodes)


def _is_no_part(node: Node) -> bool:
    """Whether a node is a Gather of indices that are not equally far apart."""
    return standard_op(node) == "Gather" and len(set(np.diff(np.asarray(constant_value(node.inputs[1]))))) > 1


def _places(chain: _Chain, size: int) -> Array | None:
    """Of each element of the result the place in ``root``; None where a node does not do what its shape says."""
    values: dict[int, Array] = {id(chain.root): np.arange(size).reshape(shape_of(chain.root))}
    for node in chain.nodes:
        operands = [values[id(tensor)] for tensor in _data(node)]
        moved = _moved(node, operands)
        made = shape_of(node.outputs[0])
        if moved is None or made is None or moved.size != math.prod(made):
            return None
        values[id(node.outputs[0])] = moved.reshape(made)
    return values[id(chain.result)].reshape(-1)


def _moved(node: Node, operands: Sequence[Array]) -> Array | None:
    """What a node makes of arrays."""
    x, rank = operands[0], operands[0].ndim
    match standard_op(node):
        case "Transpose":
            return x.transpose(node.attrs.get("perm"))
        case "Concat":
            return np.concatenate(operands, axis=node.attrs["axis"])
        case "Gather":
            axis, indices = node.attrs.get("axis", 0), np.asarray(constant_value(node.inputs[1]))
            inside = np.all((indices >= -x.shape[axis]) & (indices < x.shape[axis]))
            return x.take(indices, axis) if inside else None
        case "Slice":
            for one in slices_of(node) or ():
                if not -rank <= one.axis < rank:
                    return None
                x = x.take(np.array(one.places(x.shape[one.axis]), np.int64), one.axis)
            return x
        case _:
            return x
