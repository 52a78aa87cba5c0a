"""Emitters of random elementwise nodes: every operator that can be part of a fused node, in every type.

What ONNX Runtime leaves undefined is not emitted: division of integers by zero, shifts by the width of the type or
more, conversions of what an integer type cannot hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onnxfuse.model.dtypes import DTYPES
from tools.fuzz.graph import ALL, FLOATS, INTEGERS, NUMBERS, SIGNED, UNSIGNED, Graph, Tensor

Emitter = Callable[[Graph], object]
EMITTERS: list[Emitter] = []
"""All emitters, those for many operators several times."""
EMITTED: set[str] = set()
"""The operators that they are for."""


def emits(weight: int, *operators: str) -> Callable[[Emitter], Emitter]:
    """Registers an emitter of ``operators``, which is chosen ``weight`` times as often as one of weight 1."""

    def register(emitter: Emitter) -> Emitter:
        EMITTERS.extend([emitter] * weight)
        EMITTED.update(operators)
        return emitter

    return register


UNARY = {
    **dict.fromkeys(("Abs", "Sign"), NUMBERS),
    **dict.fromkeys(("Neg", "Relu"), FLOATS + SIGNED),
    **dict.fromkeys(("Ceil", "Floor", "Round", "Reciprocal", "Sqrt", "Exp", "Log", "Sin", "Cos", "Tan"), FLOATS),
    **dict.fromkeys(("Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh", "Erf"), FLOATS),
    **dict.fromkeys(("Sigmoid", "HardSwish", "Softplus", "Softsign", "Mish", "Swish", "Gelu", "Celu", "Elu"), FLOATS),
    **dict.fromkeys(("LeakyRelu", "Selu", "HardSigmoid", "ThresholdedRelu"), FLOATS),
    **{"Shrink": ("f32", "f16", "bf16")},  # that of double ONNX Runtime computes in float
    **{"Identity": ALL, "Not": ("bool",), "BitwiseNot": INTEGERS},
}
WITH_ALPHA = {"LeakyRelu", "Elu", "Celu", "Selu", "HardSigmoid", "ThresholdedRelu", "Swish"}
OTHER_ATTRIBUTES = {
    "Selu": ("gamma", (1.05, 0.5)),
    "HardSigmoid": ("beta", (0.5, 0.25)),
    "Shrink": ("bias", (0.0, 0.2)),
}
LIMITED = {"Log", "Acos", "Asin", "Acosh", "Atanh", "Sqrt", "Tan", "Exp", "Sinh", "Cosh", "Reciprocal"}
"""Functions that give NaN or infinities for many arguments: most are brought into a range first."""

BINARY = {
    **dict.fromkeys(("Add", "Sub", "Mul"), NUMBERS),
    **dict.fromkeys(("Max", "Min"), NUMBERS),
    **dict.fromkeys(("And", "Or", "Xor"), ("bool",)),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), INTEGERS),
}
COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")


@emits(20, *UNARY)
def unary(graph: Graph) -> None:
    """An operator of one input, with its attributes."""
    op = graph.any_of(list(UNARY))
    dtype = graph.dtype(UNARY[op], lambda candidate: graph.takes(op, [candidate]))
    if dtype is None:
        return
    x = graph.source(dtype)
    if op in LIMITED and dtype in FLOATS and not graph.chance(5):
        x = _tame(graph, x)
    attributes: dict[str, Any] = {}
    if op in WITH_ALPHA and graph.chance(2):
        attributes["alpha"] = graph.any_of((0.01, 0.3, 1.0, 1.702, 2.0))
    if op in OTHER_ATTRIBUTES and graph.chance(2):
        name, values = OTHER_ATTRIBUTES[op]
        attributes[name] = graph.any_of(values)
    if op == "Gelu" and graph.chance(2):
        attributes["approximate"] = graph.any_of(("tanh", "none"))
    graph.add(op, [x], dtype, x.shape, **attributes)


def _tame(graph: Graph, x: Tensor) -> Tensor:
    """The tensor in a range in which most functions are defined."""
    if graph.opset >= 9 and graph.chance(2) and graph.takes("Sigmoid", [x.dtype]):
        return graph.add("Sigmoid", [x], x.dtype, x.shape)
    if graph.takes("Clip", [x.dtype] * (3 if graph.opset >= 11 else 1)):
        return graph.bounded(x, graph.any_of((-0.75, 0.01, 1.0)), graph.any_of((1.0, 4.0)))
    return x


@emits(12, *BINARY)
def binary(graph: Graph) -> None:
    """Arithmetic, logic and bits."""
    op = graph.any_of(list(BINARY))
    dtype = graph.dtype(BINARY[op], lambda candidate: graph.takes(op, [candidate] * 2))
    if dtype is not None and (graph.opset >= 8 or op not in ("Max", "Min")):
        _two(graph, op, dtype, dtype)


@emits(3, *COMPARISONS)
def comparison(graph: Graph) -> None:
    """A comparison, whose result is bool."""
    op = graph.any_of(COMPARISONS)
    dtype = graph.dtype(ALL, lambda candidate: graph.takes(op, [candidate] * 2))
    if dtype is not None:
        _two(graph, op, dtype, "bool")


def _two(graph: Graph, op: str, dtype: str, result: str, **attributes: Any) -> None:
    first = graph.source(dtype)
    second = graph.operand(dtype, first.shape)
    operands = [second, first] if graph.chance(3) else [first, second]
    graph.add(op, operands, result, np.broadcast_shapes(first.shape, second.shape), **attributes)


@emits(3, "Div", "Mod")
def division(graph: Graph) -> None:
    """Div and Mod; integers by constants that are neither 0 nor -1, or by what was bounded."""
    op = graph.any_of(("Div", "Div", "Mod"))
    attributes: dict[str, Any] = {"fmod": 1} if op == "Mod" and graph.chance(2) else {}
    dtype = graph.dtype(NUMBERS, lambda candidate: graph.takes(op, [candidate] * 2, **attributes))
    if dtype is None:
        return
    if dtype in FLOATS:
        _two(graph, op, dtype, dtype, **(attributes if op == "Div" else {"fmod": 1}))
        return
    dividend = graph.source(dtype)
    if op == "Mod" and dtype in ("i64", "u64"):
        # ONNX Runtime computes it in double.
        dividend = graph.cast(graph.cast(dividend, "i32" if dtype == "i64" else "u32"), dtype)
    divisor = graph.operand(dtype, dividend.shape)
    if graph.opset >= 12 and graph.takes("Clip", [dtype] * 3):
        divisor = graph.bounded(divisor, 1, 7)
    else:
        values = graph.array(dtype, graph.broadcast_shape(dividend.shape))
        divisor = graph.constant(dtype, np.where((values == 0) | (values.astype(np.float64) == -1), 3, values))
    graph.add(op, [dividend, divisor], dtype, np.broadcast_shapes(dividend.shape, divisor.shape), **attributes)


@emits(2, "Pow")
def power(graph: Graph) -> None:
    """Pow with an exponent of its base's type, or a constant of another."""
    base = graph.dtype((*FLOATS, "i32", "i64"), lambda candidate: graph.takes("Pow", [candidate] * 2))
    if base is None:
        return
    x = graph.source(base)
    if base in FLOATS and graph.chance(3):
        exponent = graph.operand(base, x.shape)
    else:
        kind = graph.dtype((base, "f32", "i32", "i64", "f64"), lambda other: graph.takes("Pow", [base, other]))
        exponent = graph.scalar(kind or base, graph.any_of((2, 2, 3, 0, 1, 4) if base[0] == "i" else (2, 3, -1, 0.5)))
    if base[0] == "i":
        if not graph.can_cast("f32", base):
            return
        x = graph.cast(graph.bounded(graph.cast(x, "f32"), -9, 9), base)
    graph.add("Pow", [x, exponent], base, np.broadcast_shapes(x.shape, exponent.shape))


