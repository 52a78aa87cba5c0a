"""What takes the place of nodes, of whatever kind, and the one place that puts it there."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_graphsurgeon as gs

from onnxfuse.fused.functions import add_function
from onnxfuse.fused.kinds import DOMAIN, ELEMENTWISE, FAST_MATH_KEY, NODES_KEY, Kind
from onnxfuse.model.graph import Model, Node
from onnxfuse.model.graph_ir import VIEWS
from onnxfuse.model.protos import value_info
from onnxfuse.model.symbols import is_made_up
from onnxfuse.ort.slow_kernels import FREE_OPS
from onnxfuse.program import Program, ProgramError
from onnxfuse.report.byte_counts import bytes_saved, traffic_of_kernel, traffic_of_nodes
from onnxfuse.report.fused_region import FusedRegion
from onnxfuse.rewrite.base import PassContext, label

_FREE = FREE_OPS | VIEWS
"""Operators for which ONNX Runtime moves nothing."""


@dataclass(frozen=True)
class Fusion:
    """A fused node that is not in a graph yet.

    kind: the row of its kind.
    nodes: those that it takes the place of, in topological order.
    inputs, outputs: its tensors; the outputs are some of what the nodes make.
    attributes: the node's, with its Programs as texts, and with small constants of the function.
    function: the local function that stands in for it, not named yet.
    reads: the inputs as they are read; where that is a view of one, the tensor that the view is.
    new: the ids of nodes that were not in the model and count for nothing in the report.
    metadata: more of the node's.
    """

    kind: Kind
    nodes: Sequence[gs.Node]
    inputs: Sequence[gs.Tensor]
    outputs: Sequence[gs.Tensor]
    attributes: Mapping[str, Any]
    function: onnx.FunctionProto
    reads: Sequence[gs.Tensor] | None = None
    new: frozenset[int] = frozenset()
    metadata: Mapping[str, str] = field(default_factory=dict)


def emit(model: Model, fusion: Fusion, context: PassContext, stem: str | None = None) -> Node:
    """Make the fused node, give the model its function, and tell the report; an export imports the domain.

    It is named after ``stem``, by default the last of its nodes.  It takes over the outputs of the nodes, which lose
    their connections; the caller takes them out of the graph and puts the fused node in.
    """
    operator = add_function(model, fusion.function, fusion.kind)
    name = model.unique_name(f"{label(fusion.nodes[-1]) if stem is None else stem}_fused")
    context.report.add_fused(_described(name, fusion, context.on.one_space))
    names = ",".join(node.name or node.op for node in fusion.nodes)
    for node in fusion.nodes:
        node.inputs.clear()
        node.outputs.clear()
    overload = fusion.function.overload
    fused = Node(operator, name, dict(fusion.attributes), list(fusion.inputs), list(fusion.outputs), DOMAIN, overload)
    fused.output_types = [_output_type(tensor) for tensor in fusion.outputs]
    fast = {FAST_MATH_KEY: "1"} if context.fast_math else {}
    fused.metadata = {NODES_KEY: names, **fast, **fusion.metadata}
    return fused


def put_in_place(graph: gs.Graph, replaced: Sequence[gs.Node], fused: Sequence[Node]) -> None:
    """Take the nodes that were replaced out of a graph, and put the fused nodes at its end."""
    if fused:
        ids = set(map(id, replaced))
        graph.nodes = [node for node in graph.nodes if id(node) not in ids] + list(fused)


def emit_all(
    model: Model,
    graph: gs.Graph,
    fusions: Sequence[Fusion],
    context: PassContext,
    stem: Callable[[Fusion], str | None] = lambda fusion: None,
) -> None:
    """Put fused nodes into the place of the nodes of one graph."""
    replaced = [node for fusion in fusions for node in fusion.nodes]
    put_in_place(graph, replaced, [emit(model, fusion, context, stem(fusion)) for fusion in fusions])


def _described(name: str, fusion: Fusion, one_space: bool) -> FusedRegion:
    """What the report says of a fused node, whose kernel, if it is elementwise, may have ``one_space``."""
    reads = fusion.inputs if fusion.reads is None else fusion.reads
    counted = [node for node in fusion.nodes if id(node) not in fusion.new]
    programs = [str(fusion.attributes.get(attribute, "")) for attribute in fusion.kind.programs]
    program, prologue = (*programs, "", "")[:2]
    return FusedRegion(
        name=name,
        overload=fusion.function.overload,
        ops=[node.op for node in fusion.nodes],
        program=program,
        prologue=prologue,
        inputs=[tensor.name for tensor in fusion.inputs],
        outputs=[tensor.name for tensor in fusion.outputs],
        shape=fusion.outputs[0].shape,
        bytes_saved=bytes_saved(counted, reads, fusion.outputs, _FREE),
        before=traffic_of_nodes(counted, fusion.outputs, _FREE),
        after=traffic_of_kernel(reads, fusion.outputs),
        skeleton=_skeleton(program, fusion.inputs) if one_space and fusion.kind is ELEMENTWISE else "",
        kind=fusion.kind.name,
        nodes=[label(node) for node in fusion.nodes],
    )


def _skeleton(program: str, inputs: Sequence[gs.Tensor]) -> str:
    """How the kernel of an elementwise Program works, if that is not plainly."""
    from onnxfuse.cuda.elementwise.access import expected_access
    from onnxfuse.cuda.elementwise.parts import parts_of

    with suppress(ProgramError):  # of shapes that do not fit, for which nothing is known
        parsed, shapes = Program.parse(program), [tensor.shape for tensor in inputs]
        if parts := parts_of(parsed, shapes):
            return f"{len(parts)} parts"
        if expected_access(parsed, shapes).transposes:
            return "transpose"
    return ""


def _output_type(tensor: gs.Tensor) -> onnx.ValueInfoProto:
    """What is known of an output, for ORT, whose interface for custom ops cannot infer an unknown shape or rank 0.

    Symbols that shape inference made up are left out.
    """
    info = value_info(tensor)
    for dim in info.type.tensor_type.shape.dim:
        if is_made_up(dim.dim_param):
            dim.Clear()
    return info
