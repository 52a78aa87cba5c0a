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
from onnxfuse.report.fused_region import FusedRegion
from onnxfuse.report.report import Report
from onnxfuse.run.given_shapes import fit_shapes
from onnxfuse.run.inputs import input_specs, value_spec
from onnxfuse.wording import listed

if TYPE_CHECKING:
    from onnxfuse.cuda.conv.case import ConvCase
    from onnxfuse.model.graph import Model

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
        known = listed([region.name for region in [*self.fused, *self.plan.fused]]) or "none"
        raise OnnxfuseError(f"no fused node {name!r} in {self.path}; there are: {known}")

    def cuda_source(self, name: str) -> str:
        """The CUDA source of the fused node ``name``'s kernels, without the prelude that all have.

        Raises OnnxfuseError if there is no such node, it has no kernels, or they were rendered by another version.
        """
        from onnxfuse.cuda.rerender import source_of_recipe

        program = self.program(name)
        names = [region.name for region in self.fused if name in (region.name, region.overload)]
        node = next((node for node in names if node in self.recipes), None)
        if node is None:
            raise OnnxfuseError(f"fused node {name!r} has no CUDA kernels: optimize the model with --target cuda")
        source = source_of_recipe(self.recipes[node], program, self.cases.get(node))
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
    from onnxfuse.cuda.embed import RECIPE
    from onnxfuse.model.graph_ir import text_attribute

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
    from onnxfuse.model.graph_ir import function_key, text_attribute

    for graph in model.graphs():
        for node in graph.nodes:
            if node.domain != DOMAIN:
                continue
            overload = getattr(node, "overload", "")
            function = model.functions.get(function_key(node))
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