@emits(2, "BitShift")
def shift(graph: Graph) -> None:
    """BitShift by less than the width of the type."""
    direction = graph.any_of(("LEFT", "RIGHT"))
    dtype = graph.dtype(UNSIGNED, lambda candidate: graph.takes("BitShift", [candidate] * 2, direction=direction))
    if dtype is None:
        return
    x = graph.source(dtype)
    width = 8 * DTYPES[dtype].itemsize
    amount = graph.constant(dtype, graph.random.integers(0, width, graph.broadcast_shape(x.shape)))
    graph.add("BitShift", [x, amount], dtype, x.shape, direction=direction)


@emits(3, "Sum", "Mean", "Max", "Min")
def variadic(graph: Graph) -> None:
    """Sum, Mean, Max and Min of one to five operands."""
    op = graph.any_of(("Sum", "Mean", "Max", "Min"))
    dtype = graph.dtype(NUMBERS, lambda candidate: graph.takes(op, [candidate] * 3))
    if dtype is None:
        return
    operands = [graph.source(dtype)]
    for _ in range(graph.choose.randint(0, 4)):
        if graph.opset >= 8:
            operands.append(graph.operand(dtype, np.broadcast_shapes(*(tensor.shape for tensor in operands))))
        elif same := graph.pick(dtype, lambda tensor: tensor.shape == operands[0].shape):
            operands.append(same)  # nothing broadcast then
    graph.choose.shuffle(operands)
    graph.add(op, operands, dtype, np.broadcast_shapes(*(tensor.shape for tensor in operands)))


