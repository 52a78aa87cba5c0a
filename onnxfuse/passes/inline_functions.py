"""The pass inline-functions: calls of a model's own functions become the nodes that these stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from onnx import FunctionProto, ModelProto, TensorProto, inliner

from onnxfuse.fused.kinds import DOMAIN, is_retired
from onnxfuse.model import tensor_data
from onnxfuse.model.graph_import import import_opsets
from onnxfuse.model.graph_ir import operator_key
from onnxfuse.model.inlining import FunctionKey, called_key, called_keys, inlined_nodes, nested_nodes
from onnxfuse.rewrite.base import PassContext
from onnxfuse.shapes.inference import Shapes, infer

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.model.graph_ir import Node

NAME = "inline-functions"

_KERNELS = frozenset(
    {"", DOMAIN, "ai.onnx.contrib", "ai.onnx.ml", "com.microsoft", "com.microsoft.experimental", "com.microsoft.nchwc"}
)
"""Domains of which ONNX Runtime, its extensions or onnxfuse have kernels: functions there are for other readers."""

_MOST_NODES = 1 << 17


class InlineFunctions:
    """Puts the bodies of a model's functions in place of their calls, as ONNX Runtime does before all else.

    Fused nodes can then take in what functions compute.  Functions that need another opset than the model has or call
    themselves, and those of domains of which ONNX Runtime has kernels, stay as they are; and all of them where they
    stand for more than 131072 nodes.  Results stay the same.
    """

    name = NAME
    description = "Puts the bodies of the model's own functions in place of their calls."

    def run(self, model: Model, context: PassContext) -> None:
        """Inlines all functions at once, those that functions call among them."""
        functions = _inlinable(model)
        if calls := _calls(model, functions):
            context.rewrote(NAME, calls)
            model.replace(*inline(model, functions))
            infer(model)


def inlined(model: Model, shapes: Shapes | None = None) -> Model:
    """The model as the pass would make it, inferred with these ``shapes`` of its inputs; itself if it would stay."""
    if (parts := inlined_parts(model)) is None:
        return model
    proto, stored = parts
    result = type(model).from_proto(proto, model.path, stored)
    infer(result, shapes)
    return result


def inlined_parts(model: Model) -> tuple[ModelProto, dict[str, tensor_data.Stored]] | None:
    """The model as the pass would make it, as ``Model.from_proto`` takes it; None if it would stay."""
    functions = _inlinable(model)
    return inline(model, functions) if _calls(model, functions) else None


def _key(node: Node) -> FunctionKey:
    return *operator_key(node), getattr(node, "overload", "")


def _inlinable(model: Model) -> dict[FunctionKey, FunctionProto]:
    """The functions that are called and can be inlined, those that others call first."""
    called = _reached((_key(node) for graph in model.graphs() for node in graph.nodes), model.functions)
    opsets = dict(model.opsets)
    found = {
        key: model.functions[key] for key in model.functions if key in called and _fits(model.functions[key], opsets)
    }
    # What calls itself, through others or not, is never ready.
    ordered: dict[FunctionKey, FunctionProto] = {}
    while ready := [key for key in found if found.keys().isdisjoint(called_keys(found[key].node))]:
        ordered.update((key, found.pop(key)) for key in ready)
    return ordered


def _fits(function: FunctionProto, opsets: dict[str, int]) -> bool:
    """Whether the function works with these opsets, to which those that it alone needs are added."""
    if function.domain in _KERNELS and not (function.domain == DOMAIN and is_retired(function.name)):
        return False
    needed = import_opsets(function)
    fits = all(opsets.get(domain, version) == version for domain, version in needed.items())
    if fits:
        opsets.update(needed)
    return fits


def _calls(model: Model, functions: Mapping[FunctionKey, FunctionProto]) -> list[Node]:
    """The nodes that call these functions; none if they stand for too many nodes."""
    calls = [node for graph in model.graphs() for node in graph.nodes if _key(node) in functions] if functions else []
    known: dict[FunctionKey, int] = {}
    return calls if sum(inlined_nodes(_key(node), functions, known) for node in calls) <= _MOST_NODES else []


def inline(
    model: Model, functions: Mapping[FunctionKey, FunctionProto]
) -> tuple[ModelProto, dict[str, tensor_data.Stored]]:
    """The model with all calls of these functions inlined, and without functions that nothing calls any more; and the
    data that it lacks, as ``Model.from_proto`` takes it.

    The functions fit the opsets of the model, and none calls itself.
    """
    export = model.export(whole=False)
    proto = export.proto
    # The inliner takes a model as bytes, of which there may be 2 GiB: of weights it only has to know the names.
    names = [tensor.name for tensor in proto.graph.initializer]
    names += [tensor.values.name for tensor in proto.graph.sparse_initializer]
    shell = ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    for field in ("node", "input", "output", "value_info"):
        getattr(shell.graph, field).extend(getattr(proto.graph, field))
    shell.graph.initializer.extend(TensorProto(name=name) for name in names)
    left = dict(functions)
    while left:  # callers first: what a call leaves out has a default that the inliner does not know of
        inner = {key for function in left.values() for key in called_keys(function.node)}
        layer = {key: left.pop(key) for key in [key for key in left if key not in inner]}
        _add_defaults(shell, layer)
        del shell.functions[:]
        shell.functions.extend(layer.values())
        shell = inliner.inline_local_functions(shell)
    for field in ("node", "value_info"):
        del getattr(proto.graph, field)[:]
        getattr(proto.graph, field).extend(getattr(shell.graph, field))
    needed = {domain: version for function in functions.values() for domain, version in import_opsets(function).items()}
    for domain in sorted(needed.keys() - model.opsets.keys()):
        proto.opset_import.add(domain=domain, version=needed[domain])
    others = _reached(model.functions.keys() - functions.keys(), model.functions)
    del proto.functions[:]
    proto.functions.extend(function for key, function in model.functions.items() if key in others)
    return proto, export.stored


def _add_defaults(model: ModelProto, functions: Mapping[FunctionKey, FunctionProto]) -> None:
    """Write the defaults of these functions' attributes where calls leave them out."""
    for node in nested_nodes(model.graph.node):
        function = functions.get(called_key(node))
        if function is not None:
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(default for default in function.attribute_proto if default.name not in given)


def _reached(keys: Iterable[FunctionKey], functions: Mapping[FunctionKey, FunctionProto]) -> set[FunctionKey]:
    """Those of the functions that are called by these keys, and those that they call in turn."""
    reached: set[FunctionKey] = set()
    pending = list(keys)
    while pending:
        key = pending.pop()
        if key in functions and key not in reached:
            reached.add(key)
            pending.extend(called_keys(functions[key].node))
    return reached
