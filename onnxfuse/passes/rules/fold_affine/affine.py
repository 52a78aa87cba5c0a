"""Affine steps, y = scale · x + offset: read off nodes, and composed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import Array, constant_value, domain_of, is_constant
from onnxfuse.model.graph_ir import Node
from onnxfuse.rewrite.pattern import Ops, Value
from onnxfuse.rewrite.rule import Refusal

AFFINE_OPS = ("Mul", "Add", "Sub", "Div", "BatchNormalization")
FOLDABLE_DTYPES = frozenset(np.dtype(name) for name in ("float16", "float32", "float64"))

_BINARY = frozenset(AFFINE_OPS[:4])
_DEFAULT_EPSILON = float(np.float32(1e-5))  # BatchNormalization's, as a float32 attribute holds it


@dataclass(frozen=True)
class Axis:
    """Where the channels lie: axis ``index`` (from the front) of a tensor of ``rank`` dimensions, ``size`` of
    them.

    ``rank`` None: unknown, and the axis is the last.  ``exact``: the tensor that a step reads is known to
    have this rank and this many channels, so no constant can broadcast it to more.
    """

    size: int
    rank: int | None
    index: int
    exact: bool = True


@dataclass(frozen=True)
class Affine:
    """scale · x + offset; both float64, each of shape () or (channels,), or, of ``read_broadcast_step``, of any."""

    scale: Array
    offset: Array

    def then(self, other: Affine) -> Affine:
        """This step followed by ``other``."""
        return Affine(self.scale * other.scale, self.offset * other.scale + other.offset)

    @property
    def shifts(self) -> bool:
        """Whether the offset is anything but zero."""
        return bool(np.any(self.offset != 0))


IDENTITY = Affine(np.ones(()), np.zeros(()))


def is_affine_node(node: Node) -> bool:
    """Whether ``node`` is an affine step by its op type and by having a constant operand."""
    if node.op not in AFFINE_OPS or domain_of(node) != "":
        return False
    if node.op in _BINARY:
        return len(node.inputs) == 2 and any(is_constant(tensor) for tensor in node.inputs)
    return len(node.inputs) >= 5


def constant_step(op: Ops, x: Any, k: Any) -> Value:
    """The pattern of one step with a constant ``k`` on data ``x``."""
    return op.any_of(op.Mul(x, k), op.Add(x, k), op.Sub(x, k), op.Sub(k, x), op.Div(x, k))


def data_input(node: Node) -> gs.Tensor:
    """The input of an affine node that is not a constant (the first, if both are)."""
    first: gs.Tensor = node.inputs[0]
    if node.op in _BINARY and is_constant(first) and not is_constant(node.inputs[1]):
        second: gs.Tensor = node.inputs[1]
        return second
    return first


def read_step(node: Node, axis: Axis) -> Affine:
    """What ``node`` does along ``axis``.  Raises Refusal, with the reason, where it is not an affine step
    there.
    """
    with np.errstate(all="ignore"):
        if node.op == "BatchNormalization":
            return _finite(node, _read_batch_normalization(node, axis))
        return _finite(node, _read_binary(node, lambda values: _along(values, axis, node.op)))


def read_broadcast_step(node: Node) -> Affine:
    """What a Mul, Add, Sub or Div does, whatever its constant's shape.  Raises Refusal where it is not affine."""
    if node.op == "BatchNormalization":
        raise Refusal("BatchNormalization is a step along an axis")
    with np.errstate(all="ignore"):
        return _finite(node, _read_binary(node, lambda values: values.astype(np.float64)))


def then_along(axis: Axis) -> Callable[[Affine, Node], Affine]:
    """What gives a step followed by that of a node along ``axis``; it raises Refusal."""
    return lambda step, node: compose(step, read_step(node, axis))


def compose(step: Affine, following: Affine) -> Affine:
    """``step.then(following)``.  Raises Refusal on overflow."""
    with np.errstate(all="ignore"):
        result = step.then(following)
    if not _is_finite(result):
        raise Refusal("the steps together overflow")
    return result


def _is_finite(step: Affine) -> bool:
    return bool(np.all(np.isfinite(step.scale)) and np.all(np.isfinite(step.offset)))


