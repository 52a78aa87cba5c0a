"""Ten chains of elementwise operations, written once for every system that computes them.

A chain is a function of a namespace of operations and its inputs.  ``OnnxOps`` makes ONNX nodes of it; ``ArrayOps``
computes it with NumPy, CuPy, JAX or PyTorch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

CHANNELS = 64
ROW = 256
"""The last two dimensions of the tensors; the first follows from the size."""


@dataclass(frozen=True)
class Input:
    """An input: ``shape`` names the tensor's whole shape (``full``), or is one that broadcasts to it; ``dtype`` is
    ``float`` for the type that is measured, or a type of its own."""

    shape: str = "full"
    dtype: str = "float"
    positive: bool = False


@dataclass(frozen=True)
class Chain:
    """``build(ops, *inputs)`` returns one result or several."""

    name: str
    inputs: tuple[Input, ...]
    build: Callable[..., Any]

    @property
    def ops(self) -> "type[ArrayOps]":
        """The operations on arrays that it needs."""
        return ArrayOps

    def arrays(self, megabytes: float, dtype: str) -> list[np.ndarray]:
        """Random inputs for tensors of so many 10^6 bytes, the same every time."""
        return make_inputs(self, full_shape(megabytes, dtype), dtype)


def _scale_relu_add(op: Any, x: Any) -> Any:
    return op.add(op.relu(op.mul(x, 0.7)), 0.3)


def _affine_hard_swish(op: Any, x: Any, scale: Any, shift: Any) -> Any:
    y = op.add(op.mul(x, scale), shift)
    return op.mul(op.mul(y, op.clip(op.add(y, 3.0), 0.0, 6.0)), 1 / 6)


def _ten_mul_add(op: Any, x: Any) -> Any:
    for step in range(5):
        x = op.add(op.mul(x, 0.9 + 0.05 * step), 0.1 - 0.03 * step)
    return x


def _tanh_gelu(op: Any, x: Any) -> Any:
    inner = op.mul(op.add(x, op.mul(op.mul(op.mul(x, x), x), 0.044715)), 0.7978845608)
    return op.mul(op.mul(x, op.add(op.tanh(inner), 1.0)), 0.5)


def _gate(op: Any, x: Any, gate: Any) -> Any:
    return op.add(op.mul(x, op.mul(gate, op.sigmoid(gate))), x)


def _batch_norm_relu(op: Any, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    factor = op.div(scale, op.sqrt(op.add(variance, 1e-5)))
    return op.relu(op.add(op.mul(op.sub(x, mean), factor), bias))


def _gelu(op: Any, x: Any) -> Any:
    gate = op.add(op.erf(op.mul(x, 0.70710678)), 1.0)
    return op.mul(op.mul(x, op.mul(gate, 0.5)), 1.0)


def _mixed(op: Any, x: Any, codes: Any, mask: Any) -> Any:
    wide = op.mul(op.cast(codes), 0.05)
    return op.where(mask, op.add(x, wide), 0.0)


def _three_outputs(op: Any, x: Any, y: Any) -> Any:
    total = op.add(x, y)
    return total, op.tanh(total), op.mul(total, x)


def _transposed(op: Any, x: Any, column: Any, row: Any) -> Any:
    return op.relu(op.add(op.mul(x, column), row))


CHAINS = (
    Chain("scale, relu, add", (Input(),), _scale_relu_add),
    Chain("per-channel affine, hardswish", (Input(), Input("channel"), Input("channel")), _affine_hard_swish),
    Chain("ten alternating mul, add", (Input(),), _ten_mul_add),
    Chain("tanh-GELU", (Input(),), _tanh_gelu),
    Chain("two-input gate", (Input(), Input()), _gate),
    Chain(
        "BatchNorm, relu",
        (Input(), Input("channel"), Input("channel"), Input("channel"), Input("channel", positive=True)),
        _batch_norm_relu,
    ),
    Chain("GELU", (Input(),), _gelu),
    Chain("mixed types", (Input(), Input(dtype="int8"), Input(dtype="bool")), _mixed),
    Chain("three outputs", (Input(), Input()), _three_outputs),
    Chain("transposed broadcast", (Input(), Input("column"), Input("row")), _transposed),
)
TEN_OPS = "ten alternating mul, add"


def full_shape(megabytes: float, dtype: str) -> tuple[int, int, int]:
    """The shape of a tensor of about so many 10^6 bytes, of ``float32`` or ``float16``."""
    row = CHANNELS * ROW * np.dtype(dtype).itemsize
    return max(1, round(megabytes * 1e6 / row)), CHANNELS, ROW


def input_shape(spec: Input, full: Sequence[int]) -> tuple[int, ...]:
    """The shape of an input beside tensors of shape ``full``."""
    shapes = {"full": tuple(full), "channel": (full[1], 1), "column": (full[0], 1, 1), "row": (full[1], full[2])}
    return shapes[spec.shape]


_PERIOD = 1_000_003
"""Elements after which large inputs repeat: to draw half a gigabyte of them takes longer than to measure a chain."""


def make_inputs(chain: Chain, full: Sequence[int], dtype: str) -> list[np.ndarray]:
    """Random inputs, the same every time."""
    random = np.random.default_rng(0)
    arrays = []
    values: np.ndarray
    for spec in chain.inputs:
        shape = input_shape(spec, full)
        count = min(math.prod(shape), _PERIOD)
        kind = dtype if spec.dtype == "float" else spec.dtype
        if kind == "bool":
            values = random.integers(0, 2, count).astype(np.bool_)
        elif kind == "int8":
            values = random.integers(-100, 100, count).astype(np.int8)
        else:
            values = random.standard_normal(count, np.float32)
            values = (np.abs(values) + 0.5 if spec.positive else values).astype(kind)
        arrays.append(np.resize(values, shape))
    return arrays


def bytes_moved(chain: Chain, full: Sequence[int], dtype: str) -> int:
    """Bytes of all inputs and outputs, each once."""
    outputs = 3 if chain.name == "three outputs" else 1
    total = outputs * math.prod(full) * np.dtype(dtype).itemsize
    for spec in chain.inputs:
        kind = dtype if spec.dtype == "float" else spec.dtype
        total += math.prod(input_shape(spec, full)) * np.dtype(kind).itemsize
    return total


# ------------------------------------------------------------------------------------------------ ONNX


class OnnxOps:
    """Collects ONNX nodes; operands are names of values, or numbers of the type ``dtype``."""

    def __init__(self, dtype: str) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._dtype = np.dtype(dtype)

    def __getattr__(self, name: str) -> Callable[..., str]:
        operator = {"relu": "Relu", "where": "Where"}.get(name, name.capitalize())

        def append(*operands: str | float) -> str:
            names = [operand if isinstance(operand, str) else self._constant(operand) for operand in operands]
            output = f"v{len(self.nodes)}"
            node = helper.make_node(operator, names, [output], f"{operator}_{len(self.nodes)}")
            if name == "cast":
                node.attribute.append(helper.make_attribute("to", helper.np_dtype_to_tensor_dtype(self._dtype)))
            self.nodes.append(node)
            return output

        return append

    def _constant(self, value: float) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, self._dtype), name))
        return name


def onnx_model(chain: Chain, dtype: str, full: Sequence[int | str] = ("n", CHANNELS, ROW)) -> onnx.ModelProto:
    """The chain as ONNX nodes, on inputs x0, x1, …; vectors are constants, as they are in models."""
    op = OnnxOps(dtype)
    names, inputs = [], []
    arrays = make_inputs(chain, (1, CHANNELS, ROW), dtype)
    for index, (spec, array) in enumerate(zip(chain.inputs, arrays, strict=True)):
        names.append(f"x{index}")
        if spec.shape in ("channel", "row"):
            op.initializers.append(numpy_helper.from_array(array, f"x{index}"))
            continue
        shape = [full[0], 1, 1] if spec.shape == "column" else list(full)
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        inputs.append(helper.make_tensor_value_info(f"x{index}", kind, shape))
    results = chain.build(op, *names)
    results = results if isinstance(results, tuple) else (results,)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    outputs = [helper.make_tensor_value_info(result, kind, list(full)) for result in results]
    graph = helper.make_graph(op.nodes, "chain", inputs, outputs, op.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds(chain: Chain, full: Sequence[int], dtype: str) -> dict[str, np.ndarray]:
    """What ``onnx_model`` reads."""
    arrays = make_inputs(chain, full, dtype)
    return {
        f"x{index}": array
        for index, (spec, array) in enumerate(zip(chain.inputs, arrays, strict=True))
        if spec.shape not in ("channel", "row")
    }


# ------------------------------------------------------------------------------------------------ arrays


class ArrayOps:
    """The operations on arrays of a module with NumPy's interface; ``special`` has what that leaves out."""

    def __init__(self, module: Any, dtype: Any, special: dict[str, Callable[..., Any]] | None = None) -> None:
        self._np = module
        self._dtype = dtype
        self._special = special or {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        special, module = self._special, self._np
        if name in special:
            return special[name]
        table: dict[str, Callable[..., Any]] = {
            "add": lambda a, b: a + b,
            "sub": lambda a, b: a - b,
            "mul": lambda a, b: a * b,
            "div": lambda a, b: a / b,
            "sqrt": lambda a: module.sqrt(a),
            "tanh": lambda a: module.tanh(a),
            "relu": lambda a: module.maximum(a, 0),
            "clip": lambda a, low, high: module.clip(a, low, high),
            "sigmoid": lambda a: 1 / (1 + module.exp(-a)),
            "cast": lambda a: a.astype(self._dtype),
            "where": lambda c, a, b: module.where(c, a, b),
        }
        return table[name]
