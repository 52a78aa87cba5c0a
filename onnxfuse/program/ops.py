"""The table of Program operators.

Everything that knows an operator reads it here: validation, the NumPy reference, the CUDA renderer, the planners' and
the library's estimates, the lowering of ONNX nodes that are one operator each, the tests, and, through
``custom_ops/generate_opcodes.py``, the native library.  To add an operator, add a row here, a functor of the same name
in ``custom_ops/kernels/elementwise/functors.h``, and the device function that the row calls, if any, in
``custom_ops/cuda/device``.  What is known of ONNX's own operators is in ``onnxfuse/model/elementwise_operators.py``.

This module imports the standard library alone, because the native build reads it before anything is installed.
"""

from collections.abc import Mapping
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
class Cost:
    """What an element takes of an operator.

    ``cpu`` has nanoseconds of one thread by the type that is computed in, with operands in the level 1 cache: measured
    with AVX-512 at 3.7 GHz (``custom_ops/tests/vector_math_test.cc``, "time"); other machines differ by the same factor
    for all, within a few times.  ``cuda`` has machine instructions, roughly, of T in up to 32 bits and of T in 64.
    ``repeatable`` says whether it is so little that it may be computed again for each reader, and need not be kept.
    """

    name: str
    cpu: Mapping[str, float]
    cuda: tuple[int, int]
    repeatable: bool = False


def _floats(single: float, double: float) -> dict[str, float]:
    return {"f32": single, "f64": double}


def _divided(single: float, double: float) -> dict[str, float]:
    """Vectors of integers are divided as floats, but for the longest."""
    return {**_floats(single, double), **{dtype: 2.0 if dtype.endswith("64") else 0.4 for dtype in INTEGERS}}


