"""Where the boxes of a drawing go: in layers, from the top down, after Sugiyama, Tagawa and Toda (1981).

Each box is in the layer after the last of those that it reads from; an edge over several layers passes through a point
in each.  The order in a layer follows the mean of the neighbours above and below in turns, and the places from left to
right are, in that order, the nearest to these means (least squares by pooling adjacent violators), no further out than
the widest layer takes.  Edges over many layers pass on the right of all else, so that the boxes stay together.
"""

from collections.abc import Container, Sequence
from itertools import pairwise

_SWEEPS = 6
_GAP = 14.0
_LONG = 10
"""Layers that an edge passes through beside the boxes."""
_POINT = 6.0
"""The width that an edge takes in a layer that it passes through."""


def layered(widths: Sequence[float], edges: Sequence[tuple[int, int]]) -> "Places":
    """Places for boxes of these ``widths``; each of the ``edges`` goes from an earlier box to a later one."""
    layer = _layers(len(widths), edges)
    sizes = list(widths)
    above: list[list[int]] = [[] for _ in widths]
    below: list[list[int]] = [[] for _ in widths]
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for box, row in enumerate(layer):
        rows[row].append(box)
    paths = []
    aside: set[int] = set()
    for source, target in edges:
        path = [source]
        is_long = layer[target] - layer[source] > _LONG
        for row in range(layer[source] + 1, layer[target]):
            rows[row].append(len(sizes))
            path.append(len(sizes))
            if is_long:
                aside.add(len(sizes))
            sizes.append(_POINT)
            above.append([])
            below.append([])
        path.append(target)
        for upper, lower in pairwise(path):
            above[lower].append(upper)
            below[upper].append(lower)
        paths.append(path)
    x = _ordered(rows, sizes, above, below, aside)
    left = min((x[box] - sizes[box] / 2 for box in range(len(sizes))), default=0.0)
    right = max((x[box] + sizes[box] / 2 for box in range(len(sizes))), default=0.0)
    number = [0] * len(sizes)
    for index, row_of in enumerate(rows):
        for box in row_of:
            number[box] = index
    centres = [value - left for value in x]
    points = [[(centres[box], number[box]) for box in path] for path in paths]
    return Places(centres[: len(widths)], layer, points, right - left, len(rows))


class Places:
    """For each box its centre from the left ``x`` and its ``layer``; for each edge the points that it passes, as such
    pairs; how wide the drawing is, and how many layers it has."""

    def __init__(
        self,
        x: list[float],
        layer: list[int],
        paths: list[list[tuple[float, int]]],
        width: float,
        layers: int,
    ) -> None:
        self.x = x
        self.layer = layer
        self.paths = paths
        self.width = width
        self.layers = layers


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The longest way from a box without inputs; such boxes are right above the first that reads them."""
    sources: list[list[int]] = [[] for _ in range(count)]
    targets: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        sources[target].append(source)
        targets[source].append(target)
    layer = [0] * count
    for box in range(count):
        layer[box] = max((layer[source] + 1 for source in sources[box]), default=0)
    for box in reversed(range(count)):
        if not sources[box] and targets[box]:
            layer[box] = min(layer[target] for target in targets[box]) - 1
    return layer


def _ordered(
    rows: list[list[int]],
    sizes: Sequence[float],
    above: list[list[int]],
    below: list[list[int]],
    aside: Container[int],
) -> list[float]:
    """The centres, from orders that follow the neighbours, with those ``aside`` last."""
    x = [0.0] * len(sizes)
    bound = max((sum(sizes[box] + _GAP for box in row) for row in rows), default=0.0) / 2
    for row in rows:
        _spread(row, [0.0] * len(row), sizes, x, bound)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        for row in rows if down else reversed(rows):
            wanted = {
                box: sum(x[other] for other in neighbours[box]) / len(neighbours[box]) if neighbours[box] else x[box]
                for box in row
            }
            row.sort(key=lambda box: (box in aside, wanted[box]))
            _spread(row, [wanted[box] for box in row], sizes, x, bound)
    return x


def _spread(row: Sequence[int], wanted: Sequence[float], sizes: Sequence[float], x: list[float], bound: float) -> None:
    """Give the boxes of a row, in its order, the places that are nearest to those ``wanted`` and do not overlap, and
    move them all where one would be further than ``bound`` from the middle."""
    offset = 0.0
    offsets = []
    pools: list[tuple[float, int]] = []  # the mean of what is wanted, and of how many boxes
    for index, box in enumerate(row):
        offset += (sizes[row[index - 1]] + sizes[box]) / 2 + _GAP if index else 0.0
        offsets.append(offset)
        mean, count = wanted[index] - offset, 1
        while pools and pools[-1][0] > mean:
            other, more = pools.pop()
            mean = (mean * count + other * more) / (count + more)
            count += more
        pools.append((mean, count))
    means = (mean for mean, count in pools for _ in range(count))
    for box, mean, offset in zip(row, means, offsets, strict=True):
        x[box] = mean + offset
    out = max(0.0, -bound - x[row[0]] + sizes[row[0]] / 2) - max(0.0, x[row[-1]] + sizes[row[-1]] / 2 - bound)
    for box in row if out else ():
        x[box] += out
