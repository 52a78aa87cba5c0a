"""Random models for hypothesis: DAGs of elementwise nodes with broadcasts, dynamic dimensions, bodies, and other nodes.

Every operator here is exact in IEEE arithmetic, so that a fused model must give the same bits as the original.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnxfuse.dtypes import DTYPES

AXES = ("n", "c", "h")
SIZES = {"n": (2, 2, 1, 0), "c": (3, 3, 1), "h": (5, 5, 1, 0)}  # what a symbol may turn out to be
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
    "f32": ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu"),
    "f64": ("Add", "Sub", "Mul", "Div", "Max", "Min"),
    "i32": ("Add", "Sub", "Mul", "Max", "Min", "BitwiseAnd", "BitwiseXor"),
    "i64": ("Add", "Sub", "Mul", "Max", "Min", "BitwiseOr"),
    "u8": ("Max", "Min", "BitwiseAnd", "BitwiseOr"),
    "bool": ("And", "Or", "Xor", "Equal"),
}
VARIADIC = {"f32": ("Sum", "Max", "Min"), "f64": ("Sum", "Max", "Min"), "i32": ("Max", "Min"), "i64": ("Max", "Min")}
COMPARE = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
KINDS = (
    *("unary", "binary", "binary", "binary", "compare", "where", "cast", "transpose", "variadic", "clip", "quantize"),
    *("branch", "loop", "scan"),
)
NAMES = ("t{}", "t{}", "t {}", "μ{}é", "a/b:{}", "{}")


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
    model = _Main(draw, random)
    for _ in range(draw(st.integers(1, 4))):
        model.input()
    for _ in range(draw(st.integers(1, max_nodes))):
        model.node()
    return model.finish()


class _Graph:
    """A graph in the making: the main one, or a body, which sees the tensors of the graphs around it."""

    def __init__(self, draw: st.DrawFn, random: np.random.Generator, outer: _Graph | None = None) -> None:
        self.draw = draw
        self.random = random
        self.depth = 0 if outer is None else outer.depth + 1
        self.tensors = [] if outer is None else list(outer.tensors)
        self.used: set[str] = set() if outer is None else outer.used
        # Bodies next to each other use the same names, which is legal; names of the graphs around are not.
        self.prefix = "" if outer is None else f"{outer.prefix}{len(outer.nodes)}."
        self.feeds: dict[str, np.ndarray] = {} if outer is None else outer.feeds
        self.declared_inputs: list[onnx.ValueInfoProto] = [] if outer is None else outer.declared_inputs
        self.initializers: list[onnx.TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.constants = 0

    def any_of(self, choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def chance(self, times: int) -> bool:
        return self.draw(st.integers(0, times - 1)) == times - 1

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

    def constant(self, dtype: str, values: np.ndarray | None = None) -> _Tensor:
        """An initializer, one that a caller could override, or a Constant node."""
        if values is None:
            values = self.array(dtype, self.any_of(((), (1,), (3, 1), (5,), (1, 1, 1), (2, 1, 5))))
        self.constants += 1
        name = f"{self.prefix}const{self.constants}"
        tensor = numpy_helper.from_array(values, name)
        if self.chance(4):
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.initializers.append(tensor)
            if self.depth == 0 and self.chance(8):
                self.declared_inputs.append(helper.make_tensor_value_info(name, DTYPES[dtype].onnx, values.shape))
        return _Tensor(name, dtype, values.shape)

    def pick(self, dtype: str | None = None) -> _Tensor | None:
        # The latest results more often than the first, so that chains become long.
        known = [tensor for tensor in self.tensors if dtype in (None, tensor.dtype)]
        return known[max(self.draw(st.integers(0, len(known) - 1)) for _ in range(2))] if known else None

    def operand(self, dtype: str) -> _Tensor:
        known = None if self.chance(5) else self.pick(dtype)
        return known or self.constant(dtype)

    def node(self) -> None:
        first = self.pick()
        assert first is not None
        dtype = first.dtype
        match self.any_of(KINDS):
            case "unary":
                self.add(self.any_of(UNARY[dtype]), [first], dtype)
            case "binary":
                op = self.any_of(BINARY[dtype])
                second = self.operand(dtype)
                if op == "PRelu" and second.shape not in ((), first.shape):
                    op = "Add"
                self.add(op, [first, second], "bool" if op == "Equal" else dtype)
            case "variadic" if dtype in VARIADIC:
                operands = [first, *(self.operand(dtype) for _ in range(self.draw(st.integers(0, 3))))]
                # ORT adds more than two of different shapes in an order of its own.
                op = self.any_of(VARIADIC[dtype]) if len(operands) < 3 else self.any_of(("Max", "Min"))
                self.add(op, operands, dtype)
            case "compare" if dtype not in ("bool", "u8"):
                self.add(self.any_of(COMPARE), [first, self.operand(dtype)], "bool")
            case "where" if dtype != "bool":
                condition = self.operand("bool")
                # With a condition of one element ORT's Where loses the sign of -0 otherwise than with a larger one.
                op = "Where" if np.prod(condition.shape) > 1 else "Identity"
                self.add(op, [condition, first, self.operand(dtype)] if op == "Where" else [first], dtype)
            case "cast":
                target = self.any_of(("f32", "f64", "bool") if dtype[0] == "f" else DTYPE_NAMES)
                self.add("Cast", [first], target, to=DTYPES[target].onnx)
            case "clip" if dtype in ("f32", "f64", "i32", "i64", "u8"):
                low, high = (self.constant(dtype, np.array(bound, DTYPES[dtype].numpy)) for bound in (1, 3))
                bounds = self.any_of(([low, high], [low], [None, high], [high, low], []))
                self.add("Clip", [first, *bounds], dtype, first.shape)
            case "quantize" if dtype == "f32":
                scale = self.constant("f32", np.array(0.25, np.float32))
                zero = [self.constant("u8", np.array(7, np.uint8))] if self.chance(2) else []
                rounded = self.add("QuantizeLinear", [first, scale, *zero], "u8", first.shape)
                self.add("DequantizeLinear", [rounded, scale, *zero], "f32", first.shape)
            case "transpose" if first.shape and dtype != "bool":
                # Not elementwise: it ends regions, and a path through it must not close a cycle.
                self.add("Transpose", [first], dtype, first.shape[::-1], perm=list(range(len(first.shape)))[::-1])
            case "branch" if self.depth < 2:
                self.branch(first)
            case "loop" if self.depth < 2:
                self.loop(first)
            case "scan" if self.depth < 2 and first.shape and first.shape[0] > 0:
                self.scan(first)
            case _:
                self.add("Identity", [first], dtype)

    def add(
        self, op: str, inputs: list[_Tensor | None], dtype: str, shape: tuple[int, ...] | None = None, **attrs: Any
    ) -> _Tensor:
        if shape is None:
            try:
                shape = np.broadcast_shapes(*(tensor.shape for tensor in inputs if tensor is not None))
            except ValueError:  # transposed shapes do not all fit each other
                (first, *_), attrs = inputs, {}
                assert first is not None
                op, inputs, dtype, shape = "Identity", [first], first.dtype, first.shape
        name = self.prefix + self.any_of(NAMES).format(len(self.nodes))
        label = self.any_of((f"node{name}", f"node{name}", ""))
        names = ["" if tensor is None else tensor.name for tensor in inputs]
        self.nodes.append(helper.make_node(op, names, [name], label, **attrs))
        self.used.update(names)
        result = _Tensor(name, dtype, shape)
        if op in ("Max", "Min") and dtype in ("f32", "f64"):
            # Which of two zeros ORT takes depends on where in its vectors they lie; to add 0 makes them one.
            return self.add("Add", [result, self.constant(dtype, np.zeros((), DTYPES[dtype].numpy))], dtype, shape)
        self.tensors.append(result)
        return result

    def body(self, *inputs: _Tensor) -> _Graph:
        """A graph in an attribute of the next node, with some nodes."""
        body = _Graph(self.draw, self.random, self)
        body.tensors.extend(inputs)
        for _ in range(self.draw(st.integers(1, 5))):
            body.node()
        return body

    def result(self, like: _Tensor | None = None) -> _Tensor:
        """A tensor that this body makes, of the type, and the shape where it has one, of ``like``."""
        made = {name for node in self.nodes for name in node.output}
        fitting = [
            tensor
            for tensor in self.tensors
            if tensor.name in made and (like is None or (tensor.dtype, tensor.shape) == (like.dtype, like.shape))
        ]
        if not fitting:
            assert like is not None
            seen = like in self.tensors
            return self.add(
                "Identity",
                [like if seen else self.constant(like.dtype, self.array(like.dtype, like.shape))],
                like.dtype,
            )
        return fitting[-1]

    def close(self, inputs: list[_Tensor], outputs: list[_Tensor]) -> onnx.GraphProto:
        def declare(tensor: _Tensor) -> onnx.ValueInfoProto:
            dims = [None] * len(tensor.shape) if inputs else None  # ORT needs the ranks in the bodies of Loop and Scan
            return helper.make_tensor_value_info(tensor.name, DTYPES[tensor.dtype].onnx, dims)

        infos = [list(map(declare, tensors)) for tensors in (inputs, outputs)]
        return helper.make_graph(self.nodes, "body", *infos, self.initializers)

    def branch(self, first: _Tensor) -> None:
        """If on a scalar input; both branches read tensors of the graphs around."""
        name = f"condition{len(self.feeds)}"
        self.feeds[name] = np.array(self.chance(2))
        self.declared_inputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, []))
        branches = [self.body(), self.body()]
        then = branches[0].result()
        results = [then, branches[1].result(then)]
        graphs = [body.close([], [result]) for body, result in zip(branches, results, strict=True)]
        condition = _Tensor(name, "bool", ())
        self.add("If", [condition], then.dtype, then.shape, then_branch=graphs[0], else_branch=graphs[1])

    def loop(self, first: _Tensor) -> None:
        """Two or three rounds that change ``first``."""
        prefix = f"{self.prefix}{len(self.nodes)}."
        count = self.constant("i64", np.array(self.any_of((0, 1, 3)), np.int64))
        state = [_Tensor(f"{prefix}i", "i64", ()), _Tensor(f"{prefix}go", "bool", ())]
        carried = _Tensor(f"{prefix}carried", first.dtype, first.shape)
        body = self.body(*state, carried)
        go = body.add("Identity", [state[1]], "bool")
        graph = body.close([*state, carried], [go, body.result(carried)])
        self.add("Loop", [count, None, first], first.dtype, first.shape, body=graph)

    def scan(self, first: _Tensor) -> None:
        """What a body makes of each row of ``first``."""
        prefix = f"{self.prefix}{len(self.nodes)}."
        row = _Tensor(f"{prefix}row", first.dtype, first.shape[1:])
        body = self.body(row)
        result = body.result()
        graph = body.close([row], [result])
        self.add("Scan", [first], result.dtype, (first.shape[0], *result.shape), body=graph, num_scan_inputs=1)


class _Main(_Graph):
    def __init__(self, draw: st.DrawFn, random: np.random.Generator) -> None:
        super().__init__(draw, random)
        self.inputs: set[str] = set()
        self.sizes = {axis: self.any_of(sizes) for axis, sizes in SIZES.items()}

    def input(self) -> None:
        rank = self.draw(st.integers(0, 3))
        dims = [self.any_of(("one", "fixed", "symbol")) for _ in range(rank)]
        names = AXES[3 - rank :]
        shape = tuple(1 if dim == "one" else self.sizes[name] for dim, name in zip(dims, names, strict=True))
        declared = [name if dim == "symbol" else size for dim, name, size in zip(dims, names, shape, strict=True)]
        dtype = self.any_of(DTYPE_NAMES)
        name = f"in{len(self.feeds)}"
        self.declared_inputs.append(helper.make_tensor_value_info(name, DTYPES[dtype].onnx, declared))
        self.feeds[name] = self.array(dtype, shape)
        self.inputs.add(name)
        self.tensors.append(_Tensor(name, dtype, shape))

    def finish(self) -> RandomModel:
        made = [tensor for tensor in self.tensors if tensor.name not in self.inputs]
        outputs = [
            helper.make_tensor_value_info(
                tensor.name, DTYPES[tensor.dtype].onnx, [f"{tensor.name}_{axis}" for axis in range(len(tensor.shape))]
            )
            for tensor in made
            if tensor.name not in self.used or self.chance(6)
        ]
        graph = helper.make_graph(self.nodes, "random", self.declared_inputs, outputs, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        return RandomModel(model, self.feeds)
