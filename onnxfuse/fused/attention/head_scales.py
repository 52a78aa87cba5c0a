"""Scores of an attention that are multiplied by a number for each head: Q is, in their place.

So cosine attention has it, whose temperature is learned (Z. Liu et al., Swin Transformer V2, 2022; A. El-Nouby et al.,
XCiT, 2021).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.attention.attention_parts import producer
from onnxfuse.fused.made import Made, make_nodes
from onnxfuse.model.constants import dtype_of
from onnxfuse.model.graph import Model, sorted_nodes
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor

_BEFORE_SOFTMAX = {"Add", "Reshape", "Where"}
_MOST_BEFORE = 4


@dataclass(frozen=True)
class _Scaled:
    """``scale`` multiplies by ``factors``, one a head, what ``product`` makes."""

    product: Node
    scale: Node
    factors: gs.Tensor


def scale_queries(model: Model, context: PassContext) -> None:
    """Rewrites (Q Kᵀ) · s before a Softmax as (Q · s) Kᵀ, where s has one number for each head.

    Of float32, in models whose types have been inferred.  Results stay the same up to rounding.
    """
    editor = GraphEditor(model)
    try:
        for graph in model.fusible_graphs():
            for node in sorted_nodes(graph):
                for found in _scaled(node, editor) if standard_op(node) == "Softmax" else ():
                    context.rewrote("scale-queries", [found.product, found.scale])
                    _move(model, editor, found)
    finally:
        editor.finish()


def _move(model: Model, editor: GraphEditor, found: _Scaled) -> None:
    q = found.product.inputs[0]
    name = label(found.scale)
    scaled = gs.Variable(model.unique_name(f"{name}_queries"), np.float32, list(q.shape))
    editor.insert(make_nodes(model, Made("Mul", (q, found.factors), tuple(q.shape)), scaled, name), at=found.product)
    editor.sort(found.product)
    found.product.inputs[0] = scaled
    editor.replace_uses(found.scale.outputs[0], found.product.outputs[0])
    editor.remove([found.scale])


def _scaled(softmax: Node, editor: GraphEditor) -> Iterator[_Scaled]:
    """The scaled scores that a Softmax reads, perhaps after other nodes; nothing else reads any of them."""
    pending = [(softmax.inputs[0], 0)]
    while pending:
        tensor, before = pending.pop()
        node = producer(tensor)
        if not editor.is_inner(tensor):
            continue
        if standard_op(node) in _BEFORE_SOFTMAX and before < _MOST_BEFORE:
            pending += [(operand, before + 1) for operand in node.inputs]
        elif standard_op(node) == "Mul":
            for place in (0, 1):
                product, factors = producer(node.inputs[place]), node.inputs[1 - place]
                if _is_product(product, editor) and _is_of_heads(factors, product.outputs[0].shape):
                    yield _Scaled(product, node, factors)
                    break


def _is_product(node: Node, editor: GraphEditor) -> bool:
    """Whether a MatMul of four dimensions of float32, of as many batches and heads as Q has, is read once."""
    if standard_op(node) != "MatMul" or not editor.is_inner(node.outputs[0]):
        return False
    q, made = node.inputs[0], node.outputs[0]
    known = all(tensor.shape is not None and len(tensor.shape) == 4 for tensor in (q, made))
    return known and dtype_of(q) == np.float32 and isinstance(q.shape[1], int) and q.shape[1] == made.shape[1]


def _is_of_heads(factors: gs.Tensor, scores: list[object]) -> bool:
    """Whether a tensor has one element for each of several heads, and no other dimension."""
    shape = [] if factors.shape is None else list(factors.shape)
    heads = len(shape) in (3, 4) and shape[-3] == scores[1] and scores[1] != 1
    return heads and dtype_of(factors) == np.float32 and shape[-2:] == [1, 1] and shape[:-3] in ([], [1])
