"""The fused regions on the page of a report: a row for those of equal shape, with what they read and write."""

from onnxfuse.report.byte_counts import format_bytes
from onnxfuse.report.fused_region import RegionGroup, listed_ops
from onnxfuse.report.html_parts import MOST_ROWS, rest, table, text
from onnxfuse.report.report import Report
from onnxfuse.wording import plural

_MOST_GROUPS = 200
_OPEN_GROUPS = 12


def regions(report: Report) -> str:
    """The section, empty without fused nodes."""
    if not report.fused:
        return ""
    groups = report.groups()
    names = report.symbol_names()
    longest = max(max(group.before, group.after) for group in groups) or 1
    left = MOST_ROWS
    rows = []
    for group in groups[:_MOST_GROUPS]:
        rows.append(_group(group, names, longest, left))
        left = max(0, left - len(group.regions))
    more = len(groups) - _MOST_GROUPS
    note = (
        '<p class="soft">Equal ones are one row, first those that save the most. The upper bar is what their nodes '
        'moved through memory, the lower what they move: <i class="key reads"></i> read, '
        '<i class="key writes"></i> written.</p>'
    )
    ending = f'<p class="soft">And {more} more: the JSON report has all.</p>' if more > 0 else ""
    title = f"<h2>Fused regions</h2>\n<p>{plural(len(report.fused), 'fused node')} of {len(groups)} shapes.</p>"
    shown, hidden = rows[:_OPEN_GROUPS], rows[_OPEN_GROUPS:]
    if hidden:
        folded = f"<details><summary>{len(hidden)} more shapes, which save less</summary>"
        ending = f"{folded}\n" + "\n".join(hidden) + f"{ending}</details>"
    return f"{title}\n{note}\n" + "\n".join(shown) + ending


def _group(group: RegionGroup, names: dict[str, str], longest: int, left: int) -> str:
    """A row that opens on a click; ``left`` is how many nodes the page may still name."""
    region = group.first
    saved = group.before - group.after
    change = "saves" if saved > 0 else "costs"
    gain = f"{change} {format_bytes(abs(saved))}" if region.before is not None and saved else ""
    bars = "".join(
        f'<div class="pair">{_bar("reads", group.reads[side], longest)}{_bar("writes", group.writes[side], longest)}'
        f"<span>{format_bytes(group.reads[side] + group.writes[side])}</span></div>"
        for side in ((0, 1) if region.before is not None else ())
    )
    head = (
        f'<b>{text(group.title)}</b> <span class="soft">{text(region.describe_shape(names))}</span> '
        f'<span class="gain">{gain}</span><br>{text(listed_ops(region.ops))}'
    )
    nest = f"<p>{text(region.nest)}</p>" if region.nest else ""
    programs = "".join(f"<pre>{_lines(each)}</pre>" for each in (region.prologue, region.program) if each)
    saves = f"<p>Each saves {text(region.bytes_saved.text(names))}.</p>" if region.bytes_saved is not None else ""
    rows = [
        (f"<code>{text(each.name)}</code>", _names(each.inputs), _names(each.outputs)) for each in group.regions[:left]
    ]
    listed = table(("fused node", "inputs", "outputs"), rows) if rows else ""
    return (
        f'<details class="region"><summary>{head}{bars}</summary>'
        f"{saves}{nest}{programs}{listed}{rest(len(group.regions), left)}</details>"
    )


def _bar(kind: str, size: int, longest: int) -> str:
    return f'<i class="{kind}" style="width:{70 * size / longest:.2f}%"></i>'


def _lines(program: str) -> str:
    return "\n".join(text(line) for line in program.splitlines())


def _names(names: list[str]) -> str:
    return "<br>".join(f"<code>{text(name)}</code>" for name in names)
