"""From ONNX nodes to instructions: what each elementwise operator of the standard means as a Program.

An operator that is one row of the op table needs nothing here.  The others have a function registered for their ONNX
name; what else is known by that name is in ``onnxfuse/model/elementwise_operators.py``.  A node that cannot be lowered
raises ``UnsupportedError`` with the reason, which the report shows to the user.
"""

from collections.abc import Callable
from typing import Protocol

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model import dtypes
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.model.graph_ir import STANDARD_DOMAINS
from onnxfuse.model.symbols import is_made_up
from onnxfuse.program.builder import ProgramBuilder
from onnxfuse.program.ops import OPS
from onnxfuse.program.program import MAX_RANK, Instruction, supports

OLDEST_OPSET = 7
"""Operators of earlier opsets may differ: Add broadcasts by attributes, Dropout trains unless told otherwise."""


class UnsupportedError(Exception):
    """Why a node cannot become part of a Program."""


class Operands(Protocol):
    """Gives the value of a node's input to the lowering."""

    def __call__(self, index: int, axis: int | None = None) -> int:
        """The value of input ``index``; with ``axis``, a vector along that axis (counted from the back)."""


class NodeLowering:
    """A node being lowered: its types, attributes and operands, and the builder that receives its instructions."""

    def __init__(self, node: gs.Node, opset: int, builder: ProgramBuilder, operands: Operands) -> None:
        self.node = node
        self.opset = opset
        self.builder = builder
        self._operands = operands

    def has(self, index: int) -> bool:
        """Whether the optional input ``index`` is given."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index].name)

    def arg(self, index: int, axis: int | None = None) -> int:
        """The value of input ``index``."""
        return self._operands(index, axis)

    def args(self) -> list[int]:
        """The values of all inputs."""
        return [self.arg(index) for index in range(len(self.node.inputs))]

    def dtype(self, index: int = 0) -> str:
        """The type of input ``index``.  Raises UnsupportedError for a type that Programs cannot hold."""
        return tensor_dtype(self.node.inputs[index])

    def attr(self, name: str, default: float) -> float:
        """A numeric attribute; one that is no integer has the precision of float, and so has its default."""
        value = self.node.attrs.get(name, default)
        if not isinstance(value, (int, float)):
            raise UnsupportedError(f"attribute {name} is not a number")
        return value if isinstance(value, int) else float(np.float32(value))

    def const(self, value: object, dtype: str | None = None) -> int:
        """A scalar of type ``dtype``, by default that of the first input."""
        return self.builder.const(dtype or self.dtype(), value)

    def parameter(self, name: str, default: float) -> int:
        """A numeric attribute as a scalar of the type of the first input.

        ONNX Runtime computes 16-bit floats in float, with the attribute as it is.  Here it has their precision, which
        is one more rounding.  Raises UnsupportedError for one that is no normal number there, which may become
        anything: 0, infinite, or off by half.
        """
        value, dtype = self.attr(name, default), self.dtype()
        if dtype in ("f16", "bf16") and value != 0 and np.isfinite(value):
            info = ml_dtypes.finfo(DTYPES[dtype].numpy)  # type: ignore[no-untyped-call]
            if not float(info.smallest_normal) <= abs(value) <= float(info.max):
                raise UnsupportedError(f"{name} of {self.node.op} is beyond the numbers of {info.dtype}")
        return self.const(value)

    def emit(self, op: str, *operands: int, dtype: str | None = None) -> int:
        """An instruction whose T is ``dtype``, by default the type of the first input."""
        dtype = dtype or self.dtype()
        if not supports(op, dtype):
            raise UnsupportedError(f"{self.node.op} of {DTYPES[dtype].numpy.name} has no kernel")
        return self.builder.emit(op, dtype, *operands)

    def fold(self, op: str) -> int:
        """A variadic operator as a chain of binary instructions, from the left."""
        result, *rest = self.args()
        for operand in rest:
            result = self.emit(op, result, operand)
        return result

    def inference_only(self, flag_input: int) -> None:
        """Raises UnsupportedError unless the optional input ``flag_input`` (training_mode) is absent or false."""
        if self.has(flag_input):
            flag = self.node.inputs[flag_input]
            if not isinstance(flag, gs.Constant) or bool(np.any(flag.values)):
                raise UnsupportedError(f"{self.node.op} in training mode")


def tensor_dtype(tensor: gs.Tensor) -> str:
    """The short name of a tensor's type.  Raises UnsupportedError if it is unknown or no Program can hold it."""
    dtype = dtypes.from_numpy(tensor.dtype)
    if dtype is None:
        if tensor.dtype is None:
            raise UnsupportedError(f"the type of {tensor.name!r} is not known")
        raise UnsupportedError(f"the type of {tensor.name!r} is not supported")
    return dtype.name


