"""What terminals show: tables of what an optimization did, of two models compared, and of two timed."""

from typing import TYPE_CHECKING

from onnxfuse.report.report import Report, describe_parity, error_columns
from onnxfuse.wording import describe_guess, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from onnxfuse.bench import BenchResult
    from onnxfuse.check.comparison import Comparison
    from onnxfuse.check.parity import ParityResult
    from onnxfuse.report.profile import Profile

_MOST_OPERATORS = 12

_PEAKS = (
    ("peak memory of the process", "process"),
    ("of its own, for the model", "own"),
    ("with pages of files", "resident"),
)
"""The rows of ``bench --full``, and the fields of PeakMemory that they show."""


def render_optimization(report: Report, brief: bool = False) -> "RenderableType":
    """What ``onnxfuse optimize`` ends with: how fast the result is, the table, and sentences, last what was checked;
    ``brief``, as for ``-q``, the gain and warnings alone."""
    from rich.console import Group
    from rich.text import Text

    warnings = [Text(f"warning: {printable(warning)}", style="yellow") for warning in report.warnings]
    if brief:
        return Group(Text(printable(report.describe_gain())), *warnings)
    table = simple_table("", "before", "after", "change", numbers=True)
    for row in report.rows():
        add_row(table, *row)
    add_row(table, "largest error", "", report.largest_error(), "")
    sentences = [
        report.describe_fusion(),
        report.describe_launches(),
        report.describe_capture(),
        report.tuned,
        report.layout,
        report.describe_sizes(),
    ]
    if report.cuda is not None:
        sentences.append(report.cuda.describe())
    lines = [Text(printable(line)) for line in sentences]
    guess = [] if report.parity is None else [Text(printable(describe_guess(report.parity.guessed)), style="dim")]
    checked = Text(printable(report.describe_check()))
    speed = [Text(printable(line)) for line in report.describe_speed()]
    return Group(
        *speed,
        table,
        *(line for line in lines if line.plain),
        *warnings,
        *(line for line in guess if line.plain),
        checked,
    )


def render_parity(result: "ParityResult", brief: bool = False) -> "RenderableType":
    """The tables that ``onnxfuse check`` prints: one row for each output and input set, one for each
    region; ``brief``, as for ``-q``, the verdict and warnings alone."""
    from rich.console import Group
    from rich.text import Text

    warnings = [Text(f"warning: {printable(warning)}", style="yellow") for warning in result.warnings]
    unstable = any(output.unstable for output in result.outputs())
    agree = "The models agree as far as rounding lets them." if unstable else "The models agree."
    verdict = Text(f"{agree if result.ok else 'The models differ.'} {printable(describe_parity(result))}")
    if brief:
        return Group(*warnings, verdict)
    table = simple_table("output", "inputs", "run", "largest error", "in ulp", "largest value", "result")
    for compared in result.sets:
        run = "library" if compared.library else "plain"
        for output in compared.outputs:
            add_row(table, output.name, compared.label, run, *error_columns(output), _verdict(output))
    parts: list[RenderableType] = [table]
    if result.regions:
        regions = simple_table("fused node", "largest error", "in ulp", "largest value", "result")
        for region in result.regions:
            found = region.comparison
            outcome = region.note or (_verdict(found) if region.ok else f"DIFFERS: {found.reason}")
            add_row(regions, region.node, *error_columns(found), outcome)
        parts.append(regions)
    parts += warnings
    if guess := describe_guess(result.guessed):
        parts.append(Text(printable(guess), style="dim"))
    return Group(*parts, verdict)


def _verdict(output: "Comparison") -> str:
    if output.reason:
        return "unstable" if output.unstable else "DIFFERS"
    return "within tolerance" if output.max_abs > 0 else "identical"


def render_bench(result: "BenchResult", brief: bool = False) -> "RenderableType":
    """The table that ``onnxfuse bench`` prints; ``brief``, as for ``-q``, the ratio alone."""
    from rich.console import Group
    from rich.text import Text

    from onnxfuse.report.byte_counts import format_bytes

    if brief:
        return Text(f"{result.ratio:.3f} times as fast ({result.low:.3f} to {result.high:.3f})")
    left, right = result.original, result.optimized
    table = simple_table("", "original", "optimized", "original / optimized", numbers=True)
    ratio = f"{result.ratio:.3f}  ({result.low:.3f} to {result.high:.3f})"
    add_row(table, "time of a run", f"{left.quartile:.3f} ms", f"{right.quartile:.3f} ms", ratio)
    loads = f"{left.load:.1f} ms", f"{right.load:.1f} ms", f"{left.load / right.load:.2f}"
    add_row(table, "creating the session", *loads)
    if left.peak_memory and right.peak_memory:
        for name, kind in _PEAKS:
            peaks = getattr(left.peak_memory, kind), getattr(right.peak_memory, kind)
            add_row(table, name, *map(format_bytes, peaks), f"{peaks[0] / peaks[1]:.2f}")
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in result.inputs.items())
    notes = [
        *filter(None, [describe_guess(result.guessed)]),
        f"{result.blocks} blocks of 4 turns on {shapes or 'no inputs'}; a process for each model, threads that spin",
        result.machine,
    ]
    parts: list[RenderableType] = [table]
    if result.profile is not None:
        parts.append(_times(result.profile))
    return Group(*parts, *(Text(printable(note)) for note in notes))


def _times(profile: "Profile") -> "Table":
    """The operators that take the most time, before and after."""
    from onnxfuse.report.profile import milliseconds

    table = simple_table("in ms, by ONNX Runtime's profiler", "original", "optimized", numbers=True)
    for op, before, after in profile.by_operator()[:_MOST_OPERATORS]:
        add_row(table, op, milliseconds(before), milliseconds(after))
    return table


def simple_table(*columns: str, numbers: bool = False) -> "Table":
    """A table in the house style; ``numbers`` aligns all columns but the first on the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(Text(column), overflow="fold", justify="right" if numbers and index else "left")
    return table


def add_row(table: "Table", *cells: str) -> None:
    """Add a row of plain text: names in a model are not markup, and control characters in them do nothing."""
    from rich.text import Text

    table.add_row(*(Text(printable(cell)) for cell in cells))
