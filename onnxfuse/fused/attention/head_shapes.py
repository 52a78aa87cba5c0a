"""Heads that graphs repeat or transpose by way of other shapes, in the one node that does it.

The others' shapes are computed where lengths are not known, and no node of an attention could read them.
"""

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.attention.attention_parts import producer
from onnxfuse.fused.made import Made, Value, make_nodes, transposed
from onnxfuse.model.constants import constant_value, is_constant
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor

TRANSPOSED = [0, 1, 3, 2]


def simplify_heads(model: Model, context: PassContext) -> None:
    """Rewrites what repeats or transposes heads in the graphs of a model whose types have been inferred.

    Heads that several others share (grouped-query attention): (b, h, l, s) → (b, h, 1, l, s) → (b, h, repeats, l, s) →
    (b, h · repeats, l, s) by Unsqueeze, Expand or Tile, and Reshape becomes a Gather.  Keys as PyTorch exports
    scaled_dot_product_attention: (b, h, l, s) → (b · h, l, s) → (b · h, s, l) → (b, h, s, l) becomes a Transpose, also
    where the first of these steps is the last of repeating heads.  And
    the shape of a Reshape that splits heads, (b, l, h · s) → (b, l, h, s), or joins them, becomes constant where it is
    computed from another tensor whose sizes are declared to be the same.  Results stay the same.
    """
    editor = GraphEditor(model)
    try:
        for graph in model.fusible_graphs():
            for node in list(graph.nodes):
                nodes = _repeating(node) or _transposing(node)
                if nodes:
                    _replace(model, editor, nodes)
                elif _splits_or_joins_by_computed_shape(node):
                    nodes = (node,)
                    _fix(model, editor, node)
                if nodes:
                    context.rewrote("simplify-heads", nodes)
    finally:
        editor.finish()


def repeats_of(gather: Node) -> int | None:
    """How often a Gather takes each head of (b, h, l, s), one after the other; None if it takes others."""
    if standard_op(gather) != "Gather" or gather.attrs.get("axis", 0) != 1:
        return None
    indices, shape = constant_value(gather.inputs[1]), gather.inputs[0].shape
    heads = shape[1] if shape is not None and len(shape) == 4 else None
    if indices is None or indices.ndim != 1 or not isinstance(heads, int) or heads < 1:
        return None
    repeats = indices.size // heads
    return repeats if repeats > 0 and np.array_equal(indices, _repeated(heads, repeats)) else None


def _replace(model: Model, editor: GraphEditor, nodes: Sequence[Node]) -> None:
    """A Gather, a Transpose or both in place of what repeats or transposes heads and ends with a Reshape."""
    source, last = nodes[0].inputs[0], nodes[-1]
    value: Value = source
    (made,) = last.outputs
    if standard_op(nodes[0]) == "Unsqueeze":
        batch, heads, *sizes = source.shape
        repeats = nodes[1].outputs[0].shape[2]
        places = model.constant(_repeated(heads, repeats), f"{made.name}_heads")
        value = Made("Gather", (value, places), (batch, heads * repeats, *sizes), {"axis": 1})
    if any(standard_op(node) == "Transpose" for node in nodes):
        value = transposed(value, TRANSPOSED)
    assert isinstance(value, Made)
    last.outputs.clear()
    editor.insert(make_nodes(model, value, made, label(last)), at=last)
    editor.remove(editor.unneeded(nodes))


def _splits_or_joins_by_computed_shape(node: Node) -> bool:
    """Whether a Reshape splits or joins heads by a shape that is computed."""
    if standard_op(node) != "Reshape" or is_constant(node.inputs[1]):
        return False
    before, after = declared(node.inputs[0]), declared(node.outputs[0])
    if {len(before), len(after)} != {3, 4} or None in before or before[:2] != after[:2] or is_doubtful(before[:2]):
        return False
    return all(isinstance(size, int) for size in (*before[2:], *after[2:]))


