"""Float32 models converted to float16: every tensor, but for what operators want in float32."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

_LARGEST = float(np.finfo(np.float16).max)
_FLOAT_INPUTS = {"Resize": (1, 2), "Upsample": (1,)}
"""Inputs that stay float32: regions and scales."""


def half_model(path: Path, out: Path) -> Path:
    """Write the model at ``path`` in float16 to ``out``, which is returned."""
    model = onnx.load(path)
    for graph in _graphs(model.graph):
        _convert(graph)
    onnx.save(model, out)
    return out


def half_values(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs for it."""
    return {name: array.astype(np.float16) if array.dtype == np.float32 else array for name, array in values.items()}


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _convert(graph: onnx.GraphProto) -> None:
    kept = {
        node.input[index]
        for node in graph.node
        for index in _FLOAT_INPUTS.get(node.op_type, ())
        if index < len(node.input)
    }
    del graph.value_info[:]
    for info in (*graph.input, *graph.output):
        if info.name not in kept and info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in graph.initializer:
        if tensor.name not in kept:
            _convert_tensor(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "value" and node.op_type in ("Constant", "ConstantOfShape"):
                if node.output[0] not in kept:
                    _convert_tensor(attribute.t)
            elif attribute.name == "to" and node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16


def _convert_tensor(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        values = np.clip(numpy_helper.to_array(tensor), -_LARGEST, _LARGEST).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
