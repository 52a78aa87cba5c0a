"""Static counts of a model: what ONNX Runtime would launch and move, read off the graph without running it.

A node counts once wherever it stands: bodies of If, Loop and Scan once, not once per iteration; functions
that the model carries are counted at each call, since ONNX Runtime inlines them; a fused node is one node and
one launch. ONNX Runtime's own fusions are not foreseen, so the counts are of the graph in the file.

- launches: nodes that run a kernel over data.  Not counted: constants, operators that only rename memory
  (Reshape, Squeeze, Unsqueeze, Flatten, Identity), control flow itself, shape arithmetic (what is
  computed from shapes and constants alone, on the host), and what depends on constants alone, which ONNX Runtime
  computes once, when it creates the session.
- intermediate tensors: tensors that a launch writes, that a node reads and that are no output of the model.
- bytes between launches: the sizes of these tensors, each counted once; and of those among them that products and
  convolutions write that are no fused nodes, and that they write or read: these no fusion around them can do without.
- operators: the launches by operator, fused nodes by kind.
- bytes moved: for each launch the bytes of its distinct inputs and of its outputs, weights included.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import onnx_graphsurgeon as gs

from onnxfuse.fused.kinds import DOMAIN, ELEMENTWISE, kind_of, reported_name
from onnxfuse.model.graph import sorted_nodes
from onnxfuse.model.graph_ir import function_key, operator_key, standard_op
from onnxfuse.model.inlining import FunctionKey, inlined_nodes
from onnxfuse.model.returned import Returned
from onnxfuse.ort.host import constant_arithmetic, shape_arithmetic
from onnxfuse.program.lowering import is_elementwise
from onnxfuse.report.byte_counts import Bytes, touched
from onnxfuse.report.remaining import PRODUCTS
from onnxfuse.wording import listed

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model

_NO_LAUNCH = {
    *("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Optional", "OptionalGetElement"),
    *("If", "Loop", "Scan", "Constant"),
}


@dataclass
class Statistics:
    """The counts; the module's text defines them."""

    nodes: int = 0
    launches: int = 0
    operators: Counter[str] = field(default_factory=Counter)
    intermediate_tensors: int = 0
    bytes_elementwise: Bytes = field(default_factory=Bytes)
    bytes_total: Bytes = field(default_factory=Bytes)
    bytes_between: Bytes = field(default_factory=Bytes)
    bytes_of_products: Bytes = field(default_factory=Bytes)
    bytes_at_products: Bytes = field(default_factory=Bytes)

    def at(self, sizes: Mapping[str, int]) -> "Statistics":
        """The same with numbers for the dimensions that have a size in ``sizes``."""
        return replace(
            self,
            bytes_elementwise=self.bytes_elementwise.at(sizes),
            bytes_total=self.bytes_total.at(sizes),
            bytes_between=self.bytes_between.at(sizes),
            bytes_of_products=self.bytes_of_products.at(sizes),
            bytes_at_products=self.bytes_at_products.at(sizes),
        )

    def is_symbolic(self) -> bool:
        """Whether any size depends on a dimension that is no number."""
        return self.bytes_total.constant() is None

    def to_json(self) -> dict[str, object]:
        """The fields as JSON takes them."""
        return {
            "nodes": self.nodes,
            "launches": self.launches,
            "operators": dict(self.operators.most_common()),
            "intermediate_tensors": self.intermediate_tensors,
            "bytes_elementwise": self.bytes_elementwise.to_json(),
            "bytes_total": self.bytes_total.to_json(),
            "bytes_between": self.bytes_between.to_json(),
            "bytes_of_products": self.bytes_of_products.to_json(),
            "bytes_at_products": self.bytes_at_products.to_json(),
        }


@dataclass
class Example:
    """The counts before and after for inputs of these ``shapes``, so that sizes are numbers; ``symbols`` are
    the sizes of the model's dynamic dimensions by their names."""

    shapes: dict[str, list[int]]
    before: Statistics
    after: Statistics
    symbols: dict[str, int] = field(default_factory=dict)

    def describe(self) -> str:
        """The shapes as ``--shape`` takes them; of many inputs the first few."""
        shapes = [f"{name}={'x'.join(map(str, shape))}" for name, shape in self.shapes.items()]
        return listed(shapes)

    def to_json(self) -> dict[str, object]:
        """The fields as JSON takes them."""
        return {"shapes": self.shapes, "before": self.before.to_json(), "after": self.after.to_json()}


def collect(model: "Model") -> Statistics:
    """Count a model whose types and shapes have been inferred."""
    statistics = Statistics()
    functions = {key: function for key, function in model.functions.items() if key[0] != DOMAIN}
    inlined: dict[FunctionKey, int] = {}
    is_output = Returned(model.graphs())
    for graph in model.graphs():
        _count_graph(statistics, graph, is_output)
        for node in graph.nodes if functions else ():
            key = function_key(node)
            if key in functions:  # the call itself is counted already
                more = inlined_nodes(key, functions, inlined) - 1
                statistics.nodes += more
                statistics.launches += more
                statistics.operators[key[1]] += more
    return statistics


def _arithmetic(nodes: Sequence[gs.Node]) -> set[int]:
    """The ids of the nodes, among ``nodes`` in topological order, that compute with shapes or constants alone."""
    elementwise = {id(node) for node in nodes if is_elementwise(node)}
    return shape_arithmetic(nodes, elementwise) | constant_arithmetic(nodes)


def is_launched(node: gs.Node) -> bool:
    """Whether a node runs a kernel over data, if it is no arithmetic."""
    return standard_op(node) not in _NO_LAUNCH


def _count_graph(statistics: Statistics, graph: gs.Graph, is_output: Returned) -> None:
    nodes = sorted_nodes(graph)
    not_launched = _arithmetic(nodes)
    statistics.nodes += len(nodes)
    for node in nodes:
        if id(node) in not_launched or not is_launched(node):
            continue
        kind = kind_of(node.op) if node.domain == DOMAIN else None
        statistics.launches += 1
        statistics.operators[reported_name(node.op, node.domain == DOMAIN)] += 1
        between = [tensor for tensor in node.outputs if tensor.name and tensor.outputs and not is_output(tensor)]
        statistics.intermediate_tensors += len(between)
        for tensor in between:
            statistics.bytes_between.add(tensor)
            written = _is_product(node)
            if written:
                statistics.bytes_of_products.add(tensor)
            if written or _is_multiplied(tensor):
                statistics.bytes_at_products.add(tensor)
        fusible = is_elementwise(node) or kind is ELEMENTWISE
        for tensor in touched(node):
            statistics.bytes_total.add(tensor)
            if fusible:
                statistics.bytes_elementwise.add(tensor)


def _is_product(node: gs.Node) -> bool:
    return node.domain != DOMAIN and operator_key(node)[1] in PRODUCTS


def _is_multiplied(tensor: gs.Tensor) -> bool:
    """Whether a product reads a tensor, or another view of its memory."""
    if any(map(_is_product, tensor.outputs)):
        return True
    views = (view for node in tensor.outputs if not is_launched(node) for view in node.outputs)
    return any(map(_is_multiplied, views))
