"""Reshape(Gemm(Reshape(x, (rows, k)), w, bias), shape) → Reshape(MatMul(x, w) + bias, shape)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import constant_value
from onnxfuse.model.graph_ir import Node, producer_of, standard_op
from onnxfuse.model.graph_order import sorted_nodes
from onnxfuse.passes.rules.budget import CopyBudget
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule
from onnxfuse.shapes.shape_values import Element, Product, ShapeValues, size_of

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.rewrite.base import PassContext


class ProductOfRows(RewriteRule):
    """Multiplies the rows of a tensor by a matrix without making a matrix of the tensor first.

    So tf2onnx exports tensordot, and with it the dense layers of TensorFlow and Keras, and PyTorch addmm, as the layers
    of GPT-2 have it.  ONNX Runtime computes both forms alike, but of the shapes between, which are computed where a
    size is not known, nothing is left, and the tensors on both sides are seen to have the same sizes.  A bias is taken
    along where ONNX Runtime adds it in a kernel of its own.  Refused: a last shape that copies a size of its data, or
    might: one that is 0, or may be without that size of the tensor being so; weights to be transposed that others read
    too, beyond a budget.
    """

    name = "product-of-rows"

    def pattern(self, op: Ops, matrix: Any, w: Any, shape: Any) -> Any:
        """The last Reshape; others may read the matrix, which the first one makes."""
        product = op.any_of(op.MatMul(matrix, w), op.Gemm(matrix, w, _name="gemm", _extra_inputs=True))
        return op.Reshape(product, shape, _name="reshape")

    def begin(self, model: Model, context: PassContext) -> None:
        """Follows the shapes that the model computes."""
        self._shapes = ShapeValues(sorted_nodes(model.graph))
        self._takes_bias = context.on.bias_apart
        self._budget = CopyBudget()

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds the tensor, how many dimensions of it are rows, the weights if they are new ones, and
        the bias, if there is one.
        """
        matrix = match["matrix"]
        first = producer_of(matrix)
        if first is None or standard_op(first) != "Reshape" or first.inputs[1].shape != (2,):
            return NOT_APPLICABLE
        x, elements = first.inputs[0], self._shapes.of(match["shape"])
        if elements is None or x.shape is None or not all(_is_kept(x, *item) for item in enumerate(elements)):
            return NOT_APPLICABLE
        transposed, bias = False, None
        if match.has_node("gemm"):
            gemm = match.node("gemm")
            transposed = bool(match.attribute("gemm", "transB"))
            bias = vector_bias(gemm)
            if match.attribute("gemm", "alpha") != 1 or match.attribute("gemm", "transA"):
                return NOT_APPLICABLE
            if any(tensor.name for tensor in gemm.inputs[2:]) and (bias is None or not self._takes_bias):
                return NOT_APPLICABLE
        weights = constant_value(match["w"])
        if weights is None or weights.ndim != 2:
            return NOT_APPLICABLE
        weights = weights.T if transposed else weights
        rows = _rows(x.shape, weights.shape[0])
        if rows < 2:
            return NOT_APPLICABLE
        if transposed and len(match["w"].outputs) > 1:
            self._budget.take(weights.nbytes)
        match.plan = x, rows, weights if transposed else None, bias
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The product of the rows where they are."""
        x, rows, weights, bias = match.plan
        w = match["w"]
        if weights is not None:
            w = builder.initializer(weights, w.name)
        if rows < len(x.shape) - 1:
            sizes = np.array([0] * rows + [w.shape[0]], np.int64)
            x = builder.op("Reshape", x, builder.initializer(sizes, f"{x.name}_rows"))
        product = builder.op("MatMul", x, w)
        if bias is not None:
            product = builder.op("Add", product, builder.initializer(bias, f"{w.name}_bias"))
        return builder.like(match.node("reshape"), product, match["shape"])


def vector_bias(gemm: Node) -> np.ndarray | None:
    """The constant that a Gemm adds to each row of its product as it is; None where it adds none or another tensor."""
    bias = constant_value(gemm.inputs[2]) if len(gemm.inputs) > 2 else None
    columns = gemm.outputs[0].shape[-1] if gemm.outputs[0].shape else None
    if bias is None or gemm.attrs.get("beta", 1.0) != 1 or bias.ndim > 2 or bias.shape[-1:] != (columns,):
        return None
    return bias.reshape(-1) if bias.size == columns else None


def _is_kept(x: gs.Tensor, place: int, element: Element) -> bool:
    """Whether an element of the last shape means the same where the rows have the dimensions of ``x``."""
    if isinstance(element, int):
        return element != 0
    size = element.size if isinstance(element, Product) else element
    return size is not None and place < len(x.shape) and size_of(x, place) == size


def _rows(shape: Sequence[int | str | None], columns: int) -> int:
    """How many dimensions are left before those that are ``columns`` together; 0 if none are."""
    size = 1
    for place in reversed(range(len(shape))):
        known = shape[place]
        if not isinstance(known, int):
            return 0
        size *= known
        if size >= columns:
            return place if size == columns else 0
    return 0
