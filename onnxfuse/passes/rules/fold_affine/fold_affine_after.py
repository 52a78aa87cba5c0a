"""What the rules that fold affine steps after a linear op have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onnxfuse.model.graph_ir import Node
from onnxfuse.passes.rules.budget import CopyBudget
from onnxfuse.passes.rules.fold_affine.affine import (
    IDENTITY,
    Affine,
    data_input,
    is_affine_node,
    then_along,
)
from onnxfuse.passes.rules.fold_affine.linear import LINEAR_OPS, Linear
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, Refusal, RewriteRule

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.rewrite.base import PassContext


class FoldAffineAfter(RewriteRule):
    """Folds the whole chain of affine steps after the node named ``linear`` into its weights at once."""

    def begin(self, model: Model, context: PassContext) -> None:
        """A fresh budget for copies of shared weights."""
        self._budget = CopyBudget()

    def check(self, match: Match) -> str | None:
        """Reads the chain and computes the new weights.  ``match.plan`` becomes the Linear."""
        node = match.node("linear")
        if not any(is_affine_node(reader) for reader in node.outputs[0].outputs):
            return NOT_APPLICABLE
        linear = LINEAR_OPS[node.op](node)
        nodes, step = chain_after(match, IDENTITY, then_along(linear.output_axis))
        if not nodes:
            return NOT_APPLICABLE
        self.fold(match, linear, nodes, step)
        for step_node in nodes:
            match.absorb(step_node)
        return None

    def fold(self, match: Match, linear: Linear, nodes: list[Node], step: Affine) -> None:
        """Sets ``match.plan``.  Raises Refusal."""
        linear.apply_after(step)
        weight, bias = linear.new_weight(), linear.new_bias()
        self._budget.take(linear.copied_bytes())
        match.plan = (linear, weight, bias)

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The linear op with the new weights and bias."""
        linear, weight, bias = match.plan
        result = builder.like(linear.node, *linear.node.inputs)
        linear.set_constants(builder, result.inputs[0], weight, bias)
        return result


def chain_after(match: Match, step: Affine, then: Callable[[Affine, Node], Affine]) -> tuple[list[Node], Affine]:
    """The affine nodes that follow the match one on the other, as far as they can be folded, and ``step`` with what
    they do.

    ``then`` gives a step with that of a node after it, or raises Refusal.  Why the chain ends is noted on the node at
    which it does, where that is an affine one.
    """
    editor = match.editor
    home = editor.graph_index(match.root)
    tensor = match.outputs[0]
    nodes: list[Node] = []
    while True:
        candidates = [reader for reader in tensor.outputs if is_affine_node(reader) and data_input(reader) is tensor]
        if not candidates:
            break
        node = candidates[0]
        try:
            if len(tensor.outputs) > 1 or editor.graph_index(node) != home:
                raise Refusal(f"the value before {node.op} is used elsewhere")
            if editor.is_graph_output(tensor):
                raise Refusal(f"the value before {node.op} is an output of the graph")
            step = then(step, node)
        except Refusal as reason:
            match.note(node, str(reason))
            break
        nodes.append(node)
        tensor = node.outputs[0]
    return nodes, step
