"""A graph as it is drawn: the kernels that it launches, and which reads what of which."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnxfuse.report.byte_counts import Bytes
from onnxfuse.report.fused_region import FusedRegion

_MOST_SHARED = 5
"""Readers of a tensor, from which on what makes it belongs to no one of them, such as a mask to no layer."""
_LONGEST_BLOCK = 1000
_LEAST_SAVED = 3
"""Steps, by a fold: two equal ones beside each other are as clear as one that says so."""
_LARGEST = 20_000
"""Steps of a graph that is searched for blocks."""


@dataclass(frozen=True)
class Step:
    """A launch: the ``name`` (for want of one that of its first output) and the ``op`` of its node, the ``kind`` of a
    fused one, else empty, the ``shape`` of its first output in words, the positions of the steps that make what it
    reads, and the ``size`` of what it moves, where that is wanted."""

    name: str
    op: str
    kind: str
    shape: str
    inputs: tuple[int, ...]
    size: Bytes | None = None


Outline = Sequence[Step]
"""The steps of a graph, in an order in which they can run."""


@dataclass
class Box:
    """A step as it is drawn, for all that a folded block has in its place: ``steps`` are their positions."""

    label: str
    kind: str
    shape: str
    steps: list[int]


@dataclass
class Drawing:
    """Boxes, in an order in which they can run, edges between them by their positions, each from an earlier to a later
    one, and the blocks that are drawn once: the positions of the first box and of that after the last, and how many."""

    boxes: list[Box]
    edges: list[tuple[int, int]]
    blocks: list[tuple[int, int, int]]


def kinds_of_nodes(regions: Iterable[FusedRegion]) -> dict[str, str]:
    """The kind of the fused node that each node became part of, by the names of the nodes."""
    inside = {region.name: region for region in regions}
    found: dict[str, str] = {}
    for region in inside.values():
        pending, seen = list(region.nodes), set()
        while pending:
            name = pending.pop()
            if name in inside and name not in seen:  # a region that another took in
                seen.add(name)
                pending += inside[name].nodes
            found[name] = region.kind
    found.pop("", None)  # of nodes that have no name
    return found


def draw(outline: Outline, kinds: Mapping[str, str]) -> Drawing:
    """The drawing of a graph, with equal blocks that follow each other folded into one.

    ``kinds`` has the kind by which a step that is no fused node is coloured, by its name.
    """
    order = _depth_first(outline)
    steps = [outline[position] for position in order]
    colours = [step.kind or kinds.get(step.name, "") for step in steps]
    place = {position: index for index, position in enumerate(order)}
    inputs = [[place[source] for source in step.inputs] for step in steps]
    keys = [(step.op, colour, step.shape) for step, colour in zip(steps, colours, strict=True)]
    boxes: list[Box] = []
    blocks: list[tuple[int, int, int]] = []
    box_of: list[tuple[int, int]] = []  # for each step the position of its box, and which copy of a block it is in
    for start, period, count in _blocks(keys, inputs):
        first = len(boxes)
        for step, colour in zip(steps[start : start + period], colours[start : start + period], strict=True):
            boxes.append(Box(step.op, colour, step.shape, []))
        if count > 1:
            blocks.append((first, len(boxes), count))
        for index in range(period * count):
            boxes[first + index % period].steps.append(order[start + index])
            box_of.append((first + index % period, index // period))
    edges: dict[tuple[int, int], None] = {}
    folded = [(first, last) for first, last, _ in blocks]
    for index, sources in enumerate(inputs):
        box, copy = box_of[index]
        for source in sources:
            other, other_copy = box_of[source]
            if copy == other_copy or not any(first <= box < last and first <= other < last for first, last in folded):
                edges[other, box] = None
    return Drawing(boxes, list(edges), blocks)


def _depth_first(outline: Outline) -> list[int]:
    """The positions of the steps such that a block's come together: each after all that it needs, and those next to
    each other that need each other.  What many read comes first."""
    readers = Counter(source for step in outline for source in set(step.inputs))
    roots = [position for position in range(len(outline)) if readers[position] > _MOST_SHARED]
    roots += [position for position in range(len(outline)) if not readers[position]]
    done: dict[int, None] = {}
    for root in roots:
        pending = [root]
        while pending:
            position = pending[-1]
            waiting = [source for source in outline[position].inputs if source not in done]
            if waiting:
                pending += reversed(waiting)
            else:
                done[position] = None
                pending.pop()
    return list(done)


def _blocks(keys: list[tuple[str, str, str]], inputs: list[list[int]]) -> list[tuple[int, int, int]]:
    """Runs of equal blocks and what is between them, in order: where each begins, how long a block is, how many."""
    numbers: dict[tuple[str, str, str], int] = {}
    labels = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    found: list[tuple[int, int, int]] = []
    pending = [(0, len(keys))]
    while pending:
        start, end = pending.pop()
        best = _best_run(labels[start:end], start, inputs) if 1 < end - start <= _LARGEST else None
        if best is None:
            found += [(start, end - start, 1)] if end > start else []
            continue
        first, period, count = best
        found.append(best)
        pending += [(start, first), (first + period * count, end)]
    return sorted(found)


def _best_run(labels: np.ndarray, offset: int, inputs: list[list[int]]) -> tuple[int, int, int] | None:
    """The equal blocks that fold away the most steps; None if there are none."""
    best: tuple[int, int, int] | None = None
    saved = _LEAST_SAVED - 1
    for period in range(1, min(len(labels) // 2, _LONGEST_BLOCK) + 1):
        equal = np.concatenate([[False], labels[period:] == labels[:-period], [False]])
        changes = np.flatnonzero(equal[1:] != equal[:-1])
        for first, last in zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True):
            count = (last - first) // period + 1
            if (count - 1) * period > saved:
                start, count = _same_edges(offset + first, period, count, offset + last + period, inputs)
                if (count - 1) * period > saved:
                    best, saved = (start, period, count), (count - 1) * period
    return best


def _same_edges(start: int, period: int, count: int, end: int, inputs: list[list[int]]) -> tuple[int, int]:
    """Where to begin such that the most copies are joined alike inside, and how many these are."""

    def inside(first: int) -> list[list[int]]:
        return [
            [source - first for source in inputs[index] if source >= first] for index in range(first, first + period)
        ]

    best = (start, 1)
    for shift in range(min(period, end - (start + period * count) + 1)):
        first = start + shift
        pattern, copies = inside(first), 1
        while first + (copies + 1) * period <= end and inside(first + copies * period) == pattern:
            copies += 1
        if copies > best[1]:
            best = first, copies
    return best
