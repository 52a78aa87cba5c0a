"""Joining regions that follow one another, so that the graph stays without a cycle when each becomes one node.

Two regions may each be convex and still wait for each other.  So the graph is taken as it will be: a list of blocks,
one for each region and for each other node, each after all that it reads.
"""

import heapq
from collections.abc import Iterable, Sequence

import onnx_graphsurgeon as gs

from onnxfuse.model.graph import captured_tensors

_MOST_PASSED = 1 << 12
"""Places between two blocks that are joined, each of a block: what is that far apart is not worth the search."""


class Block:
    """Nodes in topological order that will be one, with the ids of the tensors that they read and make."""

    def __init__(self, nodes: Iterable[gs.Node]) -> None:
        self.nodes = list(nodes)
        self.reads = {id(tensor) for node in self.nodes for tensor in (*node.inputs, *captured_tensors(node))}
        self.makes = {id(tensor) for node in self.nodes for tensor in node.outputs}


class Blocks:
    """The ``nodes`` of a graph, in topological order, of which disjoint ``regions`` are blocks: none waits for another
    that waits for it.  Blocks that are more than ``most_passed`` places apart are not joined.
    """

    def __init__(
        self, nodes: Sequence[gs.Node], regions: Iterable[Sequence[gs.Node]] = (), most_passed: int = _MOST_PASSED
    ) -> None:
        self._most_passed = most_passed
        self._of: dict[int, Block] = {}
        for region in regions:
            self._put(Block(region))
        for node in nodes:
            if id(node) not in self._of:
                self._put(Block([node]))
        blocks = list({id(self._of[id(node)]): self._of[id(node)] for node in nodes}.values())
        order = _sorted(blocks)
        self._place = {id(block): place for place, block in enumerate(order)}
        self._order: list[Block | None] = list(order)  # None where there was one that is joined: the others stay

    def of(self, node: gs.Node) -> Block:
        """The block that a node of the graph is in."""
        return self._of[id(node)]

    def levels(self) -> dict[int, int]:
        """For each block, by its id, the length of the longest path of blocks that ends there."""
        made: dict[int, int] = {}  # by tensor
        found: dict[int, int] = {}
        for block in filter(None, self._order):
            found[id(block)] = level = 1 + max((made.get(tensor, 0) for tensor in block.reads), default=0)
            made.update(dict.fromkeys(block.makes, level))
        return found

    def joined(self, blocks: Sequence[Block]) -> Block | None:
        """Some blocks as one, which the graph does not have yet; None if that would wait for its own results."""
        found = self._around(blocks)
        return None if found is None else found[1]

    def join(self, blocks: Sequence[Block]) -> Block:
        """Make one of some blocks, for which ``joined`` has said that it can be."""
        found = self._around(blocks)
        assert found is not None
        first, block, part = found
        self._put(block)
        self._order[first : first + len(part)] = part
        self._place.update((id(other), place) for place, other in enumerate(part, first) if other is not None)
        return block

    def join_nodes(self, nodes: Sequence[gs.Node]) -> bool:
        """Make one of the blocks that some nodes are in; False, and nothing changes, if it would wait for itself."""
        blocks = list({id(block): block for block in map(self.of, nodes)}.values())
        if self.joined(blocks) is None:
            return False
        self.join(blocks)
        return True

    def _put(self, block: Block) -> None:
        self._of.update((id(node), block) for node in block.nodes)

    def _around(self, blocks: Sequence[Block]) -> tuple[int, Block, list[Block | None]] | None:
        """The place of the first of some blocks, the joint one, and what is at the places from there to the last."""
        members = set(map(id, blocks))
        places = [self._place[id(block)] for block in blocks]
        first, last = min(places), max(places)
        if last - first > self._most_passed:
            return None
        made: set[int] = set()  # by the members, and by what waits for them
        late_made: set[int] = set()
        nodes: list[gs.Node] = []
        early: list[Block] = []
        late: list[Block] = []
        for block in filter(None, self._order[first : last + 1]):
            if id(block) in members:
                if block.reads & late_made:
                    return None
                nodes += block.nodes
                made |= block.makes
            elif block.reads & made:
                late.append(block)
                late_made |= block.makes
                made |= block.makes
            else:
                early.append(block)
        joint = Block(nodes)
        part = [*early, joint, *late]
        return first, joint, [*part, *[None] * (last + 1 - first - len(part))]


def _sorted(blocks: Sequence[Block]) -> list[Block]:
    """Blocks, given in the order of their first nodes, so that each is after what it reads, and else as they were."""
    maker = {tensor: place for place, block in enumerate(blocks) for tensor in block.makes}
    waits: list[int] = []
    readers: list[list[int]] = [[] for _ in blocks]
    for place, block in enumerate(blocks):
        before = {maker[tensor] for tensor in block.reads if tensor in maker} - {place}
        waits.append(len(before))
        for other in before:
            readers[other].append(place)
    ready = [place for place, count in enumerate(waits) if count == 0]
    order: list[Block] = []
    while ready:
        place = heapq.heappop(ready)
        order.append(blocks[place])
        for reader in readers[place]:
            waits[reader] -= 1
            if waits[reader] == 0:
                heapq.heappush(ready, reader)
    assert len(order) == len(blocks)
    return order
