"""The report as one HTML page that needs nothing from outside: no script, no font, no image."""

from collections import Counter
from collections.abc import Iterable
from html import escape
from pathlib import PurePath

from onnxfuse import __version__
from onnxfuse.report.byte_counts import Bytes
from onnxfuse.report.report import FusedRegion, Report, error_columns, group_by_reason
from onnxfuse.wording import plural, printable

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
.counts td:nth-child(2) { width: 40%; } .counts th:nth-child(n+3), .counts td:nth-child(n+3) { text-align: right;
  font-variant-numeric: tabular-nums; } .counts td { vertical-align: middle; }
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
        _kernels(report),
        _convolutions(report),
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


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]], style: str = "") -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th>{_text(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows)
    table = f'<table class="{style}"><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _head(report: Report) -> str:
    parts = [
        f"<h1>{_text(PurePath(report.model).name or 'model')}, optimized</h1>",
        f'<p class="soft">{_text(report.model)}</p>' if report.model else "",
        f"<p>{_text(report.summary())}</p>",
        *(f"<p>{_text(line)}</p>" for line in (*report.describe_speed(), report.tuned) if line),
        f"<p>{_text(report.layout)}</p>" if report.layout else "",
        f'<p class="soft">onnxfuse {_text(__version__)}, target {_text(report.target)}, {report.seconds:.1f} s.</p>',
    ]
    parts += [f'<p class="bad">Warning: {_text(warning)}</p>' for warning in report.warnings]
    return "\n".join(part for part in parts if part)


def _bars(report: Report) -> str:
    counts = report.counts()
    if counts is None:
        return ""
    before, after = counts
    lengths = [
        (before.nodes, after.nodes),
        (before.launches, after.launches),
        (before.intermediate_tensors, after.intermediate_tensors),
        (_weight(before.bytes_elementwise), _weight(after.bytes_elementwise)),
        (_weight(before.bytes_total), _weight(after.bytes_total)),
    ]
    rows = []
    for (what, left, right, change), (one, other) in zip(report.rows(), lengths, strict=True):
        longest = max(one, other) or 1
        bars = (
            f'<div class="bar before" style="width:{100 * one / longest:.1f}%"></div>'
            f'<div class="bar after" style="width:{100 * other / longest:.1f}%"></div>'
        )
        rows.append((_text(what), bars, _text(left), _text(right), _text(change)))
    note = (
        '<p class="soft">The upper bar is before, the lower after. Counted from the graph in the file: '
        f"weights included, ONNX Runtime's own fusions not. {_text(report.describe_sizes())}"
        f" {_text(report.describe_launches())}</p>"
    )
    table = _table(("", "", "before", "after", "change"), rows, "counts")
    return "<h2>Before and after</h2>\n" + table + note + _symbolic(report)


def _symbolic(report: Report) -> str:
    """The bytes as formulas in the model's dynamic dimensions, and what the short names in them stand for."""
    before, after = report.before, report.after
    if before is None or after is None or report.example is None:
        return ""
    names = report.symbol_names()
    rows = [
        (what, _text(left.text(names)), _text(right.text(names)))
        for what, left, right in (
            ("bytes moved, elementwise", before.bytes_elementwise, after.bytes_elementwise),
            ("bytes moved, all", before.bytes_total, after.bytes_total),
        )
    ]
    legend = "".join(f"<br>{_text(short)} is <code>{_text(name)}</code>" for name, short in names.items())
    return (
        "<details><summary>Bytes for any shape</summary>"
        + _table(("", "before", "after"), rows)
        + f'<p class="soft">? is a size that has no name in the model.{legend}</p></details>'
    )


def _weight(size: Bytes) -> int:
    """A number to draw: a dimension that is still unknown counts as 64."""
    return sum(coefficient * 64 ** len(symbols) for symbols, coefficient in size.terms.items())


def _parity(report: Report) -> str:
    result = report.parity
    if result is None:
        return f"<h2>Parity</h2>\n<p>{_text(report.describe_check())}</p>"
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
            sizes = ", ".join(f"{name} {size}" for name, size in compared.sizes.items())
            inputs = f"{compared.label} ({sizes})" if sizes else compared.label
            rows.append((_text(output.name), _text(inputs), run, *error_columns(output), verdict))
    columns = ("output", "inputs", "run", "largest error", "in ulp", "largest value", "result")
    return f"<h2>Parity</h2>\n{_table(columns, rows)}"


def _regions(report: Report) -> str:
    if not report.fused:
        return ""
    rows = []
    names = report.symbol_names()
    for region in report.fused[:_MOST_ROWS]:
        title = plural(len(region.ops), "node")
        programs = "".join(f"<pre>{_lines(each)}</pre>" for each in (region.prologue, region.program) if each)
        nest = f"<p>{_text(region.nest)}</p>" if region.nest else ""
        program = f"<details><summary>{title}</summary>{nest}{programs}</details>"
        rows.append(
            (
                f"<code>{_text(region.name)}</code>",
                _text(_ops(region)) + program,
                _names(region.inputs),
                _names(region.outputs),
                _text(region.describe_shape(names)),
                _text(region.bytes_saved.text(names)) if region.bytes_saved is not None else "?",
            )
        )
    table = _table(("fused node", "nodes in it", "inputs", "outputs", "shape", "bytes saved"), rows)
    return f"<h2>Fused regions</h2>\n{table}{_rest(len(report.fused))}"


def _kernels(report: Report) -> str:
    """What was compiled, and for each fused node what it takes before and after."""
    if report.cuda is None or not report.cuda.kernels:
        return ""
    names = report.symbol_names()
    rows = []
    for region in report.fused[:_MOST_ROWS]:
        kernel = report.cuda.kernels.get(region.name)
        if kernel is None or region.before is None or region.after is None:
            continue
        before, after = region.before, region.after
        uses = "<br>".join(
            f"{_text(name)}: {use.registers} registers, {use.spill_bytes} B spilled, {100 * use.occupancy:.0f} %"
            for name, use in kernel.uses.items()
        )
        shape = f"{kernel.family} {kernel.tile}, " if kernel.tile else ""
        again = f", {kernel.moves:.2g} times the bytes" if kernel.moves > 1 else ""
        sizes = f"{shape}{kernel.vector} x {kernel.block}, {kernel.choice}{again}"
        times = kernel.times
        rows.append(
            (
                f"<code>{_text(region.name)}</code>",
                f"{before.launches} → {after.launches}",
                _text(f"{before.reads.text(names)} → {after.reads.text(names)}"),
                _text(f"{before.writes.text(names)} → {after.writes.text(names)}"),
                f"{before.buffers} → {after.buffers}",
                f"<code>{_text(kernel.access)}</code>",
                _text(sizes),
                uses or "not compiled",
                "" if times is None else _text(times.describe()),
            )
        )
    columns = (
        "fused node",
        "launches",
        "reads",
        "writes",
        "buffers",
        "access",
        "vector x block",
        "uses",
        "measured",
    )
    note = "Occupancy is the share of a multiprocessor's threads that run at once; registers are those of a thread."
    return (
        f"<h2>CUDA kernels</h2>\n<p>{_text(report.cuda.describe())}</p>\n{_table(columns, rows)}"
        f'<p class="soft">{note}</p>{_rest(len(report.fused))}'
    )


def _convolutions(report: Report) -> str:
    """What computes the convolutions, and why."""
    parts = ["<h2>Convolutions</h2>"] if report.convolutions else []
    for (kind, reason), items in report.convolutions_by_choice():
        rows = [(f"<code>{_text(item.node)}</code>", _text(item.op)) for item in items[:_MOST_ROWS]]
        parts.append(_folded(f"{kind}: {reason}: {len(items)}", ("node", "operator"), rows, len(items)))
    return "\n".join(parts)


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
    parts = ["<h2>Rewrites</h2>"]
    for rule, rewrites in report.rewrites_by_rule():
        rows = [(", ".join(f"<code>{_text(node)}</code>" for node in item.nodes),) for item in rewrites[:_MOST_ROWS]]
        parts.append(_folded(f"{rule}: {len(rewrites)}", ("nodes replaced",), rows, len(rewrites)))
    if report.refusals:
        parts.append("<h3>Not applied</h3>")
    for (rule, reason), refusals in report.refusals_by_reason():
        nodes = [(f"<code>{_text(item.node)}</code>",) for item in refusals[:_MOST_ROWS]]
        parts.append(_folded(f"{rule}: {reason}: {len(refusals)}", ("node",), nodes, len(refusals)))
    return "\n".join(parts)


def _folded(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]], total: int) -> str:
    """A table that opens on a click."""
    return f"<details><summary>{_text(title)}</summary>{_table(columns, rows)}{_rest(total)}</details>"


def _left(report: Report) -> str:
    if not report.left_alone:
        return ""
    parts = [
        "<h2>Left alone</h2>",
        f"<p>{plural(len(report.left_alone), 'node')} not fused, by reason.</p>",
    ]
    for reason, items in group_by_reason(report.left_alone):
        rows = [(f"<code>{_text(item.node)}</code>", _text(item.op)) for item in items[:_MOST_ROWS]]
        parts.append(_folded(f"{reason}: {len(items)}", ("node", "operator"), rows, len(items)))
    return "\n".join(parts)


def _rest(total: int) -> str:
    if total <= _MOST_ROWS:
        return ""
    return f'<p class="soft">And {total - _MOST_ROWS} more: the JSON report has all.</p>'
