"""What is in a model: its signature, its fused nodes, and for each elementwise node that is not fused the
reason."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfuse.errors import OnnxfuseError
from onnxfuse.inputs import input_specs, value_spec
from onnxfuse.report import FusedRegion, LeftAlone, add_row, group_by_reason, plural, printable, simple_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from onnxfuse.graph import Model

FUSED_DOMAIN = "onnxfuse"
_SHOWN_NAMES = 3


@dataclass
class Inspection:
    """The content of a model.

    ``fused`` are the fused nodes that are in it, ``fusible`` the regions that ``onnxfuse optimize`` would
    fuse, ``left_alone`` the elementwise nodes that neither holds.
    """

    path: str
    ir_version: int
    opsets: dict[str, int]
    producer: str
    inputs: list[str]
    outputs: list[str]
    nodes: int
    operators: dict[str, int]
    fused: list[FusedRegion] = field(default_factory=list)
    fusible: list[FusedRegion] = field(default_factory=list)
    left_alone: list[LeftAlone] = field(default_factory=list)

    def program(self, name: str) -> str:
        """The program of the fused node ``name`` (or of a region by its overload).  OnnxfuseError if there is
        none."""
        for region in [*self.fused, *self.fusible]:
            if name in (region.name, region.overload):
                return region.program
        known = ", ".join(region.name for region in self.fused[:_SHOWN_NAMES]) or "none"
        raise OnnxfuseError(f"no fused node {name!r} in {self.path}; there are: {known}")

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        return {
            **vars(self),
            "fused": [region.to_json() for region in self.fused],
            "fusible": [region.to_json() for region in self.fusible],
            "left_alone": [dict(vars(item)) for item in self.left_alone],
        }


def inspect(path: Path, target: str = "cpu") -> Inspection:
    """Read a model and plan it as ``optimize`` would, changing nothing.  Raises OnnxfuseError for a bad
    file."""
    from onnxfuse.model_io import load
    from onnxfuse.planner import explain

    model = load(path)
    proto = model.to_proto()
    fusible, left_alone = explain(model, target)
    nodes = [node for graph in model.graphs() for node in graph.nodes]
    return Inspection(
        path=str(path),
        ir_version=proto.ir_version,
        opsets={opset.domain: opset.version for opset in proto.opset_import},
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        inputs=[spec.describe() for spec in input_specs(proto)],
        outputs=[value_spec(value).describe() for value in proto.graph.output],
        nodes=len(nodes),
        operators=dict(Counter(node.op for node in nodes).most_common()),
        fused=list(_fused(model)),
        fusible=fusible,
        left_alone=left_alone,
    )


def _fused(model: "Model") -> Iterator[FusedRegion]:
    for graph in model.graphs():
        for node in graph.nodes:
            if node.domain != FUSED_DOMAIN:
                continue
            overload = getattr(node, "overload", "")
            function = model.functions.get((FUSED_DOMAIN, node.op, overload))
            body = function.node if function is not None else ()
            program = node.attrs.get("program", "")
            yield FusedRegion(
                name=node.name or overload,
                overload=overload,
                ops=[inner.op_type for inner in body if inner.op_type != "Constant"],
                program=program.decode(errors="replace") if isinstance(program, bytes) else str(program),
                inputs=[tensor.name for tensor in node.inputs],
                outputs=[tensor.name for tensor in node.outputs],
                shape=node.outputs[0].shape if node.outputs else None,
            )


def render_inspection(found: Inspection, every_node: bool = False) -> "RenderableType":
    """The tables that ``onnxfuse inspect`` prints; ``every_node`` lists all nodes that are not fused."""
    from rich.console import Group
    from rich.text import Text

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
    if found.fusible:
        parts.append(_regions("optimize would fuse", found.fusible))
    if found.left_alone:
        table = _left_alone_nodes(found.left_alone) if every_node else _left_alone_reasons(found.left_alone)
        parts.append(table)
    if not (found.fused or found.fusible or found.left_alone):
        parts.append(Text("no elementwise nodes"))
    return Group(*parts)


def _left_alone_nodes(items: list[LeftAlone]) -> "Table":
    table = simple_table("not fused", "operator", "because")
    for item in items:
        add_row(table, item.node, item.op, item.reason)
    return table


def _left_alone_reasons(items: list[LeftAlone]) -> "Table":
    table = simple_table("not fused because", "nodes", "operators", "for example")
    for reason, group in group_by_reason(items):
        operators = ", ".join(dict.fromkeys(item.op for item in group))
        add_row(table, reason, str(len(group)), operators, _listed([item.node for item in group]))
    return table


def _regions(title: str, regions: list[FusedRegion]) -> "RenderableType":
    table = simple_table(title, "nodes", "operators", "inputs", "outputs", "shape")
    for region in regions:
        operators = ", ".join(op if count == 1 else f"{count} {op}" for op, count in Counter(region.ops).most_common())
        sizes = str(len(region.ops)), operators, str(len(region.inputs)), str(len(region.outputs))
        add_row(table, region.name, *sizes, region.describe_shape())
    return table


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN_NAMES]) + (", …" if len(names) > _SHOWN_NAMES else "")
