"""Operators of ONNX Runtime's own domain, of which onnx's shape inference knows nothing, shown to it as others.

ONNX Runtime's quantizer, its transformer optimizer and its model builder write them, and without a type nothing that
reads their results could be fused.  Their definitions: ONNX Runtime, docs/ContribOperators.md.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from onnxfuse.model.known_operators import CONTRIB_OPERATORS
from onnxfuse.model.protos import onnx_graphs

_DOMAIN = "com.microsoft"
_LIKE_ITS_INPUT = (
    *("BiasGelu", "BiasSoftmax", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding"),
    *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
)
_SUM_OF_SKIP = 3
"""The output of a normalization that is the sum of what it reads."""
_HALF_BYTES = (TensorProto.INT4, TensorProto.UINT4)


def add_import(model: ModelProto) -> None:
    """Import the domain if a model has operators of it, without which ONNX Runtime takes them too."""
    if any(entry.domain == _DOMAIN for entry in model.opset_import):
        return
    if any(node.domain == _DOMAIN for graph in onnx_graphs(model.graph) for node in graph.node):
        model.opset_import.add(domain=_DOMAIN, version=1)


def show_as_standard(graphs: Sequence[GraphProto]) -> None:
    """Put operators of ONNX that make the same types and shapes into the place of those of ONNX Runtime.

    The graphs compute something else then.  Nodes with an attribute that is not known stay.
    """
    for graph in graphs:
        places = [
            place for place, node in enumerate(graph.node) if node.domain == _DOMAIN and node.input and node.output
        ]
        constants = {tensor.name: tensor for tensor in graph.initializer} if places else {}
        for place in reversed(places):
            node = graph.node[place]
            if not {attribute.name for attribute in node.attribute} <= CONTRIB_OPERATORS.get(node.op_type, frozenset()):
                continue
            if node.op_type in _LIKE_ITS_INPUT or _has_separate_keys(node):
                _show_as_identity(graph, place)
            elif len(node.input) > 2 and (show := _OTHERS.get(node.op_type)) is not None:
                show(graph, node, constants)


def _has_separate_keys(node: NodeProto) -> bool:
    """Whether it is an attention whose result is like its queries."""
    return node.op_type == "GroupQueryAttention" and len(node.input) > 2 and bool(node.input[1] and node.input[2])


def _show_as_identity(graph: GraphProto, place: int) -> None:
    node = graph.node[place]
    if node.op_type.startswith("Skip") and len(node.output) > _SUM_OF_SKIP and node.output[_SUM_OF_SKIP]:
        total = helper.make_node("Identity", [node.input[0]], [node.output[_SUM_OF_SKIP]])
        graph.node.insert(place + 1, total)
    _become(node, "Identity", [node.input[0]])


def _show_product(graph: GraphProto, node: NodeProto, constants: Mapping[str, TensorProto]) -> None:
    """A product with a matrix (K, N) of the type of its scales."""
    sizes = {attribute.name: attribute.i for attribute in node.attribute}
    scales = constants.get(node.input[2])
    if scales is not None and "K" in sizes and "N" in sizes:
        matrix = graph.initializer.add(
            name=f"{node.output[0]}_weights", dims=[sizes["K"], sizes["N"]], data_type=scales.data_type
        )
        _become(node, "MatMul", [node.input[0], matrix.name])


def _show_gather(graph: GraphProto, node: NodeProto, constants: Mapping[str, TensorProto]) -> None:
    """A Gather of rows, of which two or more elements are in a byte."""
    values = {attribute.name: attribute.i for attribute in node.attribute}
    data, scales = constants.get(node.input[0]), constants.get(node.input[2])
    if data is None or scales is None or not data.dims:
        return
    bits = values.get("bits", 4)
    if bits not in (2, 4, 8):
        return
    packed = 1 if data.data_type in _HALF_BYTES else 8 // bits
    rows = graph.initializer.add(
        name=f"{node.output[0]}_rows", dims=[*data.dims[:-1], data.dims[-1] * packed], data_type=scales.data_type
    )
    axis = values.get("gather_axis", 0)
    _become(node, "Gather", [rows.name, node.input[1]], axis=axis)


def _become(node: NodeProto, operator: str, inputs: list[str], **attributes: Any) -> None:
    """Make a node another one with the same first output."""
    node.CopyFrom(helper.make_node(operator, inputs, [node.output[0]], node.name, **attributes))


_OTHERS: Mapping[str, Callable[[GraphProto, NodeProto, Mapping[str, TensorProto]], None]] = {
    "GatherBlockQuantized": _show_gather,
    "MatMulNBits": _show_product,
}
