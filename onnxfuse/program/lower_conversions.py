"""What conversions between types mean as a Program: casts and quantization."""

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model import dtypes
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program.node_lowering import Lowerings, NodeLowering, UnsupportedError, cast_to, known_rank, tensor_dtype

LOWERINGS = Lowerings()


@LOWERINGS.of("Cast", "CastLike")
def _cast(n: NodeLowering) -> int:
    target = cast_target(n.node)
    n.dtype()
    if target == n.dtype():
        return n.arg(0)
    return n.builder.cast(n.arg(0), target)


def cast_target(node: gs.Node) -> str:
    """The type that a Cast or CastLike node converts to.  Raises UnsupportedError for one that Programs cannot hold."""
    if node.op == "CastLike":
        return tensor_dtype(node.inputs[1])
    target = node.attrs.get("to")
    dtype = dtypes.from_onnx(target) if isinstance(target, int) else None
    if dtype is None:
        raise UnsupportedError("Cast to a type that is not supported")
    return dtype.name


@LOWERINGS.of("QuantizeLinear")
def _quantize_linear(n: NodeLowering) -> int:
    """saturate(round(x / scale) + zero_point), as ONNX defines it; halves round to even."""
    target = tensor_dtype(n.node.inputs[2]) if n.has(2) else tensor_dtype(n.node.outputs[0])
    if target not in ("i8", "u8", "i16", "u16"):
        raise UnsupportedError(f"QuantizeLinear to {target}")
    if n.dtype(0) not in ("f32", "f16", "bf16") or n.dtype(1) != n.dtype(0):
        raise UnsupportedError("QuantizeLinear of these types")
    axis = _quantization_axis(n)
    work = "f32"
    ratio = n.emit("div", cast_to(n, n.arg(0), work), cast_to(n, n.arg(1, axis), work), dtype=work)
    result = n.emit("round", cast_to(n, cast_to(n, ratio, _precision(n)), work), dtype=work)
    if n.has(2):
        result = n.emit("add", result, cast_to(n, n.arg(2, axis), work), dtype=work)
    # A NaN becomes the lowest value, as in ONNX Runtime: a cast to an unsigned type makes it 0.  So results of a signed
    # type are counted from the lowest one, which changing the first bit undoes.
    limits, unsigned = np.iinfo(DTYPES[target].numpy), target.replace("i", "u")
    result = n.emit("min", result, n.const(limits.max, work), dtype=work)
    if limits.min < 0:
        result = n.emit("sub", result, n.const(limits.min, work), dtype=work)
    result = n.builder.cast(n.emit("max", result, n.const(0, work), dtype=work), unsigned)
    if limits.min < 0:
        result = n.emit("bitwise_xor", result, n.const(-limits.min, unsigned), dtype=unsigned)
    return n.builder.cast(result, target)


def _precision(n: NodeLowering) -> str:
    """The type to which QuantizeLinear rounds the ratio: since opset 23 that of the scale, or an attribute."""
    if n.opset < 23:
        return "f32"
    number = n.attr("precision", 0)
    if number in (0, DTYPES[n.dtype(1)].onnx):
        return n.dtype(1)
    if number == DTYPES["f32"].onnx:
        return "f32"
    raise UnsupportedError("QuantizeLinear with a precision that is neither float's nor that of its scale")


@LOWERINGS.of("DequantizeLinear")
def _dequantize_linear(n: NodeLowering) -> int:
    """(x - zero_point) scale, the difference taken in int32 and the product in float."""
    scale = n.dtype(1)
    if n.dtype(0) not in ("i8", "u8", "i16", "u16", "i32") or scale not in ("f32", "f16", "bf16"):
        raise UnsupportedError("DequantizeLinear of these types")
    axis = _quantization_axis(n)
    difference = n.builder.cast(n.arg(0), "i32")
    if n.has(2):
        difference = n.emit("sub", difference, n.builder.cast(n.arg(2, axis), "i32"), dtype="i32")
    product = n.emit("mul", n.builder.cast(difference, "f32"), cast_to(n, n.arg(1, axis), "f32"), dtype="f32")
    return cast_to(n, product, scale)


def _quantization_axis(n: NodeLowering) -> int | None:
    """The axis of per-axis scales, counted from the back; None for one scale for the whole tensor."""
    if n.attr("block_size", 0):
        raise UnsupportedError(f"{n.node.op} in blocks")
    shape = n.node.inputs[1].shape
    if shape is None:
        raise UnsupportedError(f"the rank of the scale of {n.node.op} is not known")
    if len(shape) == 0:
        return None
    if len(shape) != 1:
        raise UnsupportedError(f"{n.node.op} in blocks")
    rank = known_rank(n)
    if rank == 0:
        raise UnsupportedError(f"{n.node.op} of a scalar with a vector as its scale")
    axis = int(n.attr("axis", 1))
    if shape == [1] or tuple(shape) == (1,):
        return -1  # one scale for all, on whichever axis
    if not -rank <= axis < rank:
        raise UnsupportedError(f"{n.node.op} with an axis out of range")
    return axis - rank if axis >= 0 else axis
