"""What a convolution reads, and which of its weights are for which input of a Concat of channels."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import Array
from onnxfuse.model.graph_ir import Node
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.rule import Refusal


def producer_beside(tensor: gs.Tensor, match: Match) -> Node | None:
    """The node of the match's graph that makes a tensor; None if none does, or one of another graph."""
    node = tensor.inputs[0] if tensor.inputs else None
    graph = match.editor.graph_index
    return node if node is not None and graph(node) == graph(match.root) else None


def split_weights(weights: Array, concat: Node) -> list[Array]:
    """The weights (M, C, kernel…) for each input of a Concat of channels.  Raises Refusal if it is not known which are
    whose.
    """
    rank, axis = weights.ndim, concat.attrs.get("axis", 1)
    shapes = [tensor.shape for tensor in concat.inputs]
    known = [shape[1] for shape in shapes if shape and len(shape) == rank and isinstance(shape[1], int)]
    if axis % rank != 1 or len(known) < len(shapes) or sum(known) != weights.shape[1]:
        raise Refusal("the channels of what is concatenated are not known")
    return np.split(weights, np.cumsum(known)[:-1], axis=1)
