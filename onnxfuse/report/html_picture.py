"""The graph before and after on the page of a report, as SVG inside it."""

from collections.abc import Sequence

from onnxfuse.report.fused_region import TIMES
from onnxfuse.report.html_parts import text
from onnxfuse.report.layers import Places, layered
from onnxfuse.report.outline import Box, Drawing, draw, kinds_of_nodes
from onnxfuse.report.report import Report

_MOST_BOXES = 400
_COLOURS = 8
"""Of kinds, as the style has them; further ones share the last."""
_CHARACTER, _PADDING = 6.7, 16.0
_HEIGHT, _STEP = 24.0, 44.0
_MARGIN, _LANE = 8.0, 46.0


def picture(report: Report) -> str:
    """The section; empty where no graph was kept."""
    if not report.graph_before or not report.graph_after:
        return ""
    inside = kinds_of_nodes(report.fused)
    drawings = draw(report.graph_before, inside), draw(report.graph_after, {})
    kinds = sorted({box.kind for drawing in drawings for box in drawing.boxes if box.kind})
    classes = {kind: f"k{min(number, _COLOURS - 1)}" for number, kind in enumerate(kinds)}
    legend = " ".join(f'<span class="kind {name}">{text(kind)}</span>' for kind, name in classes.items())
    note = (
        '<p class="soft">Each box launches a kernel; what only renames memory, makes a few numbers, or computes '
        "without the inputs' values, such as shapes and masks of positions, is left out. Equal blocks that follow each "
        "other are drawn once, with how many there are. In the graph before, the colour is that of the node that a box "
        "became part of; boxes without are ONNX Runtime's.</p>"
        f"\n<p>{legend}</p>"
    )
    titles = [
        what if counts is None else f"{what}: {counts.launches:,} launches"
        for what, counts in (("before", report.before), ("after", report.after))
    ]
    figures = "\n".join(_figure(title, drawing, classes) for title, drawing in zip(titles, drawings, strict=True))
    return f'<h2>The graph</h2>\n{note}\n<div class="graphs">\n{figures}\n</div>'


def _figure(title: str, drawing: Drawing, classes: dict[str, str]) -> str:
    boxes = drawing.boxes[:_MOST_BOXES]
    edges = [edge for edge in drawing.edges if max(edge) < len(boxes)]
    places = layered([_width(box) for box in boxes], edges)
    blocks = [(first, min(last, len(boxes)), count) for first, last, count in drawing.blocks if first < len(boxes)]
    lanes = _lanes([_span(block, places) for block in blocks])
    left = _MARGIN + _LANE * (1 + max(lanes, default=-1))
    width, height = left + places.width + _MARGIN, places.layers * _STEP - _STEP + _HEIGHT + 2 * _MARGIN
    parts = [
        *(_edge(path, left) for path in places.paths),
        *(_box(box, index, places, left, classes) for index, box in enumerate(boxes)),
        *(_block(block, places, _LANE * (lane + 1)) for block, lane in zip(blocks, lanes, strict=True)),
    ]
    more = len(drawing.boxes) - len(boxes)
    ending = f'<p class="soft">And {more} more.</p>' if more else ""
    return (
        f'<figure><figcaption>{title}</figcaption><div class="graph">'
        f'<svg role="img" aria-label="The graph {title}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">' + "\n".join(parts) + f"</svg></div>{ending}</figure>"
    )


def _label(box: Box) -> str:
    return box.label if len(box.label) <= 40 else f"{box.label[:39]}…"


def _width(box: Box) -> float:
    return _CHARACTER * len(_label(box)) + _PADDING


def _y(layer: int) -> float:
    return _MARGIN + layer * _STEP


def _box(box: Box, index: int, places: Places, left: float, classes: dict[str, str]) -> str:
    x, y, width = left + places.x[index], _y(places.layer[index]), _width(box)
    title = f"{box.label} {box.shape}" + (f" {TIMES} {len(box.steps)}" if len(box.steps) > 1 else "")
    return (
        f'<g class="{classes.get(box.kind, "plain")}"><title>{text(title)}</title>'
        f'<rect x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_HEIGHT:.0f}" rx="4"/>'
        f'<text x="{x:.1f}" y="{y + 16:.1f}">{text(_label(box))}</text></g>'
    )


def _edge(path: list[tuple[float, int]], left: float) -> str:
    """From the bottom of a box through points to the top of another, curved between."""
    x, layer = path[0]
    y = _y(layer) + _HEIGHT
    parts = [f"M{left + x:.1f} {y:.1f}"]
    for number, (x, layer) in enumerate(path[1:], 1):
        top = _y(layer)
        middle = (y + top) / 2
        parts.append(
            f"C{left + path[number - 1][0]:.1f} {middle:.1f} {left + x:.1f} {middle:.1f} {left + x:.1f} {top:.1f}"
        )
        y = top
        if number < len(path) - 1:
            y = top + _HEIGHT
            parts.append(f"V{y:.1f}")
    return f'<path d="{"".join(parts)}"/>'


def _span(block: tuple[int, int, int], places: Places) -> tuple[int, int]:
    """The first layer of a block and its last."""
    layers = places.layer[block[0] : block[1]]
    return min(layers), max(layers)


def _lanes(spans: Sequence[tuple[int, int]]) -> list[int]:
    """For each span a lane in which it overlaps with no earlier one."""
    ends: list[list[tuple[int, int]]] = []
    found = []
    for first, last in spans:
        free = (lane for lane, taken in enumerate(ends) if all(last < start or end < first for start, end in taken))
        lane = next(free, len(ends))
        if lane == len(ends):
            ends.append([])
        ends[lane].append((first, last))
        found.append(lane)
    return found


def _block(block: tuple[int, int, int], places: Places, x: float) -> str:
    """A bracket at the left of the layers of a block, and how many it stands for."""
    first, last = _span(block, places)
    top, bottom = _y(first), _y(last) + _HEIGHT
    return (
        f'<g class="block"><path d="M{x:.0f} {top:.1f}h-5V{bottom:.1f}h5"/>'
        f'<text x="{x - 9:.0f}" y="{(top + bottom) / 2 + 4:.1f}">{TIMES} {block[2]}</text></g>'
    )
