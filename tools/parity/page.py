"""The results of scripts/parity.py as one HTML page that needs nothing from outside: plots are inline SVG."""

import math
from collections.abc import Iterable
from html import escape
from typing import Any

from onnxfuse.report.html_parts import document
from onnxfuse.wording import printable
from tools.parity.rows import cells

COLOURS = {
    "convolution": "#4c78a8",
    "matrix product": "#72b7b2",
    "elementwise": "#e45756",
    "fused region": "#f2a33c",
    "attention": "#e377c2",
    "normalization, reduction": "#b279a2",
    "pooling, resizing": "#9d755d",
    "layout": "#8a93a0",
    "recurrent, control": "#59a14f",
}

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #62676f; --page: #ffffff; --line: #dfe2e7;
  --before: #a9b1bd; --after: #2f6fde; --bad: #c0362c; --good: #1b7f3b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --soft: #a0a6b0; --page: #17191d;
  --line: #32363d; --before: #6b7480; --after: #6ea2ff; --bad: #ff8a80; --good: #6fd08c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .4rem; } p.soft { color: var(--soft); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } .bad { color: var(--bad); } .good { color: var(--good); }
svg { display: block; width: 100%; height: auto; min-width: 640px; max-width: 1000px; }
svg text { font: 12px system-ui, sans-serif;
  fill: var(--ink); } svg text.soft { fill: var(--soft); } svg line { stroke: var(--line); }
