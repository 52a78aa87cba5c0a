"""The results of scripts/bench.py as Markdown tables and as one SVG image that needs nothing from outside."""

import math
from html import escape
from statistics import median
from textwrap import wrap
from typing import Any

from onnxfuse.core_distance import FAR
from onnxfuse.wording import printable
from tools.bench.known_peers import BASE, OURS, PEERS
from tools.markdown_table import table

GROUPS = {
    "models": "Models: time of each peer over the time of onnxfuse, with the bounds of the 95 % interval",
    "chains": "Chains of elementwise nodes over one float32 tensor: time over the time of onnxfuse",
    "reductions": "Chains that reduce, of float32: time over the time of onnxfuse",
}

Record = dict[str, Any]

MOST_APART = 5.0
"""Per cent by which what ``optimize`` prints may differ from the table."""

# --- the tables ---


def markdown(content: dict[str, Any]) -> str:
    """Both tables, who is left out and why, and what was measured with what."""
    parts = [_table(content, group) for group in GROUPS if _records(content, group)]
    return "\n\n".join([*parts, *_left_out(content), _settings(content)])


def _records(content: dict[str, Any], group: str) -> list[Record]:
    return [record for record in content["subjects"] if record["group"] == group]


def _peers(content: dict[str, Any], group: str) -> list[str]:
    """The peers with a column: those that were timed on something of the group, in the order of PEERS."""
    records = _records(content, group)
    return [name for name in PEERS if name != OURS and any("ms" in r["peers"].get(name, {}) for r in records)]


def _table(content: dict[str, Any], group: str) -> str:
    records, names = _records(content, group), _peers(content, group)
    what = ["model", "parameters", "inputs"] if group == "models" else ["chain"]
    printed = any(r.get("printed") for r in records)
    said = ["printed by optimize"] if printed else []
    head = [*what, "onnxfuse", *(PEERS[name].title for name in names), *said, "fastest"]
    rows = []
    for record in records:
        ours = record["peers"].get(OURS, {})
        cells = [_time(ours["ms"]) if "ms" in ours else "-", *(_cell(record, name) for name in names)]
        about = [_millions(record["parameters"]), record["size"]] if group == "models" else []
        said = [_printed(record)] if printed else []
        rows.append([record["name"], *about, *cells, *said, fastest(record)])
    if len(records) > 1:
        means = [_mean(records, name) for name in names]
        rows.append(["geometric mean", *[""] * len(what), *means, *[""] * printed, ""])
    title = f"{GROUPS[group]}; above 1 onnxfuse is faster, and bold is where a peer is:"
    return f"{title}\n\n{table(map(_plain, head), (map(_plain, row) for row in rows))}"


def _time(milliseconds: float) -> str:
    if milliseconds < 0.1:
        return f"{milliseconds * 1000:.1f} µs"
    return f"{milliseconds:.3g} ms" if milliseconds < 100 else f"{milliseconds:.0f} ms"


def _millions(parameters: int) -> str:
    """``109 M``."""
    return f"{parameters / 1e6:.3g} M"


def _cell(record: Record, name: str) -> str:
    result = record["peers"].get(name, {})
    if "ratio" not in result:
        return _time(result["ms"]) if "ms" in result else "-"
    value, low, high = result["ratio"]
    digits = 2 if value < 10 else 0
    text = f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f}), {_time(result['ms'])}"
    return f"**{text}**" if high < 1 and PEERS[name].rival else text


def _printed(record: Record) -> str:
    """The first line of ``optimize`` in short, with a word where two cores were far from each other meanwhile."""
    said = record.get("printed")
    if not said:
        return "-"
    far = ", far" if (said["distance"] or 0) >= FAR else ""
    return f"{said['ratio']:.2f} ({said['low']:.2f} to {said['high']:.2f}){far}"


def fastest(record: Record) -> str:
    """Who has the shortest time; in bold the fastest peer that is ahead of onnxfuse by more than chance, if any is."""
    timed = {name: result for name, result in record["peers"].items() if "ms" in result and not PEERS[name].limit}
    if not timed:
        return "-"
    ahead = [name for name, result in timed.items() if "ratio" in result and result["ratio"][2] < 1]
    best = min(ahead or timed, key=lambda name: float(timed[name]["ms"]))
    title = PEERS[best].title
    if ahead and PEERS[best].rival:
        return f"**{title}, {1 / timed[best]['ratio'][0]:.2f} times**"
    return title if ahead or best == OURS or OURS not in timed else f"{title} or onnxfuse"


def _mean(records: list[Record], name: str) -> str:
    ratios = [r["peers"][name]["ratio"][0] for r in records if "ratio" in r["peers"].get(name, {})]
    if not ratios:
        return "-"
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return f"{mean:.2f}" if len(ratios) == len(records) else f"{mean:.2f} of {len(ratios)}"


