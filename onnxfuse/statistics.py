"""Static counts of a model: what ONNX Runtime would launch and move, read off the graph without running it.

A node counts once wherever it stands: bodies of If, Loop and Scan once, not once per iteration; functions
that the model carries are counted at each call, since ONNX Runtime inlines them; a fused node is one node and
one launch. ONNX Runtime's own fusions are not foreseen, so the counts are of the graph in the file.

- launches: nodes that run a kernel over data.  Not counted: constants, operators that only rename memory
  (Reshape, Squeeze, Unsqueeze, Flatten, Identity), control flow itself, and shape arithmetic (what is
  computed from shapes and constants alone, on the host).
- intermediate tensors: tensors that a launch writes, that a node reads and that are no output of the model.
- bytes moved: for each launch the bytes of its distinct inputs and of its outputs, weights included.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import onnx
import onnx_graphsurgeon as gs

from onnxfuse.byte_counts import Bytes, touched
from onnxfuse.graph import sorted_nodes
from onnxfuse.planner.host import shape_arithmetic
from onnxfuse.program.lowering import is_elementwise

if TYPE_CHECKING:
    from onnxfuse.graph import Model

FunctionKey = tuple[str, str, str]
FUSED_DOMAIN = "onnxfuse"
_NO_LAUNCH = {
    *("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Optional", "OptionalGetElement"),
    *("If", "Loop", "Scan", "Constant"),
}


@dataclass
class Statistics:
    """The counts; the module's text defines them."""

    nodes: int = 0
    launches: int = 0
    intermediate_tensors: int = 0
    bytes_elementwise: Bytes = field(default_factory=Bytes)
    bytes_total: Bytes = field(default_factory=Bytes)

    def to_json(self) -> dict[str, object]:
        """The fields as JSON takes them."""
        return {
            "nodes": self.nodes,
            "launches": self.launches,
            "intermediate_tensors": self.intermediate_tensors,
            "bytes_elementwise": self.bytes_elementwise.to_json(),
            "bytes_total": self.bytes_total.to_json(),
        }


def collect(model: "Model") -> Statistics:
    """Count a model whose types and shapes have been inferred."""
    statistics = Statistics()
    functions = {key: function for key, function in model.functions.items() if key[0] != FUSED_DOMAIN}
    inlined: dict[FunctionKey, int] = {}
    for graph in model.graphs():
        _count_graph(statistics, graph)
        for node in graph.nodes if functions else ():
            key = (node.domain or "", node.op, getattr(node, "overload", ""))
            if key in functions:  # the call itself is counted already
                more = _inlined_nodes(key, functions, inlined) - 1
                statistics.nodes += more
                statistics.launches += more
    return statistics


def _count_graph(statistics: Statistics, graph: gs.Graph) -> None:
    nodes = sorted_nodes(graph)
    elementwise = {id(node) for node in nodes if is_elementwise(node)}
    on_host = shape_arithmetic(nodes, elementwise)
    outputs = {id(tensor) for tensor in graph.outputs}
    statistics.nodes += len(nodes)
    for node in nodes:
        if id(node) in on_host or (node.op in _NO_LAUNCH and node.domain != FUSED_DOMAIN):
            continue
        statistics.launches += 1
        statistics.intermediate_tensors += sum(
            1 for tensor in node.outputs if tensor.name and tensor.outputs and id(tensor) not in outputs
        )
        fusible = id(node) in elementwise or node.domain == FUSED_DOMAIN
        for tensor in touched(node):
            statistics.bytes_total.add(tensor)
            if fusible:
                statistics.bytes_elementwise.add(tensor)


def _inlined_nodes(
    key: FunctionKey, functions: Mapping[FunctionKey, onnx.FunctionProto], inlined: dict[FunctionKey, int]
) -> int:
    """How many nodes a call of the function becomes; ``inlined`` remembers, and stops at a function that
    calls itself."""
    if key not in inlined:
        inlined[key] = 1
        body = [(node.domain, node.op_type, node.overload) for node in functions[key].node]
        inlined[key] = sum(_inlined_nodes(k, functions, inlined) if k in functions else 1 for k in body)
    return inlined[key]
