"""From ONNX nodes that reduce to instructions: reductions, Softmax and its kin, normalizations and global pooling.

``reading`` says along which axes a node reduces and what its results look like, ``lower`` appends its instructions.
Both raise UnsupportedError, with the reason, for a node that Programs cannot express.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto

from onnxfuse.model.constants import dtype_of, integers_of
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.model.graph_ir import STANDARD_DOMAINS, producer_of, standard_op
from onnxfuse.model.known_operators import is_of_ort
from onnxfuse.program.builder import ProgramBuilder
from onnxfuse.program.node_lowering import NodeLowering, Operands, UnsupportedError
from onnxfuse.program.ops import FLOATS, REDUCTIONS

OLDEST_OPSET = 9
"""From which a function's body may have any of these operators with the constants that they need."""
_ONE_AXIS_OPSET = 13
"""From which Softmax and its kin are along one axis; before, along all from that one on."""
_AXES_INPUT = 1
_OVERFLOWING = ("reduce_sum", "reduce_prod")
"""What integers may overflow in.  ONNX Runtime 1.20 wraps, as Programs do; 1.32 sums in double, saturates, and rounds
int64 beyond 2^53."""


class Result(Enum):
    """What an output of a node looks like beside its first input."""

    ELEMENTS = "elements"
    """It has the same shape."""
    KEPT = "kept"
    """The axes that were reduced have one element."""
    DROPPED = "dropped"
    """They are left out."""


@dataclass(frozen=True)
class Reading:
    """How a node reduces its first input.

    axes: those along which it does, counted from the front; of a ``groups`` normalization those after the first.
    results: for each output that the node may have.
    groups: in how many groups axis 1 is split, each of which is reduced with ``axes``; 0 for none.
    vectors: the inputs that are vectors along axis 1.
    """

    axes: tuple[int, ...]
    results: tuple[Result, ...]
    groups: int = 0
    vectors: tuple[int, ...] = ()


class ReducingLowering(NodeLowering):
    """A node being lowered that reduces along ``axes`` of the Program, negative and in rising order."""

    def __init__(
        self, node: gs.Node, opset: int, builder: ProgramBuilder, operands: Operands, axes: Sequence[int]
    ) -> None:
        super().__init__(node, opset, builder, operands)
        self.axes = tuple(axes)

    @property
    def work(self) -> str:
        """The type that is computed in."""
        return DTYPES[self.dtype()].compute

    def reduce(self, op: str, value: int) -> int:
        """A reduction of ``value``."""
        return self.builder.reduce(op, value, self.axes)

    def widened(self, index: int, axis: int | None = None) -> int:
        """Input ``index`` in the type that is computed in."""
        return self.builder.cast(self.arg(index, axis), self.work)

    def number(self, value: object) -> int:
        """A constant of the type that is computed in."""
        return self.const(value, self.work)

    def do(self, op: str, *operands: int) -> int:
        """An instruction of the type that is computed in."""
        return self.emit(op, *operands, dtype=self.work)

    def narrowed(self, value: int) -> int:
        """A value as the type of the first input."""
        return self.builder.cast(value, self.dtype())


def reduces(node: gs.Node) -> bool:
    """Whether the node is an operator of the ONNX standard that may be lowered here."""
    return node.domain in STANDARD_DOMAINS and node.op in _LOWERINGS


def reading(node: gs.Node, opset: int) -> Reading:
    """How a node that ``reduces`` does it.  Raises UnsupportedError, with the reason, if it has no equivalent."""
    if opset < OLDEST_OPSET:
        raise UnsupportedError(f"it is of opset {opset}; reductions are fused from opset {OLDEST_OPSET} on")
    if is_of_ort(node.op, opset):
        raise UnsupportedError(f"only ONNX Runtime has {node.op} in opset {opset}")
    shape = node.inputs[0].shape
    if shape is None:
        raise UnsupportedError(f"the rank of {node.inputs[0].name!r} is not known")
    found = _READINGS[node.op](node, opset, len(shape))
    for axis in (*found.axes, *([1] if found.groups else ())):
        if not 0 <= axis < len(shape):
            raise UnsupportedError(f"{node.op} along an axis that there is not")
    if not found.axes and not found.groups:
        raise UnsupportedError(f"{node.op} along no axis")
    if any(tensor.name for tensor in node.outputs[len(found.results) :]):
        raise UnsupportedError(f"output {len(found.results)} of {node.op} is used")
    return found