def _left_out(content: dict[str, Any]) -> list[str]:
    """A list of the peers that are missing, and of what the others could not run."""
    lines = []
    for name, peer in content["peers"].items():
        if peer["missing"]:
            lines.append(f"- {peer['title']}, everywhere: {peer['missing']}")
            continue
        reasons: dict[str, list[str]] = {}
        for record in content["subjects"]:
            reason = record["peers"].get(name, {}).get("reason")
            if reason:
                reasons.setdefault(reason, []).append(record["name"])
        lines += [f"- {peer['title']}, {', '.join(models)}: {reason}" for reason, models in reasons.items()]
    return ["Left out:\n\n" + "\n".join(map(_plain, lines))] if lines else []


def _settings(content: dict[str, Any]) -> str:
    lines = [f"- {p['title']} ({p['versions']}): {p['setting']}" for p in content["peers"].values() if p["versions"]]
    trials = content["arguments"]["trials"]
    lines.append(f"- TVM's tuner: {trials[0]} trials a kernel for chains, {trials[1]} for models (0: not tuned)")
    how = "with --static and --tune" if content["arguments"]["tuned"] else "as onnxfuse optimize leaves them by default"
    lines.append(f"- models: optimized {how}; chains with --static and --tune")
    commit = f", commit {content['commit']}" if content["commit"] else ""
    place = f"Machine: {content['machine']}, {content['system']}, {content['date']}{commit}."
    lines += filter(None, (_distances(content["subjects"]), _agreement(content["subjects"])))
    return "\n".join(["Settings:", "", *map(_plain, lines), "", place])


def _distances(records: list[Record]) -> str:
    """How far two cores were from each other, which no program but the machine's host decides."""
    near = sorted(r["distance"] for r in records if r.get("distance") and r["distance"] < FAR)
    far = [r["name"] for r in records if r.get("distance") and r["distance"] >= FAR]
    first = f"two cores were {near[0]:.0f} to {near[-1]:.0f} ns from each other" if near else ""
    rest = f"two cores were far from each other, which makes other ratios, for {', '.join(far)}" if far else ""
    return "- " + "; ".join(filter(None, (first, rest))) if near or far else ""


def _agreement(records: list[Record]) -> str:
    """How near what ``optimize`` printed is to ONNX Runtime's column, for models that both timed with cores as near."""
    apart: list[tuple[float, str]] = []
    for record in records:
        said, other = record.get("printed"), record["peers"].get(BASE, {}).get("ratio")
        distances = (record.get("distance"), said and said["distance"])
        if not said or not other or len({bool(known and known >= FAR) for known in distances}) > 1:
            continue
        percent = 100 * math.expm1(abs(math.log(said["ratio"] / other[0])))
        by_chance = said["low"] <= other[2] and other[1] <= said["high"]
        apart.append((percent, f"{record['name']} {percent:.1f} %" + ("" if by_chance else ", more than chance")))
    if not apart:
        return ""
    over = [words for percent, words in sorted(apart, reverse=True) if percent > MOST_APART]
    count = sum(bool(record.get("printed")) for record in records)
    middle = median(percent for percent, _ in apart)
    return (
        f"- what onnxfuse optimize printed when it made the model, and the column {PEERS[BASE].title}, in the "
        f"{len(apart)} of {count} models for which two cores were as near both times: {middle:.1f} % from each "
        f"other in the middle, {max(apart)[0]:.1f} at most; above {MOST_APART:g}: {', '.join(over) or 'none'}"
    )


def _plain(text: str) -> str:
    """On one line, and without what would end a cell."""
    return " ".join(printable(text).split()).replace("|", "/")


# --- the plot ---

NAME, CELL, GAP, ROW, TOP, VALUE = 312, 140, 16, 17, 62, 36
COLUMNS, _TITLE = 3, 20
"""Peers beside each other, and the characters of a line of their titles: the plot is then as wide as a page of text,
and its names can be read there."""
COLOURS = {
    **{"page": "#ffffff", "ink": "#1c1e21", "soft": "#62676f", "line": "#dfe2e7"},
    **{"slower": "#a9b1bd", "ahead": "#d1495b", "limit": "#72b7b2"},
}
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:INK}.soft{fill:SOFT;font-size:11px}.b{font-weight:600}"
    ".line{stroke:LINE}.one{stroke:INK}.spread{stroke:INK;stroke-width:1.2}"
)
for _name, _colour in COLOURS.items():
    STYLE = STYLE.replace(_name.upper(), _colour)


