"""Edits to a model's graphs that keep node lists sorted, names of graph outputs alive, and time linear."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import onnx_graphsurgeon as gs

from onnxfuse.model.graph_ir import Graph, Node, subgraphs, walk
from onnxfuse.model.graph_order import sorted_nodes
from onnxfuse.model.returned import Returned

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model


class GraphEditor:
    """Collects the removals and insertions of one pass and carries them out on the node lists in ``finish``.

    Between the two the tensors' producer and consumer lists are already right, only ``graph.nodes`` is stale.
    Nodes and tensors compare by content in onnx-graphsurgeon, so everything here goes by identity.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.graphs = list(model.graphs())
        self._graph_of: dict[int, int] = {}
        self._replacement: dict[int, list[Node]] = {}
        self._removed: list[Node] = []  # keeps removed nodes alive, so that no new node gets the id of one
        self._touched: set[int] = set()
        self._returned = Returned(self.graphs)
        self._unsorted: set[int] = set()
        self._owner: dict[int, Node] = {}  # the node in an attribute of which a graph is, by the graph's id
        for index, graph in enumerate(self.graphs):
            for node in graph.nodes:
                self._graph_of[id(node)] = index
                for body in subgraphs(node):
                    self._owner[id(body)] = node
        self._namesakes = _namesakes(self.graphs) if len(self.graphs) > 1 else {}

    def graph_index(self, node: Node) -> int | None:
        """The index in ``graphs`` of the graph that holds ``node``; None once it is removed."""
        return self._graph_of.get(id(node))

    def is_graph_output(self, tensor: gs.Tensor) -> bool:
        """Whether a graph of the model returns ``tensor``."""
        return self._returned(tensor)

    def is_inner(self, tensor: gs.Tensor) -> bool:
        """Whether one node reads ``tensor``, once, and no graph returns it."""
        return len(tensor.outputs) == 1 and not self.is_graph_output(tensor)

    def replace_uses(self, old: gs.Tensor, new: gs.Tensor) -> None:
        """Makes every node that reads ``old``, in whatever graph, read ``new``, and later ones may in any other.

        Where another graph means another tensor by the name of ``new``, all but the outermost get new names.
        """
        for namesake in self._namesakes.pop(new.name, [])[1:]:
            namesake.name = self.model.unique_name(namesake.name)
        for consumer in unique_nodes(old.outputs):
            for index, tensor in enumerate(consumer.inputs):
                if tensor is old:
                    consumer.inputs[index] = new

    def insert(self, nodes: Iterable[Node], at: Node) -> None:
        """Puts new ``nodes``, in that order, where ``at`` is; ``at`` itself is then to be removed with
        ``remove``.
        """
        index = self._graph_of[id(at)]
        self._touched.add(index)
        inserted = self._replacement.setdefault(id(at), [])
        for node in nodes:
            self._graph_of[id(node)] = index
            inserted.append(node)

    def remove(self, nodes: Iterable[Node]) -> list[Node]:
        """Removes ``nodes``, and the nodes of the same graph that are of no use without them; returns the
        latter.
        """
        # In order: the list of readers of a constant is in their order too, and searched from its start.
        pending = list(nodes)[::-1]
        asked = {id(node) for node in pending}
        swept: list[Node] = []
        while pending:
            node = pending.pop()
            index = self._graph_of.pop(id(node), None)
            if index is None:
                continue
            self._touched.add(index)
            self._removed.append(node)
            if id(node) not in asked:
                swept.append(node)
            tensors = list(node.inputs)
            for inner in (inner for body in subgraphs(node) for graph in walk(body) for inner in graph.nodes):
                tensors.extend(inner.inputs)
                inner.inputs.clear()
                self._graph_of.pop(id(inner), None)
            node.inputs.clear()
            node.outputs.clear()
            for tensor in tensors:
                for producer in tensor.inputs:
                    if self._graph_of.get(id(producer)) == index and self.is_dead(producer):
                        pending.append(producer)
        return swept

    def sort(self, node: Node) -> None:
        """Has ``finish`` put the nodes of the graph that holds ``node`` in topological order again."""
        self._unsorted.add(self._graph_of[id(node)])

    def reaches_back(self, nodes: Iterable[Node], outputs: Iterable[gs.Tensor]) -> bool:
        """Whether a path of other nodes leads from ``outputs`` to one of ``nodes``, which are all of one
        graph.
        """
        inside = {id(node) for node in nodes}
        pending = [reader for tensor in outputs for reader in tensor.outputs if id(reader) not in inside]
        seen: set[int] = set()
        while pending:
            node = self._enclosing(pending.pop(), inside)
            if id(node) in inside:
                return True
            if id(node) not in seen:
                seen.add(id(node))
                pending.extend(reader for tensor in node.outputs for reader in tensor.outputs)
        return False

    def _enclosing(self, node: Node, inside: set[int]) -> Node:
        """``node``, or the node around it that stands in the same graph as those ``inside``."""
        home = next(index for index in (self._graph_of.get(key) for key in inside) if index is not None)
        while self._graph_of[id(node)] != home:
            owner = self._owner.get(id(self.graphs[self._graph_of[id(node)]]))
            if owner is None:
                return node
            node = owner
        return node

    def unneeded(self, nodes: Iterable[Node]) -> list[Node]:
        """Those of ``nodes`` that nobody would miss if all of these were removed, in the order given."""
        candidates = list(nodes)
        doomed = {id(node) for node in candidates}
        pending = list(candidates)
        while pending:
            node = pending.pop()
            if id(node) in doomed and any(
                self.is_graph_output(tensor) or any(id(reader) not in doomed for reader in tensor.outputs)
                for tensor in node.outputs
                if tensor.name
            ):
                doomed.remove(id(node))
                pending.extend(producer for tensor in node.inputs for producer in tensor.inputs)
        return [node for node in candidates if id(node) in doomed]

    def is_dead(self, node: Node) -> bool:
        """Whether nothing reads any output of ``node``."""
        return not any(tensor.outputs or self.is_graph_output(tensor) for tensor in node.outputs if tensor.name)

    def finish(self) -> None:
        """Brings the node lists of the edited graphs up to date."""
        for index in self._touched:
            graph = self.graphs[index]
            kept: list[Node] = []
            stack = list(reversed(graph.nodes))
            while stack:
                node = stack.pop()
                replacement = self._replacement.pop(id(node), None)
                if replacement is not None:
                    stack.append(node)
                    stack.extend(reversed(replacement))
                elif id(node) in self._graph_of:
                    kept.append(node)
            graph.nodes[:] = kept
            if index in self._unsorted:
                graph.nodes[:] = sorted_nodes(graph)
        self._touched.clear()
        self._unsorted.clear()
        self._removed.clear()


def _namesakes(graphs: Iterable[gs.Graph]) -> dict[str, list[gs.Tensor]]:
    """The tensors of names that several tensors have, those of outer graphs first.

    Bodies side by side may use the same names, and an input or initializer of a body may have that of an outer tensor.
    """
    found: dict[str, dict[int, gs.Tensor]] = {}
    for graph in graphs:
        initializers = (entry.tensor for entry in graph.source.initializers) if isinstance(graph, Graph) else ()
        inner = (tensor for node in graph.nodes for tensor in (*node.inputs, *node.outputs))
        for tensor in (*graph.inputs, *initializers, *inner):
            if tensor.name:
                found.setdefault(tensor.name, {})[id(tensor)] = tensor
    return {name: list(tensors.values()) for name, tensors in found.items() if len(tensors) > 1}


def unique_nodes(nodes: Iterable[Node]) -> list[Node]:
    """``nodes`` without repetition, in order; by identity."""
    return list({id(node): node for node in nodes}.values())
