"""The local functions that stand in for a model's fused nodes, and their names.

A function is known by domain, name and overload.  The overload, a hash of the content, would be enough to tell them
apart, but ORT before 1.27, onnx's ReferenceEvaluator and tools that write models anew look at the name alone.  So every
function has a name of its own, and no reader needs the overload.
"""

from collections import Counter
from itertools import count

import numpy as np
import onnx

from onnxfuse.fused.kinds import DOMAIN, KINDS, Kind
from onnxfuse.model.graph import Model, Node
from onnxfuse.model.graph_ir import function_key
from onnxfuse.model.inlining import FunctionKey, called_key, nested_nodes

INTEGERS_OPSET = 9
"""The opset from which a function may have constants that are no floats."""

_TYPE_KEY = "onnxfuse.element_type"
"""Metadata of a function: the type of all inputs and outputs of its nodes, where that is float32.

The library registers its operator for that type alone then, which takes ONNX Runtime a third of the time
(``listed_operators.cc``).
"""
_FLOAT = "float"


def add_function(model: Model, body: onnx.FunctionProto, kind: Kind) -> str:
    """Make ``body`` a function of the model, or find the equal one; returns the operator for its nodes.

    The nodes of a function have names: ONNX Runtime makes those of a call unique by what it puts before them, and names
    what it makes of nodes after these, two of which without a name ORT before 1.22 gives the same.
    """
    function = onnx.FunctionProto()
    function.CopyFrom(body)
    for position, node in enumerate(function.node):
        node.name = f"{node.op_type}_{position}"
    taken = set()
    for (domain, name, overload), other in model.functions.items():
        if domain == DOMAIN and kind.number(name):
            if overload == function.overload and list(other.node) == list(function.node):
                return name
            taken.add(name)
    function.name = next(name for name in map(kind.operator, count(1)) if name not in taken)
    model.functions[DOMAIN, function.name, function.overload] = function
    return function.name


def change_function(model: Model, node: Node, changed: onnx.FunctionProto, kind: Kind) -> None:
    """Give a fused node a function that was made of its own, which goes where no other node has it."""
    key = function_key(node)
    node.overload = ""
    if all(function_key(other) != key for graph in model.graphs() for other in graph.nodes):
        del model.functions[key]
    node.op, node.overload = add_function(model, changed, kind), changed.overload


def finish_functions(model: Model) -> None:
    """Number the functions of fused nodes anew, and say of each whether all its nodes read and write float32 alone.

    Those that most nodes call come first, for which a session that names no operators is the likeliest to have kernels.
    Functions of one name, as earlier versions wrote them and told apart by their overloads, get each their own.
    """
    nodes = [node for graph in model.graphs() for node in graph.nodes if node.domain == DOMAIN]
    inner = [node for function in model.functions.values() for node in nested_nodes(function.node)]
    calls = Counter([*map(function_key, nodes), *map(called_key, inner)])
    names = _new_names(model, calls)
    others = {function_key(node) for node in nodes if not _is_of_floats(node)} | set(map(called_key, inner))
    functions: dict[FunctionKey, onnx.FunctionProto] = {}
    for (domain, name, overload), known in model.functions.items():
        function = onnx.FunctionProto()
        function.CopyFrom(known)  # which may be the caller's
        function.name = names.get((domain, name, overload), name)
        for node in nested_nodes(function.node):
            node.op_type = names.get(called_key(node), node.op_type)
        if domain == DOMAIN:
            _say_whether_of_floats(function, (domain, name, overload) not in others)
        functions[domain, function.name, overload] = function
    for node in nodes:
        node.op = names.get(function_key(node), node.op)
    model.functions = functions


def more_than_plain(model: Model) -> list[str]:
    """The operators that a model has functions for, and that the library does not register unless it is told."""
    names = [name for domain, name, _ in model.functions if domain == DOMAIN]
    return [name for kind in KINDS for name in names if kind.number(name) > kind.plain]


def _new_names(model: Model, calls: Counter[FunctionKey]) -> dict[FunctionKey, str]:
    """The name that each function of a fused node is to have, by what it is known by now."""
    without = {name for domain, name, overload in calls if (domain, name, overload) not in model.functions}
    names: dict[FunctionKey, str] = {}
    for kind in KINDS:
        known = [key for key in model.functions if key[0] == DOMAIN and kind.number(key[1])]
        free = (name for name in map(kind.operator, count(1)) if name not in without)
        names.update(zip(sorted(known, key=lambda key: -calls[key]), free, strict=False))
    return names


def _is_of_floats(node: Node) -> bool:
    return all(tensor.dtype == np.float32 for tensor in (*node.inputs, *node.outputs))


def _say_whether_of_floats(function: onnx.FunctionProto, of_floats: bool) -> None:
    kept = [entry for entry in function.metadata_props if entry.key != _TYPE_KEY]
    del function.metadata_props[:]
    function.metadata_props.extend(kept)
    if of_floats:
        function.metadata_props.add(key=_TYPE_KEY, value=_FLOAT)
