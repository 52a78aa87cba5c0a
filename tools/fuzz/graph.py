"""The graph in the making that the emitters of random nodes write to: tensors, constants, names, bodies.

Everything is chosen by a ``random.Random``, so that a seed is a model; hypothesis gives one with choices that it can
shrink.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfuse.model.dtypes import DTYPES
from onnxfuse.model.elementwise_operators import Slack, operators_that
from onnxfuse.run.sessions import Session, SessionError

FLOATS = ("f32", "f64", "f16", "bf16")
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTEGERS = SIGNED + UNSIGNED
NUMBERS = FLOATS + INTEGERS
ALL = (*NUMBERS, "bool")

EXACT_OPS = operators_that(lambda row: Slack.FUNCTION not in row.slack) | {
    *("If", "Loop", "Scan", "Transpose", "Concat", "Slice", "Split", "Reshape", "Flatten", "Shape", "Gather", "Expand"),
    *("Pad", "Squeeze", "Unsqueeze", "Constant"),
}
"""Operators whose results in float and double are settled to the last bit, and those that only move elements."""

NAMES = (
    *("t{}", "t{}", "t{}", "t {}", "μ{}é", "a/b:{}", "{}", "名{}", '"{}"', "t{}_fused", "value_{}", "input_{}"),
    *("constant_{}", "unk__{}", "FusedElementwise_{}", "t{}\t", "%{}s", "[{}]", "t{}_output", "-{}", "t{}\\n"),
)
"""How a tensor may be called: legal names, some of them like those that onnxfuse or shape inference make up."""

MAX_ELEMENTS = 20_000
FIRST_BFLOAT16 = 16
"""The opset from which If, Loop and Scan know bfloat16."""

_SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 1.0, -1.0, 1e-40, 1e-300, 65504.0, 1e30)


@dataclass(frozen=True)
class Tensor:
    """A tensor of the graph; ``shape`` is what it has for the model's feeds."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Style:
    """What holds for a whole model.  ``exact``: only operators of EXACT_OPS, so that all of it is bit-exact;
    ``specials``: infinities, NaN and denormals among the values; ``odd``: odd names; ``types``: the usual ones."""

    opset: int
    types: tuple[str, ...] = ("f32",)
    exact: bool = False
    specials: bool = True
    odd: bool = True


