"""Batch before rows around an attention, where a graph has them the other way: PyTorch's nn.MultiheadAttention.

It computes with (rows, batch, columns) inside, so that what makes Q, K and V is transposed before and what takes the
result after it.  An attention in one node wants (batch, rows, columns).
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.attention.attention_heads import SWAPPED, factor_of
from onnxfuse.fused.attention.attention_parts import producer
from onnxfuse.fused.attention.head_shapes import declared, is_doubtful
from onnxfuse.fused.attention.merged_heads import HEADS_BEHIND_ROWS, ROWS_FIRST, is_swap
from onnxfuse.fused.made import Made, Value, make_nodes, split_node, transposed
from onnxfuse.model.constants import constant_value, is_constant
from onnxfuse.model.graph import Model, sorted_nodes
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor

_Maker: TypeAlias = Callable[[Value], Made]
"""From an operand with its first two dimensions in the other order to the result that has them so."""
_PARTS_BEFORE_ROWS = [3, 1, 2, 0, 4]
"""(parts, rows, batch, 1, columns) from (1, rows, batch, parts, columns)."""


def put_batch_first(model: Model, context: PassContext) -> None:
    """Moves transposes of (rows, batch) to where they cancel, through products with constant weights, and joins those
    of Q, K and V into one.

    The types of the model have been inferred.  Results stay the same.
    """
    editor = GraphEditor(model)
    try:
        for graph in model.fusible_graphs():
            for node in sorted_nodes(graph):
                if editor.graph_index(node) is None:
                    continue
                if standard_op(node) == "Reshape":
                    _join(model, context, editor, node)
                elif is_swap(node) and not _cancel(model, context, editor, node):
                    _share(model, context, editor, node)
    finally:
        editor.finish()


def _join(model: Model, context: PassContext, editor: GraphEditor, reshape: Node) -> None:
    """(b, h, l, s) → (l, b, h, s) → (.., h · s) by way of (b, l, h, s) → (b, l, h · s) → (l, b, h · s)."""
    before = producer(reshape.inputs[0])
    if standard_op(before) != "Transpose" or before.attrs.get("perm") != HEADS_BEHIND_ROWS:
        return
    sizes, made = declared(before.inputs[0]), declared(reshape.outputs[0])
    if standard_op(producer(before.inputs[0])) != "MatMul" or len(sizes) != 4 or not editor.is_inner(before.outputs[0]):
        return
    batch, heads, rows, size = sizes
    if not isinstance(heads, int) or not isinstance(size, int) or made[-1:] != [heads * size] or len(made) > 3:
        return  # of more dimensions the third may be a size that is copied, which becomes another
    target = model.constant(np.array([0, 0, heads * size], np.int64), f"{label(reshape)}_joined")
    joined = Made("Reshape", (transposed(before.inputs[0], SWAPPED), target), (batch, rows, heads * size))
    context.rewrote("batch-first", [before])
    _replace(model, editor, before, transposed(joined, ROWS_FIRST))


def _cancel(model: Model, context: PassContext, editor: GraphEditor, swap: Node) -> bool:
    """A transpose of what was transposed before."""
    found = _swapped(model, editor, swap.inputs[0])
    if not isinstance(found, Made):
        return False
    context.rewrote("batch-first", [swap])
    _replace(model, editor, swap, found)
    return True


def _swapped(model: Model, editor: GraphEditor, tensor: gs.Tensor) -> Value | None:
    """A tensor of (batch, rows, columns) that is this one with its first two dimensions in the other order, by as many
    nodes as make this; None if there is none."""
    makers: list[_Maker] = []
    while not is_swap(node := producer(tensor)):
        if not editor.is_inner(tensor) or len(declared(tensor)) != 3:
            return None
        before = _rows_before(model, editor, node) if standard_op(node) == "Reshape" else _before(node)
        if before is None:
            return None
        tensor, maker = before
        makers.append(maker)
    value: Value = node.inputs[0]
    for maker in reversed(makers):
        value = maker(value)
    return value


def _before(node: Node) -> tuple[gs.Tensor, _Maker] | None:
    """The operand of a node whose dimensions its result has, and what the node makes of that one swapped."""
    op = standard_op(node)
    place = 0
    if op == "MatMul":
        if not is_constant(node.inputs[1]) or len(node.inputs[1].shape) != 2:
            return None
    elif op == "Add":
        places = [place for place in (0, 1) if not _is_row(node.inputs[place])]
        if len(places) != 1:
            return None
        (place,) = places
    elif (factor := factor_of(node)) is not None:
        place = 0 if factor[0] is node.inputs[0] else 1
    else:
        return None
    columns = node.outputs[0].shape[2]

    def swapped(before: Value) -> Made:
        operands = [before if index == place else operand for index, operand in enumerate(node.inputs)]
        return Made(node.op, tuple(operands), (*before.shape[:2], columns))

    return node.inputs[place], swapped


def _is_row(tensor: gs.Tensor) -> bool:
    """Whether a tensor is a constant that is the same for all rows."""
    return is_constant(tensor) and len(tensor.shape) < 2


def _rows_before(model: Model, editor: GraphEditor, reshape: Node) -> tuple[gs.Tensor, _Maker] | None:
    """(l, b, s) → (l · b, s) → Gemm → (l · b, t) → (l, b, t): the first, and (b, l, t) of (b, l, s)."""
    gemm = producer(reshape.inputs[0])
    flat = producer(gemm.inputs[0]) if standard_op(gemm) == "Gemm" else None
    if flat is None or standard_op(flat) != "Reshape" or gemm.attrs.get("transA", 0):
        return None
    if gemm.attrs.get("alpha", 1.0) != 1.0 or gemm.attrs.get("beta", 1.0) != 1.0:
        return None
    rows, made, columns = declared(flat.inputs[0]), declared(reshape.outputs[0]), declared(flat.outputs[0])
    if len(rows) != 3 or len(columns) != 2 or None in rows or made[:2] != rows[:2] or columns[1] != rows[2]:
        return None
    if is_doubtful(rows):
        return None
    if not all(editor.is_inner(tensor) for tensor in (flat.inputs[0], flat.outputs[0], gemm.outputs[0])):
        return None
    weights, bias = gemm.inputs[1], gemm.inputs[2] if len(gemm.inputs) > 2 and gemm.inputs[2].name else None
    if not is_constant(weights) or not (bias is None or _is_row(bias)) or made[2] != _outputs(gemm):
        return None

    def swapped(before: Value) -> Made:
        matrix = weights
        if gemm.attrs.get("transB", 0):
            values = constant_value(weights)
            assert values is not None
            matrix = model.constant(np.ascontiguousarray(values.T), f"{weights.name}_transposed")
        product = Made("MatMul", (before, matrix), (*before.shape[:2], made[2]))
        return product if bias is None else Made("Add", (product, bias), product.shape)

    return flat.inputs[0], swapped


def _outputs(gemm: Node) -> int:
    """How many columns a Gemm makes."""
    return int(gemm.inputs[1].shape[0 if gemm.attrs.get("transB", 0) else 1])


def _share(model: Model, context: PassContext, editor: GraphEditor, swap: Node) -> None:
    """Transposes of all parts of one tensor, (l, b, n · s) → (l, b, n, s) → (n, l, b, s), as one of the tensor."""
    packed = _packed(swap.inputs[0])
    if packed is None:
        return
    source, swaps = packed
    if any(not is_swap(each) or not editor.is_inner(each.inputs[0]) for each in swaps):
        return
    found = _swapped(model, editor, source) if editor.is_inner(source) else None
    whole = transposed(source, ROWS_FIRST) if found is None else found
    context.rewrote("batch-first", swaps)
    new: list[Node] = []
    if isinstance(whole, Made):
        result = gs.Variable(model.unique_name(f"{label(swap)}_parts"), source.dtype, list(whole.shape))
        new += make_nodes(model, whole, result, label(swap))
        whole = result
    columns = declared(source)[2]
    assert isinstance(columns, int)
    split = split_node(model, whole, 2, [columns // len(swaps)] * len(swaps), f"{label(swap)}_Split")
    for each in swaps:
        (result,) = each.outputs
        each.outputs.clear()
        split.outputs.append(result)
    editor.insert([*new, split], at=swap)
    editor.sort(swap)
    editor.remove(swaps)


def _packed(part: gs.Tensor) -> tuple[gs.Tensor, list[Node]] | None:
    """The tensor of (l, b, n · s) of which this is one of n parts, and what reads each part."""
    gather = producer(part)
    if standard_op(gather) != "Gather" or gather.attrs.get("axis", 0) != 0:
        return None
    stack = gather.inputs[0]
    squeeze = producer(stack)
    turn = producer(squeeze.inputs[0]) if standard_op(squeeze) == "Squeeze" else None
    insert = producer(turn.inputs[0]) if turn is not None and standard_op(turn) == "Transpose" else None
    split = producer(insert.inputs[0]) if insert is not None and standard_op(insert) == "Unsqueeze" else None
    if turn is None or insert is None or split is None or standard_op(split) != "Reshape":
        return None
    source, parts = declared(split.inputs[0]), declared(split.outputs[0])
    count = parts[2] if len(parts) == 4 else None
    if len(source) != 3 or not isinstance(count, int) or not isinstance(parts[3], int) or None in source:
        return None
    rows, batch, columns = source
    wanted = [rows, batch, count, parts[3]], [1, *parts], [count, rows, batch, parts[3]]
    shapes = parts, declared(insert.outputs[0]), declared(stack)
    if shapes != wanted or columns != count * parts[3] or turn.attrs.get("perm") != _PARTS_BEFORE_ROWS:
        return None
    if is_doubtful(source):
        return None
    readers = _readers(stack, count)
    return None if readers is None else (split.inputs[0], readers)


def _readers(stack: gs.Tensor, count: int) -> list[Node] | None:
    """What reads each of the ``count`` parts of a stack, in order; None if not one node does each."""
    found: dict[int, Node] = {}
    for gather in stack.outputs:
        index = constant_value(gather.inputs[1]) if standard_op(gather) == "Gather" else None
        if index is None or index.ndim != 0 or gather.attrs.get("axis", 0) != 0 or len(gather.outputs[0].outputs) != 1:
            return None
        found[int(index) % count] = gather.outputs[0].outputs[0]
    return [found[place] for place in range(count)] if len(found) == count == len(stack.outputs) else None


def _replace(model: Model, editor: GraphEditor, node: Node, value: Made) -> None:
    """Has new nodes make what ``node`` makes, perhaps in another shape."""
    (result,) = node.outputs
    result.shape = list(value.shape)
    node.outputs.clear()
    editor.insert(make_nodes(model, value, result, label(node)), at=node)
    editor.remove([node])
