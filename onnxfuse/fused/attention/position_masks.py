"""What ONNX's operator Attention hides by places, as a tensor of flags that a fused attention reads."""

from typing import NamedTuple

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import dtype_of
from onnxfuse.model.graph import Model, sorted_nodes
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor

_MOST_FLAGS = 1 << 20
"""In a constant: else they are computed."""
_FAR = 1 << 32
"""Farther than any two places are from each other: a window as wide as this hides nothing."""
_DEFAULTS = {"is_causal": 0, "left_window_size": -1, "right_window_size": -1}
"""The attributes that hide keys by their places."""


class Span(NamedTuple):
    """How many keys before and behind its own place a query sees; None for all."""

    before: int | None
    behind: int | None

    @property
    def hides(self) -> bool:
        """Whether there are keys that a query may not see."""
        return self != (None, None)


def span_of(attention: Node) -> Span:
    """What the attributes of an Attention without keys of before let a query see.

    Since opset 25 there are windows, of which a negative one has no bound; causal attention sees nothing behind.
    """
    causal, left, right = (attention.attrs.get(name, default) for name, default in _DEFAULTS.items())
    before, behind = (None if size < 0 or size >= _FAR else int(size) for size in (left, right))
    return Span(before, 0 if causal == 1 else behind)


def write_position_masks(model: Model, context: PassContext) -> None:
    """Gives each Attention that is causal or has windows the mask that this is.

    Of those without another mask and without keys of before, in models whose types have been inferred.  Attentions of
    equal lengths and windows share one.  Results stay the same.
    """
    editor = GraphEditor(model)
    try:
        for graph in model.fusible_graphs():
            masks: dict[tuple[object, ...], gs.Tensor] = {}
            for node in sorted_nodes(graph):
                if not _hides_places_alone(node):
                    continue
                span = span_of(node)
                lengths = [tensor.shape[2] for tensor in node.inputs[:2]]
                key = (*lengths, span)
                mask = masks.get(key) if None not in lengths else None
                if mask is None:
                    mask, nodes = _mask(model, node, span)
                    editor.insert(nodes, at=node)
                    masks[key] = mask
                context.rewrote("position-masks", [node])
                while len(node.inputs) > 3:
                    node.inputs.pop()  # left out
                node.inputs.append(mask)
                for name in _DEFAULTS:
                    node.attrs.pop(name, None)
    finally:
        editor.finish()


def _hides_places_alone(node: Node) -> bool:
    if standard_op(node) != "Attention" or len(node.inputs) < 3 or not span_of(node).hides:
        return False
    if any(tensor.name for tensor in (*node.inputs[3:], *node.outputs[1:])):
        return False
    operands = node.inputs[:3]
    return all(dtype_of(item) == np.float32 and item.shape is not None and len(item.shape) == 4 for item in operands)


def _mask(model: Model, attention: Node, span: Span) -> tuple[gs.Tensor, list[Node]]:
    """The flags, one for each query and key, and the nodes that compute them where lengths are not known."""
    queries, keys = (tensor.shape[2] for tensor in attention.inputs[:2])
    name = f"{label(attention)}_visible"
    if isinstance(queries, int) and isinstance(keys, int) and queries * keys <= _MOST_FLAGS:
        distances = np.arange(keys) - np.arange(queries)[:, None]
        before = _FAR if span.before is None else span.before
        behind = _FAR if span.behind is None else span.behind
        return model.constant((distances >= -before) & (distances <= behind), name), []
    nodes: list[Node] = []

    def add(op: str, inputs: list[gs.Tensor], dtype: type, shape: list[object], **attributes: object) -> gs.Tensor:
        made = gs.Variable(model.unique_name(f"{name}_{op}_output"), dtype, shape)
        nodes.append(Node(op, model.unique_name(f"{name}_{op}"), attributes, inputs, [made]))
        return made

    def number(value: int) -> gs.Constant:
        return model.constant(np.array(value, np.int64), "number")

    last = model.constant(np.array([1], np.int64), "axes")
    first = model.constant(np.array([0], np.int64), "axes")

    def places(tensor: gs.Tensor, length: object) -> gs.Tensor:
        size = add("Shape", [tensor], np.int64, [1], start=2, end=3)
        return add("Range", [number(0), add("Squeeze", [size, first], np.int64, []), number(1)], np.int64, [length])

    rows = add("Unsqueeze", [places(attention.inputs[0], queries), last], np.int64, [queries, 1])
    columns = places(attention.inputs[1], keys)

    def moved(distance: int) -> gs.Tensor:
        return rows if distance == 0 else add("Add", [rows, number(distance)], np.int64, [queries, 1])

    seen = []
    if span.behind is not None:
        seen.append(add("LessOrEqual", [columns, moved(span.behind)], np.bool_, [queries, keys]))
    if span.before is not None:
        seen.append(add("LessOrEqual", [moved(-span.before), columns], np.bool_, [queries, keys]))
    return seen[0] if len(seen) == 1 else add("And", seen, np.bool_, [queries, keys]), nodes
