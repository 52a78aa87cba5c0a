"""Two tensors that are added to the scores of an attention, as one: a bias of positions and a mask, as in MPNet."""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.attention.attention_blocks import masked_scores
from onnxfuse.fused.attention.attention_parts import producer
from onnxfuse.fused.attention.attention_windows import count_windows
from onnxfuse.model.constants import constant_value, dtype_of
from onnxfuse.model.graph import Model, sorted_nodes
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor
from onnxfuse.shapes.missed_sizes import broadcast


@dataclass(frozen=True)
class _Adds:
    """``inner`` adds ``first`` to ``scores``, and ``outer`` adds ``second`` to that."""

    inner: Node
    outer: Node
    scores: gs.Tensor
    first: gs.Tensor
    second: gs.Tensor


def sum_masks(model: Model, context: PassContext) -> None:
    """Rewrites (scores + a) + b before a Softmax as scores + (a + b), with one sum for all that add the same two.

    Of float32, in models whose types have been inferred.  Results stay the same up to rounding.
    """
    editor = GraphEditor(model)
    try:
        for graph in model.fusible_graphs():
            sums: dict[tuple[int, int], gs.Tensor] = {}
            for node in sorted_nodes(graph):
                adds = _adds(node, editor)
                if adds is None:
                    continue
                context.rewrote("sum-masks", [adds.inner, adds.outer])
                key = id(adds.first), id(adds.second)
                if key not in sums:
                    sums[key] = _sum(model, editor, adds)
                adds.outer.inputs[0] = adds.scores
                adds.outer.inputs[1] = sums[key]
                editor.remove([adds.inner])
    finally:
        editor.finish()


def _adds(softmax: Node, editor: GraphEditor) -> _Adds | None:
    """Those before a Softmax, if nothing else reads what they make; perhaps of scores whose windows are told apart."""
    outer = producer(softmax.inputs[0]) if standard_op(softmax) == "Softmax" else None
    join = None
    if outer is not None and standard_op(outer) == "Reshape":
        join, outer = outer, producer(outer.inputs[0])
    if outer is None or not _is_inner(outer, editor):
        return None
    for place in (0, 1):
        inner, second = producer(outer.inputs[place]), outer.inputs[1 - place]
        found = _scores(inner, join) if _is_inner(inner, editor) else None
        if found is None:
            continue
        scores, first = found
        if all(dtype_of(mask) == np.float32 and mask.shape is not None for mask in (first, second)):
            return _Adds(inner, outer, scores, first, second)
    return None


def _scores(add: Node, join: Node | None) -> tuple[gs.Tensor, gs.Tensor] | None:
    """The scores, and what is added to them; ``join`` is what puts windows together after it."""
    if join is None:
        found = masked_scores(add)
        return found and (found[0].nodes[-1].outputs[0], found[1])
    for place in (0, 1):
        if count_windows(producer(add.inputs[place]), join) is not None:
            return add.inputs[place], add.inputs[1 - place]
    return None


def _is_inner(add: Node, editor: GraphEditor) -> bool:
    return standard_op(add) == "Add" and editor.is_inner(add.outputs[0])


def _sum(model: Model, editor: GraphEditor, adds: _Adds) -> gs.Tensor:
    name, shape = label(adds.outer), broadcast([adds.first.shape, adds.second.shape])
    first, second = constant_value(adds.first), constant_value(adds.second)
    if first is not None and second is not None and first.shape == second.shape:
        return model.constant(first + second, f"{name}_masks")
    made = gs.Variable(model.unique_name(f"{name}_masks"), np.float32, shape)
    editor.insert(
        [Node("Add", model.unique_name(f"{name}_mask"), {}, [adds.first, adds.second], [made])], at=adds.outer
    )
    editor.sort(adds.outer)
    return made
