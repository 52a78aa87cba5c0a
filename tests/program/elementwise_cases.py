"""One-node models of every elementwise operator of the standard, for tests that go through all of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxfuse.model.dtypes import DTYPES

FLOATS = ("f16", "bf16", "f32", "f64")
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
NUMBERS = FLOATS + SIGNED + UNSIGNED

SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -3.0, 6.0, 100.0, -100.0, 1e-3, -1e-3, 1e-40, -1e-40)
SPECIAL += (1e30, -1e30, np.inf, -np.inf, np.nan, 65504.0, 70000.0, 1e-8, 88.0, -88.0, 0.1, -0.1, 7.9, -7.9)


@dataclass(frozen=True)
class Case:
    """An operator, the types of its inputs and output, and its attributes; ``constants`` are initializers."""

    op: str
    inputs: tuple[str, ...]
    output: str
    attrs: dict[str, Any] = field(default_factory=dict)
    opset: int = 21
    constants: tuple[tuple[int, Any], ...] = ()
    label: str = ""

    def __str__(self) -> str:
        return "-".join(part for part in (self.op, *self.inputs, self.label, f"opset{self.opset}") if part)

    def model(self, shapes: list[list[int | str]]) -> onnx.ModelProto:
        """The one-node model; ``shapes`` are those of the inputs that are no constants, in order."""
        names = [f"in{index}" if dtype else "" for index, dtype in enumerate(self.inputs)]
        constants = dict(self.constants)
        free = iter(shapes)
        inputs, initializers = [], []
        for index, (name, dtype) in enumerate(zip(names, self.inputs, strict=True)):
            if index in constants:
                array = np.asarray(constants[index], DTYPES[dtype].numpy)
                initializers.append(onnx.numpy_helper.from_array(array, name))
            elif dtype:
                inputs.append(helper.make_tensor_value_info(name, DTYPES[dtype].onnx, next(free)))
        node = helper.make_node(self.op, names, ["out"], name="node", **self.attrs)
        rank = max(map(len, shapes))
        output = helper.make_tensor_value_info("out", DTYPES[self.output].onnx, [f"d{axis}" for axis in range(rank)])
        graph = helper.make_graph([node], "case", inputs, [output], initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)


def values(dtype: str, count: int, seed: int = 0) -> np.ndarray:
    """``count`` values of a type, the special ones among them."""
    random = np.random.default_rng(seed)
    numpy_type = DTYPES[dtype].numpy
    if dtype == "bool":
        return random.random(count) < 0.5
    if dtype in FLOATS:
        special = np.array(SPECIAL, np.float64)
        numbers = np.concatenate([special, random.normal(0, 3, max(0, count - len(special)))])[:count]
        random.shuffle(numbers)
        with np.errstate(all="ignore"):
            return numbers.astype(numpy_type)
    limits = np.iinfo(numpy_type)
    numbers = random.integers(max(limits.min, -50), min(limits.max, 50), count, dtype=np.int64, endpoint=True)
    numbers = numbers.astype(numpy_type)
    numbers[:2] = limits.min, limits.max
    random.shuffle(numbers)
    return numbers


def cases() -> Iterator[Case]:
    """Every operator that Programs know, in every type that has a kernel."""
    for op in ("Add", "Sub", "Mul", "Div"):
        yield from (Case(op, (t, t), t) for t in NUMBERS)
    for op in ("Max", "Min"):
        yield from (Case(op, (t, t, t), t) for t in NUMBERS)
        yield Case(op, ("f32",), "f32")
    for op in ("Sum", "Mean"):
        yield from (Case(op, (t, t, t), t, opset=13) for t in FLOATS)
        yield Case(op, ("f32",), "f32", opset=8)
    for op in ("Abs", "Sign"):
        yield from (Case(op, (t,), t) for t in NUMBERS)
    yield from (Case("Neg", (t,), t) for t in FLOATS + SIGNED)
    for op in _FLOAT_UNARY:
        yield from (Case(op, (t,), t, opset=22) for t in FLOATS)
    for op, attrs in _ACTIVATIONS:
        yield from (Case(op, (t,), t, attrs, opset=24) for t in FLOATS)
    yield from (Case("Relu", (t,), t) for t in FLOATS + SIGNED)
    yield from (Case("PRelu", (t, t), t) for t in (*FLOATS, "i32", "i64", "u32", "u64"))
    for bounds in ((-0.75, 2.0), (None, 2.0), (-0.75, None), (None, None), (3.0, 1.0)):
        constants = tuple((index, value) for index, value in enumerate(bounds, 1) if value is not None)
        for t in FLOATS:
            inputs = (t, *(t if bound is not None else "" for bound in bounds))
            yield Case("Clip", inputs, t, constants=constants, label=str(bounds))
    yield from (Case("Clip", (t, t, t), t, constants=((1, 3), (2, 9))) for t in SIGNED + UNSIGNED)
    yield Case("Clip", ("f32", "f32", "f32"), "f32", label="inputs")
    yield Case("Clip", ("f32",), "f32", {"min": -1.0, "max": 1.0}, opset=7)
    yield Case("Clip", ("f32",), "f32", opset=10)
    for op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
        yield from (Case(op, (t, t), "bool") for t in NUMBERS)
    yield Case("Equal", ("bool", "bool"), "bool")
    for op in ("And", "Or", "Xor"):
        yield Case(op, ("bool", "bool"), "bool")
    yield Case("Not", ("bool",), "bool")
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        yield from (Case(op, (t, t), t) for t in SIGNED + UNSIGNED)
    yield from (Case("BitwiseNot", (t,), t) for t in SIGNED + UNSIGNED)
    for direction in ("LEFT", "RIGHT"):
        yield from (Case("BitShift", (t, t), t, {"direction": direction}) for t in UNSIGNED)
    yield from (Case("Where", ("bool", t, t), t) for t in (*NUMBERS, "bool"))
    yield from (Case("Mod", (t, t), t, {"fmod": 1}) for t in NUMBERS)
    yield from (Case("Mod", (t, t), t) for t in SIGNED + UNSIGNED)
    for base in ("f16", "f32", "f64", "i32", "i64"):
        yield Case("Pow", (base, base), base)
        for exponent in (2, 3, 0.5, -1, 0, 1):
            if exponent == int(exponent) and (exponent >= 0 or base[0] != "i"):
                yield Case("Pow", (base, "f32"), base, constants=((1, exponent),), label=str(exponent))
    for t in FLOATS:
        yield Case("IsNaN", (t,), "bool")
    for attrs in ({}, {"detect_positive": 0}, {"detect_negative": 0}, {"detect_positive": 0, "detect_negative": 0}):
        yield from (Case("IsInf", (t,), "bool", attrs, label="".join(attrs)) for t in FLOATS)
    for source in (*NUMBERS, "bool"):
        for target in (*NUMBERS, "bool"):
            yield Case("Cast", (source,), target, {"to": DTYPES[target].onnx}, label=target)
    yield Case("CastLike", ("f32", "i32"), "i32")
    yield Case("CastLike", ("f32", "f16"), "f16", constants=((1, [1.0]),))
    yield from (Case("Identity", (t,), t) for t in (*NUMBERS, "bool"))
    yield Case("Dropout", ("f32",), "f32", {"ratio": 0.3}, opset=10)
    yield Case("Dropout", ("f32", "f32", "bool"), "f32", constants=((1, 0.3), (2, False)))
    yield from _normalization_and_quantization()


def _normalization_and_quantization() -> Iterator[Case]:
    statistics = ((1, [1.5, -0.5, 2.0]), (2, [0.1, 0.2, -0.3]), (3, [0.5, 0.0, -1.0]), (4, [1.0, 2.0, 0.25]))
    for t, opset in (("f32", 7), ("f32", 9), ("f32", 15), ("f64", 15), ("f16", 15)):
        yield Case("BatchNormalization", (t,) * 5, t, {"epsilon": 1e-3}, opset, statistics)
    for target in ("i8", "u8", "i16", "u16"):
        inputs = ("f32", "f32", target)
        zero = 3 if target[0] == "u" else -3
        yield Case("QuantizeLinear", inputs, target, constants=((1, 0.05), (2, zero)))
        yield Case("QuantizeLinear", inputs, target, constants=((1, [0.05]), (2, [zero])), label="one")
        axis_constants = ((1, [0.05, 0.1, 1.0]), (2, [zero, 0, 1]))
        yield Case("QuantizeLinear", inputs, target, {"axis": 1}, constants=axis_constants, label="axis")
        inputs = (target, "f32", target)
        yield Case("DequantizeLinear", inputs, "f32", constants=((1, 0.05), (2, zero)))
        yield Case("DequantizeLinear", inputs, "f32", {"axis": -2}, constants=axis_constants, label="axis")
    yield Case("QuantizeLinear", ("f32", "f32", "u8"), "u8", opset=10, constants=((1, 0.05), (2, 3)))
    yield Case("QuantizeLinear", ("f32", "f32"), "u8", constants=((1, 0.05),), label="no zero point")
    yield Case("DequantizeLinear", ("i32", "f32"), "f32", constants=((1, 0.05),))
    yield Case("DequantizeLinear", ("u8", "f32"), "f32", constants=((1, 0.05),))
    yield Case("DequantizeLinear", ("i8", "f16", "i8"), "f16", constants=((1, 0.05), (2, 1)))
    yield Case("DequantizeLinear", ("u16", "f16"), "f16", constants=((1, 0.25),), label="beyond float16")


_FLOAT_UNARY = (
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "Log"),
    *("Reciprocal", "Round", "Sigmoid", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh"),
)
_ACTIVATIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("LeakyRelu", {}),
    ("LeakyRelu", {"alpha": 0.3}),
    ("Elu", {}),
    ("Elu", {"alpha": 0.7}),
    ("Celu", {}),
    ("Celu", {"alpha": 2.0}),
    ("Selu", {}),
    ("HardSigmoid", {}),
    ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    ("HardSwish", {}),
    ("Swish", {}),
    ("Swish", {"alpha": 1.702}),
    ("Mish", {}),
    ("Gelu", {}),
    ("Gelu", {"approximate": "tanh"}),
    ("ThresholdedRelu", {}),
    ("Shrink", {"lambd": 0.6, "bias": 0.2}),
)
