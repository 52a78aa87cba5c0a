"""Attention whose products have three dimensions, batch and heads in one, with four.

So PyTorch's bmm has it, and with it most of what was exported before there was scaled_dot_product_attention: BART,
CLIP, OPT, Wav2Vec2, Whisper, and its own MultiheadAttention, in which moreover rows come before the batch.
"""

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.attention.attention_heads import SWAPPED, factor_of
from onnxfuse.fused.attention.attention_parts import producer
from onnxfuse.fused.attention.head_shapes import TRANSPOSED, declared, is_doubtful, makes
from onnxfuse.fused.made import Made, Value, make_nodes, transposed
from onnxfuse.model.constants import constant_value
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.passes.rules.fold_shapes.unit_dimensions import without_units
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor
from onnxfuse.shapes.missed_sizes import broadcast

ROWS_FIRST = [1, 0, 2]
"""(batch, rows, columns) from (rows, batch, columns), or the other way."""
HEADS_BEHIND_ROWS = [2, 0, 1, 3]
"""(rows, batch, heads, columns) from (batch, heads, rows, columns)."""


def separate_heads(model: Model, context: PassContext) -> bool:
    """Rewrites products between Reshapes that merge batch and heads and one that takes them apart again, or joins the
    heads, with what is between them: transposes, a scale, a mask, a Softmax.

    (b, h, l, s) → (b · h, l, s) → … → (b, h, m, n) is computed without the first and last of these, also where
    dimensions of 1 are inserted before and taken away after them, as tf2onnx exports einsum; likewise
    (l, b, h · s) → (l, b · h, s) → (b · h, l, s), which becomes (b, l, h · s) → (b, l, h, s) → (b, h, l, s) first.  The
    types of the model have been inferred.  Results stay the same.  Returns whether anything was rewritten: the sizes
    that then are known of what follows may make more of it possible.
    """
    editor = GraphEditor(model)
    reshapes = [node for graph in model.fusible_graphs() for node in graph.nodes if standard_op(node) == "Reshape"]
    try:
        separated = [node for node in reshapes if _separate(model, context, editor, node)]
    finally:
        editor.finish()
    return bool(separated)


def _separate(model: Model, context: PassContext, editor: GraphEditor, reshape: Node) -> bool:
    """Rewrites what a Reshape reads, if it can be, and the Reshape itself where it takes batch and heads apart."""
    reader = _Reader(model, editor)
    before = producer(reshape.inputs[0])
    last = _squeezed(editor, reshape)
    if len(declared(last.outputs[0])) == 4:
        value = reader.separated(reshape.inputs[0])
        if not isinstance(value, Made) or not makes(last, value.shape):
            return False
        replaced = [reshape] if last is reshape else [reshape, last]
        context.rewrote("separate-heads", [*reader.nodes, *replaced])
        result, name = last.outputs[0], label(last)
        last.outputs.clear()
        editor.insert(make_nodes(model, value, result, name), at=last)
        editor.remove(replaced)
        return True
    if is_swap(before) and editor.is_inner(before.outputs[0]) and _keeps_no_size(reshape):
        value = reader.separated(before.inputs[0])
        if not isinstance(value, Made) or value.op != "MatMul":
            return False
        context.rewrote("separate-heads", [*reader.nodes, before])
        result, name = before.outputs[0], label(before)
        result.shape = [value.shape[axis] for axis in HEADS_BEHIND_ROWS]
        before.outputs.clear()
        editor.insert(make_nodes(model, transposed(value, HEADS_BEHIND_ROWS), result, name), at=before)
        editor.remove([before])
        return True
    return False


def _squeezed(editor: GraphEditor, reshape: Node) -> Node:
    """The Squeeze that takes a fifth dimension away from what a Reshape makes; the Reshape if there is none."""
    made = reshape.outputs[0]
    readers = made.outputs if len(declared(made)) == 5 and editor.is_inner(made) else []
    return next((node for node in readers if standard_op(node) == "Squeeze"), reshape)


def is_swap(node: Node) -> bool:
    """Whether a node makes (batch, rows, columns) of (rows, batch, columns), or the other way."""
    return standard_op(node) == "Transpose" and node.attrs.get("perm") == ROWS_FIRST


def _keeps_no_size(reshape: Node) -> bool:
    """Whether a Reshape copies no size of its data but the first."""
    target = constant_value(reshape.inputs[1]) if len(reshape.inputs) == 2 else None
    return target is not None and 0 not in target.reshape(-1)[1:].tolist()