def _finite(node: Node, step: Affine) -> Affine:
    if not _is_finite(step):
        raise Refusal(f"{node.op} scales or shifts by a value that is not finite")
    return step


def _read_binary(node: Node, widen: Callable[[Array], Array]) -> Affine:
    """The step of a node with two operands; ``widen`` gives its constant in the shape that the step is to have."""
    data = data_input(node)
    swapped = node.inputs[0] is not data
    constant = node.inputs[0] if swapped else node.inputs[1]
    values = constant_value(constant)
    if values is None:
        raise Refusal(f"{node.op} has no constant operand")
    if values.dtype not in FOLDABLE_DTYPES:
        raise Refusal(f"{node.op} is of type {values.dtype}, not float16, float32 or float64")
    operand = widen(values)
    one, zero = IDENTITY.scale, IDENTITY.offset
    if node.op == "Mul":
        return Affine(operand, zero)
    if node.op == "Add":
        return Affine(one, operand)
    if node.op == "Sub":
        return Affine(-one if swapped else one, operand if swapped else -operand)
    if swapped:
        raise Refusal("Div divides a constant by the data")
    if np.any(operand == 0):
        raise Refusal("Div divides by zero")
    return Affine(1.0 / operand, zero)


def _along(values: Array, axis: Axis, op_type: str) -> Array:
    """``values``, broadcast by ONNX's rules against the tensor that ``axis`` describes, as a scalar or a
    vector along it.
    """
    wide = values.astype(np.float64)
    if values.ndim > (1 if axis.rank is None else axis.rank):
        raise Refusal(f"{op_type}'s constant of shape {list(values.shape)} may add a dimension")
    if values.size == 1:
        return wide.reshape(())
    place = values.ndim - 1 if axis.rank is None else values.ndim - (axis.rank - axis.index)
    if place < 0 or values.shape[place] != values.size or values.size != axis.size:
        raise Refusal(f"{op_type}'s constant of shape {list(values.shape)} is neither a scalar nor one value a channel")
    if not axis.exact:
        raise Refusal(f"{op_type}'s data may have fewer channels than its constant")
    return wide.reshape(-1)


def _read_batch_normalization(node: Node, axis: Axis) -> Affine:
    if any(tensor.name for tensor in list(node.outputs)[1:]) or node.attrs.get("training_mode", 0):
        raise Refusal("BatchNormalization is in training mode")
    if node.attrs.get("spatial", 1) != 1:
        raise Refusal("BatchNormalization is in a form from before opset 9")
    if axis.rank is None or axis.index != 1:
        raise Refusal("BatchNormalization's channels lie along another axis")
    parameters = [constant_value(tensor) for tensor in list(node.inputs)[1:5]]
    vectors: list[Array] = []
    for values in parameters:
        if values is None:
            raise Refusal("BatchNormalization has parameters that are not constant")
        if values.dtype not in FOLDABLE_DTYPES or values.shape != (axis.size,):
            raise Refusal("BatchNormalization's parameters do not fit the channels")
        vectors.append(values.astype(np.float64))
    scale, bias, mean, variance = vectors
    factor = scale / np.sqrt(variance + float(node.attrs.get("epsilon", _DEFAULT_EPSILON)))
    return Affine(factor, bias - mean * factor)


def axis_of_data(tensor: gs.Tensor, axis: Axis) -> Axis:
    """``axis`` for a step that reads ``tensor``; ``exact`` only where its rank and channels are known."""
    shape: Any = tensor.shape
    known = axis.rank is not None and shape is not None and len(shape) == axis.rank
    return replace(axis, exact=known and shape[axis.index] == axis.size)


def keeps_rank(node: Node) -> bool:
    """Whether the constant of an affine node is known to add no dimension to the data."""
    if node.op == "BatchNormalization":
        return True
    data = data_input(node)
    constant = node.inputs[1] if node.inputs[0] is data else node.inputs[0]
    if isinstance(constant, gs.Constant):
        rank = len(constant.shape)
    else:
        values = constant_value(constant)
        rank = 0 if values is None else values.ndim
    return rank == 0 or (data.shape is not None and len(data.shape) >= rank)
