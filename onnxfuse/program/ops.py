"""The table of Program operators.

Everything that knows an operator reads it here: validation, the NumPy reference, the CUDA renderer, the lowering of
ONNX nodes that are one operator each, and, through ``custom_ops/generate_opcodes.py``, the native library.  To add an
operator, add a row here, a functor of the same name in ``custom_ops/src/functors.h``, and the device function that the
row calls, if any, in ``custom_ops/cuda``.

This module imports the standard library alone, because the native build reads it before anything is installed.
"""

from dataclasses import dataclass
from enum import Enum

FLOATS = ("f32", "f64")
"""Floating-point types that have kernels; f16 and bf16 run the kernels of f32."""
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTEGERS = SIGNED + UNSIGNED
NUMBERS = FLOATS + INTEGERS
BOOL = ("bool",)
ALL = NUMBERS + BOOL


class Rule(Enum):
    """How the operands' types and the result's type hang together; T is the type written in the instruction."""

    SAME = "same"  # T, … -> T
    COMPARE = "compare"  # T, T -> bool
    SELECT = "select"  # bool, T, T -> T
    CAST = "cast"  # any -> T


@dataclass(frozen=True)
class Op:
    """One operator over scalars.

    ``numpy`` is an expression over the operands ``a``, ``b``, ``c`` (NumPy arrays of type T), with ``np``, ``T`` (the
    NumPy type of T) and the helpers of ``onnxfuse.program.reference`` in scope.  ``cuda`` is an expression of CUDA C++
    over the same operands, as values of the type that T is computed in, and ``T``, the type as it is stored; it may
    call the functions of ``custom_ops/cuda``.  ``onnx`` is the ONNX operator that this row is to the letter, operand
    for operand, where there is one.
    """

    name: str
    arity: int
    types: tuple[str, ...]
    numpy: str
    cuda: str
    rule: Rule = Rule.SAME
    onnx: str = ""


