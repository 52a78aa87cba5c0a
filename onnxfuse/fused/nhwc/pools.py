"""What a MaxPool or AveragePool node computes, as the library needs to know it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.graph_ir import standard_op
from onnxfuse.program.figures import MAX_CONV_ATTRIBUTE
from onnxfuse.shapes.windows import same_padding, sides

_OPERATORS = ("MaxPool", "AveragePool")


@dataclass(frozen=True)
class Pool:
    """The windows of a MaxPool or AveragePool, of which each has an element of the image."""

    operator: str
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    """The begins of all spatial dimensions, then their ends."""
    ceil_mode: int
    count_include_pad: int

    @property
    def windows(self) -> dict[str, list[int]]:
        """The attributes that the operators have had in every opset."""
        return {"kernel_shape": list(self.kernel), "strides": list(self.strides), "pads": list(self.pads)}

    @property
    def attributes(self) -> dict[str, str | int | list[int]]:
        """Those of the fused node (custom_ops/nodes/nhwc_pool/nhwc_pool.h)."""
        return {
            "operator": self.operator,
            **self.windows,
            "dilations": list(self.dilations),
            "ceil_mode": self.ceil_mode,
            "count_include_pad": self.count_include_pad,
        }


def find_pool(node: gs.Node) -> Pool | None:
    """What the library computes for a node whose tensors are in ONNX's order; None if it does not compute it."""
    if standard_op(node) not in _OPERATORS or any(tensor.name for tensor in node.outputs[1:]):
        return None
    data, result = node.inputs[0], node.outputs[0]
    if data.shape is None or result.shape is None or not len(data.shape) == len(result.shape) in (3, 4):
        return None
    if data.dtype != np.float32:
        return None
    rank = len(data.shape) - 2
    kernel = _integers(node, "kernel_shape", [0] * rank, 1)
    strides = _integers(node, "strides", [1] * rank, 1)
    dilations = _integers(node, "dilations", [1] * rank, 1)
    if kernel is None or strides is None or dilations is None:
        return None
    ceil_mode, counts = int(node.attrs.get("ceil_mode", 0)), int(node.attrs.get("count_include_pad", 0))
    pads = _pads(node, data.shape[2:], kernel, strides)
    if pads is None or any(pad >= size for pad, size in zip(pads, kernel * 2, strict=True)):
        return None
    if max(dilations) > 1 and (any(pads) or ceil_mode):
        return None  # a window may miss the image, of which ONNX Runtime makes the lowest number
    if max(dilations) > 1 and node.op == "AveragePool":
        return None
    return Pool(node.op, tuple(kernel), tuple(strides), tuple(dilations), tuple(pads), ceil_mode, counts)


def _integers(node: gs.Node, name: str, default: list[int], least: int) -> list[int] | None:
    """A list of integers among the attributes, as long as the ``default``; None for one that the library refuses."""
    values = node.attrs.get(name, default)
    if not isinstance(values, list) or len(values) != len(default):
        return None
    return values if all(isinstance(value, int) and least <= value <= MAX_CONV_ATTRIBUTE for value in values) else None


def _pads(node: gs.Node, sizes: Sequence[object], kernel: list[int], strides: list[int]) -> list[int] | None:
    """The padding of all begins and then of all ends; None if it is not known, or not for certain ONNX Runtime's."""
    how = node.attrs.get("auto_pad", "NOTSET")
    if how == "NOTSET":
        return _integers(node, "pads", [0] * (2 * len(kernel)), 0)
    if node.attrs.get("ceil_mode", 0) or max(node.attrs.get("dilations") or [1]) > 1:
        return None
    if how == "VALID":
        return [0] * (2 * len(kernel))
    begins, ends = [], []
    for size, window, stride in zip(sizes, kernel, strides, strict=True):
        if stride == 1:
            total = window - 1
        elif isinstance(size, (int, np.integer)):
            total = same_padding(int(size), window, stride)
        else:
            return None
        if total < 0 or how not in ("SAME_UPPER", "SAME_LOWER"):
            return None
        begin, end = sides(total, how)
        begins.append(begin)
        ends.append(end)
    return begins + ends
