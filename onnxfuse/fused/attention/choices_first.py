"""Scores to which a bias is added before a condition hides some of them, as in DeBERTa."""

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.attention.attention_blocks import masked_scores
from onnxfuse.fused.attention.attention_heads import number_of
from onnxfuse.fused.attention.attention_parts import producer
from onnxfuse.model.constants import dtype_of
from onnxfuse.model.graph import Model, sorted_nodes
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor
from onnxfuse.shapes.missed_sizes import broadcast


def choose_first(model: Model, context: PassContext) -> None:
    """Rewrites Where(condition, fill, scores + bias) before a Softmax as Where(condition, fill, scores) +
    Where(condition, 0, bias), the form that an attention with a bias has.

    In models whose types have been inferred.  Results stay the same: what is filled has 0 added to it.
    """
    editor = GraphEditor(model)
    try:
        for graph in model.fusible_graphs():
            for node in sorted_nodes(graph):
                if standard_op(node) == "Softmax":
                    _choose_first(model, context, editor, node)
    finally:
        editor.finish()


def _choose_first(model: Model, context: PassContext, editor: GraphEditor, softmax: Node) -> None:
    where = producer(softmax.inputs[0])
    if where is None or standard_op(where) != "Where" or not editor.is_inner(where.outputs[0]):
        return
    for place in (1, 2):
        add, fill = producer(where.inputs[place]), number_of(where.inputs[3 - place])
        if add is None or standard_op(add) != "Add" or not editor.is_inner(add.outputs[0]) or fill is None:
            continue
        found = masked_scores(add)
        if found is None or found[0].choice is not None or np.isnan(fill):
            continue
        scores, bias = found[0].nodes[-1].outputs[0], found[1]
        shapes, dtype = (where.inputs[0].shape, bias.shape), dtype_of(bias)
        if None in shapes or dtype is None or dtype != dtype_of(scores):
            continue
        context.rewrote("choose-first", [add, where])
        zero = model.constant(np.zeros((), dtype), "zero")
        name, made = label(where), where.outputs[0]
        chosen = gs.Variable(model.unique_name(f"{name}_chosen"), scores.dtype, scores.shape)
        biased = gs.Variable(model.unique_name(f"{name}_bias"), bias.dtype, broadcast(shapes))
        first = _where(model, where, place, scores, where.inputs[3 - place], chosen)
        second = _where(model, where, place, bias, zero, biased)
        where.outputs.clear()
        last = Node("Add", model.unique_name(f"{name}_Add"), {}, [chosen, biased], [made])
        editor.insert([first, second, last], at=where)
        editor.remove([where])
        return


def _where(model: Model, where: Node, place: int, kept: gs.Tensor, fill: gs.Tensor, result: gs.Tensor) -> Node:
    """The same choice of ``fill`` or of what is ``kept``."""
    inputs = [where.inputs[0], kept, fill] if place == 1 else [where.inputs[0], fill, kept]
    return Node("Where", model.unique_name(f"{label(where)}_Where"), {}, inputs, [result])