_BYTES = {"f32": 4, "f64": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u8": 1, "u16": 2, "u32": 4, "u64": 8, "bool": 1}
_VECTORS = {dtype: 0.01 * size for dtype, size in _BYTES.items()}
_INSTRUCTION, _ROUTINE = (3, 3), (30, 80)

ARITHMETIC = Cost("arithmetic", _VECTORS, _INSTRUCTION, repeatable=True)
SIMPLE = Cost("simple", _VECTORS, _INSTRUCTION)
"""As little on a CPU, but more on a GPU, or rarely met."""
QUOTIENT = Cost("quotient", _VECTORS, _ROUTINE)
"""As little on a CPU, beside the others of a tile: floats divided into 1, and square roots."""
DIVISION = Cost("division", _divided(0.08, 0.16), _ROUTINE)
REMAINDER = Cost("remainder", _divided(0.5, 0.5), _ROUTINE)
POWER = Cost("power", {**_floats(4.0, 20.0), **dict.fromkeys(INTEGERS, 20.0)}, _ROUTINE)
FUNCTION = Cost("function", _floats(0.3, 1.5), _ROUTINE)
"""Written for vectors."""
LONG_FUNCTION = Cost("long_function", _floats(0.6, 20.0), _ROUTINE)
"""The same of float32, of two functions or with an argument that is reduced first."""
SCALAR_FUNCTION = Cost("scalar_function", _floats(1.3, 20.0), _ROUTINE)
"""Of one number at a time."""


@dataclass(frozen=True)
class Op:
    """One operator over scalars.

    ``numpy`` is an expression over the operands ``a``, ``b``, ``c`` (NumPy arrays of type T), with ``np``, ``T`` (the
    NumPy type of T) and the helpers of ``onnxfuse.program.reference`` in scope.  ``cuda`` is an expression of CUDA C++
    over the same operands, as values of the type that T is computed in, and ``T``, the type as it is stored; it may
    call the functions of ``custom_ops/cuda/device``.  ``types`` are those that have kernels, on the CPU and on CUDA.
    ``ulp`` is how many units in the last place a result of float32 may be off, on either; 0 stands for the bits of the
    NumPy text, whose operations are rounded as IEEE 754 says.  ``chained`` are the types of which the library's chains
    hand a value on in registers (``stage_chain.cc``); of others each instruction passes over a tile.  ``divides`` says
    that the second operand is a divisor: a run on the CPU fails where it is the integer 0.  ``onnx`` is the ONNX
    operator that this row is to the letter, operand for operand, where there is one.
    """

    name: str
    arity: int
    types: tuple[str, ...]
    numpy: str
    cuda: str
    cost: Cost
    ulp: int
    chained: tuple[str, ...] = ()
    rule: Rule = Rule.SAME
    onnx: str = ""
    divides: bool = False


_ROWS = (
    # Arithmetic.  Integers wrap around, and their quotients are truncated.  Where one is divided by 0, a run on the CPU
    # fails, as in ONNX Runtime, and the result on a GPU is 0.
    Op("add", 2, NUMBERS, "a + b", "add(a, b)", ARITHMETIC, 0, FLOATS, onnx="Add"),
    Op("sub", 2, NUMBERS, "a - b", "sub(a, b)", ARITHMETIC, 0, FLOATS, onnx="Sub"),
    Op("mul", 2, NUMBERS, "a * b", "mul(a, b)", ARITHMETIC, 0, FLOATS, onnx="Mul"),
    Op("div", 2, NUMBERS, "divide(a, b)", "div(a, b)", DIVISION, 0, FLOATS, onnx="Div", divides=True),
    Op("mod", 2, INTEGERS, "modulo(a, b)", "mod(a, b)", REMAINDER, 0, divides=True),  # the sign of the divisor
    Op("fmod", 2, NUMBERS, "fmod(a, b)", "fmod(a, b)", REMAINDER, 0, divides=True),  # the sign of the dividend
    Op("pow", 2, NUMBERS, "power(a, b)", "pow(a, b)", POWER, 4),
    Op("min", 2, NUMBERS, "minimum(a, b)", "min(a, b)", ARITHMETIC, 0, FLOATS),  # a NaN operand gives NaN, equal ones b
    Op("max", 2, NUMBERS, "maximum(a, b)", "max(a, b)", ARITHMETIC, 0, FLOATS),
    Op("neg", 1, FLOATS + SIGNED, "-a", "neg(a)", ARITHMETIC, 0, FLOATS, onnx="Neg"),
    Op("abs", 1, NUMBERS, "np.abs(a)", "abs(a)", ARITHMETIC, 0, FLOATS, onnx="Abs"),
    Op("sign", 1, NUMBERS, "np.sign(a)", "sign(a)", SIMPLE, 0),
    Op("reciprocal", 1, FLOATS, "T(1) / a", "1 / a", QUOTIENT, 0, FLOATS, onnx="Reciprocal"),
    Op("sqrt", 1, FLOATS, "np.sqrt(a)", "sqrt(a)", QUOTIENT, 0, FLOATS, onnx="Sqrt"),
    # Rounding.
    Op("floor", 1, FLOATS, "np.floor(a)", "floor(a)", SIMPLE, 0, FLOATS, onnx="Floor"),
    Op("ceil", 1, FLOATS, "np.ceil(a)", "ceil(a)", SIMPLE, 0, FLOATS, onnx="Ceil"),
    Op("round", 1, FLOATS, "np.round(a)", "round(a)", SIMPLE, 0, FLOATS, onnx="Round"),  # halves to even
    # Exponential, trigonometric and hyperbolic functions.
    Op("exp", 1, FLOATS, "np.exp(a)", "exp(a)", FUNCTION, 4, ("f32",), onnx="Exp"),
    Op("log", 1, FLOATS, "np.log(a)", "log(a)", FUNCTION, 4, ("f32",), onnx="Log"),
    Op("sin", 1, FLOATS, "np.sin(a)", "sin(a)", LONG_FUNCTION, 4, onnx="Sin"),
    Op("cos", 1, FLOATS, "np.cos(a)", "cos(a)", LONG_FUNCTION, 4, onnx="Cos"),
    Op("tan", 1, FLOATS, "np.tan(a)", "tan(a)", SCALAR_FUNCTION, 4, onnx="Tan"),
    Op("asin", 1, FLOATS, "np.arcsin(a)", "asin(a)", SCALAR_FUNCTION, 4, onnx="Asin"),
    Op("acos", 1, FLOATS, "np.arccos(a)", "acos(a)", SCALAR_FUNCTION, 4, onnx="Acos"),
    Op("atan", 1, FLOATS, "np.arctan(a)", "atan(a)", SCALAR_FUNCTION, 4, onnx="Atan"),
    Op("sinh", 1, FLOATS, "np.sinh(a)", "sinh(a)", SCALAR_FUNCTION, 4, onnx="Sinh"),
    Op("cosh", 1, FLOATS, "np.cosh(a)", "cosh(a)", SCALAR_FUNCTION, 4, onnx="Cosh"),
    Op("tanh", 1, FLOATS, "np.tanh(a)", "tanh(a)", FUNCTION, 4, ("f32",), onnx="Tanh"),
    Op("asinh", 1, FLOATS, "np.arcsinh(a)", "asinh(a)", SCALAR_FUNCTION, 4, onnx="Asinh"),
    Op("acosh", 1, FLOATS, "np.arccosh(a)", "acosh(a)", SCALAR_FUNCTION, 4, onnx="Acosh"),
    Op("atanh", 1, FLOATS, "np.arctanh(a)", "atanh(a)", SCALAR_FUNCTION, 4, onnx="Atanh"),
    Op("erf", 1, FLOATS, "erf(a)", "erf(a)", FUNCTION, 4, ("f32",), onnx="Erf"),
    # Activations; the operands after the first are the ONNX attributes, in the order of the ONNX text.
    Op("relu", 1, FLOATS + SIGNED, "np.where(a < 0, T(0), a)", "relu(a)", ARITHMETIC, 0, FLOATS, onnx="Relu"),
    Op("leaky_relu", 2, NUMBERS, "np.where(a < 0, a * b, a)", "leaky_relu(a, b)", ARITHMETIC, 0, FLOATS, onnx="PRelu"),
    Op("elu", 2, FLOATS, "np.where(a < 0, b * np.expm1(np.minimum(a, T(0))), a)", "elu(a, b)", FUNCTION, 4),
    Op("sigmoid", 1, FLOATS, "sigmoid(a)", "sigmoid(a)", FUNCTION, 4, ("f32",), onnx="Sigmoid"),
    Op("hard_sigmoid", 3, FLOATS, "hard_sigmoid(a, b, c)", "hard_sigmoid(a, b, c)", ARITHMETIC, 0, FLOATS),
    Op("hard_swish", 1, FLOATS, "hard_swish(a)", "hard_swish(a)", ARITHMETIC, 0, FLOATS, onnx="HardSwish"),
    Op("softplus", 1, FLOATS, "softplus(a)", "softplus(a)", LONG_FUNCTION, 4, ("f32",)),
    Op("softsign", 1, FLOATS, "a / (T(1) + np.abs(a))", "softsign(a)", QUOTIENT, 4, onnx="Softsign"),
    Op("mish", 1, FLOATS, "a * np.tanh(softplus(a))", "mish(a)", LONG_FUNCTION, 4, ("f32",), onnx="Mish"),
    Op("gelu", 1, FLOATS, "gelu(a)", "gelu(a)", LONG_FUNCTION, 4, ("f32",)),
    Op("gelu_tanh", 1, FLOATS, "gelu_tanh(a)", "gelu_tanh(a)", LONG_FUNCTION, 4, ("f32",)),
    # Comparison.  "Greater" is "less" with its operands exchanged.
    Op("equal", 2, ALL, "a == b", "a == b", ARITHMETIC, 0, rule=Rule.COMPARE, onnx="Equal"),
    Op("less", 2, NUMBERS, "a < b", "a < b", ARITHMETIC, 0, rule=Rule.COMPARE, onnx="Less"),
    Op("less_equal", 2, NUMBERS, "a <= b", "a <= b", ARITHMETIC, 0, rule=Rule.COMPARE, onnx="LessOrEqual"),
    # As in ONNX Runtime, -0 of the second operand becomes +0.
    Op("where", 3, ALL, "where(a, b, c)", "where(a, b, c)", ARITHMETIC, 0, rule=Rule.SELECT, onnx="Where"),
    # Logic and bits.  A shift by the width or more gives 0.
    Op("and", 2, BOOL, "a & b", "a && b", ARITHMETIC, 0, onnx="And"),
    Op("or", 2, BOOL, "a | b", "a || b", ARITHMETIC, 0, onnx="Or"),
    Op("xor", 2, BOOL, "a ^ b", "a != b", ARITHMETIC, 0, onnx="Xor"),
    Op("not", 1, BOOL, "~a", "!a", ARITHMETIC, 0, onnx="Not"),
    Op("bitwise_and", 2, INTEGERS, "a & b", "T(a & b)", SIMPLE, 0, onnx="BitwiseAnd"),
    Op("bitwise_or", 2, INTEGERS, "a | b", "T(a | b)", SIMPLE, 0, onnx="BitwiseOr"),
    Op("bitwise_xor", 2, INTEGERS, "a ^ b", "T(a ^ b)", SIMPLE, 0, onnx="BitwiseXor"),
    Op("bitwise_not", 1, INTEGERS, "~a", "T(~a)", SIMPLE, 0, onnx="BitwiseNot"),
    Op("shift_left", 2, UNSIGNED, "shift_left(a, b)", "shift_left(a, b)", SIMPLE, 0),
    Op("shift_right", 2, UNSIGNED, "shift_right(a, b)", "shift_right(a, b)", SIMPLE, 0),
    # Conversion.  T may also be f16 or bf16: the value is rounded to that precision.
    Op("cast", 1, ALL, "cast(a, T)", "cast<T>(a)", ARITHMETIC, 0, rule=Rule.CAST),
)

OPS: dict[str, Op] = {op.name: op for op in _ROWS}
"""Every operator by name, in the order of the table."""

COSTS: dict[str, Cost] = {op.cost.name: op.cost for op in _ROWS}
"""Every cost that a row has, by name."""


@dataclass(frozen=True)
class Reduction:
    """One reduction along axes; the dimensions of these stay as 1.

    ``numpy`` is an expression over ``a`` (a NumPy array, of float64 where the result is rounded to ``T``), the tuple
    ``axes``, and the ``count`` of elements that each result is of.  ``combine`` is the operator of the table above that
    joins two partial results.  ``identity`` is what it gives of no elements, by name: that of the elements' type.
    ``onnx`` is the ONNX operator that it is.
    """

    name: str
    types: tuple[str, ...]
    numpy: str
    combine: str
    identity: str
    onnx: str


_SUMMED = (*FLOATS, "i32", "i64")
_COMPARED = (*FLOATS, "i8", "u8", "i32", "i64")

_REDUCTIONS = (
    # Sums of floats are taken in parts, in an order that depends on the shape alone; those of integers wrap around.
    # The mean of no elements is 0, as in ONNX Runtime.
    Reduction("reduce_sum", _SUMMED, "np.sum(a, axes, keepdims=True)", "add", "zero", "ReduceSum"),
    Reduction("reduce_mean", FLOATS, "np.sum(a, axes, keepdims=True) / max(count, 1)", "add", "zero", "ReduceMean"),
    Reduction("reduce_prod", _SUMMED, "np.prod(a, axes, keepdims=True)", "mul", "one", "ReduceProd"),
    # A NaN among the elements gives NaN.
    Reduction("reduce_max", _COMPARED, "np.max(a, axes, None, True, lowest)", "max", "lowest", "ReduceMax"),
    Reduction("reduce_min", _COMPARED, "np.min(a, axes, None, True, highest)", "min", "highest", "ReduceMin"),
)

REDUCTIONS: dict[str, Reduction] = {one.name: one for one in _REDUCTIONS}
"""Every reduction by name, in the order of the table."""
