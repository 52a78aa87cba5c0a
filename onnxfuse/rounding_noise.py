"""A model with its weights or inputs rounded otherwise: what its outputs lose by that says how many of their digits
count.

Rewrites that fold a step into weights, or merge convolutions, round each weight anew, and sums in another order what is
computed of them.  That is an error of half a unit in its last place, and no result is the worse for it; but where a
model amplifies rounding, two results that are equally good lie far apart.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfuse.graph_export import onnx_graphs
from onnxfuse.tensor_data import is_external

_LINEAR = {"Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization"}
_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE}


def with_other_rounding(model: onnx.ModelProto, seed: int) -> bytes:
    """The model, serialized, with each weight of float32 or float64 at random as it is or one number up or down.

    Weights are constants that convolutions, matrix products and BatchNormalization read.  Those in files of their own
    stay as they are.
    """
    random = np.random.default_rng(seed)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graphs = list(onnx_graphs(copy.graph))
    # A body may read the weights of the graph around it.
    read = {name for graph in graphs for node in graph.node if node.op_type in _LINEAR for name in node.input}
    for graph in graphs:
        weights = [tensor for tensor in graph.initializer if tensor.name in read]
        for node in graph.node:
            if node.op_type == "Constant" and node.output[0] in read:
                weights += [attribute.t for attribute in node.attribute if attribute.name == "value"]
        for tensor in weights:
            if tensor.data_type in _FLOATS and not is_external(tensor):
                moved = _moved(numpy_helper.to_array(tensor), random)
                tensor.CopyFrom(numpy_helper.from_array(moved, tensor.name))
    return copy.SerializeToString()


def inputs_rounded_otherwise(feeds: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Inputs by name, with each number of float32 or float64 at random as it is or one number up or down."""
    random = np.random.default_rng(seed)
    return {
        name: _moved(value, random)
        if isinstance(value, np.ndarray) and value.dtype in (np.float32, np.float64)
        else value
        for name, value in feeds.items()
    }


def _moved(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    up, down = np.nextafter(values, np.inf), np.nextafter(values, -np.inf)
    steps = random.integers(-1, 2, values.shape)
    return np.where(steps == 0, values, np.where(steps > 0, up, down)).astype(values.dtype)
