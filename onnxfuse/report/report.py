"""What an optimization did: the data that passes collect, and its forms for programs (JSON) and in sentences."""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from onnxfuse.fused.kinds import KINDS
from onnxfuse.report.fused_region import FusedRegion, RegionGroup, dimension, group_regions
from onnxfuse.wording import plural

if TYPE_CHECKING:
    from onnxfuse.check.comparison import Comparison
    from onnxfuse.check.parity import ParityResult
    from onnxfuse.cuda.report import CudaReport
    from onnxfuse.fused.choices import ConvChoice
    from onnxfuse.planning.statistics import Example, Statistics
    from onnxfuse.report.outline import Outline
    from onnxfuse.report.profile import Profile
    from onnxfuse.speed import Speed


_MANY_ULP = 100
"""From here on they are those of a number near zero, and say nothing beside the largest error."""
_MOST_SIZES = 8
"""That a sentence names."""


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


@dataclass(frozen=True)
class NotCaptured:
    """A node that keeps ONNX Runtime from capturing a CUDA graph of the model, and why."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True)
class ConvolutionChoice:
    """A convolution: whether it became a fused node (else it is ONNX Runtime's), and why."""

    node: str
    op: str
    fused: bool
    reason: str


Item = TypeVar("Item")
Key = TypeVar("Key", str, tuple[str, str])


def group(items: Iterable[Item], key: Callable[[Item], Key]) -> list[tuple[Key, list[Item]]]:
    """The items by their keys, the most frequent key first."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[0]))


def group_by_reason(items: Iterable[LeftAlone]) -> list[tuple[str, list[LeftAlone]]]:
    """The nodes left alone by reason, the most frequent reason first."""
    return group(items, lambda item: item.reason)


@dataclass
class Report:
    """Collects what passes do.

    ``before`` and ``after`` are the model's static counts, ``example`` those for the shapes that it was checked with,
    if it has dynamic dimensions, and ``parity`` is the comparison; ``graph_before`` and ``graph_after`` are what is
    drawn.  ``not_captured`` has the nodes that keep a CUDA graph of the result from being captured, None for other
    targets.  ``checked_on`` names the provider that it ran on where that is not the target's; ``cuda`` is what was
    compiled; ``tuned`` says in a sentence what was measured on the CPU to choose by, ``speed`` how fast the result is
    beside the original, ``not_timed`` why that is not known, ``profile`` how long the nodes of both take, and
    ``layout`` what users have to know of the layout of convolutions on CUDA.
    """

    model: str = ""
    target: str = "cpu"
    rewrites: list[Rewrite] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    fused: list[FusedRegion] = field(default_factory=list)
    left_alone: list[LeftAlone] = field(default_factory=list)
    convolutions: list[ConvolutionChoice] = field(default_factory=list)
    not_captured: list[NotCaptured] | None = None
    warnings: list[str] = field(default_factory=list)
    before: "Statistics | None" = None
    after: "Statistics | None" = None
    example: "Example | None" = None
    parity: "ParityResult | None" = None
    checked_on: str = ""
    tuned: str = ""
    graph_before: "Outline" = ()
    graph_after: "Outline" = ()
    speed: "Speed | None" = None
    profile: "Profile | None" = None
    not_timed: str = ""
    layout: str = ""
    cuda: "CudaReport | None" = None
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

    def rename_tensors(self, nodes: Container[str], names: Mapping[str, str]) -> None:
        """Tensors got other names, given by the old ones, after these fused ``nodes`` that read and make them."""
        for region in self.fused:
            if region.name in nodes:
                region.inputs = [names.get(name, name) for name in region.inputs]
                region.outputs = [names.get(name, name) for name in region.outputs]

    def add_left_alone(self, node: str, op: str, reason: str) -> None:
        """An elementwise ``node`` was not fused, or one was passed over because it is not known."""
        self.left_alone.append(LeftAlone(node, op, reason))

    def add_convolution(self, node: str, op: str, choice: "ConvChoice") -> None:
        """The choice for a convolution."""
        self.convolutions.append(ConvolutionChoice(node, op, choice.fused, choice.reason))

    def add_warning(self, message: str) -> None:
        """Something that the user should know and that is no error; said once."""
        if message not in self.warnings:
            self.warnings.append(message)

    def groups(self) -> list[RegionGroup]:
        """The fused nodes, those of equal shape together, first what moves the most less than its nodes did, for the
        shapes of ``example`` if it has any."""
        return group_regions(self.fused, {} if self.example is None else self.example.symbols)

    def rewrites_by_rule(self) -> list[tuple[str, list[Rewrite]]]:
        """The rewrites by rule, the most frequent first."""
        return group(self.rewrites, lambda item: item.rule)

    def refusals_by_reason(self) -> list[tuple[tuple[str, str], list[Refusal]]]:
        """The refusals by rule and reason, the most frequent first."""
        return group(self.refusals, lambda item: (item.rule, item.reason))

    def convolutions_by_choice(self) -> list[tuple[tuple[str, str], list[ConvolutionChoice]]]:
        """The convolutions by what they became and why, the most frequent first."""
        return group(self.convolutions, lambda item: ("fused" if item.fused else "ONNX Runtime", item.reason))

    def counts(self) -> "tuple[Statistics, Statistics] | None":
        """The counts to show, before and after: those for the shapes of ``example`` if it has any; None if there are
        none."""
        if self.before is None or self.after is None:
            return None
        return (self.before, self.after) if self.example is None else (self.example.before, self.example.after)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The before/after table: what, before, after, and the change in per cent where both are numbers."""
        counts = self.counts()
        if counts is None:
            return []
        before, after = counts
        rows = [
            _count_row("nodes", before.nodes, after.nodes),
            _count_row("kernel launches", before.launches, after.launches),
            _count_row("intermediate tensors", before.intermediate_tensors, after.intermediate_tensors),
        ]
        for what, left, right in (
            ("bytes moved, elementwise", before.bytes_elementwise, after.bytes_elementwise),
            ("bytes moved, all", before.bytes_total, after.bytes_total),
            ("bytes between launches", before.bytes_between, after.bytes_between),
        ):
            change = _change(left.constant(), right.constant())
            rows.append((what, left.at_least(), right.at_least(), change))
        return rows

    def symbol_names(self) -> dict[str, str]:
        """Short names for the dimensions with long ones that the counts depend on."""
        from onnxfuse.report.byte_counts import short_names

        symbols = {dim for region in self.fused for dim in region.shape or () if isinstance(dim, str)}
        for counts in (self.before, self.after):
            symbols |= counts.bytes_total.symbols() if counts else set()
        return short_names(symbol for symbol in symbols if dimension(symbol) != "?")

    def largest_error(self) -> str:
        """The largest error that the parity check saw, as a number for a table."""
        worst = None if self.parity is None else self.parity.worst()
        if self.parity is None:
            return "not checked"
        return f"{worst.max_abs:.2g}" if worst and (worst.max_abs or worst.mismatches) else "none"

    def describe_check(self) -> str:
        """One sentence: what was compared, on what, and how near the outputs are."""
        if self.parity is None:
            return "Not checked: nothing was run and compared with the original."
        return describe_parity(self.parity, self.checked_on)

    def describe_sizes(self) -> str:
        """Which shapes the bytes are for, if the model has dynamic dimensions, and what a ``≥`` before them means."""
        sentences = []
        if self.example and self.example.shapes:
            timed = self.speed is not None and self.speed.shapes == self.example.shapes
            what = "Bytes are counted, and the models timed," if timed else "Bytes are counted"
            sentences.append(f"{what} for {self.example.describe()}.")
        if any(counts.bytes_total.constant() is None for counts in self.counts() or ()):
            sentences.append("≥: without those of tensors whose size is not known.")
        return " ".join(sentences)

    def describe_capture(self) -> str:
        """One sentence: whether a CUDA graph of the result can be captured, and what keeps it; else empty."""
        if self.not_captured is None:
            return ""
        if not self.not_captured:
            return "A CUDA graph: nothing is known that would keep ONNX Runtime from capturing one."
        reasons = group(self.not_captured, lambda item: item.reason)
        listed = "; ".join(f"{reason} ({len(items)}, as {items[0].op} {items[0].node})" for reason, items in reasons)
        return f"No CUDA graph can be captured: {listed}."

    def describe_launches(self) -> str:
        """One sentence: what is launched afterwards, by operator; empty if that was not counted."""
        if self.after is None or not self.after.operators:
            return ""
        return "Launches: " + ", ".join(f"{count} {op}" for op, count in self.after.operators.most_common()) + "."

    def summary(self) -> str:
        """One line: how many nodes became how many, and what was checked."""
        return f"{self.describe_fusion()} {self.describe_check()}"

    def describe_speed(self) -> list[str]:
        """How fast the result is beside the original, and what was taken back for it, or why that is not known; nothing
        where nobody asked."""
        found = [self.not_timed] if self.speed is None else self.speed.lines()
        return [line for line in found if line]

    def describe_gain(self) -> str:
        """The first line: how fast the result is and how large, or where nothing was timed what it launches and moves
        less."""
        if self.speed is not None:
            return self.speed.describe()
        changes = [f"{what} {left} → {right} ({change})" for what, left, right, change in self.rows() if change]
        wanted = [line for line in changes if line.startswith(("kernel launches", "bytes moved, all"))]
        return ", ".join(wanted) or self.describe_fusion()

    def describe_fusion(self) -> str:
        """How many nodes became how many, and how many had been fused before."""
        ops = sum(len(region.ops) for region in self.fused)
        done = f"{plural(ops, 'node')} fused into {len(self.fused)}" if self.fused else "Nothing fused"
        said = f"{done}, {plural(len(self.rewrites), 'rewrite')}."
        before = sum(self.before.operators[kind.name] for kind in KINDS) if self.before is not None else 0
        if before:
            said += f" Found fused and left so: {plural(before, 'node')}; `onnxfuse unfuse` gives back plain ones."
        return said

    def to_json(self) -> dict[str, Any]:
        """The whole report as JSON takes it.

        ``schema`` is 1.  ``before`` and ``after``: ``nodes``, ``launches``, ``operators`` (the launches by operator),
        ``intermediate_tensors``, ``bytes_elementwise``, ``bytes_total``, ``bytes_between`` (launches),
        ``bytes_of_products`` (those of them that products write which are not fused), and ``bytes_at_products`` (and
        that these read; each with ``text``, ``terms`` of ``bytes`` times ``dims``, and ``unknown_tensors``).
        ``example``: null, or ``shapes`` (of inputs) and the counts ``before`` and ``after`` for them.  ``fused``: one
        object a fused node, with the fields of FusedRegion, and for the target cuda ``cuda`` with those of
        KernelReport.  ``cuda``: null, or ``compiler``, ``architectures``, ``embedded``, ``compiled``, ``from_cache``,
        ``summary``.  ``rewrites``: ``rule``, ``nodes``.  ``refusals``: ``rule``, ``node``, ``reason``.  ``left_alone``:
        ``node``, ``op``, ``reason``.  ``convolutions``: ``node``, ``op``, ``fused``, ``reason``.  ``not_captured``:
        null, or for the target cuda what keeps a CUDA graph from being captured: ``node``, ``op``, ``reason``.
        ``parity``: null if not checked, else ``ok``, ``made_up`` (the inputs), ``guessed`` (those whose sizes are
        guesses), ``sizes`` (those that were run of each dimension that the model leaves open), ``sets`` (``inputs``,
        ``shapes``, ``sizes``, ``library``, ``outputs``), ``regions``, ``warnings``; an output or region has ``name``,
        ``dtype``, ``shape``, ``ok``, ``reason``, ``largest``, ``max_abs``, ``max_rel``, ``max_ulp``, ``excess`` (the
        largest error over the allowed one), ``mismatches``, ``unstable``, ``off_float64`` and ``original_off_float64``
        (how far it and the original are off a result in float64, or null).  ``checked_on``: empty, or the provider that
        the check ran on for want of the target's.  ``tuned``: empty, or what was measured on the CPU to choose
        convolutions by.  ``speed``: null if not timed, else ``ratio`` (above 1 the result is faster), ``low``,
        ``high``, ``milliseconds`` and ``sizes`` (each of original and result), ``taken_back``, ``distance``
        (nanoseconds from one core to another and back, or null); ``not_timed``: empty, or why not.  ``profile``: null,
        or ``original`` and ``result`` (each the nodes as ONNX Runtime ran them: ``name``, ``op``, ``microseconds`` of a
        run, ``stands_for``) and ``runs``.  ``layout``: empty, or what is to be known of the layout of convolutions on
        CUDA.
        """
        return {
            "schema": 1,
            "model": self.model,
            "target": self.target,
            "seconds": round(self.seconds, 3),
            "before": self.before.to_json() if self.before else None,
            "after": self.after.to_json() if self.after else None,
            "example": self.example.to_json() if self.example else None,
            "fused": [{**region.to_json(), **self._kernel(region.name)} for region in self.fused],
            "cuda": self.cuda.to_json() if self.cuda else None,
            "rewrites": [{"rule": item.rule, "nodes": list(item.nodes)} for item in self.rewrites],
            "refusals": [dict(vars(item)) for item in self.refusals],
            "left_alone": [dict(vars(item)) for item in self.left_alone],
            "convolutions": [dict(vars(item)) for item in self.convolutions],
            "not_captured": None if self.not_captured is None else [dict(vars(item)) for item in self.not_captured],
            "warnings": list(self.warnings),
            "parity": self.parity.to_json() if self.parity else None,
            "checked_on": self.checked_on,
            "tuned": self.tuned,
            "speed": self.speed.to_json() if self.speed else None,
            "not_timed": self.not_timed,
            "profile": self.profile.to_json() if self.profile else None,
            "layout": self.layout,
        }

    def _kernel(self, name: str) -> dict[str, object]:
        kernel = None if self.cuda is None else self.cuda.kernels.get(name)
        return {} if kernel is None else {"cuda": kernel.to_json()}


def describe_parity(parity: "ParityResult", checked_on: str = "") -> str:
    """One sentence: what was compared, on what, and how near the outputs are."""
    labels = {compared.label for compared in parity.sets}
    what = "made-up inputs" if parity.made_up else "inputs"
    how = f"Checked{f' {checked_on},' if checked_on else ''} on {plural(len(labels), 'set')} of {what}"
    sizes = [f"{name} {_listed(values)}" for name, values in parity.sizes().items()]
    if sizes:
        rest = f" and {len(sizes) - _MOST_SIZES} more" if len(sizes) > _MOST_SIZES else ""
        how += f" of sizes {', '.join(sizes[:_MOST_SIZES])}{rest}"
    if len({compared.library for compared in parity.sets}) > 1:
        how += ", with and without the library"
    unstable = {output.name for output in parity.outputs() if output.unstable}
    worst = parity.worst()
    if worst is None or (worst.max_abs == 0 and worst.mismatches == 0):
        return f"{how}: every output is identical."
    if worst.unstable:
        many = "" if len(unstable) == 1 else f", one of {len(unstable)} such outputs"
        return (
            f"{how}: not the same, off by {describe_error(worst)} (output {worst.name}{many}), but unstable: rounding "
            "alone makes it as much."
        )
    how += f": within {describe_error(worst)} (output {worst.name})"
    return f"{how}, {len(unstable)} unstable." if unstable else f"{how}."


def _listed(values: list[int]) -> str:
    """``1, 2 and 200``."""
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last


def describe_error(found: "Comparison") -> str:
    """``1.2e-07, 2 ulp, of values up to 0.98``."""
    ulp = f", {found.max_ulp} ulp," if found.max_ulp < _MANY_ULP else ""
    return f"{found.max_abs:.2g}{ulp} of values up to {found.largest:.2g}"


def error_columns(found: "Comparison") -> tuple[str, str, str]:
    """Largest error, that in ulp, and largest value."""
    return f"{found.max_abs:.2g}", describe_ulp(found.max_ulp), f"{found.largest:.2g}"


def describe_ulp(count: int) -> str:
    """For a table: a dash where they are too many to mean anything, as near zero."""
    return str(count) if count < _MANY_ULP else "-"


def _count_row(what: str, before: int, after: int) -> tuple[str, str, str, str]:
    return what, f"{before:,}", f"{after:,}", _change(before, after)


def _change(before: int | None, after: int | None) -> str:
    """``-74 %``."""
    if not before or after is None:
        return ""
    percent = 100 * (after - before) / before
    digits = next((digits for digits in (0, 1, 2) if after == 0 or round(percent, digits) > -100), 3)
    return f"{percent:+.{digits}f} %" if after != before else "0 %"
