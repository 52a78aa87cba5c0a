"""Linear(x · scale + offset, w, b) → Linear(x, w · scale, b + w · offset)."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

import onnx_graphsurgeon as gs

from onnxfuse.model.constants import Array
from onnxfuse.model.graph_ir import Node
from onnxfuse.passes.rules.budget import CopyBudget
from onnxfuse.passes.rules.deviation import is_normalized
from onnxfuse.passes.rules.fold_affine.affine import (
    IDENTITY,
    Affine,
    axis_of_data,
    compose,
    constant_step,
    data_input,
    is_affine_node,
    keeps_rank,
    read_step,
)
from onnxfuse.passes.rules.fold_affine.linear import LINEAR_OPS, Gemm, Linear, MatMul, reads_as_data
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, Refusal, RewriteRule

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.rewrite.base import PassContext

_Plan = tuple[gs.Tensor, list[tuple[Linear, "Array | None", "Array | None"]]]


class FoldAffineBeforeLinear(RewriteRule):
    """Folds affine steps into every Conv, ConvTranspose, Gemm and MatMul that reads their result.

    Refused: a result that anything else reads too; an offset before a Conv that pads, before a ConvTranspose,
    and before a MatMul without an Add of a constant after it; the end of a normalization or of a GELU written out,
    which ONNX Runtime recognizes as a whole; constants that are neither scalar nor per channel, or that may broadcast
    the data to a larger shape; new weights that overflow or are denormal.
    """

    name = "fold-affine-before-linear"

    def begin(self, model: Model, context: PassContext) -> None:
        """A fresh budget for copies of shared weights; finds GELUs."""
        from onnxfuse.ort.ort_fusions import find_gelus  # the planner knows these rules

        self._budget = CopyBudget()
        self._gelus = find_gelus(model)

    def may_end_at(self, node: Node) -> bool:
        """Only where a linear op reads the result."""
        return any(reader.op in LINEAR_OPS for tensor in node.outputs for reader in tensor.outputs)

    def pattern(self, op: Ops, x: Any) -> Any:
        """The last of the steps."""
        parameters = map(op.constant, ("scale", "bias", "mean", "variance"))
        return op.any_of(constant_step(op, x, op.constant("k")), op.BatchNormalization(x, *parameters))

    def check(self, match: Match) -> str | None:
        """Finds the readers and the steps and computes all new weights; ``match.plan`` holds them."""
        result = match.outputs[0]
        readers = list(result.outputs)
        linear_readers = [reader for reader in readers if reads_as_data(reader, result)]
        if not linear_readers:
            return NOT_APPLICABLE
        if match.editor.is_graph_output(result):
            return "its result is an output of the graph"
        if len(linear_readers) < len(readers):
            other = next(reader for reader in readers if not reads_as_data(reader, result))
            return f"its result is also read by a node that cannot take it in ({other.op})"
        if id(match.root) in self._gelus:
            return "it ends a GELU, which ONNX Runtime computes in one kernel"
        ops = [LINEAR_OPS[reader.op](reader) for reader in linear_readers]
        source, steps = steps_before(match, match.root, ops, absorb=True, kept=self._gelus)
        if steps is None:
            return NOT_APPLICABLE
        if is_normalized(source):
            return "it ends a normalization that ONNX Runtime fuses with it alone"
        folded = []
        for linear, step in zip(ops, steps, strict=True):
            linear.apply_before(step)
            if isinstance(linear, MatMul) and step.shifts:
                linear.apply_after(_following_add(match, linear)[1])
            folded.append((linear, linear.new_weight(), linear.new_bias()))
        self._budget.take(self._copied_bytes(ops))
        plan: _Plan = (source, folded)
        match.plan = plan
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """Gives the readers new constants; what they read becomes the one before the steps."""
        source, folded = match.plan
        for linear, weight, bias in folded:
            linear.set_constants(builder, linear.node, weight, None if isinstance(linear, MatMul) else bias)
            if bias is None:
                continue
            if isinstance(linear, MatMul):
                add, _ = _following_add(match, linear)
                place = 1 if add.inputs[0] is linear.node.outputs[0] else 0
                builder.set_input(add, place, builder.initializer(bias, f"{linear.weight_tensor.name}_bias_folded"))
            elif isinstance(linear, Gemm):
                linear.node.attrs["beta"] = 1.0
        return source

    @staticmethod
    def _copied_bytes(ops: list[Linear]) -> int:
        """Growth by shared weights; weights that only these readers share are still there once."""
        return sum(linear.copied_bytes() for linear in ops)


def steps_before(
    match: Match, last: Node, ops: Sequence[Linear], *, absorb: bool, kept: Container[int] = ()
) -> tuple[gs.Tensor, list[Affine] | None]:
    """The value before the longest foldable chain of steps that ends with ``last``, and what the chain does as each
    reader sees it; None if there is no such chain.

    The nodes of the chain before ``last`` become part of the match if ``absorb`` says so; none whose id is ``kept`` is
    one of the chain.
    """
    editor = match.editor
    node = last
    home = editor.graph_index(node)
    source = node.outputs[0]
    totals: list[Affine] | None = None
    while True:
        try:
            totals = [
                compose(_step_before(match, node, linear), total)
                for linear, total in zip(ops, totals or [IDENTITY] * len(ops), strict=True)
            ]
        except Refusal as reason:
            match.note(node, str(reason))
            break
        if absorb and node is not last:
            match.nodes.append(node)
        source = data_input(node)
        producers: list[Node] = list(source.inputs)
        if (
            len(producers) != 1
            or editor.graph_index(producers[0]) != home
            or not is_affine_node(producers[0])
            or id(producers[0]) in kept
            or len(source.outputs) > 1
            or editor.is_graph_output(source)
        ):
            break
        node = producers[0]
    return source, totals


def _step_before(match: Match, node: Node, linear: Linear) -> Affine:
    """What ``node`` does to the data of ``linear``.  Raises Refusal if it cannot be taken in."""
    if not keeps_rank(node):
        raise Refusal(f"{node.op}'s constant may add a dimension to its data")
    step = read_step(node, axis_of_data(data_input(node), linear.input_axis))
    if step.shifts:
        reason = linear.refuses_shift_before()
        if reason is not None:
            raise Refusal(reason)
        if isinstance(linear, MatMul):
            _following_add(match, linear)
    return step


def _following_add(match: Match, linear: MatMul) -> tuple[Node, Affine]:
    """The Add of a constant that alone reads the product, and what it adds.  Raises Refusal without one."""
    product = linear.node.outputs[0]
    readers: list[Node] = list(product.outputs)
    if (
        len(readers) != 1
        or readers[0].op != "Add"
        or not is_affine_node(readers[0])
        or match.editor.is_graph_output(product)
        or match.editor.graph_index(readers[0]) != match.editor.graph_index(linear.node)
    ):
        raise Refusal("MatMul has no bias that an offset before it could go into")
    return readers[0], read_step(readers[0], linear.output_axis)
