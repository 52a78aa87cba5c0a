"""Which sizes to run a model with so that they are beyond the constants that it compares sizes with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnxfuse.check.dynamic_sizes import Limit

_MULTIPLE = 64
"""What sizes are often a multiple of, where a model cuts a dimension into blocks."""


@dataclass(frozen=True)
class Goals:
    """What sizes are to go beyond: ``sizes`` has those that may change, as they are."""

    limits: tuple[Limit, ...]
    sizes: Mapping[str, int]

    def __iter__(self) -> Iterator[dict[str, int]]:
        """Sizes to run with, the ones beyond most constants first."""
        levels = {level for limit in self.limits if (level := self._level(limit)) is not None}
        tried = [self._up_to(level) for level in sorted(levels, reverse=True)]
        yield from (goal for place, goal in enumerate(tried) if goal and goal not in tried[:place])

    def _level(self, limit: Limit) -> int | None:
        """A size that is beyond a constant, or all rows of a table; None if all sizes are as they may be."""
        level = limit.value if limit.is_table else beyond(limit.value)
        smaller = (size <= limit.value and size < level for name, size in self.sizes.items() if name in limit.sizes)
        return level if any(smaller) else None

    def _up_to(self, level: int) -> dict[str, int]:
        goal = {}
        for name, size in self.sizes.items():
            levels = [found for limit in self.limits if name in limit.sizes and (found := self._level(limit))]
            wanted = max((found for found in levels if found <= level), default=0)
            # A table of fewer rows than the size that the model ran with is looked up in another way.
            rows = [limit.value for limit in self.limits if limit.is_table and name in limit.sizes]
            wanted = min([wanted, *(row for row in rows if row >= size)])
            if wanted > size:
                goal[name] = wanted
        return goal

    def missed(self, reached: Mapping[str, int]) -> Limit | None:
        """The largest constant that no size compared with it is beyond."""
        missed = [
            limit
            for limit in self.limits
            if not limit.is_table
            and (sizes := [reached.get(name, size) for name, size in self.sizes.items() if name in limit.sizes])
            and max(sizes) <= limit.value
        ]
        return max(missed, key=lambda limit: limit.value, default=None)


def beyond(value: int) -> int:
    """A size so much larger than a constant that what is on its either side shows."""
    return value + value // 2 + 8


def alternatives(goal: Mapping[str, int], sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Sizes as good as those of a goal, for a model that does not run with these.

    Sizes that were the same may have to be so; blocks may have to be whole; and a table may have some rows more than
    there are positions.
    """
    grown = {sizes[name]: size for name, size in goal.items()}
    alike = {name: grown[size] for name, size in sizes.items() if size in grown} | dict(goal)
    for tried in (goal, alike):
        yield dict(tried)
        if goal == alike:
            break
    yield {name: -(-size // _MULTIPLE) * _MULTIPLE for name, size in alike.items()}
    for less in (1, 2, _MULTIPLE):
        yield {name: max(size - less, sizes[name]) for name, size in alike.items()}
    yield {name: max(size // _MULTIPLE * _MULTIPLE, sizes[name]) for name, size in alike.items()}
