"""Operators that ONNX Runtime has in ONNX's own domain, where ONNX has them not, or not in that opset.

Its optimizer writes some of them, so that models which it has saved have them, and it takes them back.  ONNX's checker
and its shape inference do not, and so they are shown other nodes in their place.
"""

from collections.abc import Iterable, Iterator, Sequence

from onnx import GraphProto, ModelProto, NodeProto, helper

from onnxfuse.model.graph_ir import STANDARD_DOMAINS
from onnxfuse.model.known_operators import is_of_ort
from onnxfuse.model.protos import onnx_graphs

_STAND_IN = "onnxfuse.stand_in"


def hide(model: ModelProto) -> None:
    """Put their nodes into a domain of which ONNX knows nothing."""
    nodes = list(_nodes(model, onnx_graphs(model.graph)))
    for node in nodes:
        node.domain = _STAND_IN
    if nodes:
        model.opset_import.add(domain=_STAND_IN, version=1)


def show(model: ModelProto) -> None:
    """Undo ``hide``."""
    if model.opset_import and model.opset_import[-1].domain == _STAND_IN:
        del model.opset_import[-1]
        for graph in onnx_graphs(model.graph):
            for node in graph.node:
                if node.domain == _STAND_IN:
                    node.domain = ""


def replace_by_casts(model: ModelProto, graphs: Sequence[GraphProto]) -> None:
    """Put a Cast in the place of each, for inference: the result has the shape of X, and the type of the scale.

    ``graphs`` are all those of the model.
    """
    nodes = list(_nodes(model, graphs))
    types = {tensor.name: tensor.data_type for graph in graphs for tensor in graph.initializer} if nodes else {}
    for node in nodes:
        scale = types.get(node.input[1]) if len(node.input) > 1 else None
        if scale is not None:
            node.op_type = "Cast"
            del node.input[1:], node.output[1:], node.attribute[:]
            node.attribute.append(helper.make_attribute("to", scale))


def _nodes(model: ModelProto, graphs: Iterable[GraphProto]) -> Iterator[NodeProto]:
    opset = max((entry.version for entry in model.opset_import if entry.domain in STANDARD_DOMAINS), default=1)
    for graph in graphs:
        for node in graph.node:
            if node.domain in STANDARD_DOMAINS and is_of_ort(node.op_type, opset):
                yield node