_ROWS = (
    # Arithmetic.  Integers wrap around.  Where one is divided by 0, a run on the CPU fails, as in ONNX Runtime, and the
    # result on a GPU is 0.
    Op("add", 2, NUMBERS, "a + b", "add(a, b)", onnx="Add"),
    Op("sub", 2, NUMBERS, "a - b", "sub(a, b)", onnx="Sub"),
    Op("mul", 2, NUMBERS, "a * b", "mul(a, b)", onnx="Mul"),
    Op("div", 2, NUMBERS, "divide(a, b)", "div(a, b)", onnx="Div"),  # integers truncate
    Op("mod", 2, INTEGERS, "modulo(a, b)", "mod(a, b)"),  # the sign of the divisor
    Op("fmod", 2, NUMBERS, "fmod(a, b)", "fmod(a, b)"),  # the sign of the dividend
    Op("pow", 2, NUMBERS, "power(a, b)", "pow(a, b)"),
    Op("min", 2, NUMBERS, "minimum(a, b)", "min(a, b)"),  # a NaN operand gives NaN, equal ones b
    Op("max", 2, NUMBERS, "maximum(a, b)", "max(a, b)"),
    Op("neg", 1, FLOATS + SIGNED, "-a", "neg(a)", onnx="Neg"),
    Op("abs", 1, NUMBERS, "np.abs(a)", "abs(a)", onnx="Abs"),
    Op("sign", 1, NUMBERS, "np.sign(a)", "sign(a)"),
    Op("reciprocal", 1, FLOATS, "T(1) / a", "1 / a", onnx="Reciprocal"),
    Op("sqrt", 1, FLOATS, "np.sqrt(a)", "sqrt(a)", onnx="Sqrt"),
    # Rounding.
    Op("floor", 1, FLOATS, "np.floor(a)", "floor(a)", onnx="Floor"),
    Op("ceil", 1, FLOATS, "np.ceil(a)", "ceil(a)", onnx="Ceil"),
    Op("round", 1, FLOATS, "np.round(a)", "round(a)", onnx="Round"),  # halves to even
    # Exponential, trigonometric and hyperbolic functions.
    Op("exp", 1, FLOATS, "np.exp(a)", "exp(a)", onnx="Exp"),
    Op("log", 1, FLOATS, "np.log(a)", "log(a)", onnx="Log"),
    Op("sin", 1, FLOATS, "np.sin(a)", "sin(a)", onnx="Sin"),
    Op("cos", 1, FLOATS, "np.cos(a)", "cos(a)", onnx="Cos"),
    Op("tan", 1, FLOATS, "np.tan(a)", "tan(a)", onnx="Tan"),
    Op("asin", 1, FLOATS, "np.arcsin(a)", "asin(a)", onnx="Asin"),
    Op("acos", 1, FLOATS, "np.arccos(a)", "acos(a)", onnx="Acos"),
    Op("atan", 1, FLOATS, "np.arctan(a)", "atan(a)", onnx="Atan"),
    Op("sinh", 1, FLOATS, "np.sinh(a)", "sinh(a)", onnx="Sinh"),
    Op("cosh", 1, FLOATS, "np.cosh(a)", "cosh(a)", onnx="Cosh"),
    Op("tanh", 1, FLOATS, "np.tanh(a)", "tanh(a)", onnx="Tanh"),
    Op("asinh", 1, FLOATS, "np.arcsinh(a)", "asinh(a)", onnx="Asinh"),
    Op("acosh", 1, FLOATS, "np.arccosh(a)", "acosh(a)", onnx="Acosh"),
    Op("atanh", 1, FLOATS, "np.arctanh(a)", "atanh(a)", onnx="Atanh"),
    Op("erf", 1, FLOATS, "erf(a)", "erf(a)", onnx="Erf"),
    # Activations; the operands after the first are the ONNX attributes, in the order of the ONNX text.
    Op("relu", 1, FLOATS + SIGNED, "np.where(a < 0, T(0), a)", "relu(a)", onnx="Relu"),
    Op("leaky_relu", 2, NUMBERS, "np.where(a < 0, a * b, a)", "leaky_relu(a, b)", onnx="PRelu"),
    Op("elu", 2, FLOATS, "np.where(a < 0, b * np.expm1(np.minimum(a, T(0))), a)", "elu(a, b)"),
    Op("sigmoid", 1, FLOATS, "sigmoid(a)", "sigmoid(a)", onnx="Sigmoid"),
    Op("hard_sigmoid", 3, FLOATS, "hard_sigmoid(a, b, c)", "hard_sigmoid(a, b, c)"),
    Op("hard_swish", 1, FLOATS, "hard_swish(a)", "hard_swish(a)", onnx="HardSwish"),
    Op("softplus", 1, FLOATS, "softplus(a)", "softplus(a)"),
    Op("softsign", 1, FLOATS, "a / (T(1) + np.abs(a))", "softsign(a)", onnx="Softsign"),
    Op("mish", 1, FLOATS, "a * np.tanh(softplus(a))", "mish(a)", onnx="Mish"),
    Op("gelu", 1, FLOATS, "gelu(a)", "gelu(a)"),
    Op("gelu_tanh", 1, FLOATS, "gelu_tanh(a)", "gelu_tanh(a)"),
    # Comparison.  "Greater" is "less" with its operands exchanged.
    Op("equal", 2, ALL, "a == b", "a == b", Rule.COMPARE, onnx="Equal"),
    Op("less", 2, NUMBERS, "a < b", "a < b", Rule.COMPARE, onnx="Less"),
    Op("less_equal", 2, NUMBERS, "a <= b", "a <= b", Rule.COMPARE, onnx="LessOrEqual"),
    # As in ONNX Runtime, -0 of the second operand becomes +0.
    Op("where", 3, ALL, "np.where(a, np.where(b == 0, T(0), b), c)", "where(a, b, c)", Rule.SELECT, onnx="Where"),
    # Logic and bits.  A shift by the width or more gives 0.
    Op("and", 2, BOOL, "a & b", "a && b", onnx="And"),
    Op("or", 2, BOOL, "a | b", "a || b", onnx="Or"),
    Op("xor", 2, BOOL, "a ^ b", "a != b", onnx="Xor"),
    Op("not", 1, BOOL, "~a", "!a", onnx="Not"),
    Op("bitwise_and", 2, INTEGERS, "a & b", "T(a & b)", onnx="BitwiseAnd"),
    Op("bitwise_or", 2, INTEGERS, "a | b", "T(a | b)", onnx="BitwiseOr"),
    Op("bitwise_xor", 2, INTEGERS, "a ^ b", "T(a ^ b)", onnx="BitwiseXor"),
    Op("bitwise_not", 1, INTEGERS, "~a", "T(~a)", onnx="BitwiseNot"),
    Op("shift_left", 2, UNSIGNED, "shift_left(a, b)", "shift_left(a, b)"),
    Op("shift_right", 2, UNSIGNED, "shift_right(a, b)", "shift_right(a, b)"),
    # Conversion.  T may also be f16 or bf16: the value is rounded to that precision.
    Op("cast", 1, ALL, "cast(a, T)", "cast<T>(a)", Rule.CAST),
)

OPS: dict[str, Op] = {op.name: op for op in _ROWS}
"""Every operator by name, in the order of the table."""
