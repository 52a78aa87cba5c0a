"""Attention whose products have three dimensions, batch and heads in one, with four.

So PyTorch's bmm has it, and with it most of what was exported before there was scaled_dot_product_attention: BART,
CLIP, OPT, Wav2Vec2, Whisper.
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxfuse.graph import Model
from onnxfuse.graph_ir import Node, standard_op
from onnxfuse.passes.base import PassContext, label
from onnxfuse.passes.editor import GraphEditor
from onnxfuse.planner.attention_heads import factor_of
from onnxfuse.planner.attention_parts import producer
from onnxfuse.planner.head_shapes import TRANSPOSED, declared, makes


@dataclass(frozen=True)
class _Value:
    """A tensor of the sizes (batch, heads, rows, columns): one that there is, or what ``node`` would make of others."""

    sizes: tuple[object, ...]
    tensor: gs.Tensor | None = None
    node: Node | None = None
    operands: tuple["_Value | gs.Tensor", ...] = ()

    @property
    def nodes(self) -> list[Node]:
        """Those in its place of which each makes (batch · heads, rows, columns), in topological order."""
        before = [node for operand in self.operands if isinstance(operand, _Value) for node in operand.nodes]
        return before if self.node is None else [*before, self.node]


def separate_heads(model: Model, context: PassContext) -> None:
    """Rewrites products between Reshapes that merge batch and heads and one that takes them apart again, with what is
    between them: a transpose, a scale, a Softmax.

    (b, h, l, s) → (b · h, l, s) → … → (b, h, m, n) is computed without the first and last of these.  The types of the
    model have been inferred.  Results stay the same.
    """
    editor = GraphEditor(model)
    opset = model.opsets[""]
    try:
        for graph in model.fusible_graphs():
            for node in list(graph.nodes):
                if standard_op(node) != "Reshape" or len(declared(node.outputs[0])) != 4:
                    continue
                value = _separated(node.inputs[0], editor, opset)
                if value is None or value.node is None or not makes(node, value.sizes):
                    continue
                context.rewrote("separate-heads", [*value.nodes, node])
                _replace(model, editor, node, value)
    finally:
        editor.finish()


def _separated(tensor: gs.Tensor, editor: GraphEditor, opset: int) -> _Value | None:
    """What a tensor of three dimensions is with batch and heads apart; None where that is not known.

    Where it is computed, nothing else may read it: it would be computed twice.
    """
    node = producer(tensor)
    op = standard_op(node)
    if op == "Reshape":
        return _merged(node)
    if op is None or len(declared(tensor)) != 3 or len(tensor.outputs) != 1 or editor.is_graph_output(tensor):
        return None
    if op == "MatMul":
        first, second = (_separated(operand, editor, opset) for operand in node.inputs)
        if first is None or second is None or first.sizes[:2] != second.sizes[:2]:
            return None
        return _Value((*first.sizes[:3], second.sizes[3]), None, node, (first, second))
    if op == "Transpose" and node.attrs.get("perm") == [0, 2, 1]:
        before = _separated(node.inputs[0], editor, opset)
        if before is None:
            return None
        batch, heads, rows, columns = before.sizes
        return _Value((batch, heads, columns, rows), None, node, (before,))
    factor = factor_of(node)
    last = op == "Softmax" and node.attrs.get("axis", 1 if opset < 13 else -1) in (-1, 2)
    if not last and factor is None:
        return None
    source = node.inputs[0] if factor is None else factor[0]
    before = _separated(source, editor, opset)
    if before is None:
        return None
    operands = tuple(before if operand is source else operand for operand in node.inputs)
    return _Value(before.sizes, None, node, operands)


def _merged(reshape: Node) -> _Value | None:
    """The tensor of (b, h, l, s) of which a Reshape makes (b · h, l, s)."""
    sizes, merged = declared(reshape.inputs[0]), declared(reshape.outputs[0])
    if len(sizes) != 4 or len(merged) != 3 or None in sizes or merged[1:] != sizes[2:]:
        return None
    # Some models declare one symbol for sizes that differ.
    if isinstance(sizes[0], str) and sizes[0] in sizes[2:]:
        return None
    return _Value(tuple(sizes), reshape.inputs[0])


def _replace(model: Model, editor: GraphEditor, reshape: Node, value: _Value) -> None:
    """Computes what ``reshape`` makes by nodes of four dimensions."""
    new: list[Node] = []
    _make(model, value, new)
    (result,) = reshape.outputs
    new[-1].outputs.clear()
    reshape.outputs.clear()
    new[-1].outputs.append(result)
    editor.insert(new, at=reshape)
    editor.remove([reshape])


def _make(model: Model, value: _Value | gs.Tensor, new: list[Node]) -> gs.Tensor:
    """The tensor of a value; what makes it is added to ``new``."""
    if not isinstance(value, _Value):
        return value
    if value.tensor is not None:
        return value.tensor
    node = value.node
    assert node is not None
    inputs = [_make(model, operand, new) for operand in value.operands]
    attributes = dict(node.attrs)
    if node.op == "Transpose":
        attributes["perm"] = TRANSPOSED
    if node.op == "Softmax":
        attributes["axis"] = -1
    name = model.unique_name(f"{label(node)}_apart")
    result = gs.Variable(model.unique_name(f"{name}_output"), node.outputs[0].dtype, list(value.sizes))
    new.append(Node(node.op, name, attributes, inputs, [result]))
    return result
