"""Inputs that have to be scalars, where what a model computes for them has one element and a dimension.

ONNX Runtime's kernels take [1] for them.  But shape inference refuses it, as soon as it is a constant: if a node that
computed it was folded, or if ONNX Runtime itself folds it, since the condition of the If around it has become one.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import constant_value, dtype_of, is_constant
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.rewrite.base import label
from onnxfuse.rewrite.editor import GraphEditor

_PLACES: dict[str, tuple[int, ...]] = {
    "BlackmanWindow": (0,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "Range": (0, 1, 2),
    "STFT": (1, 3),
}
"""The inputs that shape inference takes as scalars alone."""


def write_scalars(editor: GraphEditor, *, computed: bool) -> None:
    """Gives constants of one element that are read as scalars the shape of one.

    With ``computed`` those too that nodes make, and that are not known to be scalars, by a Reshape.
    """
    for graph in editor.graphs:
        for node in list(graph.nodes):
            if editor.graph_index(node) is None:
                continue
            for place in _PLACES.get(standard_op(node) or "", ()):
                tensor = node.inputs[place] if place < len(node.inputs) else gs.Variable.empty()
                if not tensor.name or (tensor.shape is not None and len(tensor.shape) == 0):
                    continue
                if is_constant(tensor):
                    value = constant_value(tensor)
                    if value is not None and value.size == 1:
                        node.inputs[place] = editor.model.constant(value.reshape(()), tensor.name)
                elif computed:
                    node.inputs[place] = _reshaped(editor, node, tensor)


def _reshaped(editor: GraphEditor, reader: Node, tensor: gs.Tensor) -> gs.Tensor:
    """The tensor as a scalar, made before its ``reader``."""
    name = editor.model.unique_name(f"{label(reader)}_scalar")
    shape = editor.model.constant(np.zeros(0, np.int64), f"{name}_shape")
    reshape = Node("Reshape", name, {}, [tensor, shape])
    reshape.outputs.append(gs.Variable(editor.model.unique_name(f"{name}_output"), dtype_of(tensor), []))
    editor.insert([reshape], at=reader)
    return reshape.outputs[0]
