"""The names under which a model's fused nodes find their local functions.

A function is known by domain, name and overload.  The overload, a hash of the content, would be enough to tell them
apart, but ORT before 1.27 and onnx's ReferenceEvaluator look at the name alone and would run whichever function comes
last.  So every function gets one of the names that the library registers while there are any left.  Those that come
later share the last name, and each reads an attribute that only its own nodes have: where overloads are ignored, the
model then fails to load instead of giving wrong results.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from onnxfuse.fused.kinds import DOMAIN
from onnxfuse.graph import Model, Node

OWN = "is_"
"""Begins the name of the attribute that the nodes of one function have."""

INTEGERS_OPSET = 9
"""The opset from which a function may have constants that are no floats."""

_TYPE_KEY = "onnxfuse.element_type"
"""Metadata of a function: the type of all inputs and outputs of its nodes, where that is float32.

The library registers its operator for that type alone then, which takes ONNX Runtime half of the time
(``listed_operators.cc``).
"""
_FLOAT = "float"


def add_function(model: Model, body: onnx.FunctionProto, names: Sequence[str]) -> tuple[str, dict[str, int]]:
    """Make ``body`` a function of the model by one of these names, or find the equal one.

    Returns the operator for its nodes, and the attributes that they need besides their own.
    """
    taken = {name for domain, name, _ in model.functions if domain == DOMAIN}
    for (domain, name, overload), function in model.functions.items():
        if domain == DOMAIN and overload == body.overload:
            return name, _own_attributes(function)
    function = onnx.FunctionProto()
    function.CopyFrom(body)
    function.name = next((name for name in names if name not in taken), names[-1])
    if function.name == names[-1]:
        _require_own_attribute(function)
    model.functions[DOMAIN, function.name, function.overload] = function
    return function.name, _own_attributes(function)


def mark_float_functions(model: Model) -> None:
    """Say of each fused function, in its metadata, whether all its nodes read and write float32 alone."""
    nodes = [node for graph in model.graphs() for node in graph.nodes if node.domain == DOMAIN]
    others = {(node.op, node.overload) for node in nodes if not _is_of_floats(node)}
    for (domain, name, overload), function in model.functions.items():
        if domain != DOMAIN:
            continue
        kept = [entry for entry in function.metadata_props if entry.key != _TYPE_KEY]
        del function.metadata_props[:]
        function.metadata_props.extend(kept)
        if (name, overload) not in others:
            function.metadata_props.add(key=_TYPE_KEY, value=_FLOAT)


def _is_of_floats(node: Node) -> bool:
    return all(tensor.dtype == np.float32 for tensor in (*node.inputs, *node.outputs))


def _require_own_attribute(function: onnx.FunctionProto) -> None:
    """Add a Cast to a type that is an attribute named after the overload: without it, no node is of this function."""
    attribute = OWN + function.overload
    one = helper.make_tensor("one", onnx.TensorProto.FLOAT, [], [1.0])
    cast = helper.make_node("Cast", ["one"], ["overload"])
    cast.attribute.add(name="to", type=onnx.AttributeProto.INT, ref_attr_name=attribute)
    function.attribute.append(attribute)
    for node in (cast, helper.make_node("Constant", [], ["one"], value=one)):
        function.node.insert(0, node)


def without_own_attribute(function: onnx.FunctionProto) -> onnx.FunctionProto:
    """The function without its name and what went with that."""
    found = onnx.FunctionProto()
    found.CopyFrom(function)
    found.name = ""
    own = [attribute for attribute in function.attribute if attribute.startswith(OWN)]
    for attribute in own:
        found.attribute.remove(attribute)
        del found.node[:2]
    return found


def _own_attributes(function: onnx.FunctionProto) -> dict[str, int]:
    return {attribute: onnx.TensorProto.FLOAT for attribute in function.attribute if attribute.startswith(OWN)}