def is_elementwise(node: gs.Node) -> bool:
    """Whether the node is an operator of the ONNX standard that Programs can express, whatever its types."""
    return node.domain in STANDARD_DOMAINS and (node.op in _DIRECT or node.op in _LOWERINGS)


def lower(node: gs.Node, opset: int, builder: ProgramBuilder, operands: Operands) -> int:
    """Append the instructions of ``node`` to ``builder`` and return the value of its first output.

    Raises UnsupportedError, with a reason for the user, if the node has no equivalent.
    """
    if opset < OLDEST_OPSET:
        raise UnsupportedError(f"it is of opset {opset}; operators are fused from opset {OLDEST_OPSET} on")
    if any(output.name for output in node.outputs[1:]):
        raise UnsupportedError(f"the second output of {node.op} is used")
    lowering = NodeLowering(node, opset, builder, operands)
    if node.op in _DIRECT:
        op = _DIRECT[node.op]
        if len(node.inputs) != OPS[op].arity:
            raise UnsupportedError(f"{node.op} with {len(node.inputs)} inputs")
        # T of Where is the type of its second input.
        return lowering.emit(op, *lowering.args(), dtype=lowering.dtype(1 if op == "where" else 0))
    return _LOWERINGS[node.op](lowering)


_DIRECT = {op.onnx: op.name for op in OPS.values() if op.onnx}
_LOWERINGS: dict[str, Callable[[NodeLowering], int]] = {}


def _lowers(*onnx_ops: str) -> Callable[[Callable[[NodeLowering], int]], Callable[[NodeLowering], int]]:
    def register(function: Callable[[NodeLowering], int]) -> Callable[[NodeLowering], int]:
        for op in onnx_ops:
            _LOWERINGS[op] = function
        return function

    return register


@_lowers("Identity", "Dropout")
def _identity(n: NodeLowering) -> int:
    if n.node.op == "Dropout":
        n.inference_only(2)
    n.dtype()
    return n.arg(0)


@_lowers("Greater", "GreaterOrEqual")
def _greater(n: NodeLowering) -> int:
    return n.emit("less" if n.node.op == "Greater" else "less_equal", n.arg(1), n.arg(0))


@_lowers("Sum")
def _sum(n: NodeLowering) -> int:
    n.dtype()
    return n.fold("add")


@_lowers("Max", "Min")
def _max_min(n: NodeLowering) -> int:
    """From the left, like ONNX Runtime, which exchanges the operands where the first alone is a single element.

    The order shows where one operand is +0 and the other -0: the result is the second.
    """
    op = n.node.op.lower()
    n.dtype()
    result, *rest = n.args()
    is_single = _has_one_element(n.node.inputs[0])
    for tensor, operand in zip(n.node.inputs[1:], rest, strict=True):
        exchange = is_single and not _has_one_element(tensor)
        result = n.emit(op, operand, result) if exchange else n.emit(op, result, operand)
        is_single = is_single and not exchange
    return result


@_lowers("Mean")
def _mean(n: NodeLowering) -> int:
    return n.emit("mul", n.fold("add"), n.const(np.float32(1) / np.float32(len(n.node.inputs))))


@_lowers("Clip")
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
            bound = n.emit("where", _not(n, n.emit("equal", bound, bound)), infinity, bound)
        result = n.emit(op, bound, result)
    return result


def _not(n: NodeLowering, condition: int) -> int:
    """The opposite of a condition: it exchanges the operands of "where", of which the third keeps the sign of -0."""
    return n.emit("not", condition, dtype="bool")


def _is_number(tensor: gs.Tensor) -> bool:
    """Whether no element can be NaN."""
    if isinstance(tensor, gs.Constant):
        return not np.any(tensor.values != tensor.values)
    dtype = dtypes.from_numpy(tensor.dtype)
    return dtype is not None and dtype.compute not in ("f32", "f64")


