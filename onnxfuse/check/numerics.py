"""What a model's nodes tell about its numbers: their precision, what size its outputs have, which are constants."""

from collections import ChainMap

import ml_dtypes
import numpy as np
import onnx

from onnxfuse.check.comparison import Numbers, precision
from onnxfuse.fused.kinds import DOMAIN, TF32_KEY
from onnxfuse.model.elementwise_operators import Values, operators_that
from onnxfuse.model.graph_ir import STANDARD_DOMAINS
from onnxfuse.model.protos import onnx_graphs

_FLOATS: dict[int, np.dtype] = {
    onnx.TensorProto.DOUBLE: np.dtype(np.float64),
    onnx.TensorProto.FLOAT: np.dtype(np.float32),
    onnx.TensorProto.FLOAT16: np.dtype(np.float16),
    onnx.TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
_STORAGE_READERS = ("Cast", "CastLike", "DequantizeLinear")


def output_numbers(model: onnx.ModelProto) -> dict[str, Numbers]:
    """What the comparison needs to know of each output of the model."""
    coarsest, unit = coarsest_type(model), probabilities(model)
    return {output.name: Numbers(coarsest, float(output.name in unit)) for output in model.graph.output}


def coarsest_type(model: onnx.ModelProto) -> np.dtype | None:
    """The floating type with the fewest digits in which the model seems to compute.

    Told by inputs, initializers and constants, except those that a node only converts from (weights stored in
    half precision do not make a model compute in it), and by the types that nodes convert to.
    """
    types: set[int] = set()
    nodes: list[onnx.NodeProto] = [node for function in model.functions for node in function.node]
    for graph in onnx_graphs(model.graph):
        computed = {name for node in graph.node if _operator(node) not in _STORAGE_READERS for name in node.input}
        types |= {tensor.data_type for tensor in graph.initializer if tensor.name in computed}
        types |= {value.type.tensor_type.elem_type for value in graph.input if value.name in computed}
        nodes += graph.node
    for node in nodes:
        for attribute in node.attribute:
            if _operator(node) == "Cast" and attribute.name == "to":
                types.add(attribute.i)
            elif _operator(node) == "Constant" and attribute.name == "value":
                types.add(attribute.t.data_type)
    floats = [_FLOATS[kind] for kind in types if kind in _FLOATS]
    return max(floats, key=precision, default=None)


def _operator(node: onnx.NodeProto) -> str:
    """The operator of a node of the standard domain, none of another, which may use the same names."""
    return node.op_type if node.domain in STANDARD_DOMAINS else ""


Producers = ChainMap[str, onnx.NodeProto | None]
"""The nodes by the tensors that they give, inner graphs first; None for a tensor that is not to be followed."""

_IN_UNIT_RANGE = operators_that(lambda row: row.values is Values.UNIT) | {"Softmax"}
_KEEP_VALUES = operators_that(lambda row: row.values is Values.KEPT) | {
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "Slice", "Split", "Gather"),
    *("GatherElements", "GatherND", "ReduceMax", "ReduceMean", "ReduceMin", "Resize"),
}


def probabilities(model: onnx.ModelProto) -> set[str]:
    """The outputs of the main graph whose natural scale is 1, however small their values may be.

    They come from Sigmoid, HardSigmoid or Softmax, by way of nothing that changes more than shapes and order.
    """
    producers: Producers = ChainMap(_producers(model.graph))
    return {output.name for output in model.graph.output if _is_in_unit_range(output.name, producers)}


def _producers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto | None]:
    return {name: node for node in graph.node for name in node.output}


def _is_in_unit_range(name: str, producers: Producers) -> bool:
    pending, seen = [name], {name}
    while pending:
        name = pending.pop()
        node = producers.get(name)
        if node is None:
            return False
        operator = _operator(node)
        if operator in _IN_UNIT_RANGE:
            continue
        if operator == "If":
            if not _gives_unit_range(node, list(node.output).index(name), producers):
                return False
            continue
        if operator == "Concat":
            sources = list(node.input)
        elif operator in _KEEP_VALUES:
            sources = list(node.input[:1])
        else:
            return False
        pending += [source for source in sources if source not in seen]
        seen.update(sources)
    return True


def _gives_unit_range(node: onnx.NodeProto, position: int, producers: Producers) -> bool:
    """Whether both bodies of an If give such an output, none of them by way of a result of the If itself."""
    outside = producers.new_child(dict.fromkeys(node.output))
    bodies = [attribute.g for attribute in node.attribute]
    return all(
        position < len(body.output)
        and _is_in_unit_range(body.output[position].name, outside.new_child(_producers(body)))
        for body in bodies
    )


def has_tf32(model: onnx.ModelProto) -> bool:
    """Whether fused convolutions of the model may round their factors to TF32, which has the digits of float16."""
    nodes = (node for graph in onnx_graphs(model.graph) for node in graph.node)
    return any(entry.key == TF32_KEY for node in nodes for entry in node.metadata_props)


def with_tf32(coarsest: np.dtype | None) -> np.dtype:
    """The coarsest type that a model computes in if it also computes in TF32."""
    half = np.dtype(np.float16)
    return half if coarsest is None else max(half, coarsest, key=precision)


def reads_computed_constants(model: onnx.ModelProto) -> bool:
    """Whether a fused node has an input that follows from constants alone.

    Its kernel takes it for a constant where ONNX Runtime computes it before the first run, and else not.
    """
    computed: set[str] = set()
    known = {tensor.name for tensor in model.graph.initializer} - {value.name for value in model.graph.input}
    for node in model.graph.node:
        if _operator(node) == "Constant":
            known.update(node.output)
        elif node.domain != DOMAIN and known.issuperset(filter(None, node.input)):
            known.update(node.output)
            computed.update(node.output)
    graphs = onnx_graphs(model.graph)
    return any(node.domain == DOMAIN and not computed.isdisjoint(node.input) for graph in graphs for node in graph.node)
