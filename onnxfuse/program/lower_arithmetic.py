"""What arithmetic, comparisons and normalization by given statistics mean as a Program."""

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model import dtypes
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.model.symbols import is_made_up
from onnxfuse.program.node_lowering import (
    Lowerings,
    NodeLowering,
    UnsupportedError,
    cast_to,
    has_one_element,
    known_rank,
    logical_not,
    require_float,
)

LOWERINGS = Lowerings()


@LOWERINGS.of("Identity", "Dropout")
def _identity(n: NodeLowering) -> int:
    if n.node.op == "Dropout":
        n.inference_only(2)
    n.dtype()
    return n.arg(0)


@LOWERINGS.of("Greater", "GreaterOrEqual")
def _greater(n: NodeLowering) -> int:
    return n.emit("less" if n.node.op == "Greater" else "less_equal", n.arg(1), n.arg(0))


@LOWERINGS.of("Sum")
def _sum(n: NodeLowering) -> int:
    n.dtype()
    return n.fold("add")


@LOWERINGS.of("Max", "Min")
def _max_min(n: NodeLowering) -> int:
    """From the left, like ONNX Runtime, which exchanges the operands where the first alone is a single element.

    The order shows where one operand is +0 and the other -0: the result is the second.
    """
    op = n.node.op.lower()
    n.dtype()
    result, *rest = n.args()
    is_single = has_one_element(n.node.inputs[0])
    for tensor, operand in zip(n.node.inputs[1:], rest, strict=True):
        exchange = is_single and not has_one_element(tensor)
        result = n.emit(op, operand, result) if exchange else n.emit(op, result, operand)
        is_single = is_single and not exchange
    return result


@LOWERINGS.of("Mean")
def _mean(n: NodeLowering) -> int:
    return n.emit("mul", n.fold("add"), n.const(np.float32(1) / np.float32(len(n.node.inputs))))


@LOWERINGS.of("Clip")
def _clip(n: NodeLowering) -> int:
    """Each bound as a maximum or minimum; one that might be NaN, which bounds nothing, is infinite then.

    A zero beside a bound of zero keeps its sign: the result is then the second operand.
    """
    result = n.arg(0)
    for index, op, name in ((1, "max", "min"), (2, "min", "max")):
        bound = _clip_bound(n, index, name)
        if bound is None:
            continue
        if n.opset >= 11 and n.has(index) and not _is_number(n.node.inputs[index]):
            infinity = n.const(-np.inf if op == "max" else np.inf)
            bound = n.emit("where", logical_not(n, n.emit("equal", bound, bound)), infinity, bound)
        result = n.emit(op, bound, result)
    return result


def _is_number(tensor: gs.Tensor) -> bool:
    """Whether no element can be NaN."""
    if isinstance(tensor, gs.Constant):
        return not np.any(tensor.values != tensor.values)
    dtype = dtypes.from_numpy(tensor.dtype)
    return dtype is not None and dtype.compute not in ("f32", "f64")


def _clip_bound(n: NodeLowering, index: int, name: str) -> int | None:
    """One bound of Clip, an input since opset 11 and an attribute before.

    By default it is the lowest or highest finite number, as the standard says, so that infinities are clipped; that
    of an integer type does nothing.  Before opset 12 it is that of float for any type, as ONNX Runtime has it, which
    computes half precision in float there.
    """
    if n.opset >= 11 and n.has(index):
        shape = n.node.inputs[index].shape
        if (
            shape is None and not n.node.inputs[0].shape
        ):  # ONNX Runtime takes [1] too, which gives a scalar no dimension
            raise UnsupportedError("Clip of what may be a scalar with a bound of unknown rank")
        if len(shape or ()) > 0:
            raise UnsupportedError("Clip with a bound that is not a scalar")
        return n.arg(index)
    if n.opset < 12:
        limit = np.finfo(np.float32).min if name == "min" else np.finfo(np.float32).max
        return n.const(n.attr(name, float(limit)) if n.opset < 11 else float(limit))
    if not n.dtype().endswith(("f16", "f32", "f64")):
        return None
    limits = ml_dtypes.finfo(DTYPES[n.dtype()].numpy)  # type: ignore[no-untyped-call]
    return n.const(limits.min if name == "min" else limits.max)


@LOWERINGS.of("Pow")
def _pow(n: NodeLowering) -> int:
    base, exponent = n.dtype(0), n.dtype(1)
    if base != exponent:
        constant = n.node.inputs[1]
        exact = isinstance(constant, gs.Constant) and bool(
            np.all(constant.values.astype(np.float64) == constant.values.astype(DTYPES[base].numpy))
        )
        if not exact:
            raise UnsupportedError(f"Pow of {DTYPES[base].numpy.name} by {DTYPES[exponent].numpy.name}")
    if (power := _small_power(n)) is not None:
        result = n.arg(0)
        for _ in range(power - 1):
            result = n.emit("mul", result, n.arg(0))
        return result
    return n.emit("pow", n.arg(0), n.builder.cast(n.arg(1), base))


