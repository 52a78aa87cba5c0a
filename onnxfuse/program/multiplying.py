"""From products with a matrix to instructions: elements that are multiplied, and summed along an axis.

A product of few rows is one Program that reduces: of the space [.., N, K] every element is one of A times one of the
matrix, and a row of the space, along K, is one element of the result.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.graph_ir import standard_op
from onnxfuse.program.block_quantized import BIAS, BlockQuantized, block_quantized, multiplies_blocks
from onnxfuse.program.builder import ProgramBuilder
from onnxfuse.program.node_lowering import NodeLowering, Operands, UnsupportedError, tensor_dtype
from onnxfuse.program.reducing import OLDEST_OPSET

TYPES = ("f32", "f16", "bf16")
"""Of what is multiplied; sums are of float32."""
NOT_CONSTANT = "what it multiplies with is no constant matrix"
SCALED = "it scales the product or what is added"
TRANSPOSED = "it transposes what it multiplies"
ROUNDED = "its accuracy_level lets ONNX Runtime round what it multiplies to 8 bits"
_ADDED = 2


@dataclass(frozen=True)
class Product:
    """A MatMul or a Gemm of any A and a matrix, which may be ``quantized`` in blocks.

    ``transposed`` is whether the matrix is [N, K] and not [K, N]; ``added`` is what a Gemm adds, None where it adds
    nothing.  The product is scaled by ``alpha``, and what is added by ``beta``.
    """

    node: gs.Node
    transposed: bool
    added: gs.Tensor | None
    quantized: BlockQuantized | None = None
    alpha: float = 1.0
    beta: float = 1.0

    @property
    def is_scaled(self) -> bool:
        """Whether the product or what is added is multiplied by another number than 1."""
        return self.alpha != 1 or (self.added is not None and self.beta != 1)

    @property
    def matrix(self) -> gs.Tensor:
        """What A is multiplied with, as long as the node is in a graph."""
        return self.node.inputs[1]

    @property
    def sizes(self) -> tuple[int, int]:
        """K and N, where they are known."""
        if self.quantized is not None:
            return self.quantized.blocks * self.quantized.block, self.quantized.columns
        first, second = self.matrix.shape
        return (second, first) if self.transposed else (first, second)


def multiplies(node: gs.Node) -> bool:
    """Whether the node is of an operator that multiplies with a matrix."""
    return standard_op(node) in ("MatMul", "Gemm")


def product_of(node: gs.Node, opset: int, *, scaled: bool = False) -> Product:
    """What a node that ``multiplies`` does, which may be ``scaled`` where the caller reads alpha and beta.

    Raises UnsupportedError, with the reason, if it has no equivalent.
    """
    if opset < OLDEST_OPSET:
        raise UnsupportedError(f"it is of opset {opset}; products are fused from opset {OLDEST_OPSET} on")
    quantized = block_quantized(node) if multiplies_blocks(node) else None
    if quantized is not None and quantized.rounds_others:
        raise UnsupportedError(ROUNDED)
    data, matrix, *more = node.inputs
    added = next((tensor for tensor in more[BIAS - _ADDED if quantized else 0 :][:1] if tensor.name), None)
    if data.shape is None or len(data.shape) < 2 or (not quantized and len(matrix.shape or ()) != 2):
        raise UnsupportedError("what it multiplies is of fewer than two dimensions, or of an unknown rank")
    floats = (data, *([] if quantized else [matrix]), *([] if added is None else [added]))
    types = {tensor_dtype(tensor) for tensor in floats}
    if len(types) > 1 or not types <= set(TYPES):
        raise UnsupportedError(f"it is of {' and '.join(sorted(types))}, and there are kernels for {', '.join(TYPES)}")
    if node.attrs.get("transA", 0):
        raise UnsupportedError(TRANSPOSED)
    if quantized is not None:
        return Product(node, True, added, quantized)
    alpha, beta = (float(np.float32(node.attrs.get(name, 1.0))) for name in ("alpha", "beta"))
    if not math.isfinite(alpha) or not math.isfinite(beta) or (added is not None and beta == 0):
        raise UnsupportedError(SCALED)
    found = Product(node, bool(node.attrs.get("transB", 0)), added, None, alpha, beta)
    if found.is_scaled and not scaled:
        raise UnsupportedError(SCALED)
    return found


def lower_product(
    product: Product, opset: int, builder: ProgramBuilder, operands: Operands, axes: Sequence[int]
) -> int:
    """Append the instructions of a product, which sums along ``axes`` of the Program; returns its result's value."""
    n = NodeLowering(product.node, opset, builder, operands)
    factor = builder.cast(n.arg(0), "f32")
    matrix = builder.cast(n.arg(1), "f32") if product.quantized is None else product.quantized.lower(n)
    total = builder.reduce("reduce_sum", n.emit("mul", factor, matrix, dtype="f32"), axes)
    if product.alpha != 1:
        total = n.emit("mul", total, n.const(product.alpha, "f32"), dtype="f32")
    if product.added is not None:
        added = builder.cast(n.arg(_ADDED if product.quantized is None else BIAS), "f32")
        if product.beta != 1:
            added = n.emit("mul", added, n.const(product.beta, "f32"), dtype="f32")
        total = n.emit("add", total, added, dtype="f32")
    return builder.cast(total, n.dtype())
