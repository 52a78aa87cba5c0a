"""A random model of operators in the making: each node runs alone in ONNX Runtime as it is added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfuse.run.sessions import Session, SessionError, Value

OLDEST_OPSET, NEWEST_OPSET = 11, 26
SIZES = (1, 1, 2, 3, 4, 5, 7, 8)
CHANNELS = (1, 2, 3, 4, 8, 16)
WIDTHS = (1, 2, 4, 8, 12, 32)
MAX_ELEMENTS = 1 << 14
FUNCTION_DOMAIN = "fuzz.kernels"
CONTRIB_DOMAIN = "com.microsoft"
"""That of ONNX Runtime's own operators."""
_FLOATS = (np.float32, np.float64, np.float16)
_UNARY = (
    *("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Exp", "Erf", "Softplus", "HardSwish", "LeakyRelu", "Elu", "Identity"),
    *("Gelu", "Mish", "Sqrt", "Reciprocal", "Round", "Sign", "Selu", "HardSigmoid"),
)
_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu")


@dataclass(frozen=True)
class Known:
    """A tensor of the model, or a sequence of such, and what it is for the model's feeds."""

    name: str
    value: Value

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a tensor."""
        return tuple(self.value.shape)

    @property
    def rank(self) -> int:
        """Of a tensor."""
        return len(self.value.shape)


Given = Known | None


class Kernels:
    """A model in the making."""

    def __init__(self, choose: Random, oldest: int) -> None:
        self.choose = choose
        self.random = np.random.default_rng(choose.getrandbits(32))
        self.opset = max(oldest, self.any_of((choose.randint(OLDEST_OPSET, NEWEST_OPSET), 17, 20, 23, 24, 26)))
        self.dtype = self.any_of((np.float32, np.float32, np.float32, np.float32, *_FLOATS))
        self.symbolic = self.chance(2)
        self.empty = self.chance(12)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.functions: dict[str, onnx.FunctionProto] = {}
        self.feeds: dict[str, np.ndarray] = {}
        self.tensors: list[Known] = []
        self.read: set[str] = set()
        self.count = 0
        self.chained = False
        """Whether each node reads the latest tensor that it can."""

    # --- choices ---

    def any_of(self, choices: Sequence[Any]) -> Any:
        """One of the choices."""
        return self.choose.choice(choices)

    def chance(self, times: int) -> bool:
        """True once in so many times."""
        return self.choose.randrange(times) == 0

    def size(self, sizes: Sequence[int] = SIZES) -> int:
        """A size of a dimension; 0 in some models."""
        return 0 if self.empty and self.chance(4) else int(self.any_of(sizes))

    def axes(self, rank: int) -> list[int]:
        """Some axes of a tensor, from either end."""
        some = self.choose.sample(range(rank), self.choose.randint(1, rank)) if rank else []
        return [axis - rank if self.chance(3) else axis for axis in some]

    def axis(self, rank: int) -> int:
        """An axis, from either end."""
        return self.choose.randrange(rank) - (rank if self.chance(3) else 0)

    def maybe(self, *, often: int = 2, **attributes: tuple[Any, ...]) -> dict[str, Any]:
        """Some of the attributes, each with one of its values; once in ``often`` times."""
        return {name: self.any_of(values) for name, values in attributes.items() if self.chance(often)}

    # --- tensors ---

    def numbers(self, shape: Sequence[int], scale: float = 1.0, dtype: Any = None) -> np.ndarray:
        """Normally distributed."""
        return np.asarray(self.random.normal(0, scale, tuple(shape))).astype(dtype or self.dtype)

    def input(self, value: np.ndarray) -> Known:
        """An input of the model, whose dimensions may have names or none."""
        name = f"x{len(self.feeds)}"
        dims: list[Any] = [
            self.any_of((size, f"{name}_{axis}", None)) if self.symbolic else size
            for axis, size in enumerate(value.shape)
        ]
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, kind, None if self.chance(40) else dims))
        self.feeds[name] = value
        return self._known(name, value)

    def constant(self, value: Any, dtype: Any = None) -> Known:
        """An initializer, a Constant node, or an input all the same."""
        array = np.asarray(value, dtype or self.dtype)
        if self.chance(12):
            return self.input(array)
        self.count += 1
        name = f"k{self.count}"
        tensor = numpy_helper.from_array(array, name)
        if self.chance(10):
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.initializers.append(tensor)
        return Known(name, array)

    def integers(self, *values: int) -> Known:
        """A vector of sizes, axes or indices, most often a constant."""
        return self.constant(np.array(values, np.int64), np.int64)

    def pick(self, accepted: Callable[[np.ndarray], bool] = lambda value: True) -> Known | None:
        """A tensor of the model's type, the latest more often."""
        found = [
            known
            for known in self.tensors
            if isinstance(known.value, np.ndarray) and known.value.dtype == self.dtype and accepted(known.value)
        ]
        if not found or self.chained:
            return found[-1] if found else None
        return found[max(self.choose.randrange(len(found)), self.choose.randrange(len(found)))]

    def tensor(self, *ranks: int) -> Known:
        """A tensor of one of these ranks, an input of new ones now and then."""
        found = None if self.chance(6) else self.pick(lambda value: value.ndim in ranks)
        return found or self.input(self.numbers([self.size() for _ in range(self.any_of(ranks))]))

    def image(self, spatial: int | None = None) -> Known:
        """A batch of images of one to three dimensions."""
        ranks = (3, 4, 4, 5) if spatial is None else (spatial + 2,)
        new = self.chance(6) and not self.chained
        found = None if new else self.pick(lambda value: value.ndim in ranks and 0 not in value.shape[:2])
        if found is not None:
            return found
        sizes = [self.size() for _ in range(self.any_of(ranks) - 2)]
        return self.input(
            self.numbers([self.any_of((1, 2)), self.any_of(CHANNELS[: 4 if self.empty else None]), *sizes])
        )

    # --- nodes ---

    def add(
        self, op: str, inputs: Sequence[Given], outputs: int | Sequence[bool] = 1, domain: str = "", **attributes: Any
    ) -> list[Known] | None:
        """A node; its outputs, those that are not left out, or None if ONNX Runtime refuses it.

        ``outputs`` is how many there are, or for each whether it is there.
        """
        there = [True] * outputs if isinstance(outputs, int) else list(outputs)
        self.count += 1
        names = [f"t{self.count}_{index}" if wanted else "" for index, wanted in enumerate(there)]
        given = ["" if one is None else one.name for one in inputs]
        node = helper.make_node(op, given, names, f"{op}_{self.count}", domain=domain, **attributes)
        feeds = {one.name: one.value for one in inputs if one is not None}
        try:
            values = self._run(node, feeds)
        except SessionError:
            return None
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        # ONNX Runtime ends the process where a pool in its blocked layout has no elements.
        if any(value.size > MAX_ELEMENTS or (value.size == 0 and not self.empty) for value in arrays):
            return None
        self.nodes.append(node)
        self.read.update(given)
        return [self._known(name, value) for name, value in zip(filter(None, names), values, strict=True)]

    def one(self, op: str, *inputs: Given, **attributes: Any) -> Known | None:
        """A node of one output."""
        made = self.add(op, inputs, 1, **attributes)
        return None if made is None else made[0]

    def _run(self, node: onnx.NodeProto, feeds: dict[str, Value]) -> list[Value]:
        """What the node makes of values."""
        infos = [_info(name, value) for name, value in feeds.items()]
        results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "one", infos, results)
        model = self._model(graph, [self.functions[node.op_type]] if node.domain == FUNCTION_DOMAIN else [])
        return Session(model.SerializeToString(), threads=1, optimized=False).run(feeds)

    def _model(self, graph: onnx.GraphProto, functions: Sequence[onnx.FunctionProto]) -> onnx.ModelProto:
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(FUNCTION_DOMAIN, 1)] if functions else []
        if any(node.domain == CONTRIB_DOMAIN for node in graph.node):
            opsets.append(helper.make_opsetid(CONTRIB_DOMAIN, 1))
        return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)

    def _known(self, name: str, value: Value) -> Known:
        known = Known(name, value)
        self.tensors.append(known)
        return known

    def finish(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]] | None:
        """The model and its inputs; None if there is no node.  What nothing reads is an output, and some that is."""
        made = {name for node in self.nodes for name in node.output if node.op_type != "Constant"}
        tensors = [one for one in self.tensors if one.name in made and isinstance(one.value, np.ndarray)]
        wanted = [one for one in tensors if one.name not in self.read or self.chance(10)]
        if not wanted:
            return None
        outputs = []
        for one in wanted:
            kind = helper.np_dtype_to_tensor_dtype(one.value.dtype)
            dims = [f"{one.name}_{axis}" for axis in range(one.rank)]
            outputs.append(helper.make_tensor_value_info(one.name, kind, dims))
        graph = helper.make_graph(self.nodes, "kernels", self.inputs, outputs, self.initializers)
        return self._model(graph, list(self.functions.values())), self.feeds


def _info(name: str, value: Value) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        kind = helper.np_dtype_to_tensor_dtype(value[0].dtype)
        return helper.make_tensor_sequence_value_info(name, kind, None)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), list(value.shape))


def elementwise(graph: Kernels) -> object:
    """A function, or two tensors, one a constant that broadcasts or an earlier one."""
    x = graph.tensors[-1] if graph.tensors and graph.chance(2) else graph.pick()
    if x is None or not isinstance(x.value, np.ndarray) or x.value.dtype != graph.dtype:
        return None
    if graph.chance(2):
        return graph.one(graph.any_of(_UNARY), x)
    other = graph.pick(lambda value: value.shape == x.shape) if graph.chance(2) else None
    if other is None:
        shape = [graph.any_of((1, size)) for size in x.shape][graph.choose.randint(0, x.rank) :]
        other = graph.constant(graph.numbers(shape, 0.5) + graph.dtype(1.5))
    op = graph.any_of(_BINARY)
    # Only the slope of a PRelu may be broadcast, which ONNX Runtime does not ask for.
    operands = [x, other] if op == "PRelu" or graph.chance(2) else [other, x]
    return graph.one(op, *operands)