def lower(
    node: gs.Node, opset: int, builder: ProgramBuilder, operands: Operands, axes: Sequence[int]
) -> tuple[int, ...]:
    """Append the instructions of ``node``, which reduces along ``axes`` of the Program; returns its outputs' values."""
    made = _LOWERINGS[node.op](ReducingLowering(node, opset, builder, operands, axes))
    return (made,) if isinstance(made, int) else made


def check(node: gs.Node, opset: int) -> str | None:
    """Why ``node`` cannot be lowered; None if it can."""
    builder = ProgramBuilder()

    def operand(index: int, axis: int | None = None) -> int:
        return builder.input(NodeLowering(node, opset, builder, operand).dtype(index), axis)

    try:
        reading(node, opset)
        lower(node, opset, builder, operand, (-1,))
    except UnsupportedError as reason:
        return str(reason)
    return None


_Lowering = Callable[[ReducingLowering], int | tuple[int, ...]]
_LOWERINGS: dict[str, _Lowering] = {}
_READINGS: dict[str, Callable[[gs.Node, int, int], Reading]] = {}


def _lowers(read: Callable[[gs.Node, int, int], Reading], *onnx_ops: str) -> Callable[[_Lowering], _Lowering]:
    def register(function: _Lowering) -> _Lowering:
        for op in onnx_ops:
            _LOWERINGS[op] = function
            _READINGS[op] = read
        return function

    return register


# --------------------------------------------------------------------------------------------- how nodes reduce


def _along_axes(node: gs.Node, opset: int, rank: int) -> Reading:
    """ReduceSum and its kin, whose axes are an attribute, or since opset 13 or 18 an input."""
    axes = integers_of(node, "axes", _AXES_INPUT, [])
    if axes is None:
        raise UnsupportedError(f"the axes of {node.op} are not constant")
    if not axes:
        if node.attrs.get("noop_with_empty_axes", 0):
            raise UnsupportedError(f"{node.op} along no axis")
        axes = list(range(rank))
    found = {axis + rank if axis < 0 else axis for axis in axes}
    result = Result.KEPT if node.attrs.get("keepdims", 1) else Result.DROPPED
    return Reading(tuple(sorted(found)), (result,))


def _along_one(node: gs.Node, opset: int, rank: int) -> Reading:
    """Softmax and its kin."""
    axis = _axis(node, -1 if opset >= _ONE_AXIS_OPSET else 1, rank)
    axes = (axis,) if opset >= _ONE_AXIS_OPSET else tuple(range(axis, rank))
    return Reading(axes, (Result.ELEMENTS,))


def _from_axis(node: gs.Node, opset: int, rank: int) -> Reading:
    """LayerNormalization and RMSNormalization."""
    axes = tuple(range(_axis(node, -1, rank), rank))
    more = (Result.KEPT, Result.KEPT) if node.op == "LayerNormalization" else ()
    return Reading(axes, (Result.ELEMENTS, *more))


def _lp_axis(node: gs.Node, opset: int, rank: int) -> Reading:
    return Reading((_axis(node, -1, rank),), (Result.ELEMENTS,))


def _of_greatest(node: gs.Node, opset: int, rank: int) -> Reading:
    """ArgMax and ArgMin."""
    result = Result.KEPT if node.attrs.get("keepdims", 1) else Result.DROPPED
    return Reading((_axis(node, 0, rank),), (result,))


def _of_mean_variance(node: gs.Node, opset: int, rank: int) -> Reading:
    axes = node.attrs.get("axes")
    if axes is None:  # onnx's inference of shapes does not take the default inside a function
        raise UnsupportedError("MeanVarianceNormalization without axes")
    return Reading(tuple(sorted({axis + rank if axis < 0 else axis for axis in axes})), (Result.ELEMENTS,))


def _whole(node: gs.Node, opset: int, rank: int) -> Reading:
    """DynamicQuantizeLinear: one scale and one zero point for all elements."""
    return Reading(tuple(range(rank)), (Result.ELEMENTS, Result.DROPPED, Result.DROPPED))


def _of_channels(node: gs.Node, opset: int, rank: int) -> Reading:
    """InstanceNormalization: along all axes but the batch and the channels."""
    return Reading(tuple(range(2, rank)), (Result.ELEMENTS,), vectors=(1, 2))


