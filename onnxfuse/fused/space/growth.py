"""Which nodes of a graph are computed together with one that reduces."""

from collections.abc import Callable, Iterable, Sequence

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

    def producers(self, node: gs.Node) -> list[gs.Node]:
        """The nodes of this graph that make what a node reads."""
        return [made for tensor in node.inputs for made in tensor.inputs if id(made) in self.position]

    def readers(self, tensor: gs.Tensor) -> list[gs.Node]:
        """The nodes of this graph that read a tensor, or whose bodies do."""
        return self._readers.get(id(tensor), [])

    def consumers(self, node: gs.Node) -> list[gs.Node]:
        """The nodes of this graph that read what a node makes."""
        return [reader for tensor in node.outputs for reader in self.readers(tensor)]

    def sorted(self, nodes: Iterable[gs.Node]) -> list[gs.Node]:
        """Nodes in topological order."""
        return sorted(nodes, key=lambda node: self.position[id(node)])

    def is_convex(self, region: Sequence[gs.Node]) -> bool:
        """Whether no path leaves the region, given in topological order, and comes back."""
        inside = {id(node) for node in region}
        last = self.position[id(region[-1])]
        seen: set[int] = set()
        waiting = [node for own in region for node in self.consumers(own) if id(node) not in inside]
        while waiting:
            node = waiting.pop()
            if id(node) in seen or self.position[id(node)] > last:
                continue
            seen.add(id(node))
            for reader in self.consumers(node):
                if id(reader) in inside:
                    return False
                waiting.append(reader)
        return True


def grow(graph: Graph, seed: gs.Node, free: set[int], fits: Callable[[Sequence[gs.Node]], bool]) -> list[gs.Node]:
    """The largest convex region around ``seed``, in topological order, that is found by adding one neighbour at a time.

    ``free`` are the ids of the nodes that may be in it, ``fits`` says of some in topological order whether they may be
    one region.
    """
    region = [seed]
    # ``fits`` looks at all nodes each time: it is asked of several more at once, for they fit more often than not.
    several = _SEVERAL
    while len(region) < MAX_NODES:
        if several > 1:
            larger = region
            for _ in range(min(several, MAX_NODES - len(region))):
                larger = _larger(graph, larger, free, lambda _nodes: True) or larger
            if len(larger) == len(region):
                break
            if fits(larger):
                region, several = larger, 2 * several
                continue
        found = _larger(graph, region, free, fits)
        if found is None:
            break
        region, several = found, 2
    return region


def _larger(
    graph: Graph, region: list[gs.Node], free: set[int], fits: Callable[[Sequence[gs.Node]], bool]
) -> list[gs.Node] | None:
    """A region with the first of its neighbours with which it is convex and ``fits``; None if there is none."""
    inside = {id(node) for node in region}
    neighbours = [node for own in region for node in (*graph.producers(own), *graph.consumers(own))]
    candidates = {id(node): node for node in neighbours if id(node) in free and id(node) not in inside}
    # Those before come first: a reduction further on may want them too, and reads what this region makes.
    for node in graph.sorted(candidates.values()):
        larger = graph.sorted([*region, node])
        if graph.is_convex(larger) and fits(larger):
            return larger
    return None