def _clip_bound(n: NodeLowering, index: int, name: str) -> int | None:
    """One bound of Clip, an input since opset 11 and an attribute before.

    By default it is the lowest or highest finite number, as the standard says, so that infinities are clipped; that
    of an integer type does nothing.  Before opset 11 it is that of float for any type.
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
    if n.opset < 11:
        limit = np.finfo(np.float32).min if name == "min" else np.finfo(np.float32).max  # whatever the type
        return n.const(n.attr(name, float(limit)))
    if not n.dtype().endswith(("f16", "f32", "f64")):
        return None
    limits = ml_dtypes.finfo(DTYPES[n.dtype()].numpy)  # type: ignore[no-untyped-call]
    return n.const(limits.min if name == "min" else limits.max)


@_lowers("Pow")
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


@_lowers("Sign")
def _sign(n: NodeLowering) -> int:
    """Of NaN: NaN, but for 16 bits, which ONNX Runtime compares with zero alone."""
    x = n.arg(0)
    sign = n.emit("sign", x)
    return n.emit("where", n.emit("equal", x, x), sign, n.const(0)) if n.dtype() in ("f16", "bf16") else sign


@_lowers("Mod")
def _mod(n: NodeLowering) -> int:
    return n.emit("fmod" if n.attr("fmod", 0) else "mod", n.arg(0), n.arg(1))


@_lowers("BitShift")
def _bit_shift(n: NodeLowering) -> int:
    direction = n.node.attrs.get("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise UnsupportedError("BitShift without a direction")
    return n.emit("shift_left" if direction == "LEFT" else "shift_right", n.arg(0), n.arg(1))


@_lowers("IsNaN")
def _is_nan(n: NodeLowering) -> int:
    _require_float(n)
    return n.emit("not", n.emit("equal", n.arg(0), n.arg(0)), dtype="bool")


@_lowers("IsInf")
def _is_inf(n: NodeLowering) -> int:
    _require_float(n)
    x = n.arg(0)
    sought = [("detect_positive", np.inf), ("detect_negative", -np.inf)]
    found = [n.emit("equal", x, n.const(infinity)) for attribute, infinity in sought if n.attr(attribute, 1)]
    if not found:
        return n.emit("less", x, x)  # false everywhere
    return n.emit("or", *found, dtype="bool") if len(found) == 2 else found[0]


@_lowers("LeakyRelu")
def _leaky_relu(n: NodeLowering) -> int:
    _require_float(n)
    return n.emit("leaky_relu", n.arg(0), n.parameter("alpha", 0.01))


@_lowers("Elu")
def _elu(n: NodeLowering) -> int:
    return n.emit("elu", n.arg(0), n.parameter("alpha", 1.0))


@_lowers("Softplus")
def _softplus(n: NodeLowering) -> int:
    x = n.arg(0)
    if n.dtype() != "f64":
        return n.emit("softplus", x)
    # ONNX Runtime has no kernel for doubles and runs the operator's function, which is infinite where exp is.
    return n.emit("log", n.emit("add", n.emit("exp", x), n.const(1)))


@_lowers("Celu")
def _celu(n: NodeLowering) -> int:
    alpha = _positive_alpha(n, 1.0)
    x = n.arg(0)
    if n.attr("alpha", 1.0) == 1.0:
        return _positive_zero(n, n.emit("elu", x, alpha))
    negative = n.emit("elu", n.emit("div", x, alpha), alpha)
    return _positive_zero(n, n.emit("where", n.emit("less", n.const(0), x), x, negative))


@_lowers("Selu")
def _selu(n: NodeLowering) -> int:
    alpha = _positive_alpha(n, 1.67326319217681884765625)
    gamma = n.parameter("gamma", 1.05070102214813232421875)
    return n.emit("mul", gamma, _positive_zero(n, n.emit("elu", n.arg(0), alpha)))


def _positive_alpha(n: NodeLowering, default: float) -> int:
    """The attribute alpha of Celu or Selu, as any model has it: of others ONNX Runtime's formulas give other values."""
    if not 0 < n.attr("alpha", default) < np.inf:
        raise UnsupportedError(f"{n.node.op} with an alpha that is not positive and finite")
    return n.parameter("alpha", default)


