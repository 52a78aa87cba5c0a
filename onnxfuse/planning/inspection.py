"""What is in a model: its signature, its fused nodes, what ``optimize`` would do, and why it would not do more."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.kinds import CONV, DOMAIN, NODES_KEY, kind_of
from onnxfuse.report.byte_counts import traffic_of_kernel
from onnxfuse.report.fused_region import FusedRegion, group_regions, listed_ops
from onnxfuse.report.report import LeftAlone, NotCaptured, Report, group, group_by_reason
from onnxfuse.report.tables import add_row, simple_table
from onnxfuse.run.given_shapes import fit_shapes
from onnxfuse.run.inputs import input_specs, value_spec
from onnxfuse.wording import plural, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from onnxfuse.cuda.attention.kernel import AttentionSource
    from onnxfuse.cuda.conv.case import ConvCase
    from onnxfuse.cuda.conv.kernel import ConvSource
    from onnxfuse.cuda.kernel import Source
    from onnxfuse.cuda.nest.kernel import NestSource
    from onnxfuse.model.graph import Model

_SHOWN_NAMES = 3
_SHOWN_REFUSALS = 5
_PLANNED = ("rewrites", "fused", "left_alone", "convolutions", "not_captured", "refusals")
"""What of a report is known without running the model."""


@dataclass
class Inspection:
    """The content of a model.

    ``fused`` are the fused nodes that are in it, ``recipes`` by name how those with CUDA kernels launch them, ``cases``
    by name what those that are convolutions compute.  ``plan``
    is what ``onnxfuse optimize`` would do: its rewrites, the regions that it would fuse, and the nodes, elementwise or
    unknown, that it would leave alone.
    """

    path: str
    ir_version: int
    opsets: dict[str, int]
    producer: str
    inputs: list[str]
    outputs: list[str]
    nodes: int
    operators: dict[str, int]
    recipes: dict[str, str] = field(default_factory=dict)
    cases: "dict[str, ConvCase]" = field(default_factory=dict)
    fused: list[FusedRegion] = field(default_factory=list)
    plan: Report = field(default_factory=Report)

    def program(self, name: str) -> str:
        """The program of the fused node ``name`` (or of a region by its overload), of a convolution or a
        gate after the one that precedes it, if any.  OnnxfuseError if there is no such node."""
        for region in [*self.fused, *self.plan.fused]:
            if name in (region.name, region.overload):
                return "\n".join(filter(None, (region.prologue, region.program)))
        known = _listed([region.name for region in [*self.fused, *self.plan.fused]]) or "none"
        raise OnnxfuseError(f"no fused node {name!r} in {self.path}; there are: {known}")

    def cuda_source(self, name: str) -> str:
        """The CUDA source of the fused node ``name``'s kernels, without the prelude that all have.

        Raises OnnxfuseError if there is no such node, it has no kernels, or they were rendered by another version.
        """
        from onnxfuse.cuda.attention.recipe import HEADER, AttentionRecipe
        from onnxfuse.cuda.conv.recipe import ConvRecipe
        from onnxfuse.cuda.nest.recipe import NestRecipe
        from onnxfuse.cuda.parts_recipe import PartsRecipe
        from onnxfuse.cuda.recipe import Recipe
        from onnxfuse.cuda.rerender import (
            source_of,
            source_of_attention,
            source_of_conv,
            source_of_nest,
            source_of_parts,
        )
        from onnxfuse.program import Program

        program = self.program(name)
        names = [region.name for region in self.fused if name in (region.name, region.overload)]
        node = next((node for node in names if node in self.recipes), None)
        if node is None:
            raise OnnxfuseError(f"fused node {name!r} has no CUDA kernels: optimize the model with --target cuda")
        source: Source | ConvSource | NestSource | AttentionSource
        if self.recipes[node].startswith(HEADER):
            source = source_of_attention(AttentionRecipe.parse(self.recipes[node]))
        elif node in self.cases:
            source = source_of_conv(self.cases[node], ConvRecipe.parse(self.recipes[node]))
        elif (reducing := Program.parse(program)).reductions:
            source = source_of_nest(reducing, NestRecipe.parse(self.recipes[node]))
        elif self.recipes[node].startswith(PartsRecipe.header):
            source = source_of_parts(Program.parse(program), PartsRecipe.parse(self.recipes[node]))
        else:
            source = source_of(Program.parse(program), Recipe.parse(self.recipes[node]))
        return f"// sha256 of the source, with the prelude of onnxfuse: {source.sha256}\n{source.body}"

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON takes them; ``plan`` has the parts of a report that are known without running it."""
        plan = self.plan.to_json()
        return {
            **{name: value for name, value in vars(self).items() if name != "cases"},
            "fused": [region.to_json() for region in self.fused],
            "plan": {what: plan[what] for what in _PLANNED},
        }


