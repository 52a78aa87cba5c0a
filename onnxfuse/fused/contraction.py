"""Growing convex regions one after the other, so that the graph stays without a cycle when each becomes one node.

Two regions may each be convex and still wait for each other.  So the graph is taken as it will be: its nodes are kept
in an order in which every region that was formed stands as a block, after all that it reads and before all that reads
it, and a new region must be convex in that graph.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence

import onnx_graphsurgeon as gs

from onnxfuse.model.graph import captured_tensors

_MOST_VISITED = 4096
"""Nodes to look at for one region: what is that far from its root is not worth the search."""


class Contraction:
    """The graph of ``nodes``, given in topological order, while regions of it are contracted."""

    def __init__(self, nodes: Sequence[gs.Node]) -> None:
        self._order = list(nodes)
        self._position = {id(node): index for index, node in enumerate(nodes)}
        self._region: dict[int, list[gs.Node]] = {}
        self._readers: dict[int, list[gs.Node]] = {}
        for node in nodes:
            for tensor in (*node.inputs, *captured_tensors(node)):
                self._readers.setdefault(id(tensor), []).append(node)

    def is_taken(self, node: gs.Node) -> bool:
        """Whether a node is in a region."""
        return id(node) in self._region

    def readers(self, tensor: gs.Tensor) -> list[gs.Node]:
        """The nodes of the graph that read a tensor, those whose bodies read it among them."""
        return self._readers.get(id(tensor), [])

    def position(self, node: gs.Node) -> int:
        """The node's place in the order."""
        return self._position[id(node)]

    def grow(self, root: gs.Node, joins: Callable[[gs.Node], bool], most: int) -> tuple[list[gs.Node], list[gs.Node]]:
        """The largest convex region of ``root`` and of nodes that depend on it and that ``joins`` admits.

        Each node of the region reads a result of the region.  The region has at most ``most`` nodes besides the root.
        Returns it in topological order, and the nodes that depend on it and stand among it in the present order, for
        ``contract``.
        """
        region, outside = [root], []
        waiting: list[int] = []
        seen: set[int] = set()
        hopeful: set[int] = set()
        tainted: set[int] = set()

        def follow(tensors: Iterable[gs.Tensor], may_join: bool) -> None:
            for tensor in tensors:
                for reader in self.readers(tensor):
                    position = self.position(reader)
                    if position not in seen:
                        seen.add(position)
                        heapq.heappush(waiting, position)
                    if may_join and not self.is_taken(reader) and joins(reader):
                        hopeful.add(position)

        if most > 0:
            follow(root.outputs, True)
        for _ in range(_MOST_VISITED):
            if not hopeful or len(region) > most:
                break
            position = heapq.heappop(waiting)
            node = self._order[position]
            reads = {id(tensor) for tensor in (*node.inputs, *captured_tensors(node))}
            if position in hopeful and not reads & tainted:
                region.append(node)
                follow(node.outputs, True)
            else:
                outside.append(node)
                for member in self._region.get(id(node), [node]):  # a region waits for all that its nodes read
                    tainted.update(id(tensor) for tensor in member.outputs)
                    follow(member.outputs, False)
            hopeful.discard(position)
        return region, outside

    def contract(self, region: Sequence[gs.Node], outside: Sequence[gs.Node]) -> None:
        """Make what ``grow`` has found one node."""
        first, last = self.position(region[0]), self.position(region[-1])
        inside = {id(node) for node in region}
        late = {id(member) for node in outside for member in self._region.get(id(node), [node])}
        part = self._order[first : last + 1]
        early = [node for node in part if id(node) not in inside and id(node) not in late]
        later = [node for node in part if id(node) in late]
        self._order[first : last + 1] = [*early, *region, *later]
        for index in range(first, last + 1):
            self._position[id(self._order[index])] = index
        members = list(region)
        self._region.update((id(node), members) for node in members)

    def take(self, member: gs.Node, nodes: Sequence[gs.Node]) -> None:
        """Add nodes that only the region of ``member`` reads to that region."""
        region = self._region[id(member)]
        region[:0] = nodes
        self._region.update((id(node), region) for node in nodes)
