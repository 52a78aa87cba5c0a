"""Turning a product with a constant matrix, and the elementwise nodes after it, into one fused node.

The node's inputs are A, the weights as the kernels read them, and what the Program reads besides the product.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper, numpy_helper

from onnxfuse.fused.fused_node import (
    ATTRIBUTE_OPSET,
    RegionProgram,
    constant_from_attribute,
    constant_integers,
    local_function,
    set_overload,
)
from onnxfuse.fused.fusion import Fusion
from onnxfuse.fused.kinds import MATMUL
from onnxfuse.model.constants import Array, constant_value, dtype_of, is_constant
from onnxfuse.model.graph_ir import standard_op
from onnxfuse.program.figures import NHWC_BLOCK
from onnxfuse.program.multiplying import NOT_CONSTANT, Product, product_of
from onnxfuse.program.node_lowering import UnsupportedError

NOT_FLOAT32 = "it is not of float32"
PADDED = f"the weights' columns are not a multiple of {NHWC_BLOCK}, which functions take opset {ATTRIBUTE_OPSET} for"

_PART = 4 << 20
"""Bytes of weights that are packed at a time: the next ones are packed into the memory of those."""


def weights_bytes(product: Product) -> int:
    """Of the matrix of a product of float32."""
    return math.prod(product.sizes) * np.dtype(np.float32).itemsize


def constant_product(node: gs.Node, opset: int) -> Product:
    """What a node that ``multiplies`` does.  Raises UnsupportedError where the library has no kernel for it."""
    data, weights, *more = node.inputs
    if not is_constant(weights) or is_constant(data) or weights.shape is None or len(weights.shape) != 2:
        raise UnsupportedError(NOT_CONSTANT)
    if any(dtype_of(tensor) != np.float32 for tensor in (data, weights, *more[:1], node.outputs[0]) if tensor.name):
        raise UnsupportedError(NOT_FLOAT32)
    product = product_of(node, opset)
    if min(product.sizes) < 1 or (product.sizes[1] % NHWC_BLOCK and opset < ATTRIBUTE_OPSET):
        raise UnsupportedError(PADDED)
    return product


@dataclass(frozen=True)
class MatMulRegion:
    """A product and the elementwise nodes after it, in topological order."""

    product: Product
    after: tuple[gs.Node, ...] = ()

    @property
    def nodes(self) -> tuple[gs.Node, ...]:
        """All nodes, in topological order."""
        return (self.product.node, *self.after)


def packed_shape(inner: int, columns: int) -> tuple[int, int, int]:
    """The shape of weights [K, N] as the kernels read them: [N / 16, K, 16]."""
    return -(-columns // NHWC_BLOCK), inner, NHWC_BLOCK


def packed_parts(weights: gs.Tensor, transposed: bool) -> Iterator[Array]:
    """Weights [K, N], or if they are transposed [N, K], as the kernels read them, with zeros for columns that there are
    not: some blocks of columns at a time.
    """
    values = constant_value(weights)
    assert values is not None
    matrix = values.T if transposed else values
    inner, columns = matrix.shape
    step = NHWC_BLOCK * max(1, _PART // (inner * NHWC_BLOCK * matrix.itemsize))
    for start in range(0, columns, step):
        part = matrix[:, start : start + step]
        whole = part.shape[1] // NHWC_BLOCK
        packed = np.empty(packed_shape(*part.shape), matrix.dtype)
        packed[:whole] = part[:, : whole * NHWC_BLOCK].reshape(inner, whole, NHWC_BLOCK).transpose(1, 0, 2)
        if rest := part.shape[1] % NHWC_BLOCK:
            packed[whole, :, :rest] = part[:, whole * NHWC_BLOCK :]
            packed[whole, :, rest:] = 0
        yield packed


def fuse_matmul(
    region: MatMulRegion,
    packed: gs.Tensor,
    opset: int,
    is_used_outside: Callable[[gs.Tensor], bool],
    fast_math: bool = False,
) -> Fusion:
    """The fused node of a region, which reads the weights as ``packed``; the graph is not changed.

    ``is_used_outside`` says whether a tensor that the region computes is read by anything but the region.  Raises
    ProgramError if its Program exceeds a limit.
    """
    product = region.product
    result, columns = product.node.outputs[0], product.sizes[1]
    program = RegionProgram(opset, fast_math)
    value = program.input(result)
    after = list(region.after)
    if product.added is not None:
        axis = -1 if _is_vector(product.added, columns) else None
        value = program.builder.emit("add", "f32", value, program.input(product.added, axis))
    elif adds_bias(region) and not is_used_outside(result):
        bias = next(tensor for tensor in after[0].inputs if tensor is not result)
        value = program.builder.emit("add", "f32", value, program.input(bias, -1))
        program.define(after.pop(0).outputs[0], value)
    program.define(result, value)
    for node in after:
        program.lower(node)
    outputs = [node.outputs[0] for node in region.nodes if is_used_outside(node.outputs[0])]
    built = program.build(outputs)
    attributes: dict[str, str | int | onnx.TensorProto] = {"program": str(built), "columns": columns}
    if columns % NHWC_BLOCK:
        attributes["weight_columns"] = numpy_helper.from_array(np.array([columns], np.int64))
    read = [product.node.inputs[0], product.matrix, *program.inputs[1:]]
    function, constants = local_function(region.nodes, read, outputs, attributes, opset)
    _unpack_weights(function, product)
    identity = function.overload
    set_overload(function, identity, *(node.op for node in region.nodes))
    inputs = (read[0], packed, *read[2:])
    return Fusion(MATMUL, region.nodes, inputs, outputs, {**attributes, **constants}, function)


def adds_bias(region: MatMulRegion) -> bool:
    """Whether the first node after a product, which alone reads it, adds a constant vector to each row."""
    result = region.product.node.outputs[0]
    if not region.after or len(result.outputs) != 1 or standard_op(region.after[0]) != "Add":
        return False
    others = [tensor for tensor in region.after[0].inputs if tensor is not result]
    return len(others) == 1 and is_constant(others[0]) and _is_vector(others[0], region.product.sizes[1])


def _is_vector(tensor: gs.Tensor, columns: int) -> bool:
    return tensor.shape is not None and list(tensor.shape) == [columns]


def _unpack_weights(function: onnx.FunctionProto, product: Product) -> None:
    """Put the weights, input 1, in the order that the product has them in.

    But for columns that there are not, sizes are read off the tensor: so functions do not differ in them.
    """
    packed = function.input[1]
    for node in function.node:
        node.input[:] = ["weights" if name == packed else name for name in node.input]
    steps = [("by_row", helper.make_node("Transpose", [packed], [""], perm=[1, 0, 2]))]
    steps.append(("all_columns", helper.make_node("Reshape", ["", "rows"], [""])))
    before = [constant_integers("rows", [0, -1])]
    if product.sizes[1] % NHWC_BLOCK:
        before += [
            constant_integers("first", [0]),
            constant_from_attribute("end", "weight_columns"),
            constant_integers("axis", [1]),
        ]
        steps.append(("columns", helper.make_node("Slice", ["", "first", "end", "axis"], [""])))
    if product.transposed:
        steps.append(("turned", helper.make_node("Transpose", [""], [""], perm=[1, 0])))
    made = packed
    for name, node in steps:
        node.input[0], node.output[0] = made, name
        made = name
    steps[-1][1].output[0] = "weights"
    body = [*before, *(node for _, node in steps), *function.node]
    del function.node[:]
    function.node.extend(body)
