"""Products of one tensor with several weights, which make Q, K and V of an attention, as one product.

ONNX Runtime computes each in a node of its own, and reshapes around those to which it adds a bias.  A node of an
attention reads its heads from wherever they lie, so that nothing has to take the result apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.attention.attention_blocks import AttentionBlock
from onnxfuse.fused.attention.attention_heads import Heads
from onnxfuse.fused.attention.attention_parts import producer
from onnxfuse.fused.made import split_node
from onnxfuse.model.constants import constant_value, is_constant
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor


@dataclass(frozen=True)
class _Projection:
    """``result`` = MatMul(``source``, ``weights``), perhaps + ``bias``, of heads of ``size`` elements."""

    result: gs.Tensor
    source: gs.Tensor
    weights: gs.Tensor
    bias: gs.Tensor | None
    size: int
    nodes: tuple[gs.Node, ...]

    @property
    def columns(self) -> int:
        """Elements of a row of the result."""
        return int(self.weights.shape[1])


def merge_projections(model: Model, blocks: Sequence[AttentionBlock], context: PassContext) -> list[Node]:
    """Merges what can be, and returns the Splits behind the new products, which make what Q, K and V were.

    If there are any, the blocks are to be found anew.  Only weights that nothing else reads are merged, so that the
    model does not grow.
    """
    if not blocks:
        return []
    editor = GraphEditor(model)
    splits = []
    for block in blocks:
        found: dict[tuple[int, int], list[_Projection]] = {}
        for heads in (block.q, block.k, block.v):
            projection = _projection(heads, editor)
            if projection is not None:
                found.setdefault((id(projection.source), projection.size), []).append(projection)
        for group in found.values():
            if len(group) > 1:
                splits.append(_merge(model, editor, group, context))
    editor.finish()
    return splits


def _projection(heads: Heads, editor: GraphEditor) -> _Projection | None:
    """How a tensor is made of which the heads are all; None if it is not by a product that only they need."""

    result = heads.tensor
    if heads.first or heads.total != heads.count or not editor.is_inner(result):
        return None
    product, bias, nodes = producer(result), None, [producer(result)]
    if standard_op(product) == "Add":
        constants = [tensor for tensor in product.inputs if is_constant(tensor)]
        others = [tensor for tensor in product.inputs if not is_constant(tensor)]
        if len(constants) != 1 or not editor.is_inner(others[0]):
            return None
        bias, product = constants[0], producer(others[0])
        nodes.insert(0, product)
    if standard_op(product) != "MatMul" or not is_constant(product.inputs[1]) or not editor.is_inner(product.inputs[1]):
        return None
    source, weights = product.inputs
    shapes = source.shape, weights.shape, (0,) if bias is None else bias.shape
    if any(shape is None for shape in shapes) or [len(shape) for shape in shapes] != [3, 2, 1]:
        return None
    found = _Projection(result, source, weights, bias, weights.shape[1] // heads.count, tuple(nodes))
    fits = found.columns == found.size * heads.count and (bias is None or bias.shape[0] == found.columns)
    return found if fits else None


def _merge(model: Model, editor: GraphEditor, group: Sequence[_Projection], context: PassContext) -> Node:
    """One product, with a bias if one of these has one, and a Split, which is returned."""
    nodes = [node for projection in group for node in projection.nodes]
    context.rewrote("merge-projections", nodes)
    source, columns = group[0].source, [projection.columns for projection in group]
    name = label(group[0].nodes[0])
    new: list[Node] = []

    def add(op: str, *inputs: gs.Tensor) -> gs.Tensor:
        node = Node(op, model.unique_name(f"{name}_{op}"), {}, inputs)
        shape = [*source.shape[:2], sum(columns)]
        node.outputs.append(gs.Variable(model.unique_name(f"{node.name}_output"), source.dtype, shape))
        new.append(node)
        return node.outputs[0]

    weights = np.concatenate([_values(each.weights) for each in group], axis=1)
    made = add("MatMul", source, model.constant(weights, f"{name}_weights"))
    if any(each.bias is not None for each in group):
        biases = [np.zeros(each.columns, weights.dtype) if each.bias is None else _values(each.bias) for each in group]
        made = add("Add", made, model.constant(np.concatenate(biases), f"{name}_bias"))
    split = split_node(model, made, 2, columns, f"{name}_Split")
    editor.insert([*new, split], at=nodes[0])
    editor.sort(nodes[0])
    editor.remove(nodes)
    split.outputs.extend([each.result for each in group])
    return split


def _values(tensor: gs.Tensor) -> np.ndarray:
    values = constant_value(tensor)
    assert values is not None
    return values
