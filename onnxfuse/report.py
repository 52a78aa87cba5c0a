"""What an optimization did: the data that passes collect, and its forms for programs (JSON) and terminals."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from onnxfuse.bench import BenchResult
    from onnxfuse.byte_counts import Bytes
    from onnxfuse.parity import ParityResult
    from onnxfuse.statistics import Statistics


_MANY_ULP = 100_000


@dataclass
class FusedRegion:
    """One fused node.

    ``ops`` are the ONNX operators that it stands for, in order; ``program`` the text that the kernel runs;
    ``shape`` is the shape of its first output as far as it is known (int, symbol, or None for unknown; None:
    unknown rank). ``bytes_saved`` is what it moves through memory less than its nodes did, if that was
    counted.
    """

    name: str
    overload: str
    ops: list[str]
    program: str
    inputs: list[str]
    outputs: list[str]
    shape: list[int | str | None] | None = None
    bytes_saved: "Bytes | None" = None

    def describe_shape(self) -> str:
        """``[1, 64, h, w]``; ``?`` if the rank is unknown."""
        if self.shape is None:
            return "?"
        return f"[{', '.join(dimension(dim) for dim in self.shape)}]"

    def to_json(self) -> dict[str, object]:
        """The fields as JSON takes them."""
        saved = self.bytes_saved.to_json() if self.bytes_saved else None
        return {**vars(self), "shape": self._json_shape(), "bytes_saved": saved}

    def _json_shape(self) -> list[int | str | None] | None:
        """NumPy's integers are none for JSON."""
        if self.shape is None:
            return None
        return [dim if dim is None or isinstance(dim, str) else int(dim) for dim in self.shape]


@dataclass(frozen=True)
class Rewrite:
    """One application of a rule, and the names of the nodes that it replaced."""

    rule: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Refusal:
    """A rule that matched at a node and did not apply, and why."""

    rule: str
    node: str
    reason: str


@dataclass(frozen=True)
class LeftAlone:
    """An elementwise node that was not fused, and why."""

    node: str
    op: str
    reason: str


def group_by_reason(items: list[LeftAlone]) -> list[tuple[str, list[LeftAlone]]]:
    """The nodes left alone by reason, the most frequent reason first."""
    groups: dict[str, list[LeftAlone]] = {}
    for item in items:
        groups.setdefault(item.reason, []).append(item)
    return sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))


@dataclass
class Report:
    """Collects what passes do.  ``before`` and ``after`` are the model's static counts, ``parity`` the
    comparison."""

    model: str = ""
    target: str = "cpu"
    rewrites: list[Rewrite] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    fused: list[FusedRegion] = field(default_factory=list)
    left_alone: list[LeftAlone] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    before: "Statistics | None" = None
    after: "Statistics | None" = None
    parity: "ParityResult | None" = None
    seconds: float = 0.0

    def add_rewrite(self, rule: str, nodes: list[str]) -> None:
        """``rule`` replaced the ``nodes``."""
        self.rewrites.append(Rewrite(rule, tuple(nodes)))

    def add_refusal(self, rule: str, node: str, reason: str) -> None:
        """``rule`` matched at ``node`` and did not apply."""
        self.refusals.append(Refusal(rule, node, reason))

    def add_fused(self, region: FusedRegion) -> None:
        """A region became a fused node."""
        self.fused.append(region)

    def add_left_alone(self, node: str, op: str, reason: str) -> None:
        """An elementwise ``node`` was not fused."""
        self.left_alone.append(LeftAlone(node, op, reason))

    def add_warning(self, message: str) -> None:
        """Something that the user should know and that is no error; said once."""
        if message not in self.warnings:
            self.warnings.append(message)

    def rows(self) -> list[tuple[str, str, str]]:
        """The before/after table: what, before, after."""
        if self.before is None or self.after is None:
            return []
        before, after = self.before, self.after
        return [
            ("nodes", str(before.nodes), str(after.nodes)),
            ("kernel launches", str(before.launches), str(after.launches)),
            ("intermediate tensors", str(before.intermediate_tensors), str(after.intermediate_tensors)),
            ("bytes moved, elementwise", str(before.bytes_elementwise), str(after.bytes_elementwise)),
            ("bytes moved, all", str(before.bytes_total), str(after.bytes_total)),
        ]

    def largest_error(self) -> str:
        """The largest error that the parity check saw, in words."""
        if self.parity is None:
            return "not checked"
        worst = self.parity.worst()
        if worst is None:
            return "no outputs"
        if worst.max_abs == 0 and worst.mismatches == 0:
            return "none: every output is identical"
        return describe_error(worst.max_abs, worst.max_rel, worst.max_ulp) + f" (output {worst.name})"

    def summary(self) -> str:
        """One line: how many nodes became how many."""
        ops = sum(len(region.ops) for region in self.fused)
        if not self.fused:
            return f"nothing fused; {plural(len(self.rewrites), 'rewrite')}"
        return f"{plural(ops, 'node')} fused into {len(self.fused)}; {plural(len(self.rewrites), 'rewrite')}"

    def to_json(self) -> dict[str, Any]:
        """The whole report as JSON takes it.

        ``schema`` is 1.  ``before`` and ``after``: ``nodes``, ``launches``, ``intermediate_tensors``,
        ``bytes_elementwise`` and ``bytes_total`` (each with ``text``, ``terms`` of ``bytes`` times ``dims``,
        and ``unknown_tensors``).  ``fused``: one object a fused node, with the fields of
        FusedRegion.  ``rewrites``: ``rule``, ``nodes``.  ``refusals``: ``rule``, ``node``,
        ``reason``.  ``left_alone``: ``node``, ``op``, ``reason``.  ``parity``: null if not checked, else
        ``ok``, ``sets`` (``inputs``, ``shapes``, ``library``, ``outputs``), ``regions``, ``warnings``; an
        output or region has ``name``, ``dtype``, ``shape``, ``ok``, ``reason``, ``max_abs``, ``max_rel``,
        ``max_ulp``, ``mismatches``, ``unstable``.
        """
        return {
            "schema": 1,
            "model": self.model,
            "target": self.target,
            "seconds": round(self.seconds, 3),
            "before": self.before.to_json() if self.before else None,
            "after": self.after.to_json() if self.after else None,
            "fused": [region.to_json() for region in self.fused],
            "rewrites": [{"rule": item.rule, "nodes": list(item.nodes)} for item in self.rewrites],
            "refusals": [dict(vars(item)) for item in self.refusals],
            "left_alone": [dict(vars(item)) for item in self.left_alone],
            "warnings": list(self.warnings),
            "parity": self.parity.to_json() if self.parity else None,
        }


