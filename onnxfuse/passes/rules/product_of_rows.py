"""Reshape(MatMul(Reshape(x, (rows, k)), w), shape) → Reshape(MatMul(x, w), shape)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import constant_value
from onnxfuse.model.graph_ir import producer_of, standard_op
from onnxfuse.model.graph_order import sorted_nodes
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule
from onnxfuse.shapes.shape_values import Element, Product, ShapeValues, size_of

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.rewrite.base import PassContext


class ProductOfRows(RewriteRule):
    """Multiplies the rows of a tensor by a matrix without making a matrix of the tensor first.

    So tf2onnx exports tensordot, and with it the dense layers of TensorFlow and Keras.  ONNX Runtime computes both
    forms alike, but of the shapes between, which are computed where a size is not known, nothing is left, and the
    tensors on both sides are seen to have the same sizes.  Refused: a last shape that copies a size of its data, or
    might: one that is 0, or may be without that size of the tensor being so.
    """

    name = "product-of-rows"

    def pattern(self, op: Ops, matrix: Any, w: Any, shape: Any) -> Any:
        """The last Reshape; others may read the matrix, which the first one makes."""
        product = op.any_of(op.MatMul(matrix, w), op.Gemm(matrix, w, _name="gemm", _extra_inputs=True))
        return op.Reshape(product, shape, _name="reshape")

    def begin(self, model: Model, context: PassContext) -> None:
        """Follows the shapes that the model computes."""
        self._shapes = ShapeValues(sorted_nodes(model.graph))

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds the tensor, how many dimensions of it are rows, and the weights if they are new ones."""
        matrix = match["matrix"]
        first = producer_of(matrix)
        if first is None or standard_op(first) != "Reshape" or first.inputs[1].shape != (2,):
            return NOT_APPLICABLE
        x, elements = first.inputs[0], self._shapes.of(match["shape"])
        if elements is None or x.shape is None or not all(_is_kept(x, *item) for item in enumerate(elements)):
            return NOT_APPLICABLE
        transposed = False
        if match.has_node("gemm"):
            gemm = match.node("gemm")
            transposed = bool(match.attribute("gemm", "transB"))
            if len(gemm.inputs) > 2 or match.attribute("gemm", "alpha") != 1 or match.attribute("gemm", "transA"):
                return NOT_APPLICABLE
        weights = constant_value(match["w"])
        if weights is None or weights.ndim != 2:
            return NOT_APPLICABLE
        weights = weights.T if transposed else weights
        rows = _rows(x.shape, weights.shape[0])
        if rows < 2:
            return NOT_APPLICABLE
        match.plan = x, rows, weights if transposed else None
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The product of the rows where they are."""
        x, rows, weights = match.plan
        w = match["w"]
        if weights is not None:
            w = builder.initializer(weights, w.name)
        if rows < len(x.shape) - 1:
            sizes = np.array([0] * rows + [w.shape[0]], np.int64)
            x = builder.op("Reshape", x, builder.initializer(sizes, f"{x.name}_rows"))
        return builder.like(match.node("reshape"), builder.op("MatMul", x, w), match["shape"])


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