def _positive_zero(n: NodeLowering, value: int) -> int:
    """-0 becomes 0: ONNX Runtime adds max(0, x) and min(0, …) in Celu and Selu."""
    return n.emit("add", value, n.const(0))


@_lowers("HardSigmoid")
def _hard_sigmoid(n: NodeLowering) -> int:
    return n.emit("hard_sigmoid", n.arg(0), n.parameter("alpha", 0.2), n.parameter("beta", 0.5))


@_lowers("Swish")
def _swish(n: NodeLowering) -> int:
    x = scaled = n.arg(0)
    if n.attr("alpha", 1.0) != 1.0:
        scaled = n.emit("mul", x, n.parameter("alpha", 1.0))
    return n.emit("mul", x, n.emit("sigmoid", scaled))


@_lowers("ThresholdedRelu")
def _thresholded_relu(n: NodeLowering) -> int:
    x = n.arg(0)
    above = n.emit("less", n.parameter("alpha", 1.0), x)
    return n.emit("where", _not(n, above), n.const(0), x)


@_lowers("Shrink")
def _shrink(n: NodeLowering) -> int:
    _require_float(n)
    x, lambd, bias = n.arg(0), n.attr("lambd", 0.5), n.parameter("bias", 0.0)
    above = n.emit("where", n.emit("less", n.const(lambd), x), n.emit("sub", x, bias), n.const(0))
    below = n.emit("less", x, n.const(-lambd))
    return n.emit("where", _not(n, below), above, n.emit("add", x, bias))