@emits(2, "Where")
def where(graph: Graph) -> None:
    """A choice between two tensors, or a tensor and a constant."""
    dtype = graph.dtype(ALL, lambda candidate: graph.takes("Where", ["bool", candidate, candidate]))
    if dtype is None:
        return
    first = graph.source(dtype)
    second = graph.operand(dtype, first.shape)
    shape = np.broadcast_shapes(first.shape, second.shape)
    condition = graph.operand("bool", shape)
    operands = [condition, second, first] if graph.chance(2) else [condition, first, second]
    graph.add("Where", operands, dtype, np.broadcast_shapes(shape, condition.shape))


@emits(2, "Clip")
def clip(graph: Graph) -> None:
    """Clip with bounds that are attributes, constants, computed, missing or the wrong way round."""
    count = 3 if graph.opset >= 11 else 1
    dtype = graph.dtype(NUMBERS, lambda candidate: graph.takes("Clip", [candidate] * count))
    if dtype is None:
        return
    x = graph.source(dtype)
    low, high = graph.any_of(((1, 3), (0, 6), (3, 1), (2, 2)))
    if dtype in FLOATS or dtype in SIGNED:
        low -= graph.any_of((0, 2))
    has_low, has_high = graph.any_of(((True, True), (True, False), (False, True), (False, False)))
    if dtype == "bf16":
        has_low = has_high = True  # ONNX Runtime's defaults are those of float
    if graph.opset < 11:
        low, high = min(low, high), max(low, high)
        bounds: dict[str, Any] = {"min": float(low)} if has_low else {}
        bounds |= {"max": float(high)} if has_high else {}
        graph.add("Clip", [x], dtype, x.shape, **bounds)
        return
    given: list[Tensor | None] = [x]
    for bound, wanted in ((low, has_low), (high, has_high)):
        computed = graph.pick(dtype, lambda tensor: tensor.shape == ()) if graph.chance(4) else None
        given.append((computed or graph.scalar(dtype, bound)) if wanted else None)
    while given[-1] is None:
        given.pop()
    graph.add("Clip", given, dtype, x.shape)


@emits(2, "PRelu")
def prelu(graph: Graph) -> None:
    """PRelu with a slope that broadcasts to its input."""
    dtype = graph.dtype(NUMBERS, lambda candidate: graph.takes("PRelu", [candidate] * 2))
    if dtype is None:
        return
    x = graph.source(dtype)
    graph.add("PRelu", [x, graph.operand(dtype, x.shape, one_way=True)], dtype, x.shape)


@emits(4, "Cast", "CastLike")
def cast(graph: Graph) -> None:
    """Cast and CastLike between all types."""
    x = graph.pick()
    assert x is not None
    target = graph.any_of(ALL if graph.chance(2) else graph.style.types)
    if not graph.can_cast(x.dtype, target):
        return
    if x.dtype in FLOATS and target in INTEGERS:
        graph.cast(x, target)
        return
    if graph.opset >= 15 and graph.chance(3) and graph.takes("CastLike", [x.dtype, target]):
        graph.add("CastLike", [x, graph.operand(target, (2,))], target, x.shape)
        return
    graph.add("Cast", [x], target, x.shape, to=DTYPES[target].onnx)


@emits(1, "IsNaN", "IsInf")
def is_special(graph: Graph) -> None:
    """IsNaN and IsInf."""
    op = graph.any_of(("IsNaN", "IsInf"))
    dtype = graph.dtype(FLOATS, lambda candidate: graph.takes(op, [candidate]))
    if dtype is not None:
        x = graph.source(dtype)
        names = ("detect_positive", "detect_negative") if op == "IsInf" else ()
        attributes: dict[str, Any] = {name: graph.choose.randrange(2) for name in names if graph.chance(2)}
        graph.add(op, [x], "bool", x.shape, **attributes)


