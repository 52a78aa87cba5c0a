"""Heads of keys and values that each serve several of the queries, as graphs repeat them (grouped-query attention)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.constants import constant_value
from onnxfuse.graph_ir import Node, standard_op


@dataclass(frozen=True)
class RepeatedHeads:
    """``nodes``, in topological order, make (batch, count · repeats, length, size) of ``tensor``: each head ``repeats``
    times, one after the other.
    """

    tensor: gs.Tensor
    count: int
    repeats: int
    nodes: tuple[Node, ...]


def repeated_heads(node: Node) -> RepeatedHeads | None:
    """What a node repeats, if it is the last of those that do; None if it is not known to.

    (b, h, l, s) → (b, h, 1, l, s) → (b, h, repeats, l, s) → (b, h · repeats, l, s), or a Gather of constant indices.
    """
    operator = standard_op(node)
    if operator == "Gather":
        return _gathered(node)
    repeat = _maker(node, "Expand", "Tile") if operator == "Reshape" else None
    insert = None if repeat is None else _maker(repeat, "Unsqueeze")
    if repeat is None or insert is None:
        return None
    sizes, repeated = insert.inputs[0].shape, repeat.outputs[0].shape
    if sizes is None or repeated is None or len(sizes) != 4 or len(repeated) != 5 or None in sizes:
        return None
    heads, repeats = sizes[1], repeated[2]
    if not isinstance(heads, int) or not isinstance(repeats, int) or repeats < 1:
        return None
    wanted = [
        (insert, [*sizes[:2], 1, *sizes[2:]]),
        (repeat, [*sizes[:2], repeats, *sizes[2:]]),
        (node, [sizes[0], heads * repeats, *sizes[2:]]),
    ]
    if not all(_has_shape(each.outputs[0], shape) for each, shape in wanted):
        return None
    return RepeatedHeads(insert.inputs[0], heads, repeats, (insert, repeat, node))


def _gathered(node: Node) -> RepeatedHeads | None:
    indices, shape = constant_value(node.inputs[1]), node.inputs[0].shape
    if indices is None or indices.ndim != 1 or node.attrs.get("axis", 0) != 1 or shape is None or len(shape) != 4:
        return None
    heads = shape[1]
    repeats = indices.size // heads if isinstance(heads, int) and heads > 0 else 0
    if repeats < 1 or not np.array_equal(indices, np.repeat(np.arange(heads), repeats)):
        return None
    return RepeatedHeads(node.inputs[0], heads, repeats, (node,))


def _maker(node: Node, *operators: str) -> Node | None:
    """The node that makes a node's first input, if it is of one of these operators."""
    makers = node.inputs[0].inputs
    return makers[0] if makers and standard_op(makers[0]) in operators else None


def _has_shape(tensor: gs.Tensor, shape: Sequence[object]) -> bool:
    return tensor.shape is not None and list(tensor.shape) == list(shape)