@_lowers("Gelu")
def _gelu(n: NodeLowering) -> int:
    approximate = n.node.attrs.get("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise UnsupportedError(f"Gelu with approximate={approximate!r}")
    return n.emit("gelu" if approximate == "none" else "gelu_tanh", n.arg(0))


@_lowers("Cast", "CastLike")
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


@_lowers("BatchNormalization")
def _batch_normalization(n: NodeLowering) -> int:
    """y = x s + (B - mean s) with s = scale / sqrt(var + epsilon), in the order of ONNX Runtime's kernel."""
    if n.attr("training_mode", 0) or not n.attr("spatial", 1):
        raise UnsupportedError("BatchNormalization in training mode or over single positions")
    rank = _known_rank(n)
    if rank < 2:
        raise UnsupportedError("BatchNormalization of a tensor without a channel axis")
    if len({n.dtype(index) for index in range(5)}) > 1:
        raise UnsupportedError("BatchNormalization with statistics of another type")
    work = DTYPES[n.dtype()].compute  # an epsilon of any use is hardly a number of float16
    scale, bias, mean, variance = (_as(n, n.arg(index, 1 - rank), work) for index in range(1, 5))
    epsilon = n.const(n.attr("epsilon", 1e-5), work)
    deviation = n.emit("sqrt", n.emit("add", variance, epsilon, dtype=work), dtype=work)
    factor = n.emit("mul", scale, n.emit("reciprocal", deviation, dtype=work), dtype=work)
    offset = n.emit("sub", bias, n.emit("mul", mean, factor, dtype=work), dtype=work)
    product = n.emit("mul", _as(n, n.arg(0), work), factor, dtype=work)
    return _as(n, n.emit("add", product, offset, dtype=work), n.dtype())


@_lowers("QuantizeLinear")
def _quantize_linear(n: NodeLowering) -> int:
    """saturate(round(x / scale) + zero_point), as ONNX defines it; halves round to even."""
    target = tensor_dtype(n.node.inputs[2]) if n.has(2) else tensor_dtype(n.node.outputs[0])
    if target not in ("i8", "u8", "i16", "u16"):
        raise UnsupportedError(f"QuantizeLinear to {target}")
    if n.dtype(0) not in ("f32", "f16", "bf16") or n.dtype(1) != n.dtype(0):
        raise UnsupportedError("QuantizeLinear of these types")
    axis = _quantization_axis(n)
    work = "f32"
    ratio = n.emit("div", _as(n, n.arg(0), work), _as(n, n.arg(1, axis), work), dtype=work)
    result = n.emit("round", _as(n, _as(n, ratio, _precision(n)), work), dtype=work)
    if n.has(2):
        result = n.emit("add", result, _as(n, n.arg(2, axis), work), dtype=work)
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


@_lowers("DequantizeLinear")
def _dequantize_linear(n: NodeLowering) -> int:
    """(x - zero_point) scale, the difference taken in int32 and the product in float."""
    scale = n.dtype(1)
    if n.dtype(0) not in ("i8", "u8", "i16", "u16", "i32") or scale not in ("f32", "f16", "bf16"):
        raise UnsupportedError("DequantizeLinear of these types")
    axis = _quantization_axis(n)
    difference = n.builder.cast(n.arg(0), "i32")
    if n.has(2):
        difference = n.emit("sub", difference, n.builder.cast(n.arg(2, axis), "i32"), dtype="i32")
    product = n.emit("mul", n.builder.cast(difference, "f32"), _as(n, n.arg(1, axis), "f32"), dtype="f32")
    return _as(n, product, scale)


def _as(n: NodeLowering, value: int, dtype: str) -> int:
    return n.builder.cast(value, dtype)


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
    rank = _known_rank(n)
    if rank == 0:
        raise UnsupportedError(f"{n.node.op} of a scalar with a vector as its scale")
    axis = int(n.attr("axis", 1))
    if shape == [1] or tuple(shape) == (1,):
        return -1  # one scale for all, on whichever axis
    if not -rank <= axis < rank:
        raise UnsupportedError(f"{n.node.op} with an axis out of range")
    return axis - rank if axis >= 0 else axis


def _known_rank(n: NodeLowering) -> int:
    shape = n.node.inputs[0].shape
    if shape is None:
        raise UnsupportedError(f"the rank of {n.node.inputs[0].name!r} is not known")
    return len(shape)


def _has_one_element(tensor: gs.Tensor) -> bool:
    return tensor.shape is not None and all(dim == 1 for dim in tensor.shape)


def _require_float(n: NodeLowering) -> None:
    if DTYPES[n.dtype()].compute not in ("f32", "f64"):
        raise UnsupportedError(f"{n.node.op} of {DTYPES[n.dtype()].numpy.name} has no kernel")


def instructions(node: gs.Node, opset: int) -> tuple[Instruction, ...]:
    """The instructions of ``node`` by itself.  Raises UnsupportedError if it cannot be lowered."""
    builder = ProgramBuilder()

    def operand(index: int, axis: int | None = None) -> int:
        return builder.input(tensor_dtype(node.inputs[index]), axis)

    return builder.build([lower(node, opset, builder, operand)]).instructions


def check(node: gs.Node, opset: int) -> str | None:
    """Why ``node`` cannot be lowered; None if it can."""
    builder = ProgramBuilder()
    read: set[int] = set()

    def operand(index: int, axis: int | None = None) -> int:
        read.add(index)
        return builder.input(tensor_dtype(node.inputs[index]), axis)

    try:
        result = lower(node, opset, builder, operand)
        if builder.dtype(result) != tensor_dtype(node.outputs[0]):
            return f"the type of {node.outputs[0].name!r} is not what {node.op} gives"
    except UnsupportedError as reason:
        return str(reason)
    if any(len(tensor.shape or ()) > MAX_RANK for tensor in (*node.inputs, *node.outputs)):
        return f"a tensor of more than {MAX_RANK} dimensions"
    for index, tensor in enumerate(node.inputs):
        if tensor.name and index not in read and not isinstance(tensor, gs.Constant) and not ignores_input(node, index):
            return f"input {index} of {node.op} is not a constant"
    return None


def ignores_input(node: gs.Node, index: int) -> bool:
    """Whether an input matters for its type only, so that the fused node need not take it."""
    return node.op == "CastLike" and index == 1


def vector_axes(node: gs.Node, opset: int) -> dict[int, int]:
    """The inputs that ``lower`` reads as vectors, and along which axis each, counted from the back.

    They cannot be values computed in the region.
    """
    builder = ProgramBuilder()
    found: dict[int, int] = {}

    def operand(index: int, axis: int | None = None) -> int:
        if axis is not None:
            found[index] = axis
        return builder.input(tensor_dtype(node.inputs[index]), axis)

    lower(node, opset, builder, operand)
    return found
