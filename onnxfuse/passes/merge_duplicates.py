"""The pass merge-duplicates: what a graph computes twice is computed once."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto

from onnxfuse.model.constants import constant_value, domain_of, is_constant
from onnxfuse.model.graph_ir import Node
from onnxfuse.model.graph_order import sorted_nodes
from onnxfuse.passes.fold_constants import QUANTIZATION, RANDOM
from onnxfuse.rewrite.base import PassContext
from onnxfuse.rewrite.editor import GraphEditor

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model

NAME = "merge-duplicates"

_SHORT = 64
"""Elements of the constants that are compared by value."""


_Firsts = dict[Hashable, Node | dict[Hashable, Node]]
"""The first nodes that are alike but for the values of constants: one alone, or several by these values.  To read all
constants of a graph takes long.
"""


class _Distinct(Exception):  # noqa: N818 - not an error
    """A node that is like no other."""


class MergeDuplicates:
    """Keeps of nodes with the same operator, attributes and inputs the first.

    ONNX Runtime does so too, but finds no duplicates inside fused nodes.  A node that makes an output of a graph stays,
    and so do nodes that draw random numbers, those that quantize, of which ONNX Runtime wants one for each reader,
    those that read constants alone, which it computes once anyway, and all of operators that are not standard.  Results
    stay the same.
    """

    name = NAME
    description = "Computes once what a graph computes several times from the same tensors."

    def run(self, model: Model, context: PassContext) -> None:
        """Goes through each graph once, in topological order."""
        editor = GraphEditor(model)
        kept = {*RANDOM, *QUANTIZATION}
        try:
            for graph in editor.graphs:
                first: _Firsts = {}
                for node in sorted_nodes(graph):
                    if domain_of(node) == "" and node.op not in kept and not all(map(_is_fixed, node.inputs)):
                        _merge(node, first, editor, context)
        finally:
            editor.finish()


def _merge(node: Node, first: _Firsts, editor: GraphEditor, context: PassContext) -> None:
    try:
        key = (
            node.op,
            _attributes(node),
            tuple(map(_input, node.inputs)),
            tuple(bool(out.name) for out in node.outputs),
        )
        alike = first.setdefault(key, node)
        if alike is node:
            return
        if isinstance(alike, Node):
            first[key] = alike = {_values(alike): alike}
        same = alike.setdefault(_values(node), node)
    except _Distinct:
        return
    if same is node or any(editor.is_graph_output(tensor) for tensor in node.outputs if tensor.name):
        return
    context.rewrote(NAME, [node])
    for tensor, kept in zip(node.outputs, same.outputs, strict=True):
        if tensor.name:
            editor.replace_uses(tensor, kept)
    editor.remove([node])


def _is_fixed(tensor: gs.Tensor) -> bool:
    return not tensor.name or is_constant(tensor)


def _input(tensor: gs.Tensor) -> Hashable:
    """What is equal for tensors that may have the same value."""
    if not tensor.name:
        return None
    return ("constant", *tensor.shape) if _is_short_constant(tensor) else id(tensor)


def _values(node: Node) -> Hashable:
    """The values of the short constants that a node reads."""
    return tuple(_array(constant_value(tensor)) for tensor in node.inputs if _is_short_constant(tensor))


def _is_short_constant(tensor: gs.Tensor) -> bool:
    known = bool(tensor.name) and is_constant(tensor) and tensor.shape is not None
    return known and math.prod(tensor.shape) <= _SHORT


def _attributes(node: Node) -> Hashable:
    return tuple(sorted((name, _attribute(value)) for name, value in node.attrs.items()))


def _attribute(value: Any) -> Hashable:
    """Raises _Distinct for a graph and whatever else is not compared."""
    if isinstance(value, list):
        return tuple(map(_attribute, value))
    if isinstance(value, (int, float, str, bytes)):
        return type(value).__name__, repr(value)  # -0.0 is not 0.0
    if isinstance(value, TensorProto):
        return value.SerializeToString(deterministic=True)
    if isinstance(value, gs.Constant):
        value = constant_value(value)
    if isinstance(value, np.ndarray) and value.size <= _SHORT:
        return _array(value)
    raise _Distinct


def _array(values: np.ndarray | None) -> Hashable:
    if values is None or values.dtype.kind == "O":
        raise _Distinct
    return values.dtype.str, values.dtype.name, values.shape, values.tobytes()
