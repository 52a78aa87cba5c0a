"""The report as one HTML page that needs nothing from outside: no script, no font, no image."""

from html import escape
from pathlib import PurePath

from onnxfuse import __version__
from onnxfuse.report.byte_counts import format_bytes
from onnxfuse.report.fused_region import TIMES, weight
from onnxfuse.report.html_parts import MOST_ROWS, STYLE, document, folded, pair_of_bars, rest, table, text
from onnxfuse.report.html_picture import picture
from onnxfuse.report.html_regions import regions
from onnxfuse.report.html_times import times
from onnxfuse.report.remaining import Remaining, remaining
from onnxfuse.report.report import Report, error_columns, group_by_reason
from onnxfuse.wording import plural

_MOST_LEFT = 20


def render(report: Report) -> str:
    """The page.  Every name and text of the model is escaped."""
    sections = [
        _head(report),
        _bars(report),
        times(report.profile),
        picture(report),
        regions(report),
        _remaining(report),
        _parity(report),
        _kernels(report),
        _convolutions(report),
        _rewrites(report),
        _left(report),
    ]
    return document(f"onnxfuse: {report.model}", sections, STYLE)


def framed(report: Report) -> str:
    """The page in a frame, to be part of another page."""
    page = escape(render(report), quote=True)
    return f'<iframe srcdoc="{page}" sandbox style="width:100%;height:40rem;border:0"></iframe>'


def _head(report: Report) -> str:
    parts = [
        f"<h1>{text(PurePath(report.model).name or 'model')}, optimized</h1>",
        f'<p class="lead">{text(report.describe_gain())}</p>',
        f'<p class="soft">{text(report.model)}</p>' if report.model else "",
        f"<p>{text(report.summary())}</p>",
        *(f"<p>{text(line)}</p>" for line in (*report.describe_speed()[1:], report.not_timed, report.tuned) if line),
        f"<p>{text(report.layout)}</p>" if report.layout else "",
        f'<p class="soft">onnxfuse {text(__version__)}, target {text(report.target)}, {report.seconds:.1f} s.</p>',
    ]
    parts += [f'<p class="bad">Warning: {text(warning)}</p>' for warning in report.warnings]
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
        (weight(before.bytes_elementwise), weight(after.bytes_elementwise)),
        (weight(before.bytes_total), weight(after.bytes_total)),
        (weight(before.bytes_between), weight(after.bytes_between)),
    ]
    rows = []
    for (what, left, right, change), (one, other) in zip(report.rows(), lengths, strict=True):
        longest = max(one, other) or 1
        rows.append((text(what), pair_of_bars(one, other, longest), text(left), text(right), text(change)))
    note = (
        '<p class="soft"><span class="bars">The upper bar is before, the lower after. </span>'
        "Counted from the graph in the file: weights included, ONNX Runtime's own fusions not. "
        f"{text(report.describe_sizes())} {text(report.describe_launches())} {text(report.describe_capture())}</p>"
    )
    drawn = table(("", "", "before", "after", "change"), rows, "counts")
    return "<h2>Before and after</h2>\n" + drawn + note + _symbolic(report)


def _symbolic(report: Report) -> str:
    """The bytes as formulas in the model's dynamic dimensions, and what the short names in them stand for."""
    before, after = report.before, report.after
    if before is None or after is None or report.example is None:
        return ""
    names = report.symbol_names()
    rows = [
        (what, text(left.text(names)), text(right.text(names)))
        for what, left, right in (
            ("bytes moved, elementwise", before.bytes_elementwise, after.bytes_elementwise),
            ("bytes moved, all", before.bytes_total, after.bytes_total),
            ("bytes between launches", before.bytes_between, after.bytes_between),
        )
    ]
    legend = "".join(f"<br>{text(short)} is <code>{text(name)}</code>" for name, short in names.items())
    return (
        "<details><summary>Bytes for any shape</summary>"
        + table(("", "before", "after"), rows)
        + f'<p class="soft">? is a size that has no name in the model.{legend}</p></details>'
    )


def _parity(report: Report) -> str:
    result = report.parity
    if result is None:
        return f"<h2>Parity</h2>\n<p>{text(report.describe_check())}</p>"
    rows = []
    for compared in result.sets:
        for output in compared.outputs:
            if output.unstable:
                verdict = f"unstable: {text(output.reason)}"
            elif output.reason:
                verdict = f'<span class="bad">differs: {text(output.reason)}</span>'
            else:
                verdict = '<span class="good">equal</span>'
            run = "with the library" if compared.library else "plain ONNX Runtime"
            sizes = ", ".join(f"{name} {size}" for name, size in compared.sizes.items())
            inputs = f"{compared.label} ({sizes})" if sizes else compared.label
            rows.append((text(output.name), text(inputs), run, *error_columns(output), verdict))
    columns = ("output", "inputs", "run", "largest error", "in ulp", "largest value", "result")
    return f"<h2>Parity</h2>\n{table(columns, rows)}"