def _of_groups(node: gs.Node, opset: int, rank: int) -> Reading:
    groups = node.attrs.get("num_groups", 0)
    if not isinstance(groups, int) or groups < 1 or rank < 3:
        raise UnsupportedError("GroupNormalization without groups, or of what is no image")
    return Reading(tuple(range(2, rank)), (Result.ELEMENTS,), groups, (1, 2))


def _pooled(node: gs.Node, opset: int, rank: int) -> Reading:
    return Reading(tuple(range(2, rank)), (Result.KEPT,))


def _axis(node: gs.Node, default: int, rank: int) -> int:
    axis = node.attrs.get("axis", default)
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise UnsupportedError(f"{node.op} along an axis that there is not")
    return axis % rank


# ------------------------------------------------------------------------------------------------- what they compute


@_lowers(_along_axes, *(one.onnx for one in REDUCTIONS.values()))
def _reduction(n: ReducingLowering) -> int:
    op = next(one for one in REDUCTIONS.values() if one.onnx == n.node.op)
    if n.work not in op.types:
        raise UnsupportedError(f"{n.node.op} of {DTYPES[n.dtype()].numpy.name} has no kernel")
    if op.name in _OVERFLOWING and n.work not in FLOATS and not _is_of_bools(n.node):
        raise UnsupportedError(
            f"{n.node.op} of {DTYPES[n.dtype()].numpy.name} that overflows is another number in other versions of "
            "ONNX Runtime"
        )
    return n.reduce(op.name, n.arg(0))


def _is_of_bools(node: gs.Node) -> bool:
    """Whether the elements of a node's first input are 0 and 1, of which there are never enough for an overflow."""
    producer = producer_of(node.inputs[0])
    return producer is not None and standard_op(producer) == "Cast" and dtype_of(producer.inputs[0]) == np.bool_


