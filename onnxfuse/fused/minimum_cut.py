"""Minimum cuts: the cheapest way to label each item with one of two sides, where neighbours of other sides cost."""

import math
from collections import deque
from collections.abc import Hashable, Iterable


class MinimumCut:
    """Items that are to be put on the side ``True`` or ``False`` at the least cost (Dinic's algorithm, 1970)."""

    def __init__(self) -> None:
        self._number: dict[Hashable, int] = {}
        self._edges: list[list[int]] = [[], []]  # of the source and the sink
        self._to: list[int] = []
        self._capacity: list[float] = []
        self.cost = 0.0
        """Of the assignment that was found."""

    def add(self, item: Hashable, if_true: float, if_false: float) -> None:
        """What it costs to put ``item`` on either side, besides what was said before; infinity forbids one."""
        number = self._of(item)
        self._connect(0, number, if_false)
        self._connect(number, 1, if_true)

    def separate(self, one: Hashable, other: Hashable, cost: float) -> None:
        """What it costs if ``one`` is on the side True and ``other`` is not."""
        self._connect(self._of(one), self._of(other), cost)

    def reward(self, items: Iterable[Hashable], gain: float) -> None:
        """What is saved if all ``items`` are on the side True."""
        self.cost -= gain
        all_of_them = object()
        self.add(all_of_them, 0.0, gain)
        for item in items:
            self.separate(all_of_them, item, math.inf)

    def solve(self) -> set[Hashable]:
        """The items on the side True."""
        while (levels := self._levels())[1] >= 0:
            following = [0] * len(self._edges)
            while self._augment(levels, following):
                pass
        levels = self._levels()
        return {item for item, number in self._number.items() if levels[number] >= 0}

    def _of(self, item: Hashable) -> int:
        if item not in self._number:
            self._number[item] = len(self._edges)
            self._edges.append([])
        return self._number[item]

    def _connect(self, start: int, end: int, capacity: float) -> None:
        for node, to, limit in ((start, end, capacity), (end, start, 0.0)):
            self._edges[node].append(len(self._to))
            self._to.append(to)
            self._capacity.append(limit)

    def _levels(self) -> list[int]:
        """The distance of each node from the source by edges with room left, -1 where there is no way."""
        levels = [-1] * len(self._edges)
        levels[0] = 0
        waiting = deque([0])
        while waiting:
            node = waiting.popleft()
            for edge in self._edges[node]:
                if self._capacity[edge] > 0 and levels[self._to[edge]] < 0:
                    levels[self._to[edge]] = levels[node] + 1
                    waiting.append(self._to[edge])
        return levels

    def _augment(self, levels: list[int], following: list[int]) -> bool:
        """Fill one way from the source to the sink; ``following`` counts the edges of each node that are done with."""
        way: list[int] = []
        node = 0
        while node != 1:
            edges = self._edges[node]
            while following[node] < len(edges):
                edge = edges[following[node]]
                if self._capacity[edge] > 0 and levels[self._to[edge]] == levels[node] + 1:
                    break
                following[node] += 1
            if following[node] < len(edges):
                way.append(edges[following[node]])
                node = self._to[way[-1]]
            elif node == 0:
                return False
            else:
                edge = way.pop()
                node = self._to[edge ^ 1]
                following[node] += 1
        room = min(self._capacity[edge] for edge in way)
        if math.isinf(room):
            raise ValueError("an item is forbidden on both sides")
        self.cost += room
        for edge in way:
            self._capacity[edge] -= room
            self._capacity[edge ^ 1] += room
        return True