def inspect(
    path: Path,
    target: str = "auto",
    progress: Callable[[str], None] = lambda message: None,
    *,
    passes: str | Iterable[str] | None = None,
    shapes: Mapping[str, Iterable[int] | int] | None = None,
    static: bool = False,
    fast_math: bool = False,
    arch: str | Iterable[str] | None = None,
    conv: str = "auto",
    tuning: str | Path | Iterable[str | Path] = (),
    tf32: bool = False,
    prefer_nhwc: bool = False,
) -> Inspection:
    """Read a model, and run the passes of ``optimize`` on it in memory; the options are those of ``optimize``.

    For the target cuda kernels are compiled, as ``optimize`` does to judge them, where there is a compiler.
    Raises OnnxfuseError for a bad file, and for options that cannot be.
    """
    from onnxfuse.files.model_io import load
    from onnxfuse.model.graph_ir import operator_key
    from onnxfuse.passes import PassContext
    from onnxfuse.planning.plan import apply_passes
    from onnxfuse.targets import target_of
    from onnxfuse.targets.request import request

    asked = request(
        target,
        passes,
        shapes=shapes,
        static=static,
        fast_math=fast_math,
        arch=arch,
        conv=conv,
        tuning=tuning,
        tf32=tf32,
        prefer_nhwc=prefer_nhwc,
    ).planned()
    progress("reading the model")
    model = load(path)
    specs = input_specs(model.source)
    sizes = fit_shapes(specs, asked.shapes)
    proto = model.export(whole=False).proto
    nodes = [node for graph in model.graphs() for node in graph.nodes]
    found = Inspection(
        path=str(path),
        ir_version=proto.ir_version,
        opsets={opset.domain: opset.version for opset in proto.opset_import},
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        inputs=[spec.describe() for spec in input_specs(proto)],
        outputs=[value_spec(value).describe() for value in proto.graph.output],
        nodes=len(nodes),
        operators=dict(Counter(operator_key(node)[1] for node in nodes).most_common()),
        recipes=_recipes(model),
        cases=_cases(model),
        fused=list(_fused(model)),
        plan=Report(str(path), asked.target),
    )
    context = PassContext(target=asked.target, fast_math=fast_math, report=found.plan, progress=progress)
    apply_passes(model, specs, asked, sizes, target_of(asked, sizes), context)
    return found


def _recipes(model: "Model") -> dict[str, str]:
    from onnxfuse.cuda.embed import RECIPE, text_attribute

    nodes = [node for graph in model.graphs() for node in graph.nodes if node.domain == DOMAIN]
    return {
        node.name or getattr(node, "overload", ""): text_attribute(node, RECIPE)
        for node in nodes
        if RECIPE in node.attrs
    }


def _cases(model: "Model") -> "dict[str, ConvCase]":
    """What the fused convolutions compute, but for those that do not validate."""
    from onnxfuse.cuda.conv.node import case_of
    from onnxfuse.program import ProgramError

    found = {}
    for node in model.fused_nodes(CONV):
        with suppress(ProgramError):
            found[node.name or getattr(node, "overload", "")] = case_of(node)
    return found


def _fused(model: "Model") -> Iterator[FusedRegion]:
    from onnxfuse.cuda.embed import text_attribute

    for graph in model.graphs():
        for node in graph.nodes:
            if node.domain != DOMAIN:
                continue
            overload = getattr(node, "overload", "")
            function = model.functions.get((DOMAIN, node.op, overload))
            body = function.node if function is not None else ()
            kind = kind_of(node.op)
            attributes = () if kind is None else kind.programs
            programs = (*(text_attribute(node, attribute) for attribute in attributes), "", "")
            yield FusedRegion(
                name=node.name or overload,
                overload=overload,
                ops=[inner.op_type for inner in body if inner.op_type != "Constant"],
                program=programs[0],
                prologue=programs[1],
                inputs=[tensor.name for tensor in node.inputs],
                outputs=[tensor.name for tensor in node.outputs],
                shape=node.outputs[0].shape if node.outputs else None,
                kind="" if kind is None else kind.name,
                nodes=str(node.metadata.get(NODES_KEY, "")).split(","),
                after=traffic_of_kernel(node.inputs, node.outputs),
            )


def render_inspection(found: Inspection, every_node: bool = False, brief: bool = False) -> "RenderableType":
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
        add_row(table, rule, str(len(rewrites)), _listed(list(rewrites[0].nodes)))
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
        add_row(table, rule, reason, str(len(items)), ", ".join(names) if every_node else _listed(names))
    if len(shown) == len(groups):
        return table
    return Group(table, Text(f"and {plural(len(groups) - len(shown), 'more reason')}: --all lists them"))


def _convolutions(plan: Report, every_node: bool) -> "Table":
    """The convolutions by what computes them and why."""
    table = simple_table("convolutions", "because", "nodes", "for example")
    for (kind, reason), items in plan.convolutions_by_choice():
        names = [item.node for item in items]
        add_row(table, kind, reason, str(len(items)), ", ".join(names) if every_node else _listed(names))
    return table


def _not_captured(items: list[NotCaptured], every_node: bool) -> "Table":
    """What keeps a CUDA graph of the model from being captured, by reason."""
    table = simple_table("no CUDA graph because", "nodes", "operators", "for example")
    for reason, items_of_one in group(items, lambda item: item.reason):
        names = [item.node for item in items_of_one]
        operators = ", ".join(dict.fromkeys(item.op for item in items_of_one))
        add_row(table, reason, str(len(names)), operators, ", ".join(names) if every_node else _listed(names))
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
        add_row(table, reason, str(len(items_of_one)), operators, _listed([item.node for item in items_of_one]))
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
        add_row(table, group_of.title, *cells, names[0] + (", …" if len(names) > 1 else ""))
    parts = [table]
    for what, column in (("nest", "reduces in"), ("skeleton", "kernel")):
        found = [each for each in groups if getattr(each.first, what)]
        if found:
            parts.append(simple_table(column, "nodes", "each reads and writes", "for example"))
        for each in found:
            names = [region.name for region in each.regions]
            add_row(parts[-1], getattr(each.first, what), str(len(names)), _traffic(each.first), _listed(names))
    return Group(*parts)


def _traffic(region: FusedRegion) -> str:
    """What goes through memory, where it was counted."""
    if region.after is None:
        return "?"
    return f"{region.after.reads.text({})}, {region.after.writes.text({})}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN_NAMES]) + (", …" if len(names) > _SHOWN_NAMES else "")
