"""The order in which a graph's nodes must stand in a file, and what ties nodes with subgraphs into it."""

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.graph_ir import Graph, operator_key, subgraphs, walk


def sorted_nodes(graph: gs.Graph) -> list[gs.Node]:
    """The graph's nodes, every one after those whose results it or its subgraphs use.

    Nodes that are in order already stay exactly as they are; else a node moves to just before its first user.
    Linear in the size of the graph.  Raises OnnxfuseError, naming a node, if there is a cycle.
    """
    if _are_in_order(graph.nodes):
        return list(graph.nodes)
    producers = {id(tensor): node for node in graph.nodes for tensor in node.outputs}
    order: list[gs.Node] = []
    done: set[int] = set()
    active: set[int] = set()
    for root in graph.nodes:
        if id(root) in done:
            continue
        active.add(id(root))
        stack = [(root, iter(used_tensors(root)))]
        while stack:
            node, remaining = stack[-1]
            for tensor in remaining:
                producer = producers.get(id(tensor))
                if producer is None or id(producer) in done:
                    continue
                if id(producer) in active:
                    raise OnnxfuseError(f"the graph has a cycle through node {describe(producer)}")
                active.add(id(producer))
                stack.append((producer, iter(used_tensors(producer))))
                break
            else:
                stack.pop()
                active.discard(id(node))
                done.add(id(node))
                order.append(node)
    return order


def _are_in_order(nodes: Sequence[gs.Node]) -> bool:
    """Whether every node is there once, after those whose results it uses."""
    later = {id(tensor) for node in nodes for tensor in node.outputs}
    for node in nodes:
        for tensor in node.inputs:
            if id(tensor) in later:
                return False
        if node.attrs and (captured := captured_tensors(node)) and not later.isdisjoint(map(id, captured)):
            return False
        for tensor in node.outputs:
            later.discard(id(tensor))
    return len(set(map(id, nodes))) == len(nodes)


def used_tensors(node: gs.Node) -> list[gs.Tensor]:
    """The tensors that a node needs: its inputs, and what its subgraphs capture."""
    return [*node.inputs, *captured_tensors(node)]


def captured_tensors(node: gs.Node) -> list[gs.Tensor]:
    """The tensors of the graphs around that a node's subgraphs, at any depth, use; each once."""
    inner = subgraphs(node)
    if not inner:
        return []
    used = {id(tensor): tensor for subgraph in inner for tensor in outer_tensors(subgraph)}
    return list(used.values())


def outer_tensors(subgraph: gs.Graph) -> list[gs.Tensor]:
    """The tensors of the graphs around that a subgraph and those inside it use; each once.

    Constants count where the subgraphs do not hold them themselves.
    """
    used: dict[int, gs.Tensor] = {}
    inner: set[int] = set()
    for graph in walk(subgraph):
        for nested in graph.nodes:
            used.update((id(tensor), tensor) for tensor in nested.inputs if tensor.name)
            inner.update(map(id, nested.outputs))
        used.update((id(tensor), tensor) for tensor in graph.outputs)
        inner.update(map(id, graph.inputs))
        if isinstance(graph, Graph):
            inner.update(id(entry.tensor) for entry in graph.source.initializers)
    return [tensor for key, tensor in used.items() if key not in inner]


def describe(node: gs.Node) -> str:
    """How messages name a node: by its name, or by its first output if it has none."""
    if node.name:
        return f"{node.name!r} ({operator_key(node)[1]})"
    output = next((tensor.name for tensor in node.outputs if tensor.name), "")
    return f"{operator_key(node)[1]} that makes {output!r}" if output else operator_key(node)[1]
