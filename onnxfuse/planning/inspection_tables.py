"""The tables that ``onnxfuse inspect`` prints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onnxfuse.report.fused_region import FusedRegion, group_regions, listed_ops
from onnxfuse.report.report import LeftAlone, NotCaptured, Report, group, group_by_reason
from onnxfuse.report.tables import add_row, simple_table
from onnxfuse.wording import listed, plural, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from onnxfuse.planning.inspection import Inspection

_SHOWN_NAMES = 3
_SHOWN_REFUSALS = 5


def render_inspection(found: "Inspection", every_node: bool = False, brief: bool = False) -> "RenderableType":
    """The tables that ``onnxfuse inspect`` prints; ``every_node`` lists all nodes that are not fused; ``brief``, as for
    ``-q``, is one line."""
    from rich.console import Group
    from rich.text import Text

    if brief:
        done = f", {len(found.fused)} of them fused" if found.fused else ""
        return Text(printable(f"{found.path}: {plural(found.nodes, 'node')}{done}; {_planned(found.plan)}"))
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in found.opsets.items())
    summary = [
        f"{found.path}: IR {found.ir_version}, opsets {opsets}, by {found.producer or 'unknown'}",
        *(f"input  {value}" for value in found.inputs),
        *(f"output {value}" for value in found.outputs),
        f"{plural(found.nodes, 'node')}: " + ", ".join(f"{count} {op}" for op, count in found.operators.items()),
    ]
    parts: list[RenderableType] = [Text(printable(line)) for line in summary]
    if found.fused:
        parts.append(_regions("fused node", found.fused))
    plan = found.plan
    if plan.rewrites:
        parts.append(_rewrites(plan))
    if plan.fused:
        parts.append(_regions("optimize would fuse", plan.fused))
    if plan.convolutions:
        parts.append(_convolutions(plan, every_node))
    if plan.left_alone:
        parts.append(_left_alone_nodes(plan.left_alone) if every_node else _left_alone_reasons(plan.left_alone))
    if plan.not_captured:
        parts.append(_not_captured(plan.not_captured, every_node))
    elif capture := plan.describe_capture():
        parts.append(Text(capture))
    if plan.refusals:
        parts.append(_refusals(plan, every_node))
    if not (found.fused or plan.fused or plan.left_alone):
        parts.append(Text("no elementwise nodes"))
    return Group(*parts)


def _planned(plan: Report) -> str:
    nodes = sum(len(region.ops) for region in plan.fused)
    fused = f"{plural(nodes, 'node')} into {len(plan.fused)}" if plan.fused else "nothing"
    return f"optimize would fuse {fused}, with {plural(len(plan.rewrites), 'rewrite')}"


def _rewrites(plan: Report) -> "Table":
    table = simple_table("optimize would rewrite", "places", "for example")
    for rule, rewrites in plan.rewrites_by_rule():
        add_row(table, rule, str(len(rewrites)), _names(rewrites[0].nodes))
    return table


def _refusals(plan: Report, every_node: bool) -> "RenderableType":
    """The rules that matched and did not apply, by reason; of many reasons the most frequent."""
    from rich.console import Group
    from rich.text import Text

    groups = plan.refusals_by_reason()
    shown = groups if every_node else groups[:_SHOWN_REFUSALS]
    table = simple_table("not rewritten by", "because", "places", "for example")
    for (rule, reason), items in shown:
        names = [item.node for item in items]
        add_row(table, rule, reason, str(len(items)), _names(names, every_node))
    if len(shown) == len(groups):
        return table
    return Group(table, Text(f"and {plural(len(groups) - len(shown), 'more reason')}: --all lists them"))


def _convolutions(plan: Report, every_node: bool) -> "Table":
    """The convolutions by what computes them and why."""
    table = simple_table("convolutions", "because", "nodes", "for example")
    for (kind, reason), items in plan.convolutions_by_choice():
        names = [item.node for item in items]
        add_row(table, kind, reason, str(len(items)), _names(names, every_node))
    return table


def _not_captured(items: list[NotCaptured], every_node: bool) -> "Table":
    """What keeps a CUDA graph of the model from being captured, by reason."""
    table = simple_table("no CUDA graph because", "nodes", "operators", "for example")
    for reason, items_of_one in group(items, lambda item: item.reason):
        names = [item.node for item in items_of_one]
        operators = ", ".join(dict.fromkeys(item.op for item in items_of_one))
        add_row(table, reason, str(len(names)), operators, _names(names, every_node))
    return table


def _left_alone_nodes(items: list[LeftAlone]) -> "Table":
    table = simple_table("not fused", "operator", "because")
    for item in items:
        add_row(table, item.node, item.op, item.reason)
    return table


def _left_alone_reasons(items: list[LeftAlone]) -> "Table":
    table = simple_table("not fused because", "nodes", "operators", "for example")
    for reason, items_of_one in group_by_reason(items):
        operators = ", ".join(dict.fromkeys(item.op for item in items_of_one))
        add_row(table, reason, str(len(items_of_one)), operators, _names([item.node for item in items_of_one]))
    return table


def _regions(title: str, regions: list[FusedRegion]) -> "RenderableType":
    """Those of equal shape in a row, first what moves the most."""
    from rich.console import Group

    table = simple_table(title, "nodes", "operators", "shape", "each reads and writes", "for example")
    table.columns[0].no_wrap = True  # names of kinds, which no line need break
    groups = sorted(group_regions(regions), key=lambda group: -group.after)
    for group_of in groups:
        region = group_of.first
        names = [each.name for each in group_of.regions]
        cells = str(len(region.ops)), listed_ops(region.ops), region.describe_shape(), _traffic(region)
        add_row(table, group_of.title, *cells, listed(names, 1))
    parts = [table]
    for what, column in (("nest", "reduces in"), ("skeleton", "kernel")):
        found = [each for each in groups if getattr(each.first, what)]
        if found:
            parts.append(simple_table(column, "nodes", "each reads and writes", "for example"))
        for each in found:
            names = [region.name for region in each.regions]
            add_row(parts[-1], getattr(each.first, what), str(len(names)), _traffic(each.first), _names(names))
    return Group(*parts)


def _traffic(region: FusedRegion) -> str:
    """What goes through memory, where it was counted."""
    if region.after is None:
        return "?"
    return f"{region.after.reads.text({})}, {region.after.writes.text({})}"


def _names(names: Sequence[str], every: bool = False) -> str:
    return ", ".join(names) if every else listed(names, _SHOWN_NAMES)
