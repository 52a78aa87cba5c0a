"""Conv(Mean(x · scale + offset), w, b) → Conv(Mean(x), w · scale, b + w · offset), for means of whole channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnxfuse.model.graph_ir import standard_op
from onnxfuse.passes.rules.budget import CopyBudget
from onnxfuse.passes.rules.channel_mean import averaged
from onnxfuse.passes.rules.fold_affine.affine import is_affine_node
from onnxfuse.passes.rules.fold_affine.fold_affine_before_linear import steps_before
from onnxfuse.passes.rules.fold_affine.linear import LINEAR_OPS, reads_as_data
from onnxfuse.program.lowering import is_elementwise
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.rewrite.base import PassContext


class FoldAffineBeforeMean(RewriteRule):
    """Folds affine steps before the mean of a squeeze-and-excitation gate into the convolutions that read the mean.

    The steps stay for their other readers, above all for the product with the gate, which they can be fused with once
    the gate needs their result no more.  Refused: a mean that anything but a Conv reads; steps whose result a node
    that is not elementwise reads too; steps after a convolution, which can take them in itself; constants that are
    neither scalar nor per channel; new weights that overflow or are denormal.
    """

    name = "fold-affine-before-mean"

    def begin(self, model: Model, context: PassContext) -> None:
        """A fresh budget for copies of shared weights."""
        self._budget = CopyBudget()

    def pattern(self, op: Ops, x: Any) -> Any:
        """Both ways to take the mean of a channel."""
        return op.any_of(op.GlobalAveragePool(x), op.ReduceMean(x, _extra_inputs=True))

    def check(self, match: Match) -> str | None:
        """Computes all new weights; ``match.plan`` holds them and what the mean is to be taken of."""
        mean, data = match.outputs[0], averaged(match.root)
        if data is None or len(data.inputs) != 1 or not is_affine_node(data.inputs[0]):
            return NOT_APPLICABLE
        last = data.inputs[0]
        readers = list(mean.outputs)
        if match.editor.graph_index(last) != match.editor.graph_index(match.root) or not readers:
            return NOT_APPLICABLE
        if not all(reader.op == "Conv" and reads_as_data(reader, mean) for reader in readers):
            return NOT_APPLICABLE
        if match.editor.is_graph_output(mean):
            return "the mean is an output of the graph"
        if not all(reader is match.root or is_elementwise(reader) for reader in data.outputs):
            return "what it is the mean of is also read by a node that the steps cannot be fused with"
        ops = [LINEAR_OPS[reader.op](reader) for reader in readers]
        source, steps = steps_before(match, last, ops, absorb=False)
        if steps is None or any(standard_op(producer) in LINEAR_OPS for producer in source.inputs):
            return NOT_APPLICABLE
        folded = []
        for linear, step in zip(ops, steps, strict=True):
            linear.apply_before(step)
            folded.append((linear, linear.new_weight(), linear.new_bias()))
        self._budget.take(sum(linear.copied_bytes() for linear in ops))
        match.plan = source, folded
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """Gives the convolutions new constants, and the mean what is before the steps."""
        source, folded = match.plan
        for linear, weight, bias in folded:
            linear.set_constants(builder, linear.node, weight, bias)
        return builder.like(match.root, source, *list(match.root.inputs)[1:])
