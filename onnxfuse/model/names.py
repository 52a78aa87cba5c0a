"""The names in a model file must be text: protobuf gives what is not UTF-8 as bytes, without a word."""

from collections.abc import Iterator

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.protos import onnx_graphs


def check_names(model: ModelProto) -> None:
    """Raise OnnxfuseError if a name, an operator, a domain or a symbolic dimension is not UTF-8."""
    if bytes in map(type, _names(model)):
        raise OnnxfuseError("not a valid ONNX model: it has a name that is not UTF-8")


def _names(model: ModelProto) -> Iterator[str]:
    for entry in model.opset_import:
        yield entry.domain
    for graph in onnx_graphs(model.graph):
        yield from _graph_names(graph)
    for function in model.functions:
        yield from (function.domain, function.name, function.overload)
        yield from (*function.input, *function.output, *function.attribute)
        yield from (name for info in function.value_info for name in _info_names(info))
        for node in function.node:
            yield from _node_names(node)


def _graph_names(graph: GraphProto) -> Iterator[str]:
    yield graph.name
    for node in graph.node:
        yield from _node_names(node)
    for info in (*graph.input, *graph.output, *graph.value_info):
        yield from _info_names(info)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer)


def _node_names(node: NodeProto) -> Iterator[str]:
    yield from (node.name, node.op_type, node.domain, node.overload, *node.input, *node.output)
    for attribute in node.attribute:
        yield attribute.name
        yield attribute.ref_attr_name


def _info_names(info: ValueInfoProto) -> Iterator[str]:
    yield info.name
    yield from (dim.dim_param for dim in info.type.tensor_type.shape.dim)
