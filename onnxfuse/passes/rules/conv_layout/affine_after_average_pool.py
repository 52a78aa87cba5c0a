"""AveragePool(x · scale + offset) → AveragePool(x) · scale + offset, where that keeps the blocked layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnxfuse.model.graph import sorted_nodes
from onnxfuse.model.graph_ir import Node
from onnxfuse.model.returned import Returned
from onnxfuse.ort.ort_layout import ConvLayout
from onnxfuse.passes.rules.fold_affine.affine import Axis, data_input, is_affine_node, read_step
from onnxfuse.passes.rules.fold_affine.linear import auto_pad, pads
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, Refusal, RewriteRule

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.rewrite.base import PassContext


class AffineAfterAveragePool(RewriteRule):
    """Takes affine steps after the average that alone reads their result: there they have fewer elements.

    Refused: a pool that pads, or whose last window may be a part of one; steps on data that ONNX Runtime does not have
    in the blocked layout, which are better fused with what is before them; constants that are neither scalar nor per
    channel, or not finite.
    """

    name = "affine-after-average-pool"

    def begin(self, model: Model, context: PassContext) -> None:
        """Finds out what ONNX Runtime keeps in the blocked layout."""
        is_output = Returned(model.graphs())
        self._layouts = [ConvLayout(sorted_nodes(graph), is_output) for graph in model.graphs()]

    def pattern(self, op: Ops, x: Any) -> Any:
        """The pool; the steps before it are read in ``check``."""
        return op.AveragePool(x)

    def check(self, match: Match) -> str | None:
        """Reads the steps; ``match.plan`` holds what is before them, and they themselves from the last to the first."""
        pool = match.root
        graph = match.editor.graph_index(pool)
        assert graph is not None
        data = match["x"]
        steps: list[Node] = []
        while len(data.inputs) == 1 and is_affine_node(data.inputs[0]) and data.inputs[0].op != "BatchNormalization":
            step = data.inputs[0]
            if len(data.outputs) > 1 or match.editor.is_graph_output(data) or match.editor.graph_index(step) != graph:
                break
            steps.append(step)
            data = data_input(step)
        if not steps or not self._layouts[graph].is_blocked(data):
            return NOT_APPLICABLE
        if auto_pad(pool) not in ("NOTSET", "VALID") or pads(pool) or pool.attrs.get("ceil_mode", 0):
            return "the windows of the pool reach beyond its input"
        shape = data.shape
        if shape is None or len(shape) != 4 or not isinstance(shape[1], int):
            raise Refusal("the number of its channels is not known")
        for step in steps:
            read_step(step, Axis(shape[1], rank=4, index=1))
        match.plan = data, steps
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The pool, and the same steps."""
        data, steps = match.plan
        result = builder.like(match.root, data)
        for step in reversed(steps):
            read = data_input(step)
            result = builder.like(step, *(result if tensor is read else tensor for tensor in step.inputs))
        return result