@_lowers(_along_axes, "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
def _reduced_map(n: ReducingLowering) -> int:
    _require_float(n)
    x = n.widened(0)
    match n.node.op:
        case "ReduceL1":
            found = n.reduce("reduce_sum", n.do("abs", x))
        case "ReduceL2":
            found = n.do("sqrt", n.reduce("reduce_sum", n.do("mul", x, x)))
        case "ReduceSumSquare":
            found = n.reduce("reduce_sum", n.do("mul", x, x))
        case "ReduceLogSum":
            found = n.do("log", n.reduce("reduce_sum", x))
        case _:
            largest = n.reduce("reduce_max", x)
            infinite = n.do("equal", n.do("abs", largest), n.number(np.inf))
            shift = n.do("where", infinite, n.number(0), largest)
            found = n.do("add", n.do("log", n.reduce("reduce_sum", n.do("exp", n.do("sub", x, shift)))), shift)
    return n.narrowed(found)


@_lowers(_along_one, "Softmax", "LogSoftmax")
def _softmax(n: ReducingLowering) -> int:
    _require_float(n)
    x = n.widened(0)
    shifted = n.do("sub", x, n.reduce("reduce_max", x))
    powers = n.do("exp", shifted)
    total = n.reduce("reduce_sum", powers)
    if n.node.op == "LogSoftmax":
        return n.narrowed(n.do("sub", shifted, n.do("log", total)))
    return n.narrowed(n.do("mul", powers, n.do("reciprocal", total)))


@_lowers(_from_axis, "LayerNormalization")
def _layer_normalization(n: ReducingLowering) -> tuple[int, ...]:
    """Mean and factor have the type of ``stash_type``, in which ONNX Runtime computes no float64."""
    _require_float(n)
    kind = n.attr("stash_type", TensorProto.FLOAT)
    stash = "f64" if kind == TensorProto.DOUBLE else "f32"
    if kind not in (TensorProto.FLOAT, TensorProto.DOUBLE) or stash not in ("f32", n.work):
        raise UnsupportedError("LayerNormalization that is computed in a wider or another type")
    normalized, mean, factor = _normalized(n, n.widened(0), 1e-5)
    bias = n.widened(2) if n.has(2) else n.number(0)
    result = n.narrowed(_scaled(n, normalized, n.widened(1), bias))
    return result, n.builder.cast(mean, stash), n.builder.cast(factor, stash)


@_lowers(_from_axis, "RMSNormalization")
def _rms_normalization(n: ReducingLowering) -> int:
    _require_float(n)
    x = n.widened(0)
    mean = n.reduce("reduce_mean", n.do("mul", x, x))
    factor = n.do("reciprocal", n.do("sqrt", n.do("add", mean, n.number(n.attr("epsilon", 1e-5)))))
    return n.narrowed(_scaled(n, n.do("mul", x, factor), n.widened(1), n.number(0)))


@_lowers(_of_channels, "InstanceNormalization")
@_lowers(_of_groups, "GroupNormalization")
def _channel_normalization(n: ReducingLowering) -> int:
    _require_float(n)
    if n.work == "f64" and n.attr("stash_type", TensorProto.FLOAT) != TensorProto.DOUBLE:
        raise UnsupportedError("GroupNormalization of float64 that is computed in float32")
    rank = len(n.node.inputs[0].shape)
    normalized, _, _ = _normalized(n, n.widened(0), 1e-5)
    return n.narrowed(_scaled(n, normalized, n.widened(1, 1 - rank), n.widened(2, 1 - rank)))


def _scaled(n: ReducingLowering, value: int, scale: int, bias: int) -> int:
    """value scale + bias, without what a scale of 1 and a bias of 0 would do, as exporters write them."""
    known = [n.builder.constant(vector) for vector in (scale, bias)]
    if known[0] is None or known[0].value != 1:
        value = n.do("mul", value, scale)
    if known[1] is None or known[1].value != 0:
        value = n.do("add", value, bias)
    return value


def _normalized(n: ReducingLowering, x: int, epsilon: float) -> tuple[int, int, int]:
    """(x - mean) / sqrt(variance + epsilon), the mean and the factor."""
    distance, variance, mean = _distances(n, x)
    deviation = n.do("sqrt", n.do("add", variance, n.number(n.attr("epsilon", epsilon))))
    factor = n.do("reciprocal", deviation)
    return n.do("mul", distance, factor), mean, factor


def _distances(n: ReducingLowering, x: int) -> tuple[int, int, int]:
    """x - mean, the variance and the mean.

    The mean is rounded, and with rows that hardly vary that is most of the distances from it: so what is left of their
    own mean is taken from them, and from the variance (T. F. Chan et al., Algorithms for computing the sample variance,
    1983: the corrected two-pass algorithm).  An infinite mean has no such rest, and stays.
    """
    mean = n.reduce("reduce_mean", x)
    distance = n.do("sub", x, mean)
    rest = n.reduce("reduce_mean", distance)
    squares = n.reduce("reduce_mean", n.do("mul", distance, distance))
    largest = n.number(np.finfo(DTYPES[n.work].numpy).max)
    correction = n.do("min", n.do("mul", rest, rest), largest)  # what infinite squares less it are is that again
    variance = n.do("max", n.do("sub", squares, correction), n.number(0))
    corrected = n.do("add", mean, rest)
    mean = n.do("where", n.do("equal", corrected, corrected), corrected, mean)
    return n.do("sub", distance, rest), variance, mean


@_lowers(_lp_axis, "LpNormalization")
def _lp_normalization(n: ReducingLowering) -> int:
    """x / norm; 0 where the norm is 0, as in ONNX Runtime."""
    _require_float(n)
    x = n.widened(0)
    match n.attr("p", 2):
        case 1:
            norm = n.reduce("reduce_sum", n.do("abs", x))
        case 2:
            norm = n.do("sqrt", n.reduce("reduce_sum", n.do("mul", x, x)))
        case p:
            raise UnsupportedError(f"LpNormalization with p={p}")
    is_zero = n.do("equal", norm, n.number(0))
    return n.narrowed(n.do("where", is_zero, n.number(0), n.do("div", x, norm)))


@_lowers(_of_greatest, "ArgMax", "ArgMin")
def _index_of_greatest(n: ReducingLowering) -> int:
    """The first index of the greatest or least element, or the last one."""
    op = "reduce_max" if n.node.op == "ArgMax" else "reduce_min"
    place, none = _place(n, op, bool(n.attr("select_last_index", 0)))
    is_none = n.emit("equal", place, none, dtype="i32")
    return n.builder.cast(n.emit("where", is_none, n.const(0, "i32"), place, dtype="i32"), "i64")


@_lowers(_along_one, "Hardmax")
def _hardmax(n: ReducingLowering) -> int:
    _require_float(n)
    place, _ = _place(n, "reduce_max", last=False)  # where a NaN leaves none, all are 0
    is_it = n.emit("equal", _index(n), place, dtype="i32")
    return n.builder.cast(is_it, n.dtype())


def _place(n: ReducingLowering, op: str, last: bool) -> tuple[int, int]:
    """The index along the axis where the first input is what ``op`` makes of it, and what stands for no index.

    ONNX Runtime compares each element with the best before it.  So a NaN is never found, and as the first element it
    keeps all others from being.
    """
    x = n.widened(0)
    if n.work not in REDUCTIONS[op].types:
        raise UnsupportedError(f"{n.node.op} of {DTYPES[n.dtype()].numpy.name} has no kernel")
    compared = x
    if n.work in FLOATS:
        worst = n.number(-math.inf if op == "reduce_max" else math.inf)
        is_first = n.emit("equal", _index(n), n.const(0, "i32"), dtype="i32")
        compared = n.do("where", n.do("equal", x, x), x, n.do("where", is_first, x, worst))
    found = n.do("equal", x, n.reduce(op, compared))
    none = n.const(-1 if last else np.iinfo(np.int32).max, "i32")
    places = n.emit("where", found, _index(n), none, dtype="i32")
    return n.reduce("reduce_max" if last else "reduce_min", places), none


def _index(n: ReducingLowering) -> int:
    if len(n.axes) != 1:
        raise UnsupportedError(f"{n.node.op} along several axes")
    return n.builder.index("i32", n.widened(0), n.axes[0])


@_lowers(_of_mean_variance, "MeanVarianceNormalization")
def _mean_variance_normalization(n: ReducingLowering) -> int:
    """(x - mean) / (deviation + 1e-9), as the operator's function, whose constants are of float32."""
    if n.dtype() != "f32":
        raise UnsupportedError(f"MeanVarianceNormalization of {DTYPES[n.dtype()].numpy.name}, whose types do not check")
    distance, variance, _ = _distances(n, n.widened(0))
    return n.narrowed(n.do("div", distance, n.do("add", n.do("sqrt", variance), n.number(1e-9))))


@_lowers(_whole, "DynamicQuantizeLinear")
def _dynamic_quantize_linear(n: ReducingLowering) -> tuple[int, ...]:
    """To uint8, so that the range of the elements and 0 are in it."""
    x = n.arg(0)
    least = n.do("min", n.reduce("reduce_min", x), n.number(0))
    greatest = n.do("max", n.reduce("reduce_max", x), n.number(0))
    range_of_all = n.do("sub", greatest, least)
    is_zero = n.do("equal", range_of_all, n.number(0))
    scale = n.do("where", is_zero, n.number(1), n.do("div", range_of_all, n.number(255)))
    zero = n.do("max", n.do("min", n.do("sub", n.number(0), n.do("div", least, scale)), n.number(255)), n.number(0))
    zero = n.do("round", zero)
    rounded = n.do("add", n.do("round", n.do("div", x, scale)), zero)
    quantized = n.do("max", n.do("min", rounded, n.number(255)), n.number(0))
    return n.builder.cast(quantized, "u8"), scale, n.builder.cast(zero, "u8")


@_lowers(_pooled, "GlobalLpPool")
def _global_lp_pool(n: ReducingLowering) -> int:
    _require_float(n)
    x = n.widened(0)
    match n.attr("p", 2):
        case 1:
            return n.narrowed(n.reduce("reduce_sum", n.do("abs", x)))
        case 2:
            return n.narrowed(n.do("sqrt", n.reduce("reduce_sum", n.do("mul", x, x))))
        case p:
            raise UnsupportedError(f"GlobalLpPool with p={p}")


@_lowers(_pooled, "GlobalAveragePool", "GlobalMaxPool")
def _global_pool(n: ReducingLowering) -> int:
    _require_float(n)
    op = "reduce_mean" if n.node.op == "GlobalAveragePool" else "reduce_max"
    return n.narrowed(n.reduce(op, n.widened(0)))


def _require_float(n: ReducingLowering) -> None:
    if n.work not in ("f32", "f64"):
        raise UnsupportedError(f"{n.node.op} of {DTYPES[n.dtype()].numpy.name} has no kernel")
