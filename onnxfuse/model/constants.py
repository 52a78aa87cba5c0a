"""Reading constants: initializers and the values of Constant nodes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from onnxfuse.model.slices import AxisSlice

if TYPE_CHECKING:
    from onnxfuse.model.graph_ir import Node

Array = np.ndarray[Any, np.dtype[Any]]

NUMBER_ATTRIBUTES = {
    **{"value_float": np.float32, "value_floats": np.float32},
    **{"value_int": np.int64, "value_ints": np.int64},
}
"""The attributes of a Constant node that hold numbers and no tensor, and of what type these are."""
_STRING_ATTRIBUTES = ("value_string", "value_strings")


def domain_of(node: Node) -> str:
    """The node's domain, with both spellings of the standard one as the empty string."""
    return "" if node.domain in (None, "ai.onnx") else str(node.domain)


def is_constant_node(node: Node) -> bool:
    """Whether ``node`` is a standard Constant."""
    return bool(node.op == "Constant" and domain_of(node) == "")


def constant_node_value(node: Node) -> Array | None:
    """The value of a Constant node in any of its dense numeric forms; None for strings and sparse tensors."""
    if len(node.attrs) != 1:
        return None
    ((name, value),) = node.attrs.items()
    if name == "value":
        return _dense_values(value)
    return np.array(value, dtype=NUMBER_ATTRIBUTES[name]) if name in NUMBER_ATTRIBUTES else None


def is_constant(tensor: gs.Tensor | None) -> bool:
    """Whether the tensor's value is in the model: an initializer, or the output of a Constant node."""
    if isinstance(tensor, gs.Constant):
        return is_dense(tensor)
    return (
        tensor is not None
        and len(tensor.inputs) == 1
        and is_constant_node(tensor.inputs[0])
        and not any(name in tensor.inputs[0].attrs for name in (*_STRING_ATTRIBUTES, "sparse_value"))
    )


def constant_value(tensor: gs.Tensor | None) -> Array | None:
    """The value of a constant tensor, loaded where it still lies in a file; None for any other tensor."""
    if not is_constant(tensor):
        return None
    assert tensor is not None
    if isinstance(tensor, gs.Constant):
        return _dense_values(tensor)
    return constant_node_value(tensor.inputs[0])


def single_number(tensor: gs.Tensor | None, rank: int | None = None) -> Any:
    """The element, as NumPy has it, of a constant of one that adds no dimensions to what has ``rank`` of them.

    None for any other tensor.
    """
    value = constant_value(tensor)
    if value is None or value.size != 1 or (rank is not None and value.ndim > rank):
        return None
    return value.reshape(())[()]


def is_dense(tensor: gs.Constant) -> bool:
    """Whether an initializer is an ordinary, not a sparse, tensor.  Does not load it."""
    return not isinstance(getattr(tensor, "_values", None), gs.ir.tensor.SparseValues)


def is_scalar(tensor: gs.Tensor) -> bool:
    """Whether the tensor is an initializer of one element.  Does not load it."""
    return isinstance(tensor, gs.Constant) and math.prod(tensor.shape) == 1


def shape_of(tensor: gs.Tensor) -> tuple[int, ...] | None:
    """The tensor's shape where every dimension is a known number, else None.  Does not load a constant."""
    if tensor.shape is None:
        return None
    dims: tuple[int, ...] = tuple(tensor.shape)
    return dims if all(isinstance(dim, (int, np.integer)) and dim >= 0 for dim in dims) else None


def dtype_of(tensor: gs.Tensor) -> np.dtype[Any] | None:
    """The tensor's NumPy element type; None where unknown.  Does not load a constant."""
    dtype = tensor.dtype
    if dtype is None:
        return None
    if isinstance(dtype, int):
        # An element type as ONNX numbers it: what onnx-graphsurgeon gives for those that NumPy itself lacks.
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(dtype)) if dtype else None
    found: np.dtype[Any] = np.dtype(dtype)
    return found


def byte_size(tensor: gs.Tensor) -> int | None:
    """The size of the tensor in bytes where its shape and type are known.  Does not load a constant."""
    shape, dtype = shape_of(tensor), dtype_of(tensor)
    return None if shape is None or dtype is None else math.prod(shape) * dtype.itemsize


def _dense_values(value: Any) -> Array | None:
    if isinstance(value, gs.Constant):
        return np.asarray(value.values) if is_dense(value) else None
    if isinstance(value, onnx.TensorProto):
        return np.asarray(onnx.numpy_helper.to_array(value))
    return np.asarray(value) if isinstance(value, np.ndarray) else None


def integers_of(node: Node, name: str, place: int, default: list[int] | None = None) -> list[int] | None:
    """What is an attribute of a node in old opsets and an input in new ones: ``default`` where it is left out, None
    where it is no constant vector.
    """
    if name in node.attrs:
        return list(node.attrs[name])
    if len(node.inputs) <= place or not node.inputs[place].name:
        return default
    values = constant_value(node.inputs[place])
    return None if values is None or values.ndim != 1 else [int(value) for value in values]


def slices_of(node: Node) -> tuple[AxisSlice, ...] | None:
    """What a Slice of any opset takes; None where that is not known in advance, or read backwards.

    An axis is as the node has it, and may be outside of the tensor.
    """
    starts, ends = integers_of(node, "starts", 1), integers_of(node, "ends", 2)
    if starts is None or ends is None:
        return None
    axes = integers_of(node, "axes", 3, list(range(len(starts))))
    steps = integers_of(node, "steps", 4, [1] * len(starts))
    if axes is None or steps is None or not len(starts) == len(ends) == len(axes) == len(steps):
        return None
    return tuple(map(AxisSlice, axes, starts, ends, steps)) if min(steps, default=1) > 0 else None
