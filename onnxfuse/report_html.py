"""The report as one HTML page that needs nothing from outside: no script, no font, no image."""

from collections import Counter
from collections.abc import Iterable
from html import escape

from onnxfuse.byte_counts import Bytes
from onnxfuse.report import FusedRegion, Report, group_by_reason, plural, printable

_MOST_ROWS = 2000  # a browser shows a page of a few thousand rows; the JSON report holds all of them

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #62676f; --page: #ffffff; --line: #e2e4e8;
  --before: #a9b1bd; --after: #2f6fde; --bad: #b3261e; --good: #1b7f3b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --soft: #a0a6b0; --page: #17191d;
  --line: #32363d; --before: #5b6470; --after: #6ea2ff; --bad: #ff8a80; --good: #6fd08c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.soft, td.soft { color: var(--soft); } .bad { color: var(--bad); } .good { color: var(--good); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .7rem .35rem 0; overflow-wrap: anywhere;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; }
code, pre { font: 13px/1.4 ui-monospace, monospace; } pre { overflow-x: auto; margin: .4rem 0; }
.bar { height: .7rem; border-radius: .2rem; margin: .15rem 0; min-width: 2px; }
.before { background: var(--before); } .after { background: var(--after); }
summary { cursor: pointer; }
"""


def render(report: Report) -> str:
    """The page.  Every name and text of the model is escaped."""
    sections = [
        _head(report),
        _bars(report),
        _parity(report),
        _regions(report),
        _rewrites(report),
        _left(report),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>onnxfuse: {_text(report.model)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(section for section in sections if section)
        + "\n</body>\n</html>\n"
    )


def _text(value: object) -> str:
    """Escaped for HTML, with control characters and lone surrogates made visible."""
    return escape(printable(str(value)), quote=True)


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th>{_text(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>'


def _head(report: Report) -> str:
    parts = [
        f"<h1>onnxfuse: {_text(report.model or 'model')}</h1>",
        f"<p>{_text(report.summary())}. Target {_text(report.target)}, {report.seconds:.1f} s.</p>",
    ]
    parts += [f'<p class="bad">Warning: {_text(warning)}</p>' for warning in report.warnings]
    return "\n".join(parts)


def _bars(report: Report) -> str:
    if report.before is None or report.after is None:
        return ""
    before, after = report.before, report.after
    lengths = [
        (before.nodes, after.nodes),
        (before.launches, after.launches),
        (before.intermediate_tensors, after.intermediate_tensors),
        (_weight(before.bytes_elementwise), _weight(after.bytes_elementwise)),
        (_weight(before.bytes_total), _weight(after.bytes_total)),
    ]
    rows = []
    for (what, left, right), (one, other) in zip(report.rows(), lengths, strict=True):
        longest = max(one, other) or 1
        bars = (
            f'<div class="bar before" style="width:{100 * one / longest:.1f}%"></div>'
            f'<div class="bar after" style="width:{100 * other / longest:.1f}%"></div>'
        )
        rows.append((_text(what), bars, f"{_text(left)}<br>{_text(right)}"))
    rows.append(("largest error", "", _text(report.largest_error())))
    note = (
        '<p class="soft">The upper bar is before, the lower after. Counted from the graph in the file: '
        "weights included, ONNX Runtime's own fusions not. Each symbolic dimension is 64 in the bars.</p>"
    )
    return "<h2>Before and after</h2>\n" + _table(("", "", "before / after"), rows) + note


def _weight(size: Bytes) -> int:
    """A number to draw: every symbolic dimension counts as 64."""
    return sum(coefficient * 64 ** len(symbols) for symbols, coefficient in size.terms.items())


def _parity(report: Report) -> str:
    result = report.parity
    if result is None:
        return "<h2>Parity</h2>\n<p>Not checked.</p>"
    rows = []
    for compared in result.sets:
        for output in compared.outputs:
            if output.unstable:
                verdict = f"unstable: {_text(output.reason)}"
            elif output.reason:
                verdict = f'<span class="bad">differs: {_text(output.reason)}</span>'
            else:
                verdict = '<span class="good">equal</span>'
            run = "with the library" if compared.library else "plain ONNX Runtime"
            numbers = (f"{output.max_abs:.2g}", f"{output.max_rel:.2g}", str(output.max_ulp))
            rows.append((_text(output.name), _text(compared.label), run, *numbers, verdict))
    table = _table(("output", "inputs", "run", "max abs", "max rel", "max ulp", "result"), rows)
    warnings = "".join(f"<p>{_text(warning)}</p>" for warning in result.warnings)
    return f"<h2>Parity</h2>\n{table}{warnings}"


def _regions(report: Report) -> str:
    if not report.fused:
        return ""
    rows = []
    for region in report.fused[:_MOST_ROWS]:
        title = plural(len(region.ops), "node")
        program = f"<details><summary>{title}</summary><pre>{_lines(region.program)}</pre></details>"
        rows.append(
            (
                f"<code>{_text(region.name)}</code>",
                _text(_ops(region)) + program,
                _names(region.inputs),
                _names(region.outputs),
                _text(region.describe_shape()),
                _text(region.bytes_saved) if region.bytes_saved is not None else "?",
            )
        )
    table = _table(("fused node", "nodes in it", "inputs", "outputs", "shape", "bytes saved"), rows)
    return f"<h2>Fused regions</h2>\n{table}{_rest(len(report.fused))}"


def _lines(text: str) -> str:
    return "\n".join(_text(line) for line in text.splitlines())


def _names(names: list[str]) -> str:
    return "<br>".join(f"<code>{_text(name)}</code>" for name in names)


def _ops(region: FusedRegion) -> str:
    """``Mul, Add, Relu``; a long list is counted by operator."""
    if len(region.ops) <= 12:
        return ", ".join(region.ops)
    return ", ".join(f"{count} {op}" for op, count in Counter(region.ops).most_common())


def _rewrites(report: Report) -> str:
    if not report.rewrites and not report.refusals:
        return ""
    rows = [(_text(item.rule), ", ".join(_text(node) for node in item.nodes)) for item in report.rewrites[:_MOST_ROWS]]
    parts = ["<h2>Rewrites</h2>"]
    if rows:
        parts += [_table(("rule", "nodes replaced"), rows), _rest(len(report.rewrites))]
    if report.refusals:
        refused = [(_text(x.rule), _text(x.node), _text(x.reason)) for x in report.refusals[:_MOST_ROWS]]
        parts += [
            "<h3>Not applied</h3>",
            _table(("rule", "node", "reason"), refused),
            _rest(len(report.refusals)),
        ]
    return "\n".join(parts)


def _left(report: Report) -> str:
    if not report.left_alone:
        return ""
    parts = [
        "<h2>Left alone</h2>",
        f"<p>{plural(len(report.left_alone), 'elementwise node')} not fused, by reason.</p>",
    ]
    for reason, items in group_by_reason(report.left_alone):
        rows = [(f"<code>{_text(item.node)}</code>", _text(item.op)) for item in items[:_MOST_ROWS]]
        parts.append(
            f"<details><summary>{_text(reason)}: {len(items)}</summary>"
            f"{_table(('node', 'operator'), rows)}{_rest(len(items))}</details>"
        )
    return "\n".join(parts)


def _rest(total: int) -> str:
    if total <= _MOST_ROWS:
        return ""
    return f'<p class="soft">And {total - _MOST_ROWS} more: the JSON report has all.</p>'