def svg(content: dict[str, Any]) -> str:
    """One column a peer, COLUMNS of them beside each other and the rest below, one row a model or chain; a bar from 1,
    which is onnxfuse, to the peer's time over it.

    The axis is logarithmic and the same in every column.
    """
    groups = [(_records(content, group), _peers(content, group)) for group in GROUPS]
    shown = [
        (records, names[first : first + COLUMNS])
        for records, names in groups
        if records
        for first in range(0, len(names), COLUMNS)
    ]
    columns = max((len(names) for _, names in shown), default=1)
    width = NAME + columns * (CELL + GAP) + GAP
    axis = _Axis([bound for records, names in shown for r in records for n in names for bound in _bounds(r, n)])
    parts, y = [], 24
    parts.append(f'<text class="b" x="{GAP}" y="{y}">Time over the time of onnxfuse (logarithmic axis)</text>')
    note = "grey: slower than onnxfuse, red: faster, green: a limit or another setting, line: 95 % interval"
    place = f"{_text(content['machine'])}, {_text(content['date'])}"
    parts.append(f'<text class="soft" x="{GAP}" y="{y + 17}">{place}</text>')
    parts.append(f'<text class="soft" x="{GAP}" y="{y + 33}">{note}</text>')
    y += 50
    for records, names in shown:
        parts.append(_panel(records, names, axis, y))
        y += TOP + len(records) * ROW + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}" role="img">'
        f"<title>Time of each peer over the time of onnxfuse</title><style>{STYLE}</style>"
        f'<rect width="100%" height="100%" fill="{COLOURS["page"]}"/>' + "\n".join(parts) + "</svg>\n"
    )


class _Axis:
    """Powers of two, from 0 to 1 over a cell; values beyond the ends are drawn at them."""

    def __init__(self, values: list[float]) -> None:
        logs = [math.log2(value) for value in values]
        self.low = max(min(-1, math.floor(min(logs, default=-1))), -3)
        self.high = min(max(2, math.ceil(max(logs, default=2))), 5)

    def x(self, value: float) -> float:
        share = (math.log2(value) - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0) * (CELL - VALUE)


def _bounds(record: Record, name: str) -> list[float]:
    ratio = record["peers"].get(name, {}).get("ratio")
    return [float(value) for value in ratio] if ratio else []


def _panel(records: list[Record], names: list[str], axis: _Axis, top: int) -> str:
    parts = []
    bottom = top + TOP - 14 + len(records) * ROW
    for column, name in enumerate(names):
        left = NAME + column * (CELL + GAP)
        for number, line in enumerate(reversed(wrap(PEERS[name].title, _TITLE, break_on_hyphens=False))):
            parts.append(f'<text class="b" x="{left}" y="{top + 16 - 14 * number}">{_text(line)}</text>')
        for power in range(axis.low, axis.high + 1):
            x = left + axis.x(2.0**power)
            kind = "one" if power == 0 else "line"
            parts.append(f'<line class="{kind}" x1="{x:.1f}" y1="{top + 38}" x2="{x:.1f}" y2="{bottom}"/>')
            if (power - axis.low) % 2 == axis.low % 2:
                label = f"{2.0**power:g}"
                parts.append(f'<text class="soft" x="{x:.1f}" y="{top + 34}" text-anchor="middle">{label}</text>')
        for row, record in enumerate(records):
            parts.append(_bar(record, name, axis, left, top + TOP - 20 + row * ROW))
    for row, record in enumerate(records):
        y = top + TOP - 9 + row * ROW
        parts.append(f'<text x="{NAME - 14}" y="{y}" text-anchor="end">{_text(record["name"])}</text>')
    return "\n".join(parts)


def _bar(record: Record, name: str, axis: _Axis, left: int, y: int) -> str:
    result = record["peers"].get(name, {})
    if "ratio" not in result:
        reason = result.get("reason", "not timed")
        mark = f'<text class="soft" x="{left + axis.x(1.0) + 4:.1f}" y="{y + 11}">-</text>'
        return f"<g><title>{_text(record['name'])}: {_text(reason)}</title>{mark}</g>"
    value, low, high = result["ratio"]
    one, end = axis.x(1.0), axis.x(value)
    colour = COLOURS["ahead" if high < 1 else "slower"] if PEERS[name].rival else COLOURS["limit"]
    start, length = left + min(one, end), max(abs(end - one), 1.0)
    title = f"{record['name']}, {PEERS[name].title}: {value:.3f} ({low:.3f} to {high:.3f}), {_time(result['ms'])}"
    spread = f'x1="{left + axis.x(low):.1f}" x2="{left + axis.x(high):.1f}" y1="{y + 7}" y2="{y + 7}"'
    label = left + max(axis.x(high), one) + 4
    number = f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return (
        f"<g><title>{_text(title)}</title>"
        f'<rect x="{start:.1f}" y="{y + 1}" width="{length:.1f}" height="{ROW - 5}" fill="{colour}"/>'
        f'<line class="spread" {spread}/>'
        f'<text class="soft" x="{label:.1f}" y="{y + 11}">{number}</text></g>'
    )


def _text(value: object) -> str:
    return escape(printable(str(value)), quote=True)
