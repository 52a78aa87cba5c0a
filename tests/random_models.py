"""Random models for hypothesis: DAGs of elementwise nodes with broadcasts, dynamic dimensions and other nodes between.

Every operator here is exact in IEEE arithmetic, so that a fused model must give the same bits as the original.
"""

from dataclasses import dataclass

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnxfuse.dtypes import DTYPES

SIZES = {"n": 2, "c": 3, "h": 5}
DTYPE_NAMES = ("f32", "f64", "i32", "i64", "u8", "bool")
UNARY = {
    "f32": ("Neg", "Abs", "Relu", "Floor", "Ceil", "Round", "Sqrt", "Reciprocal", "Sign", "Identity"),
    "f64": ("Neg", "Abs", "Relu", "Floor", "Ceil", "Sqrt", "Sign", "Identity"),
    "i32": ("Neg", "Abs", "Relu", "Sign", "Identity", "BitwiseNot"),
    "i64": ("Neg", "Abs", "Sign", "Identity", "BitwiseNot"),
    "u8": ("Abs", "Sign", "Identity", "BitwiseNot"),
    "bool": ("Not", "Identity"),
}
BINARY = {
    "f32": ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "PRelu"),
    "f64": ("Add", "Sub", "Mul", "Div", "Max", "Min"),
    "i32": ("Add", "Sub", "Mul", "Max", "Min", "BitwiseAnd", "BitwiseXor"),
    "i64": ("Add", "Sub", "Mul", "Max", "Min", "BitwiseOr"),
    "u8": ("Max", "Min", "BitwiseAnd", "BitwiseOr"),
    "bool": ("And", "Or", "Xor", "Equal"),
}
COMPARE = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")


@dataclass(frozen=True)
class _Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass
class RandomModel:
    """A model and inputs for it."""

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]


@st.composite
def random_models(draw: st.DrawFn, max_nodes: int = 30) -> RandomModel:
    """A model of 1 to ``max_nodes`` nodes; unused results become outputs, and some used ones."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    make = _Maker(draw, random)
    for _ in range(draw(st.integers(1, 4))):
        make.input()
    for _ in range(draw(st.integers(1, max_nodes))):
        make.node()
    return make.finish()


class _Maker:
    def __init__(self, draw: st.DrawFn, random: np.random.Generator) -> None:
        self.draw = draw
        self.random = random
        self.tensors: list[_Tensor] = []
        self.used: set[str] = set()
        self.inputs: list[onnx.ValueInfoProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.feeds: dict[str, np.ndarray] = {}

    def input(self) -> None:
        rank = self.draw(st.integers(0, 3))
        dims = [self.draw(st.sampled_from(("one", "fixed", "symbol"))) for _ in range(rank)]
        names = list(SIZES)[3 - rank :]
        shape = tuple(1 if dim == "one" else SIZES[name] for dim, name in zip(dims, names, strict=True))
        declared = [name if dim == "symbol" else size for dim, name, size in zip(dims, names, shape, strict=True)]
        dtype = self.draw(st.sampled_from(DTYPE_NAMES))
        name = f"in{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, DTYPES[dtype].onnx, declared))
        self.feeds[name] = self.array(dtype, shape)
        self.tensors.append(_Tensor(name, dtype, shape))

    def array(self, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        if dtype == "bool":
            return np.asarray(self.random.random(shape) < 0.5)
        if dtype in ("f32", "f64"):
            numbers = np.asarray(self.random.normal(0, 2, shape))
            special = self.random.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 1e-40], shape)
            numbers = np.where(self.random.random(shape) < 0.1, special, numbers)
        else:
            numbers = self.random.integers(0 if dtype == "u8" else -9, 9, shape)
        return np.asarray(numbers).astype(DTYPES[dtype].numpy)

    def constant(self, dtype: str) -> _Tensor:
        shape = self.draw(st.sampled_from(((), (1,), (3, 1), (5,), (1, 1, 1), (2, 1, 5))))
        name = f"const{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(self.array(dtype, shape), name))
        return _Tensor(name, dtype, shape)

    def operand(self, dtype: str) -> _Tensor:
        known = [tensor for tensor in self.tensors if tensor.dtype == dtype]
        if not known or self.draw(st.integers(0, 4)) == 0:
            return self.constant(dtype)
        # The latest results more often than the first, so that chains become long.
        index = max(self.draw(st.integers(0, len(known) - 1)) for _ in range(2))
        return known[index]

    def node(self) -> None:
        first = self.tensors[max(self.draw(st.integers(0, len(self.tensors) - 1)) for _ in range(2))]
        dtype = first.dtype
        match self.draw(st.sampled_from(("unary", "binary", "binary", "binary", "compare", "where", "cast", "other"))):
            case "unary":
                self.add(self.draw(st.sampled_from(UNARY[dtype])), [first], dtype)
            case "binary":
                op = self.draw(st.sampled_from(BINARY[dtype]))
                second = self.operand(dtype)
                if op == "PRelu" and second.shape not in ((), first.shape):
                    op = "Add"
                self.add(op, [first, second], "bool" if op == "Equal" else dtype)
            case "compare" if dtype not in ("bool", "u8"):
                self.add(self.draw(st.sampled_from(COMPARE)), [first, self.operand(dtype)], "bool")
            case "where" if dtype != "bool":
                condition = self.operand("bool")
                # With a condition of one element ORT's Where loses the sign of -0 otherwise than with a larger one.
                op = "Where" if np.prod(condition.shape) > 1 else "Identity"
                self.add(op, [condition, first, self.operand(dtype)] if op == "Where" else [first], dtype)
            case "cast":
                target = self.draw(st.sampled_from(("f32", "f64", "bool") if dtype[0] == "f" else DTYPE_NAMES))
                self.add("Cast", [first], target, to=DTYPES[target].onnx)
            case "other" if first.shape and dtype != "bool":
                # Not elementwise: it ends regions, and a path through it must not close a cycle.
                self.add("Transpose", [first], dtype, first.shape[::-1], perm=list(range(len(first.shape)))[::-1])
            case _:
                self.add("Identity", [first], dtype)

    def add(
        self, op: str, inputs: list[_Tensor], dtype: str, shape: tuple[int, ...] | None = None, **attrs: object
    ) -> None:
        if shape is None:
            try:
                shape = np.broadcast_shapes(*(tensor.shape for tensor in inputs))
            except ValueError:  # transposed shapes do not all fit each other
                op, inputs, attrs = "Identity", inputs[:1], {}
                dtype, shape = inputs[0].dtype, inputs[0].shape
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [tensor.name for tensor in inputs], [name], f"node{name}", **attrs))
        self.used.update(tensor.name for tensor in inputs)
        self.tensors.append(_Tensor(name, dtype, shape))

    def finish(self) -> RandomModel:
        made = self.tensors[len(self.inputs) :]
        outputs = [
            helper.make_tensor_value_info(
                tensor.name, DTYPES[tensor.dtype].onnx, [f"{tensor.name}_{axis}" for axis in range(len(tensor.shape))]
            )
            for tensor in made
            if tensor.name not in self.used or self.draw(st.integers(0, 5)) == 0
        ]
        graph = helper.make_graph(self.nodes, "random", self.inputs, outputs, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        return RandomModel(model, self.feeds)
