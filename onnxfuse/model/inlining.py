"""How many nodes the functions of a model stand for, once ONNX Runtime has put their bodies in place of the calls."""

from collections.abc import Iterable, Iterator, Mapping

from onnx import FunctionProto, ModelProto, NodeProto

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.graph_import import import_functions
from onnxfuse.model.protos import onnx_graphs

FunctionKey = tuple[str, str, str]
"""Domain, name and overload."""

_MOST_NODES = 1 << 22
"""Shape inference takes some 2 us for each."""


def inlined_nodes(
    key: FunctionKey, functions: Mapping[FunctionKey, FunctionProto], known: dict[FunctionKey, int]
) -> int:
    """How many nodes a call of the function becomes; ``known`` remembers, and stops at a function that calls itself."""
    if key not in known:
        known[key] = 1
        body = called_keys(functions[key].node)
        known[key] = sum(inlined_nodes(k, functions, known) if k in functions else 1 for k in body)
    return known[key]


def called_keys(nodes: Iterable[NodeProto]) -> Iterator[FunctionKey]:
    """What the nodes, and those of the graphs in their attributes, would call functions by."""
    return map(called_key, nested_nodes(nodes))


def called_key(node: NodeProto) -> FunctionKey:
    """What a node would call a function by."""
    return node.domain, node.op_type, node.overload


def check_inlining(model: ModelProto) -> None:
    """Raise OnnxfuseError if functions that call each other again and again stand for more than 4 Mi nodes."""
    functions = import_functions(model)
    known: dict[FunctionKey, int] = {}
    calls = called_keys(model.graph.node) if functions else ()
    total = sum(inlined_nodes(key, functions, known) for key in calls if key in functions)
    if total > _MOST_NODES:
        raise OnnxfuseError(f"its functions stand for {total} nodes, more than the {_MOST_NODES} that are worked with")


def nested_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes and those of the graphs in their attributes."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                for inner in onnx_graphs(graph):
                    yield from inner.node