class _Reader:
    """Finds what tensors of three dimensions are with batch and heads apart; ``nodes`` are those in whose place that is
    computed, in topological order.
    """

    def __init__(self, model: Model, editor: GraphEditor) -> None:
        self._model = model
        self._editor = editor
        self.nodes: list[Node] = []

    def separated(self, tensor: gs.Tensor) -> Value | None:
        """What (b · h, l, s) is of (b, h, l, s); None where that is not known.

        Where it is computed, nothing else may read it: it would be computed twice.
        """
        node = producer(tensor)
        op = standard_op(node)
        if op == "Reshape":
            return _merged(node)
        found = None
        if op == "Transpose":
            found = self._turned(node)
        elif op is not None and len(declared(tensor)) == 3 and self._editor.is_inner(tensor):
            found = self._computed(node, op)
        if found is not None:
            self.nodes.append(node)
        return found

    def _computed(self, node: Node, op: str) -> Made | None:
        if op in ("MatMul", "Add"):
            known = len(self.nodes)
            first, second = map(self.separated, node.inputs)
            if op == "Add" and first is not None and second is None:
                del self.nodes[known:]
                first, second = self.separated(node.inputs[0]), self._apart(node.inputs[1], first)
            elif op == "Add" and second is not None and first is None:
                del self.nodes[known:]
                first, second = self._apart(node.inputs[0], second), self.separated(node.inputs[1])
            if first is None or second is None or tuple(first.shape[:2]) != tuple(second.shape[:2]):
                return None
            if op == "MatMul":
                return Made(op, (first, second), (*first.shape[:3], second.shape[3]))
            sizes = broadcast([first.shape, second.shape])
            return None if None in sizes else Made(op, (first, second), tuple(sizes))
        factor = factor_of(node)
        if factor is not None:
            before = self.separated(factor[0])
            operands = (before if operand is factor[0] else operand for operand in node.inputs)
            return None if before is None else Made(op, tuple(operands), tuple(before.shape))
        if op == "Softmax" and node.attrs.get("axis", 1 if self._model.opsets[""] < 13 else -1) in (-1, 2):
            before = self.separated(node.inputs[0])
            return None if before is None else Made(op, (before,), tuple(before.shape), {"axis": -1})
        return None

    def _apart(self, tensor: gs.Tensor, other: Value) -> Made | None:
        """What (b · h, l, s) is beside ``other``, of (b, h, l, s), where sizes are numbers; whatever made it."""
        sizes, (batch, heads) = declared(tensor), other.shape[:2]
        if not isinstance(batch, int) or not isinstance(heads, int):
            return None
        if len(sizes) != 3 or sizes[0] != batch * heads or not all(isinstance(size, int) for size in sizes):
            return None
        shape = (batch, heads, *sizes[1:])
        target = self._model.constant(np.array(shape, np.int64), f"{tensor.name}_shape")
        return Made("Reshape", (tensor, target), shape)

    def _turned(self, node: Node) -> Made | None:
        """A transpose of rows and columns, or of rows and what batch and heads are merged in."""
        if is_swap(node):
            return self._rows_first(producer(node.inputs[0]))
        before: Value | None = None
        if node.attrs.get("perm") == [0, 2, 1]:
            before = self.separated(node.inputs[0])
        elif node.attrs.get("perm") == [1, 2, 0]:
            before = self._rows_first(producer(node.inputs[0]))
        return None if before is None else transposed(before, TRANSPOSED)

    def _rows_first(self, reshape: Node) -> Made | None:
        """(b, h, l, s) of (l, b, h · s) that a Reshape makes (l, b · h, s)."""
        if standard_op(reshape) != "Reshape":
            return None
        sizes, merged = declared(reshape.inputs[0]), declared(reshape.outputs[0])
        if len(sizes) != 3 or len(merged) != 3 or None in sizes or merged[0] != sizes[0] or is_doubtful(sizes):
            return None
        rows, batch, columns = sizes
        size = merged[2]
        if not isinstance(size, int) or not isinstance(columns, int) or size < 1 or columns % size:
            return None
        heads = columns // size
        target = self._model.constant(np.array([0, 0, heads, size], np.int64), f"{reshape.outputs[0].name}_shape")
        swapped = transposed(reshape.inputs[0], ROWS_FIRST)
        return transposed(Made("Reshape", (swapped, target), (batch, rows, heads, size)), SWAPPED)


def _merged(reshape: Node) -> Value | None:
    """The tensor of (b, h, l, s) of which a Reshape makes (b · h, l, s), perhaps with a dimension of 1 in between."""
    data: Value = reshape.inputs[0]
    if len(declared(reshape.inputs[0])) == 5 and (found := without_units(reshape.inputs[0])) is not None:
        tensor, perm = found
        data = tensor if perm is None else transposed(tensor, perm)
    sizes, merged = list(data.shape or ()), declared(reshape.outputs[0])
    if len(sizes) != 4 or len(merged) != 3 or None in sizes or merged[1:] != sizes[2:]:
        return None
    batch, _, rows, columns = sizes  # of scores the last two may be equal
    return None if is_doubtful([batch, rows]) or is_doubtful([batch, columns]) else data