def _small_power(n: NodeLowering) -> int | None:
    """2 or 3 if the node is the product of so many bases; None if it is the instruction "pow".

    ONNX Runtime multiplies where one exponent of 2 or 3 serves all of a row of bases.  "pow" multiplies floats by any
    such exponent, which comes to the same, but takes integers through double, as ONNX Runtime does elsewhere: of those
    the shapes must tell.
    """
    base, exponent = n.node.inputs[:2]
    constant = exponent.values if isinstance(exponent, gs.Constant) else None
    if constant is not None and not np.any((constant == 2) | (constant == 3)):
        return None
    is_float = DTYPES[n.dtype()].compute in ("f32", "f64")
    shape = list(base.shape or ())
    multiplied = is_float or (len(shape) > 0 and _is_long(shape[-1]))
    if multiplied and constant is not None and constant.size == 1 and constant.ndim <= len(shape):
        return int(constant.reshape(()))
    if is_float or _have_one_shape(base, exponent):
        return None
    raise UnsupportedError("Pow of integers whose shapes do not tell how ONNX Runtime computes it")


def _is_long(dim: int | str | None) -> bool:
    return isinstance(dim, int) and dim > 1


def _have_one_shape(first: gs.Tensor, second: gs.Tensor) -> bool:
    if first.shape is None or second.shape is None or list(first.shape) != list(second.shape):
        return False
    # A symbol that a model declares of two inputs may stand for two sizes: ONNX Runtime does not compare them.
    return all(isinstance(dim, int) or is_made_up(dim) for dim in first.shape)


@LOWERINGS.of("Sign")
def _sign(n: NodeLowering) -> int:
    """Of NaN: NaN, but for 16 bits, which ONNX Runtime compares with zero alone."""
    x = n.arg(0)
    sign = n.emit("sign", x)
    return n.emit("where", n.emit("equal", x, x), sign, n.const(0)) if n.dtype() in ("f16", "bf16") else sign


@LOWERINGS.of("Mod")
def _mod(n: NodeLowering) -> int:
    return n.emit("fmod" if n.attr("fmod", 0) else "mod", n.arg(0), n.arg(1))


@LOWERINGS.of("BitShift")
def _bit_shift(n: NodeLowering) -> int:
    direction = n.node.attrs.get("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise UnsupportedError("BitShift without a direction")
    return n.emit("shift_left" if direction == "LEFT" else "shift_right", n.arg(0), n.arg(1))


@LOWERINGS.of("IsNaN")
def _is_nan(n: NodeLowering) -> int:
    require_float(n)
    return n.emit("not", n.emit("equal", n.arg(0), n.arg(0)), dtype="bool")


@LOWERINGS.of("IsInf")
def _is_inf(n: NodeLowering) -> int:
    require_float(n)
    x = n.arg(0)
    sought = [("detect_positive", np.inf), ("detect_negative", -np.inf)]
    found = [n.emit("equal", x, n.const(infinity)) for attribute, infinity in sought if n.attr(attribute, 1)]
    if not found:
        return n.emit("less", x, x)  # false everywhere
    return n.emit("or", *found, dtype="bool") if len(found) == 2 else found[0]


@LOWERINGS.of("BatchNormalization")
def _batch_normalization(n: NodeLowering) -> int:
    """y = x s + (B - mean s) with s = scale / sqrt(var + epsilon), in the order of ONNX Runtime's kernel."""
    if n.attr("training_mode", 0) or not n.attr("spatial", 1):
        raise UnsupportedError("BatchNormalization in training mode or over single positions")
    rank = known_rank(n)
    if rank < 2:
        raise UnsupportedError("BatchNormalization of a tensor without a channel axis")
    if len({n.dtype(index) for index in range(5)}) > 1:
        raise UnsupportedError("BatchNormalization with statistics of another type")
    work = DTYPES[n.dtype()].compute  # an epsilon of any use is hardly a number of float16
    scale, bias, mean, variance = (cast_to(n, n.arg(index, 1 - rank), work) for index in range(1, 5))
    epsilon = n.const(n.attr("epsilon", 1e-5), work)
    deviation = n.emit("sqrt", n.emit("add", variance, epsilon, dtype=work), dtype=work)
    factor = n.emit("mul", scale, n.emit("reciprocal", deviation, dtype=work), dtype=work)
    offset = n.emit("sub", bias, n.emit("mul", mean, factor, dtype=work), dtype=work)
    product = n.emit("mul", cast_to(n, n.arg(0), work), factor, dtype=work)
    return cast_to(n, n.emit("add", product, offset, dtype=work), n.dtype())
