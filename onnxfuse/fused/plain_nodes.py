"""The nodes that fused nodes stand for, in their place."""

import onnx

from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.kinds import DOMAIN, PREFERS_NHWC
from onnxfuse.model.graph import Model, describe
from onnxfuse.model.graph_import import import_opsets
from onnxfuse.model.graph_ir import function_key
from onnxfuse.model.inlining import FunctionKey, called_key, nested_nodes
from onnxfuse.model.tensor_data import Stored
from onnxfuse.passes.inline_functions import inline


def plain_nodes(model: Model) -> tuple[onnx.ModelProto, dict[str, Stored]]:
    """The model without fused nodes, as ``Model.from_proto`` takes it; what else was rewritten stays as it is.

    Raises OnnxfuseError if a fused node has no function, or one that does not fit the model.
    """
    functions = _functions(model)
    proto, stored = inline(model, functions)
    opsets = [entry for entry in proto.opset_import if entry.domain != DOMAIN]
    metadata = [entry for entry in proto.metadata_props if entry.key != PREFERS_NHWC]
    for field, kept in ((proto.opset_import, opsets), (proto.metadata_props, metadata)):
        del field[:]
        field.extend(kept)
    return proto, stored


def _functions(model: Model) -> dict[FunctionKey, onnx.FunctionProto]:
    """The functions of fused nodes, and those that call them.

    Raises OnnxfuseError if a fused node has none, or one that does not fit the model.
    """
    found = {key: function for key, function in model.functions.items() if key[0] == DOMAIN}
    for graph in model.graphs():
        for node in graph.nodes:
            if node.domain == DOMAIN and function_key(node) not in found:
                raise OnnxfuseError(f"{describe(node)} has no function that says what it stands for")
    calls = {key: {called_key(node) for node in nested_nodes(f.node)} for key, f in model.functions.items()}
    while more := [key for key, called in calls.items() if key not in found and not called.isdisjoint(found)]:
        found.update((key, model.functions[key]) for key in more)
    for key, function in found.items():
        for domain, version in import_opsets(function).items():
            if model.opsets.get(domain, version) != version:
                name = ".".join(key[:2])
                raise OnnxfuseError(
                    f"the function {name} is of opset {version}, and the model of {model.opsets[domain]}"
                )
    return found
