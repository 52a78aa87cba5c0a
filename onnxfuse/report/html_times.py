"""Where the time goes, before and after, on the page of a report."""

from onnxfuse.report.html_parts import pair_of_bars, table, text
from onnxfuse.report.profile import NodeTime, Profile, milliseconds
from onnxfuse.wording import listed

_MOST_OPERATORS = 15
_MOST_NODES = 20
_MOST_NAMES = 40


def times(profile: Profile | None) -> str:
    """The section; empty without a profile."""
    if profile is None:
        return ""
    operators = profile.by_operator()
    longest = max((max(row[1:]) for row in operators), default=0.0) or 1.0
    rows = [
        (
            text(op),
            pair_of_bars(before, after, longest),
            milliseconds(before),
            milliseconds(after),
        )
        for op, before, after in operators[:_MOST_OPERATORS]
    ]
    sums = [sum(one.microseconds for one in side) for side in (profile.original, profile.result)]
    rows.append(("all", "", milliseconds(sums[0]), milliseconds(sums[1])))
    nodes = [(_name(one), text(one.op), milliseconds(one.microseconds)) for one in profile.result[:_MOST_NODES]]
    before = [(_name(one), text(one.op), milliseconds(one.microseconds)) for one in profile.original[:_MOST_NODES]]
    columns = ("node", "operator", "ms")
    return (
        "<h2>Where the time goes</h2>\n"
        '<p class="soft">Milliseconds of a run by ONNX Runtime\'s profiler, which takes time itself, after its own '
        f"fusions; means of {profile.runs[0]} runs before and {profile.runs[1]} after.</p>\n"
        + table(("", "", "before", "after"), rows, "counts")
        + f"<details><summary>The longest nodes after</summary>{table(columns, nodes)}</details>"
        + f"<details><summary>The longest nodes before</summary>{table(columns, before)}</details>"
    )


def _name(node: NodeTime) -> str:
    name = f"<code>{text(node.name or '(no name)')}</code>"
    if not node.stands_for:
        return name
    shown = listed([f"<code>{text(each)}</code>" for each in node.stands_for], _MOST_NAMES)
    return f'{name}<br><span class="soft">for {shown}</span>'
