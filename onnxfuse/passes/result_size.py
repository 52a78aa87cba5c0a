"""How large the result of a constant node can be, found out before it is computed."""

from __future__ import annotations

import math
from collections.abc import Mapping

from onnxfuse.model.constants import Array, constant_value, dtype_of, shape_of
from onnxfuse.model.elementwise_operators import BROADCASTING, ELEMENTWISE
from onnxfuse.model.graph_ir import Node

_NO_LARGER_NAMES = (
    "ArgMax ArgMin Concat Compress CumSum Flatten LogSoftmax ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax "
    "ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Reshape ScatterElements ScatterND Shape Size Slice "
    "Softmax Split Squeeze TopK Transpose Trilu Unique Unsqueeze DepthToSpace SpaceToDepth"
)
_MULTIPLIED_NAMES = "Gather GatherElements GatherND MatMul"
_MULTIPLYING_NAMES = (
    "Attention Conv ConvInteger ConvTranspose DeformConv DFT Einsum GRU Gemm LSTM MatMul MatMulInteger QLinearConv "
    "QLinearMatMul RNN STFT"
)
_MULTIPLYING = frozenset(_MULTIPLYING_NAMES.split())
_NO_LARGER = (ELEMENTWISE.keys() - BROADCASTING) | frozenset(_NO_LARGER_NAMES.split())
_MULTIPLIED = BROADCASTING | frozenset(_MULTIPLIED_NAMES.split())


def largest_elements(node: Node, elements: Mapping[str, int]) -> list[int] | None:
    """Upper bounds on the elements of the outputs of ``node`` that have names; None where they depend on what is not
    known yet.

    ``elements`` bounds the inputs, by name.
    """
    shapes = [shape_of(tensor) for tensor in node.outputs if tensor.name]
    known = [math.prod(shape) for shape in shapes if shape is not None]
    if len(known) == len(shapes):
        return known
    bound = _largest_of_any(node, elements)
    return None if bound is None else [bound] * len(shapes)


def _largest_of_any(node: Node, elements: Mapping[str, int]) -> int | None:
    sizes = [elements[tensor.name] for tensor in node.inputs if tensor.name]
    if node.op in _NO_LARGER:
        # Shape and its like give a few numbers even for an empty tensor.
        return max(sum(sizes), 16)
    if node.op in _MULTIPLIED:
        return math.prod(max(size, 1) for size in sizes)
    arguments = [_numbers(constant_value(tensor)) for tensor in node.inputs]
    if node.op == "ConstantOfShape" and arguments[0] is not None:
        return int(math.prod(int(dim) for dim in arguments[0]))
    if node.op == "Expand" and arguments[1] is not None:
        return int(math.prod(max(int(dim), 1) for dim in arguments[1])) * max(sizes[0], 1)
    if node.op == "Tile" and len(arguments) == 2 and arguments[1] is not None:
        return int(math.prod(int(times) for times in arguments[1])) * sizes[0]
    if node.op == "Range" and all(argument is not None and argument.size == 1 for argument in arguments):
        start, limit, delta = (float(argument[0]) for argument in arguments if argument is not None)
        steps = (limit - start) / delta if delta else math.inf
        return max(math.ceil(steps), 0) if math.isfinite(steps) else None
    return None


def most_work(node: Node, elements: Mapping[str, int]) -> int:
    """An upper bound on the multiplications of ``node``, which may be far more than its elements."""
    if node.op == "MatMul":
        data, product = shape_of(node.inputs[0]), shape_of(node.outputs[0])
        if data and product is not None:
            return data[-1] * math.prod(product)
    sizes = [elements[tensor.name] for tensor in node.inputs if tensor.name]
    return math.prod(max(size, 1) for size in sizes) if node.op in _MULTIPLYING else sum(sizes)


def largest_itemsize(node: Node) -> int:
    """The largest size of an element of the outputs: that of the widest type where inference knows none."""
    sizes = [dtype.itemsize for dtype in (dtype_of(tensor) for tensor in node.outputs if tensor.name) if dtype]
    return max(sizes, default=8)


def _numbers(argument: Array | None) -> Array | None:
    return None if argument is None else argument.reshape(-1)
