"""Means of whole channels: GlobalAveragePool, and ReduceMean over all spatial dimensions."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxfuse.model.constants import constant_value
from onnxfuse.model.graph_ir import Node, standard_op


def averaged(node: Node) -> gs.Tensor | None:
    """The tensor (N, C, …) of which ``node`` takes the mean of each channel, as (N, C, 1, …); None for another node."""
    if standard_op(node) not in ("GlobalAveragePool", "ReduceMean") or not node.inputs[0].name:
        return None
    data: gs.Tensor = node.inputs[0]
    if data.shape is None or len(data.shape) < 3:
        return None
    if node.op == "ReduceMean":
        axes = node.attrs.get("axes")
        if len(node.inputs) > 1 and (values := constant_value(node.inputs[1])) is not None:
            axes = values.reshape(-1).tolist()
        rank = len(data.shape)
        if not axes or node.attrs.get("keepdims", 1) != 1 or {axis % rank for axis in axes} != set(range(2, rank)):
            return None
    return data