def dimension(dim: int | str | None) -> str:
    """A dimension for people: ``?`` if it is unknown, or has a name that shape inference made up."""
    return "?" if dim in (None, "") or str(dim).startswith("unk__") else str(dim)


def plural(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def describe_error(max_abs: float, max_rel: float, max_ulp: int) -> str:
    """``1.2e-07 absolute, 3e-06 relative, 2 ulp``; near zero, ulp are too many to mean anything."""
    ulp = f", {max_ulp} ulp" if max_ulp < _MANY_ULP else ""
    return f"{max_abs:.2g} absolute, {max_rel:.2g} relative{ulp}"


def render_optimization(report: Report) -> "RenderableType":
    """The table that ``onnxfuse optimize`` ends with."""
    from rich.console import Group
    from rich.text import Text

    table = simple_table("", "before", "after")
    for row in report.rows():
        add_row(table, *row)
    add_row(table, "largest error", "", report.largest_error())
    lines = [Text(report.summary())]
    if any("?" in cell for row in report.rows() for cell in row):
        lines.append(Text("? is a size that has no name in the model; with --shape the counts are numbers"))
    lines += [Text(f"warning: {printable(warning)}", style="yellow") for warning in report.warnings]
    return Group(table, *lines)


def render_parity(result: "ParityResult") -> "RenderableType":
    """The tables that ``onnxfuse check`` prints: one row for each output and input set, one for each
    region."""
    from rich.console import Group
    from rich.text import Text

    table = simple_table("output", "inputs", "run", "max abs", "max rel", "max ulp", "result")
    for compared in result.sets:
        run = "library" if compared.library else "plain"
        for output in compared.outputs:
            verdict = "equal" if not output.reason else ("unstable" if output.unstable else "DIFFERS")
            numbers = (f"{output.max_abs:.2g}", f"{output.max_rel:.2g}", str(output.max_ulp))
            add_row(table, output.name, compared.label, run, *numbers, verdict)
    parts: list[RenderableType] = [table]
    if result.regions:
        regions = simple_table("fused node", "max abs", "max ulp", "result")
        for region in result.regions:
            found = region.comparison
            verdict = region.note or ("equal" if region.ok else f"DIFFERS: {found.reason}")
            add_row(regions, region.node, f"{found.max_abs:.2g}", str(found.max_ulp), verdict)
        parts.append(regions)
    parts += [Text(f"warning: {printable(warning)}", style="yellow") for warning in result.warnings]
    return Group(*parts)


def render_bench(result: "BenchResult") -> "RenderableType":
    """The table that ``onnxfuse bench`` prints."""
    from rich.console import Group
    from rich.text import Text

    from onnxfuse.byte_counts import format_bytes

    left, right = result.original, result.optimized
    table = simple_table("", "original", "optimized", "original / optimized")
    ratio = f"{result.ratio:.3f}  ({result.low:.3f} to {result.high:.3f})"
    add_row(table, "time of a run", f"{left.quartile:.3f} ms", f"{right.quartile:.3f} ms", ratio)
    loads = f"{left.load:.1f} ms", f"{right.load:.1f} ms", f"{left.load / right.load:.2f}"
    add_row(table, "creating the session", *loads)
    if left.peak_memory and right.peak_memory:
        peaks = format_bytes(left.peak_memory), format_bytes(right.peak_memory)
        add_row(table, "peak memory", *peaks, f"{left.peak_memory / right.peak_memory:.2f}")
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in result.inputs.items())
    notes = [f"{result.blocks} blocks of 4 runs on {shapes or 'no inputs'}", result.machine]
    return Group(table, *(Text(printable(note)) for note in notes))


def simple_table(*columns: str) -> "Table":
    """A table in the house style; the first column is on the left, as text."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    return table


def add_row(table: "Table", *cells: str) -> None:
    """Add a row of plain text: names in a model are not markup, and control characters in them do nothing."""
    from rich.text import Text

    table.add_row(*(Text(printable(cell)) for cell in cells))


def printable(text: str) -> str:
    """``text`` with characters that a terminal would act on replaced by their escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
