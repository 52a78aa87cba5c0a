"""What onnx's checker leaves open in the attributes of nodes, and nothing could be made of."""

from onnx import ModelProto, NodeProto

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.graph_ir import STANDARD_DOMAINS
from onnxfuse.model.protos import onnx_graphs

_GROUPED = {
    **dict.fromkeys(("Conv", "ConvInteger", "ConvTranspose", "QLinearConv"), ("group",)),
    "DeformConv": ("group", "offset_group"),
}
"""The attributes that count groups, by operator."""


def check_attributes(model: ModelProto) -> None:
    """Raise OnnxfuseError, naming the node, for what no node of a graph may have.

    That is an attribute that refers to one of a function, which only the nodes of a function may, and a convolution of
    less than one group, by which ONNX Runtime divides.
    """
    for graph in onnx_graphs(model.graph):
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.ref_attr_name:
                    raise _invalid(
                        node, f"its attribute {attribute.name!r} stands for one of a function, but is in none"
                    )
                if attribute.name in _counts_of_groups(node) and attribute.i < 1:
                    raise _invalid(node, f"its {attribute.name} is {attribute.i}, not 1 or more")


def _counts_of_groups(node: NodeProto) -> tuple[str, ...]:
    return _GROUPED.get(node.op_type, ()) if node.domain in STANDARD_DOMAINS else ()


def _invalid(node: NodeProto, reason: str) -> OnnxfuseError:
    name = repr(node.name) if node.name else f"that makes {next(iter(node.output), '')!r}"
    return OnnxfuseError(f"not a valid ONNX model: node {name} ({node.op_type}): {reason}")
