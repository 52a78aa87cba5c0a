"""The causal mask of ONNX's operator Attention as a tensor of flags, which a fused attention reads."""

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.constants import dtype_of
from onnxfuse.graph import Model, sorted_nodes
from onnxfuse.graph_ir import Node, standard_op
from onnxfuse.passes.base import PassContext, label
from onnxfuse.passes.editor import GraphEditor

_MOST_FLAGS = 1 << 20
"""In a constant: else they are computed."""


def write_causal_masks(model: Model, context: PassContext) -> None:
    """Gives each Attention that is causal the mask that this is: a query sees the keys up to its own place.

    Of those without another mask and without keys of before, in models whose types have been inferred.  Attentions of
    equal lengths share one.  Results stay the same.
    """
    editor = GraphEditor(model)
    try:
        for graph in model.fusible_graphs():
            masks: dict[tuple[object, object], gs.Tensor] = {}
            for node in sorted_nodes(graph):
                if not _is_causal_alone(node):
                    continue
                lengths = tuple(tensor.shape[2] for tensor in node.inputs[:2])
                mask = masks.get(lengths) if None not in lengths else None
                if mask is None:
                    mask, nodes = _mask(model, node)
                    editor.insert(nodes, at=node)
                    masks[lengths] = mask
                context.rewrote("causal-masks", [node])
                while len(node.inputs) > 3:
                    node.inputs.pop()  # left out
                node.inputs.append(mask)
                node.attrs.pop("is_causal")
    finally:
        editor.finish()


def _is_causal_alone(node: Node) -> bool:
    if standard_op(node) != "Attention" or not node.attrs.get("is_causal", 0) or len(node.inputs) < 3:
        return False
    if any(tensor.name for tensor in (*node.inputs[3:], *node.outputs[1:])):
        return False
    operands = node.inputs[:3]
    return all(dtype_of(item) == np.float32 and item.shape is not None and len(item.shape) == 4 for item in operands)


def _mask(model: Model, attention: Node) -> tuple[gs.Tensor, list[Node]]:
    """The flags, one for each query and key, and the nodes that compute them where lengths are not known."""
    queries, keys = (tensor.shape[2] for tensor in attention.inputs[:2])
    name = f"{label(attention)}_causal"
    if isinstance(queries, int) and isinstance(keys, int) and queries * keys <= _MOST_FLAGS:
        return model.constant(np.tri(queries, keys, dtype=np.bool_), name), []
    nodes: list[Node] = []

    def add(op: str, inputs: list[gs.Tensor], dtype: type, shape: list[object], **attributes: object) -> gs.Tensor:
        made = gs.Variable(model.unique_name(f"{name}_{op}_output"), dtype, shape)
        nodes.append(Node(op, model.unique_name(f"{name}_{op}"), attributes, inputs, [made]))
        return made

    zero, one = (model.constant(np.array(number, np.int64), "number") for number in (0, 1))
    last = model.constant(np.array([1], np.int64), "axes")
    first = model.constant(np.array([0], np.int64), "axes")

    def places(tensor: gs.Tensor, length: object) -> gs.Tensor:
        size = add("Shape", [tensor], np.int64, [1], start=2, end=3)
        return add("Range", [zero, add("Squeeze", [size, first], np.int64, []), one], np.int64, [length])

    rows = add("Unsqueeze", [places(attention.inputs[0], queries), last], np.int64, [queries, 1])
    columns = places(attention.inputs[1], keys)
    return add("LessOrEqual", [columns, rows], np.bool_, [queries, keys]), nodes