.key { display: inline-block; width: .8rem; height: .8rem; margin: 0 .35rem 0 1rem; border-radius: .15rem; }
"""

WIDTH, LEFT, RIGHT, ROW = 800, 220, 80, 18
"""Of plots: as wide as a page of text, so that their names keep their size there."""


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def render(content: dict[str, Any]) -> str:
    """The page for the content of results.json.  Every name and text is escaped."""
    models = content["models"]
    parts = [_head(content), _times(models), _shares(models), _regions(models), _table(models)]
    return document("onnxfuse: parity over the model zoo", parts, STYLE)


def _text(value: object) -> str:
    return escape(printable(str(value)), quote=True)


def _head(content: dict[str, Any]) -> str:
    models = content["models"]
    passed = sum(item["ok"] for item in models)
    ratios = [item["time"]["ratio"] for item in models if item["time"]]
    mean = f" Geometric mean of the speed ratios: {geometric_mean(ratios):.3f}." if ratios else ""
    colour = "good" if passed == len(models) else "bad"
    facts = ", ".join(_text(content[key]) for key in ("machine", "system", "versions", "date"))
    failures = "".join(
        f'<p class="bad"><b>{_text(item["name"])}</b>: {_text(item["reason"])}'
        + (f" ({_text(item['reproducer'])})" if item["reproducer"] else "")
        + "</p>"
        for item in models
        if not item["ok"]
    )
    return (
        "<h1>onnxfuse: parity over the model zoo</h1>"
        f'<p><span class="{colour}">{passed} of {len(models)} models pass</span>, '
        f"{sum(item['fused'] for item in models)} regions fused, target {_text(content['target'])}.{mean}</p>"
        f'<p class="soft">{facts}</p>{failures}'
    )


def _table(models: list[dict[str, Any]]) -> str:
    first = ("model", "ratio", "ms before", "ms after")
    others = ("outputs", "max abs", "max rel", "max ulp", "top-1", "regions", "nodes", "launches", "task", "reference")
    rows = []
    for item in models:
        found = cells(item)
        verdict = '<span class="good">pass</span>' if item["ok"] else '<span class="bad">FAIL</span>'
        before, after = (_cells(found[column] for column in columns) for columns in (first, others))
        rows.append(f"<tr>{before}<td>{verdict}</td>{after}</tr>")
    head = "".join(f"<th>{column}</th>" for column in (*first, "result", *others))
    note = (
        '<p class="soft">Errors are the largest over every output, size and way to run (with the library and without '
        "it). Nodes are those of the files; launches are the kernels that ONNX Runtime really runs. The ratio is the "
        "time of ONNX Runtime over the time of onnxfuse.</p>"
    )
    return (
        f'<h2>Models</h2>{note}<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n'
        + "\n".join(rows)
        + "</tbody></table></div>"
    )


def _cells(values: Iterable[object]) -> str:
    return "".join(f"<td>{_text(value)}</td>" for value in values)


# --- plots ---


class _LogAxis:
    """A horizontal axis in powers of ten, from x = LEFT to x = WIDTH - RIGHT."""

    def __init__(self, values: list[float]) -> None:
        self.low = math.floor(math.log10(min(values)))
        self.high = max(math.ceil(math.log10(max(values))), self.low + 1)

    def x(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - RIGHT)

    def grid(self, height: float, unit: str = "") -> str:
        parts = []
        step = max(1, (self.high - self.low) // 10)
        for power in range(self.low, self.high + 1, step):
            x = self.x(10.0**power)
            parts.append(f'<line x1="{x:.1f}" y1="20" x2="{x:.1f}" y2="{height:.0f}"/>')
            label = f"{10.0**power:g}{unit}"
            parts.append(f'<text class="soft" x="{x:.1f}" y="13" text-anchor="middle">{label}</text>')
        return "".join(parts)


def _svg(height: float, body: str, label: str) -> str:
    drawn = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{_text(label)}">{body}</svg>'
    return f'<div class="scroll">{drawn}</div>'


def _name(text: str, y: float) -> str:
    return f'<text x="{LEFT - 8}" y="{y:.1f}" text-anchor="end">{_text(text)}</text>'


def _times(models: list[dict[str, Any]]) -> str:
    timed = sorted((item for item in models if item["time"]), key=lambda item: -item["time"]["ratio"])
    if not timed:
        return ""
    axis = _LogAxis([item["time"][key] for item in timed for key in ("before_ms", "after_ms")])
    height = 24 + len(timed) * ROW
    parts = [axis.grid(height, " ms")]
    for number, item in enumerate(timed):
        y = 34 + number * ROW
        before, after, ratio = (item["time"][key] for key in ("before_ms", "after_ms", "ratio"))
        left, right = axis.x(before), axis.x(after)
        title = f"{item['name']}: {before:.3f} ms before, {after:.3f} ms after"
        # A path, since the colour of a line is the grid's.
        parts.append(
            f"<g><title>{_text(title)}</title>{_name(item['name'], y + 4)}"
            f'<path d="M{left:.1f} {y}H{right:.1f}" stroke="var(--before)" stroke-width="3"/>'
            f'<circle cx="{left:.1f}" cy="{y}" r="4.5" fill="var(--before)"/>'
            f'<circle cx="{right:.1f}" cy="{y}" r="4.5" fill="var(--after)"/>'
            f'<text x="{WIDTH - RIGHT + 12}" y="{y + 4}">{ratio:.2f} x</text></g>'
        )
    legend = (
        '<p class="soft">Lower quartiles, on a logarithmic axis, the largest gain first.'
        '<span class="key" style="background:var(--before)"></span>before (ONNX Runtime)'
        '<span class="key" style="background:var(--after)"></span>after (onnxfuse)</p>'
    )
    return f"<h2>Time of a run</h2>{legend}{_svg(height, ''.join(parts), 'time of a run before and after')}"


def _regions(models: list[dict[str, Any]]) -> str:
    points: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for item in models:
        regions = [region for region in item["regions"] if not region["note"]]
        if regions:
            points.append((item, regions))
    if not points:
        return ""
    errors = [_number(region["excess"]) for _, regions in points for region in regions]
    exact = sum(error == 0 for error in errors)
    axis = _LogAxis([*(error for error in errors if error > 0), 1.0])
    height = 24 + len(points) * ROW
    parts = [axis.grid(height)]
    edge = axis.x(1.0)
    parts.append(f'<path d="M{edge:.1f} 20V{height}" stroke="var(--bad)" stroke-dasharray="4 3"/>')
    for number, (item, regions) in enumerate(points):
        y = 34 + number * ROW
        parts.append(_name(item["name"], y + 4))
        equal = 0
        for place, region in enumerate(regions):
            error = _number(region["excess"])
            if error == 0:
                equal += 1
                continue
            colour = "var(--after)" if region["ok"] else "var(--bad)"
            title = f"{region['name']}: {error:.3g} of what is allowed"
            shifted = y + (place % 5 - 2) * 1.6  # equal errors lie beside each other
            parts.append(
                f'<circle cx="{axis.x(error):.1f}" cy="{shifted:.1f}" r="3" fill="{colour}" fill-opacity=".55">'
                f"<title>{_text(title)}</title></circle>"
            )
        parts.append(f'<text class="soft" x="{WIDTH - RIGHT + 12}" y="{y + 4}">{equal} exact</text>')
    note = (
        '<p class="soft">The largest error of each fused node, run alone on what reaches it in the model, over the '
        f"error that is allowed: right of the dashed line would fail. {exact} of {len(errors)} comparisons are exact; "
        "the column on the right counts them.</p>"
    )
    return f"<h2>Error of each region</h2>{note}{_svg(height, ''.join(parts), 'error of each region')}"


def _number(value: float | str) -> float:
    number = float(value)
    return number if math.isfinite(number) else 1e30


def _shares(models: list[dict[str, Any]]) -> str:
    profiled = [item for item in models if sum(item["shares"][0].values()) > 0]
    if not profiled:
        return ""
    span = WIDTH - LEFT - RIGHT
    row = 26
    height = 10 + len(profiled) * row
    parts = []
    for number, item in enumerate(profiled):
        y = 8 + number * row
        whole = max(sum(shares.values()) for shares in item["shares"])
        parts.append(_name(item["name"], y + 13))
        for place, shares in enumerate(item["shares"]):
            x = float(LEFT)
            for kind, colour in COLOURS.items():
                time = shares.get(kind, 0.0)
                if time <= 0:
                    continue
                size = time / whole * span
                when = ("before", "after")[place]
                title = f"{item['name']} {when}, {kind}: {time:.0f} µs, {100 * time / sum(shares.values()):.0f} %"
                parts.append(
                    f'<rect x="{x:.1f}" y="{y + place * 10}" width="{size:.1f}" height="9" fill="{colour}">'
                    f"<title>{_text(title)}</title></rect>"
                )
                x += size
        total = sum(item["shares"][0].values())
        parts.append(f'<text class="soft" x="{WIDTH - RIGHT + 12}" y="{y + 13}">{total / 1000:.2f} ms</text>')
    legend = "".join(f'<span class="key" style="background:{colour}"></span>{kind}' for kind, colour in COLOURS.items())
    note = (
        '<p class="soft">Time in kernels by ONNX Runtime\'s profile on one thread; the upper bar is before, the lower '
        f"after, both on the scale of the longer one.<br>{legend}</p>"
    )
    return f"<h2>Where the time goes</h2>{note}{_svg(height, ''.join(parts), 'share of time by kind of operator')}"