@emits(2, "Dropout")
def dropout(graph: Graph) -> None:
    """Dropout that drops nothing, its mask used or not."""
    dtype = graph.dtype(FLOATS, lambda candidate: graph.takes("Dropout", [candidate]))
    if dtype is None:
        return
    x = graph.source(dtype)
    outputs = [(dtype, x.shape), ("bool", x.shape)][: 2 if graph.opset >= 10 and graph.chance(4) else 1]
    if graph.opset < 12:
        attributes: dict[str, Any] = {"ratio": 0.3} if graph.chance(2) else {}
        graph.add_many("Dropout", [x], outputs, **attributes)
        return
    ratio = graph.scalar("f32", 0.3) if graph.chance(2) else None
    flag = graph.scalar("bool", False) if graph.opset >= 12 and graph.chance(2) else None
    given: list[Tensor | None] = [x, ratio, flag]
    while given[-1] is None:
        given.pop()
    graph.add_many("Dropout", given, outputs)


@emits(2, "BatchNormalization")
def batch_normalization(graph: Graph) -> None:
    """BatchNormalization with constant or computed statistics."""
    dtype = graph.dtype(FLOATS, lambda candidate: graph.takes("BatchNormalization", [candidate] * 5))
    x = None if dtype is None else graph.pick(dtype, lambda tensor: len(tensor.shape) >= 2)
    if dtype is None or x is None:
        return
    vector = (x.shape[1],)
    values = [np.abs(graph.random.normal(1, 0.5, vector)) + 0.1 for _ in range(4)]
    given = [graph.constant(dtype, value) for value in values]
    if graph.chance(3):
        given[graph.choose.randrange(2)] = graph.operand(dtype, vector, one_way=True)
    if all(tensor.shape == vector for tensor in given):
        graph.add("BatchNormalization", [x, *given], dtype, x.shape, epsilon=graph.any_of((1e-5, 1e-3)))


@emits(2, "QuantizeLinear", "DequantizeLinear")
def quantize(graph: Graph) -> None:
    """QuantizeLinear per tensor or per axis, and most of the time DequantizeLinear after it."""
    target = graph.any_of(("u8", "u8", "i8", "i16", "u16"))
    work = graph.dtype(FLOATS, lambda candidate: graph.takes("QuantizeLinear", [candidate, candidate, target]))
    if work is None:
        return
    x = graph.source(work)
    if graph.style.specials:
        x = graph.bounded(x, -60, 60)  # what becomes of huge numbers is left to the processor
    scale, zero, attributes = _quantization(graph, work, target, x)
    has_zero = graph.chance(2) or target != "u8"
    given = [x, scale, *([zero] if has_zero else [])]
    result = graph.add("QuantizeLinear", given, target, x.shape, **attributes)
    if not graph.chance(4) and graph.takes("DequantizeLinear", [target, work, target]):
        graph.add("DequantizeLinear", [result, *given[1:]], work, x.shape, **attributes)


@emits(1, "DequantizeLinear")
def dequantize(graph: Graph) -> None:
    """DequantizeLinear of integers from anywhere."""
    source = graph.any_of(("u8", "i8", "i16", "u16", "i32"))
    kinds = ("f32", "f16", "bf16")
    work = graph.dtype(kinds, lambda candidate: graph.takes("DequantizeLinear", [source, candidate]))
    if work is None:
        return
    x = graph.source(source)
    scale, zero, attributes = _quantization(graph, work, source, x)
    given = [x, scale, *([zero] if source != "i32" and graph.chance(2) else [])]
    graph.add("DequantizeLinear", given, work, x.shape, **attributes)


def _quantization(graph: Graph, work: str, target: str, x: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """A scale, a zero point and the attributes of a quantization."""
    attributes: dict[str, Any] = {}
    shape: tuple[int, ...] = graph.any_of(((), (), (1,)))
    if graph.opset >= 13 and x.shape and graph.chance(2):
        axis = graph.choose.randrange(len(x.shape))
        shape = (x.shape[axis],)
        attributes["axis"] = axis - (len(x.shape) if graph.chance(2) else 0)
    elif shape and graph.opset >= 13:
        shape = ()
    scales = np.asarray(graph.random.choice([0.25, 0.5, 0.1, 1.0], shape))
    low = 0 if target in UNSIGNED else -5
    return graph.constant(work, scales), graph.constant(target, graph.random.integers(low, 9, shape)), attributes