def _remaining(report: Report) -> str:
    """The largest of what stays ONNX Runtime's, and why."""
    groups = remaining(report)
    if not groups:
        return ""
    rows = [_left_to_it(one) for one in groups[:_MOST_LEFT]]
    more = len(groups) - _MOST_LEFT
    ending = f'<p class="soft">And {more} more shapes, which move less.</p>' if more > 0 else ""
    title = "<h2>What ONNX Runtime still computes</h2>\n<p>By shape, first what moves the most.</p>"
    return f"{title}\n" + "\n".join(rows) + ending


def _left_to_it(group: Remaining) -> str:
    count = len(group.nodes)
    what = f"{count} {TIMES} {group.op}" if count > 1 else group.op
    example = f"<code>{text(group.nodes[0])}</code>" + (", …" if count > 1 else "")
    return (
        f'<div class="region"><b>{text(what)}</b> <span class="soft">{text(group.shape)}</span> moves '
        f'{format_bytes(group.size)}: {text(group.reason)} <span class="soft">{example}</span></div>'
    )


def _kernels(report: Report) -> str:
    """What was compiled, and for each fused node what it takes before and after."""
    if report.cuda is None or not report.cuda.kernels:
        return ""
    names = report.symbol_names()
    rows = []
    for region in report.fused[:MOST_ROWS]:
        kernel = report.cuda.kernels.get(region.name)
        if kernel is None or region.before is None or region.after is None:
            continue
        before, after = region.before, region.after
        uses = "<br>".join(
            f"{text(name)}: {use.registers} registers, {use.describe_spills()}, {100 * use.occupancy:.0f} %"
            for name, use in kernel.uses.items()
        )
        shape = f"{kernel.family} {kernel.tile}, " if kernel.tile else ""
        again = f", {kernel.moves:.2g} times the bytes" if kernel.moves > 1 else ""
        sizes = f"{shape}{kernel.vector} x {kernel.block}, {kernel.choice}{again}"
        times = kernel.times
        rows.append(
            (
                f"<code>{text(region.name)}</code>",
                f"{before.launches} → {after.launches}",
                text(f"{before.reads.text(names)} → {after.reads.text(names)}"),
                text(f"{before.writes.text(names)} → {after.writes.text(names)}"),
                f"{before.buffers} → {after.buffers}",
                f"<code>{text(kernel.access)}</code>",
                text(sizes),
                uses or "not compiled",
                "" if times is None else text(times.describe()),
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
        f"<h2>CUDA kernels</h2>\n<p>{text(report.cuda.describe())}</p>\n{table(columns, rows)}"
        f'<p class="soft">{note}</p>{rest(len(report.fused))}'
    )


def _convolutions(report: Report) -> str:
    """What computes the convolutions, and why."""
    parts = ["<h2>Convolutions</h2>"] if report.convolutions else []
    for (kind, reason), items in report.convolutions_by_choice():
        rows = [(f"<code>{text(item.node)}</code>", text(item.op)) for item in items[:MOST_ROWS]]
        parts.append(folded(f"{kind}: {reason}: {len(items)}", ("node", "operator"), rows, len(items)))
    return "\n".join(parts)


def _rewrites(report: Report) -> str:
    if not report.rewrites and not report.refusals:
        return ""
    parts = ["<h2>Rewrites</h2>"]
    for rule, rewrites in report.rewrites_by_rule():
        rows = [(", ".join(f"<code>{text(node)}</code>" for node in item.nodes),) for item in rewrites[:MOST_ROWS]]
        parts.append(folded(f"{rule}: {len(rewrites)}", ("nodes replaced",), rows, len(rewrites)))
    if report.refusals:
        parts.append("<h3>Not applied</h3>")
    for (rule, reason), refusals in report.refusals_by_reason():
        nodes = [(f"<code>{text(item.node)}</code>",) for item in refusals[:MOST_ROWS]]
        parts.append(folded(f"{rule}: {reason}: {len(refusals)}", ("node",), nodes, len(refusals)))
    return "\n".join(parts)


def _left(report: Report) -> str:
    if not report.left_alone:
        return ""
    parts = [
        "<h2>Left alone</h2>",
        f"<p>{plural(len(report.left_alone), 'node')} not fused, by reason.</p>",
    ]
    for reason, items in group_by_reason(report.left_alone):
        rows = [(f"<code>{text(item.node)}</code>", text(item.op)) for item in items[:MOST_ROWS]]
        parts.append(folded(f"{reason}: {len(items)}", ("node", "operator"), rows, len(items)))
    return "\n".join(parts)