def _fix(model: Model, editor: GraphEditor, reshape: Node) -> None:
    """The sizes that a Reshape makes of the last dimensions as constants."""
    computed, made = reshape.inputs[1], reshape.outputs[0]
    reshape.inputs[1] = model.constant(np.array([0, 0, *made.shape[2:]], np.int64), f"{made.name}_shape")
    reshape.attrs.pop("allowzero", None)
    editor.remove([producer for producer in computed.inputs if editor.is_dead(producer)])


def _repeated(heads: int, repeats: int) -> np.ndarray:
    return np.repeat(np.arange(heads), repeats)


def _repeating(node: Node) -> tuple[Node, ...]:
    """The nodes that repeat heads, if a node is the last of them."""
    sizes, nodes = _expanded(node) if standard_op(node) == "Reshape" else ([], ())
    return (*nodes, node) if nodes and makes(node, sizes) else ()


def _expanded(reshape: Node) -> tuple[list[object], tuple[Node, ...]]:
    """The sizes of heads that are repeated before a Reshape, those of a group side by side, and what repeats them."""
    repeat = _maker(reshape, "Expand", "Tile")
    insert = None if repeat is None else _maker(repeat, "Unsqueeze")
    if repeat is None or insert is None:
        return [], ()
    sizes, inserted, repeated = declared(insert.inputs[0]), declared(insert.outputs[0]), declared(repeat.outputs[0])
    if len(sizes) != 4 or len(repeated) != 5 or None in sizes or is_doubtful(sizes):
        return [], ()
    heads, repeats = sizes[1], repeated[2]
    if not isinstance(heads, int) or not isinstance(repeats, int) or repeats < 1:
        return [], ()
    if inserted != [*sizes[:2], 1, *sizes[2:]] or repeated != [*sizes[:2], repeats, *sizes[2:]]:
        return [], ()
    return [sizes[0], heads * repeats, *sizes[2:]], (insert, repeat)


def _transposing(node: Node) -> tuple[Node, ...]:
    """The nodes that transpose matrices, and perhaps repeat heads before, if a node is the last of them."""
    turn = _maker(node, "Transpose") if standard_op(node) == "Reshape" else None
    merge = None if turn is None else _maker(turn, "Reshape")
    if turn is None or merge is None or turn.attrs.get("perm") != [0, 2, 1]:
        return ()
    sizes, nodes = _expanded(merge)
    sizes = sizes or declared(merge.inputs[0])
    merged = declared(merge.outputs[0])
    if len(sizes) != 4 or len(merged) != 3 or None in sizes or merged[1:] != sizes[2:] or is_doubtful(sizes):
        return ()
    return (*nodes, merge, turn, node) if makes(node, [*sizes[:2], sizes[3], sizes[2]]) else ()


def makes(reshape: Node, wanted: Sequence[object]) -> bool:
    """Whether what a Reshape makes of all elements of a tensor of the ``wanted`` shape has that.

    One size may be given by another tensor, as the length of a mask: the elements leave no other for it.
    """
    shape = declared(reshape.outputs[0])
    if len(shape) != len(wanted):
        return False
    different = [sizes for sizes in zip(shape, wanted, strict=True) if sizes[0] != sizes[1]]
    return len(different) < 2 and not any(isinstance(size, int) for sizes in different for size in sizes)


def is_doubtful(sizes: Sequence[object]) -> bool:
    """Whether one symbol stands for two sizes of a tensor, as some exporters declare one for all that is not known."""
    symbols = [size for size in sizes if isinstance(size, str)]
    return len({*symbols}) < len(symbols)


def _maker(node: Node, *operators: str) -> Node | None:
    """The node that makes a node's first input, if it is of one of these operators."""
    maker = producer(node.inputs[0])
    return maker if standard_op(maker) in operators else None


def declared(tensor: gs.Tensor) -> list[object]:
    """Empty where it is not known, as that of a scalar."""
    return [] if tensor.shape is None else list(tensor.shape)
