"""Regions: which nodes of a graph are computed together.

A region must be convex: no path may leave it and come back, or the fused node would wait for its own result.  Every
node gets a level such that an edge inside a region may stay on its level and every other edge climbs by one.  Then a
path that leaves a region can never return to its level, and the connected sets of fusible edges within one level are
convex.  Levels are first as low as possible; a region is then lifted to the level of a consumer it could merge with
where all of its other consumers allow it.  Everything is linear in the size of the graph.
"""

from collections.abc import Callable, Sequence

import onnx_graphsurgeon as gs

from onnxfuse.model.graph import captured_tensors

MAX_NODES = 256
"""Nodes in one region; a longer chain is cut, since by then fusing more saves next to nothing."""


class _DisjointSets:
    """Union-find over 0 … n-1."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def find(self, item: int) -> int:
        root = item
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[item] != root:
            self._parent[item], item = root, self._parent[item]
        return root

    def union(self, first: int, second: int) -> None:
        self._parent[self.find(second)] = self.find(first)

    def groups(self) -> list[list[int]]:
        found: dict[int, list[int]] = {}
        for item in range(len(self._parent)):
            found.setdefault(self.find(item), []).append(item)
        return list(found.values())


def find_regions(
    nodes: Sequence[gs.Node],
    fusible: Callable[[gs.Node], bool],
    joins: Callable[[gs.Node, gs.Node, gs.Tensor], bool],
) -> list[list[gs.Node]]:
    """The convex regions of one graph whose ``nodes`` are in topological order, each in that order.

    ``fusible`` says whether a node may be in a region at all, ``joins(producer, consumer, tensor)`` whether two fusible
    nodes may share one through the tensor between them.  Regions of one node are among the result.
    """
    index = {id(node): position for position, node in enumerate(nodes)}
    edges = _edges(nodes, index, fusible, joins)
    can_fuse = [fusible(node) for node in nodes]

    level = [0] * len(nodes)
    for consumer, producers in enumerate(edges):
        for producer, fuses in producers:
            level[consumer] = max(level[consumer], level[producer] + (0 if fuses else 1))

    sets = _DisjointSets(len(nodes))
    for consumer, producers in enumerate(edges):
        for producer, fuses in producers:
            if fuses and level[producer] == level[consumer]:
                sets.union(producer, consumer)
    _lift(edges, level, sets)

    regions: list[list[gs.Node]] = []
    for group in sets.groups():
        if can_fuse[group[0]]:
            regions.extend(_cut(group, nodes))
    return regions


def _edges(
    nodes: Sequence[gs.Node],
    index: dict[int, int],
    fusible: Callable[[gs.Node], bool],
    joins: Callable[[gs.Node, gs.Node, gs.Tensor], bool],
) -> list[list[tuple[int, bool]]]:
    """For each node its producers in this graph, and whether the edge may lie inside a region."""
    edges: list[list[tuple[int, bool]]] = []
    for node in nodes:
        producers: dict[int, bool] = {}
        for tensor in node.inputs:
            for producer in tensor.inputs:
                if id(producer) in index:
                    fuses = fusible(producer) and fusible(node) and joins(producer, node, tensor)
                    position = index[id(producer)]
                    producers[position] = producers.get(position, True) and fuses
        for tensor in captured_tensors(node):
            for producer in tensor.inputs:
                if id(producer) in index:
                    producers[index[id(producer)]] = False
        edges.append(list(producers.items()))
    return edges


def _lift(edges: list[list[tuple[int, bool]]], level: list[int], sets: _DisjointSets) -> None:
    """Raise each connected set to the level of a consumer that it can merge with.

    Sets are visited from the last level to the first, so that a set's consumers have found their place before it.
    """
    consumers: list[list[tuple[int, bool]]] = [[] for _ in edges]
    for consumer, producers in enumerate(edges):
        for producer, fuses in producers:
            consumers[producer].append((consumer, fuses))
    groups = sets.groups()
    for group in sorted(groups, key=lambda members: level[members[0]], reverse=True):
        members = {sets.find(member) for member in group}
        outside = [edge for member in group for edge in consumers[member] if sets.find(edge[0]) not in members]
        if not any(fuses for _, fuses in outside):
            continue
        highest = min(level[consumer] - (0 if fuses else 1) for consumer, fuses in outside)
        partners = [consumer for consumer, fuses in outside if fuses and level[consumer] == highest]
        if partners and highest >= level[group[0]]:
            for member in group:
                level[member] = highest
            for partner in partners:
                sets.union(partner, group[0])


def _cut(group: list[int], nodes: Sequence[gs.Node]) -> list[list[gs.Node]]:
    """Cut a region that is too long into runs of its topological order, and those into connected parts."""
    if len(group) <= MAX_NODES:
        return [[nodes[member] for member in group]]
    runs = [group[start : start + MAX_NODES] for start in range(0, len(group), MAX_NODES)]
    return [part for run in runs for part in connected([nodes[member] for member in run])]


def halve(region: Sequence[gs.Node]) -> list[list[gs.Node]]:
    """A region cut into the halves of its topological order, and those into connected parts, which are convex."""
    middle = len(region) // 2
    return connected(region[:middle]) + connected(region[middle:])


def connected(run: Sequence[gs.Node]) -> list[list[gs.Node]]:
    """The parts of ``run`` that are connected by tensors between its nodes, each in the order of ``run``."""
    position = {id(node): offset for offset, node in enumerate(run)}
    sets = _DisjointSets(len(run))
    for offset, node in enumerate(run):
        for tensor in node.inputs:
            for producer in tensor.inputs:
                if id(producer) in position:
                    sets.union(position[id(producer)], offset)
    return [[run[offset] for offset in part] for part in sets.groups()]
