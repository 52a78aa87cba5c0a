"""Which nodes of a graph are computed together with one that reduces."""

from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_graphsurgeon as gs

from onnxfuse.model.graph import captured_tensors

MAX_NODES = 64
"""Nodes in one region; what follows becomes another."""
_SEVERAL = 8
"""Neighbours that are added at once at first."""


class Graph:
    """The nodes of one graph, in topological order, and their neighbours."""

    def __init__(self, nodes: Sequence[gs.Node]) -> None:
        self.nodes = nodes
        self.position = {id(node): place for place, node in enumerate(nodes)}
        self._readers: dict[int, list[gs.Node]] = {}
        for node in nodes:
            for tensor in (*node.inputs, *captured_tensors(node)):
                self._readers.setdefault(id(tensor), []).append(node)

        self._producers = {id(node): self._makers(node) for node in nodes}
        self._consumers: dict[int, list[gs.Node]] = {}
        self._before: dict[int, list[gs.Node]] = {id(node): [] for node in nodes}
        for node in nodes:
            readers = [reader for tensor in node.outputs for reader in self.readers(tensor)]
            self._consumers[id(node)] = readers
            for reader in readers:
                self._before[id(reader)].append(node)

    def _makers(self, node: gs.Node) -> list[gs.Node]:
        return [made for tensor in node.inputs for made in tensor.inputs if id(made) in self.position]

    def producers(self, node: gs.Node) -> list[gs.Node]:
        """The nodes of this graph that make what a node reads."""
        return self._producers[id(node)]

    def readers(self, tensor: gs.Tensor) -> list[gs.Node]:
        """The nodes of this graph that read a tensor, or whose bodies do."""
        return self._readers.get(id(tensor), [])

    def consumers(self, node: gs.Node) -> list[gs.Node]:
        """The nodes of this graph that read what a node makes."""
        return self._consumers[id(node)]

    def sorted(self, nodes: Iterable[gs.Node]) -> list[gs.Node]:
        """Nodes in topological order."""
        return sorted(nodes, key=self.place)

    def place(self, node: gs.Node) -> int:
        """Where a node stands in topological order."""
        return self.position[id(node)]

    def leads_back(self, node: gs.Node, inside: set[int], first: int, last: int) -> bool:
        """Whether a path over other nodes leads from a node to those ``inside``, which stand at the places from
        ``first`` to ``last``, or from these to the node."""
        return self._reaches(node, inside, self._consumers, -1, last) or self._reaches(
            node, inside, self._before, first, len(self.nodes)
        )

    def _reaches(
        self, node: gs.Node, inside: set[int], neighbours: Mapping[int, list[gs.Node]], low: int, high: int
    ) -> bool:
        """Whether neighbours of neighbours, at places between these two, come from a node to one inside."""
        seen: set[int] = set()
        waiting = [other for other in neighbours[id(node)] if id(other) not in inside]
        while waiting:
            other = waiting.pop()
            if id(other) in seen or not low < self.place(other) < high:
                continue
            seen.add(id(other))
            for further in neighbours[id(other)]:
                if id(further) in inside:
                    return True
                waiting.append(further)
        return False


def grow(graph: Graph, seed: gs.Node, free: set[int], fits: Callable[[Sequence[gs.Node]], bool]) -> list[gs.Node]:
    """The largest convex region around ``seed``, in topological order, that is found by adding one neighbour at a time.

    ``free`` are the ids of the nodes that may be in it, ``fits`` says of some in topological order whether they may be
    one region.
    """
    region = _Region(graph, free, [seed])
    # ``fits`` looks at all nodes each time: it is asked of several more at once, for they fit more often than not.
    several = _SEVERAL
    while len(region.nodes) < MAX_NODES:
        larger = _Region(graph, free, region.nodes)
        while len(larger.nodes) < min(len(region.nodes) + several, MAX_NODES) and larger.add_neighbour():
            pass
        if len(larger.nodes) == len(region.nodes):
            break
        if fits(larger.nodes):
            region, several = larger, 2 * several
        elif region.add_neighbour(fits):
            several = 2
        else:
            break
    return region.nodes


class _Region:
    """A convex region while it grows: its ``nodes`` in topological order, and the free ones beside them."""

    def __init__(self, graph: Graph, free: set[int], nodes: Iterable[gs.Node]) -> None:
        self.nodes: list[gs.Node] = []
        self._graph = graph
        self._free = free
        self._inside: set[int] = set()
        self._beside: dict[int, gs.Node] = {}
        for node in nodes:
            self._add(node)

    def _add(self, node: gs.Node) -> None:
        insort(self.nodes, node, key=self._graph.place)
        self._inside.add(id(node))
        self._beside.pop(id(node), None)
        around = (*self._graph.producers(node), *self._graph.consumers(node))
        self._beside.update((id(one), one) for one in around if id(one) in self._free and id(one) not in self._inside)

    def add_neighbour(self, fits: Callable[[Sequence[gs.Node]], bool] | None = None) -> bool:
        """Add the first neighbour with which the region is convex and ``fits``; whether there is one."""
        first, last = self._graph.place(self.nodes[0]), self._graph.place(self.nodes[-1])
        # Those before come first: a reduction further on may want them too, and reads what this region makes.
        for node in self._graph.sorted(self._beside.values()):
            if self._graph.leads_back(node, self._inside, first, last):
                continue
            if fits is None or fits(self._graph.sorted([*self.nodes, node])):
                self._add(node)
                return True
        return False