class Graph:
    """The main graph, or a body, which sees the tensors of the graphs around it."""

    def __init__(self, choose: Random, style: Style, outer: Graph | None = None) -> None:
        self.choose = choose
        self.style = style
        self.opset = style.opset
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.main: Graph = self if outer is None else outer.main
        self.tensors: list[Tensor] = [] if outer is None else list(outer.tensors)
        self.used: set[str] = set() if outer is None else outer.used
        # Bodies next to each other use the same names, which is legal; names of the graphs around are not.
        self.prefix: str = "" if outer is None else f"{outer.prefix}{len(outer.nodes)}."
        self.random: np.random.Generator = (
            np.random.default_rng(choose.getrandbits(32)) if outer is None else outer.random
        )
        self.initializers: list[onnx.TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.constants = 0
        # Of the main graph alone:
        self.feeds: dict[str, np.ndarray] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.functions: list[onnx.FunctionProto] = []

    # --- choices ---

    def any_of(self, choices: Sequence[Any]) -> Any:
        """One of the choices."""
        return self.choose.choice(choices)

    def chance(self, times: int) -> bool:
        """True once in so many times."""
        return self.choose.randrange(times) == times - 1

    def dtype(self, candidates: Sequence[str], accepted: Callable[[str], bool]) -> str | None:
        """One of the candidate types that ONNX Runtime accepts, most often one of the model's usual types."""
        usual = [candidate for candidate in candidates if candidate in self.style.types]
        there = [candidate for candidate in usual if any(tensor.dtype == candidate for tensor in self.tensors)]
        if usual and not self.chance(12):
            candidates = usual if not there or self.chance(8) else there
        known = [candidate for candidate in candidates if accepted(candidate)]
        return str(self.any_of(known)) if known else None

    def takes(self, op: str, inputs: Iterable[str | None], outputs: int = 1, **attributes: Any) -> bool:
        """Whether ONNX Runtime has a kernel for the operator with inputs of these types."""
        if self.style.exact and op not in EXACT_OPS:
            return False
        if self.opset < FIRST_BFLOAT16 and attributes.get("to") == onnx.TensorProto.BFLOAT16:
            return False
        return has_kernel(op, self.opset, tuple(inputs), outputs, tuple(sorted(attributes.items())))

    # --- tensors ---

    def array(self, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """Random values, small ones for the most part."""
        if dtype == "bool":
            return np.asarray(self.random.random(shape) < 0.5)
        numpy_type = DTYPES[dtype].numpy
        if dtype in FLOATS:
            numbers = np.asarray(self.random.normal(0, 2, shape))
            if self.style.specials:
                special = self.random.choice(_SPECIAL, shape)
                numbers = np.where(self.random.random(shape) < 0.05, special, numbers)
            with np.errstate(all="ignore"):
                return np.asarray(numbers).astype(numpy_type)
        low, high = (0, 20) if dtype in UNSIGNED else (-9, 10)
        if self.style.specials and self.chance(6):
            limits = np.iinfo(numpy_type)
            low, high = int(limits.min), int(limits.max)
            return np.asarray(self.random.integers(low, high, shape, dtype=numpy_type, endpoint=True))
        return np.asarray(self.random.integers(low, high, shape)).astype(numpy_type)

    def constant(self, dtype: str, values: Any) -> Tensor:
        """An initializer, one that a caller could override, or a Constant node."""
        array = np.asarray(values).astype(DTYPES[dtype].numpy)
        self.constants += 1
        name = f"{self.prefix}const{self.constants}"
        tensor = self._tensor_proto(array, name)
        if self.chance(8) and (self.opset >= 9 or dtype in ("f32", "f64", "f16")):
            self.nodes.append(self._constant_node(tensor, array))
        else:
            self.initializers.append(tensor)
            if self.depth == 0 and self.chance(8):
                self.inputs.append(helper.make_tensor_value_info(name, DTYPES[dtype].onnx, array.shape))
        return Tensor(name, dtype, array.shape)

    def _tensor_proto(self, array: np.ndarray, name: str) -> onnx.TensorProto:
        if array.dtype in (np.float32, np.int32, np.int64, np.uint8) and self.chance(4):  # not as raw bytes
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            return helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist())
        return numpy_helper.from_array(array, name)

    def _constant_node(self, tensor: onnx.TensorProto, array: np.ndarray) -> onnx.NodeProto:
        if self.opset >= 12 and array.dtype in (np.float32, np.int64) and array.ndim < 2 and self.chance(3):
            kind = "value_float" if array.dtype == np.float32 else "value_int"
            if array.ndim == 0:
                return helper.make_node("Constant", [], [tensor.name], **{kind: array.item()})
            if array.size:
                return helper.make_node("Constant", [], [tensor.name], **{f"{kind}s": array.tolist()})
        return helper.make_node("Constant", [], [tensor.name], value=tensor)

    def scalar(self, dtype: str, value: Any) -> Tensor:
        """A constant of rank 0."""
        return self.constant(dtype, value)

    def pick(self, dtype: str | None = None, accepted: Callable[[Tensor], bool] = lambda tensor: True) -> Tensor | None:
        """A tensor of the type: the latest results more often than the first, so that chains become long."""
        known = [tensor for tensor in self.tensors if dtype in (None, tensor.dtype) and accepted(tensor)]
        if not known:
            return None
        return known[max(self.choose.randrange(len(known)), self.choose.randrange(len(known)))]

    def source(self, dtype: str, accepted: Callable[[Tensor], bool] = lambda tensor: True) -> Tensor:
        """A tensor of the type, one that is made of another type if there is none."""
        found = self.pick(dtype, accepted)
        if found is None:
            other = self.pick(None, accepted)
            if other is None or not self.can_cast(other.dtype, dtype):
                return self.constant(dtype, self.array(dtype, self.any_of(((), (3,), (2, 5)))))
            found = self.cast(other, dtype)
        return found

    def can_cast(self, source: str, target: str) -> bool:
        """Whether there is such a Cast; to check what becomes of NaN as an integer needs operators of opset 11."""
        settled = not (source in FLOATS and target in INTEGERS) or self.opset >= 11
        return settled and self.takes("Cast", [source], to=DTYPES[target].onnx)

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        """The tensor in another type, floating-point numbers only where an integer can hold them."""
        if tensor.dtype == dtype:
            return tensor
        if tensor.dtype in FLOATS and dtype in INTEGERS:
            wide = tensor if tensor.dtype == "f32" else self.cast(tensor, "f32")
            tensor = self.bounded(wide, 0.0 if dtype in UNSIGNED else -9.0, 9.0)
        return self.add("Cast", [tensor], dtype, tensor.shape, to=DTYPES[dtype].onnx)

    def bounded(self, tensor: Tensor, low: float, high: float) -> Tensor:
        """The tensor within bounds; NaN passes."""
        low, high = (float(DTYPES[tensor.dtype].numpy.type(bound)) for bound in (low, high))
        if self.opset < 11:
            return self.add("Clip", [tensor], tensor.dtype, tensor.shape, min=low, max=high)
        bounds = [self.scalar(tensor.dtype, bound) for bound in (low, high)]
        return self.add("Clip", [tensor, *bounds], tensor.dtype, tensor.shape)

    def operand(self, dtype: str, like: tuple[int, ...], one_way: bool = False) -> Tensor:
        """A tensor that broadcasts against one of shape ``like``; ``one_way``: without making it larger."""
        if not self.chance(4):
            found = self.pick(dtype, lambda tensor: _fits(tensor.shape, like, one_way))
            if found is not None:
                return found
        return self.constant(dtype, self.array(dtype, self.broadcast_shape(like)))

    def broadcast_shape(self, like: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts to ``like``."""
        first = self.choose.randint(0, len(like))
        return tuple(1 if self.chance(3) else size for size in like[first:])

    # --- nodes ---

    def name(self) -> str:
        """A name that no tensor in sight has."""
        pattern = self.any_of(NAMES) if self.style.odd else "t{}"
        return self.prefix + pattern.format(len(self.nodes))

    def label(self, name: str) -> str:
        """A node's name, which need not be there."""
        return str(self.any_of((f"node{name}", name, f"{name}_fused", f"é\t{name}", ""))) if self.style.odd else name

    def add(
        self, op: str, inputs: Sequence[Tensor | None], dtype: str, shape: tuple[int, ...], domain: str = "",
        **attributes: Any,
    ) -> Tensor:  # fmt: skip
        """A node of one output."""
        return self.add_many(op, inputs, [(dtype, shape)], domain, **attributes)[0]

    def add_many(
        self, op: str, inputs: Sequence[Tensor | None], outputs: Sequence[tuple[str, tuple[int, ...]]],
        domain: str = "", **attributes: Any,
    ) -> list[Tensor]:  # fmt: skip
        """A node of any number of outputs, which become known tensors."""
        first = self.name()
        names = [first, *(f"{first}.{number}" for number in range(1, len(outputs)))]
        arguments = ["" if tensor is None else tensor.name for tensor in inputs]
        self.nodes.append(helper.make_node(op, arguments, names, self.label(first), domain=domain, **attributes))
        self.used.update(arguments)
        made = [Tensor(name, dtype, shape) for name, (dtype, shape) in zip(names, outputs, strict=True)]
        self.tensors += made
        return made


def _fits(shape: tuple[int, ...], like: tuple[int, ...], one_way: bool) -> bool:
    try:
        result = np.broadcast_shapes(shape, like)
    except ValueError:
        return False
    return result == like if one_way else int(np.prod(result, dtype=np.int64)) <= MAX_ELEMENTS


@functools.cache
def has_kernel(
    op: str, opset: int, inputs: tuple[str | None, ...], outputs: int, attributes: tuple[tuple[str, Any], ...]
) -> bool:
    """Whether ONNX Runtime takes a model of the one node."""
    if not onnx.defs.has(op) or _first_version(op) > opset:
        return False
    names = ["" if dtype is None else f"x{index}" for index, dtype in enumerate(inputs)]
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op, names, results, **dict(attributes))
    given = [
        helper.make_tensor_value_info(name, DTYPES[dtype].onnx, None)
        for name, dtype in zip(names, inputs, strict=True)
        if dtype is not None
    ]
    graph = helper.make_graph([node], "probe", given, [onnx.ValueInfoProto(name=name) for name in results])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    try:
        # ONNX Runtime alone is lenient with the types of old opsets, but not in the bodies of functions.
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        Session(model.SerializeToString(), threads=1, optimized=False)
    except (SessionError, onnx.shape_inference.InferenceError):
        return False
    return True


@functools.cache
def _first_version(op: str) -> int:
    return min(schema.since_version for schema in onnx.defs.get_all_schemas_with_history() if schema.name == op)
