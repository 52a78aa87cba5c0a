"""The passes split-product-bias and join-product-bias: for CUDA, where the bias of a matrix product is added.

ONNX Runtime's CUDA provider computes a Gemm with a bias in two kernels, of which the first writes the bias into every
row of the result (core/providers/cuda/math/gemm.cc).  In the kernel of the nodes that follow the bias costs nothing; so
it becomes an addition before these are fused, and what none of them took is part of a Gemm in the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfuse.fused.regions import find_regions
from onnxfuse.model.constants import constant_value, dtype_of
from onnxfuse.model.graph import sorted_nodes
from onnxfuse.model.graph_ir import Node
from onnxfuse.passes.rules.budget import CopyBudget
from onnxfuse.passes.rules.fold_shapes.product_of_rows import vector_bias
from onnxfuse.program.lowering import check, is_elementwise
from onnxfuse.program.reducing import check as check_reducing
from onnxfuse.program.reducing import reduces
from onnxfuse.rewrite.base import PassContext
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rewriter import RulePass
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule
from onnxfuse.shapes.inference import infer

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model

SPLIT = "split-product-bias"
JOIN = "join-product-bias"
_GEMM_TYPES = (np.float32, np.float64, np.float16)


class GemmBias(RewriteRule):
    """Gemm(x, w, bias) → MatMul(x, w) + bias where nothing but nodes that are fused with each other reads the result.

    Refused: weights to be transposed that others read too, beyond a budget.
    """

    name = SPLIT

    def begin(self, model: Model, context: PassContext) -> None:
        """Finds the regions that there are without the additions."""
        self._budget = CopyBudget()
        opset = model.opsets.get("")
        self._regions: dict[int, int] = {}

        def fusible(node: Node) -> bool:
            if opset is None:
                return False
            if is_elementwise(node):
                return check(node, opset) is None
            return reduces(node) and check_reducing(node, opset) is None

        for graph in model.graphs():
            for region in find_regions(sorted_nodes(graph), fusible, lambda producer, consumer, tensor: True):
                self._regions.update((id(node), id(region[0])) for node in region)

    def pattern(self, op: Ops, x: Any, w: Any) -> Any:
        """A Gemm with a bias."""
        return op.Gemm(x, w, op.constant("bias"), _name="gemm")

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds the bias as a vector, and the weights if they are to be transposed."""
        gemm = match.node("gemm")
        bias, weights = vector_bias(gemm), constant_value(match["w"])
        if bias is None or weights is None or gemm.attrs.get("alpha", 1.0) != 1 or gemm.attrs.get("transA", 0):
            return NOT_APPLICABLE
        (result,) = match.outputs
        regions = {self._regions.get(id(reader)) for reader in result.outputs}
        if len(regions) != 1 or None in regions or match.editor.is_graph_output(result):
            return NOT_APPLICABLE
        transposed = bool(gemm.attrs.get("transB", 0))
        if transposed and len(match["w"].outputs) > 1:
            self._budget.take(weights.nbytes)
        match.plan = bias, weights.T if transposed else None
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The product, and the addition."""
        bias, weights = match.plan
        w = match["w"] if weights is None else builder.initializer(weights, match["w"].name)
        return builder.op("Add", builder.op("MatMul", match["x"], w), builder.initializer(bias, match["bias"].name))


class BiasOfProduct(RewriteRule):
    """MatMul(x, w) + bias → Gemm(x, w, bias), between Reshapes where x has more dimensions than two.

    So does ONNX Runtime where it knows the shape.  Where more than one size of the result is not known, they are taken
    of the shape of x, on the host.
    """

    name = JOIN

    def begin(self, model: Model, context: PassContext) -> None:
        """Notes the opset."""
        self._opset = model.opsets.get("", 0)

    def pattern(self, op: Ops, x: Any) -> Any:
        """A product of constant weights, and a constant."""
        return op.Add(op.MatMul(x, op.constant("w")), op.constant("bias"))

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds the shape of the result, with -1 for sizes that are not known; None for a matrix."""
        x, w, bias, result = match["x"], match["w"], match["bias"], match.outputs[0]
        if (
            w.shape is None
            or len(w.shape) != 2
            or list(bias.shape or ()) != [w.shape[1]]
            or dtype_of(w) not in _GEMM_TYPES
        ):
            return NOT_APPLICABLE
        if x.shape is None or len(x.shape) < 2 or result.shape is None or len(result.shape) != len(x.shape):
            return NOT_APPLICABLE
        shape = [size if isinstance(size, int) else -1 for size in result.shape]
        if 0 in shape or (shape.count(-1) > 1 and len(shape) > 2 and self._opset < _SHAPE_TAKES_BOUNDS):
            return NOT_APPLICABLE
        match.plan = shape if len(shape) > 2 else None
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The Gemm, of rows."""
        x, w, bias, shape = match["x"], match["w"], match["bias"], match.plan
        if shape is None:
            return builder.op("Gemm", x, w, bias)
        rows = builder.op("Reshape", x, builder.initializer(np.array([-1, w.shape[0]]), "rows"))
        product = builder.op("Gemm", rows, w, bias)
        if shape.count(-1) < 2:
            return builder.op("Reshape", product, builder.initializer(np.array(shape), "shape"))
        # Of its own x: that sizes of one name are equal is what a model declares, and ONNX Runtime does not ask for it.
        columns = builder.initializer(np.array([w.shape[1]]), "columns")
        sizes = builder.op("Concat", builder.op("Shape", x, end=-1), columns, axis=0)
        return builder.op("Reshape", product, sizes, allowzero=1)


class SplitProductBias:
    """Runs the rule, where ONNX Runtime adds biases in kernels of their own."""

    name = SPLIT
    description = "For CUDA: adds the bias of a Gemm together with the nodes after it that are fused."

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrites ``model`` in place."""
        _apply(GemmBias(), SPLIT, model, context)


class JoinProductBias:
    """Runs the rule, where a bias that is added alone takes a kernel of its own."""

    name = JOIN
    description = "For CUDA: adds the bias of a matrix product in a Gemm where nothing that is fused adds it."

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrites ``model`` in place."""
        _apply(BiasOfProduct(), JOIN, model, context)


def _apply(rule: RewriteRule, name: str, model: Model, context: PassContext) -> None:
    if context.on.bias_apart and model.opsets.get("", 0) >= _OPSET:
        infer(model)
        RulePass([rule], name).run(model, context)
        infer(model)  # what is launched is counted by its size


_OPSET = 7
"""From which operands broadcast."""
_SHAPE_TAKES_BOUNDS = 15
"""From which Shape gives a part of a shape."""
