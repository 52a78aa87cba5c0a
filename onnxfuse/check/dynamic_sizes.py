"""What a model's nodes tell of the sizes of its dynamic dimensions: which tensors have them, and which ones they need.

A size has the name of the symbol that it is, or that of its input and axis, as ``x[2]``, where it has none.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from onnx import ModelProto, NodeProto

from onnxfuse.check.input_shapes import size_name
from onnxfuse.check.tensor_facts import Facts, Graph, attributes, is_standard
from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.graph import Model
from onnxfuse.run.inputs import InputSpec
from onnxfuse.shapes.inference import infer

_POSITION = re.compile("position", re.IGNORECASE)

Dim = int | str | None


def sizes_of(specs: list[InputSpec], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The dynamic sizes by name, where the inputs have these shapes; those of an input of unknown rank by its axes."""
    found: dict[str, int] = {}
    for spec in specs:
        for axis, size in enumerate(shapes.get(spec.name, ())):
            name = f"{spec.name}[{axis}]" if spec.shape is None else size_name(spec, axis)
            if name is not None:
                found.setdefault(name, size)
    return found


def _is_integer(spec: InputSpec) -> bool:
    return spec.kind == "tensor" and spec.dtype.kind in "iu"


class DynamicSizes:
    """The dynamic sizes of a model's inputs, followed through its graph."""

    def __init__(self, graph: Graph, specs: list[InputSpec]) -> None:
        self._graph = graph
        self._specs = [spec for spec in specs if spec.kind == "tensor" and spec.shape is not None]
        self.names = {
            name for spec in self._specs for axis in range(len(spec.shape or ())) if (name := size_name(spec, axis))
        }
        self.positions = {
            spec.name: f"values of {spec.name}" for spec in specs if _POSITION.search(spec.name) and _is_integer(spec)
        }
        """By the names of inputs that are positions: what stands for their values in a limit."""
        self._facts = Facts(graph, {}, {})

    @cached_property
    def _shapes(self) -> dict[str, tuple[Dim, ...]]:
        """The shapes of tensors in terms of these sizes; None for one that is not known."""
        proto = ModelProto()
        proto.CopyFrom(self._graph.proto)
        shapes: dict[str, list[int | str]] = {}
        for spec in self._specs:
            names = [size_name(spec, axis) for axis in range(len(spec.shape or ()))]
            shapes[spec.name] = [
                dim if isinstance(dim, int) else str(name) for dim, name in zip(spec.shape or (), names, strict=True)
            ]
        found: dict[str, tuple[Dim, ...]] = {name: tuple(shape) for name, shape in shapes.items()}
        found |= {name: tuple(tensor.dims) for name, tensor in self._graph.constants.items()}
        try:
            model = Model.from_proto(proto)
            infer(model, shapes)
        except (OnnxfuseError, ValueError):
            return found
        for graph in model.graphs():
            for tensor in (*graph.inputs, *(tensor for node in graph.nodes for tensor in node.outputs)):
                if tensor.shape is not None and tensor.name not in found:
                    found[tensor.name] = tuple(map(self._dim, tensor.shape))
        return found

    def _dim(self, size: object) -> Dim:
        if isinstance(size, (int, np.integer)):
            return int(size)
        return str(size) if size in self.names else None

    def shape(self, name: str) -> tuple[Dim, ...] | None:
        """The shape of a tensor."""
        return self._shapes.get(name)

    # --- sizes that nodes need ---

    def needed(self) -> dict[str, int]:
        """Sizes without which a node cannot run, for the sizes of its weights are others."""
        found: dict[str, int] = {}
        for node in self._graph.nodes:
            for one, other in self._pairs(node):
                if isinstance(one, int):
                    one, other = other, one
                if isinstance(one, str) and isinstance(other, int) and other > 0:
                    found.setdefault(one, other)
        return found

    def _pairs(self, node: NodeProto) -> Iterator[tuple[Dim, Dim]]:
        """Sizes that must be the same for the node to run."""
        pairs = _PAIRS.get(node.op_type)
        shapes = [self.shape(name) if name else None for name in node.input]
        if not is_standard(node) or pairs is None or None in shapes[:2]:
            return
        try:
            yield from pairs(self, node, shapes)
        except (ArithmeticError, IndexError):  # a node of fewer inputs or dimensions than it has to have
            return

    def _reshaped(self, node: NodeProto, shapes: list[tuple[Dim, ...] | None]) -> Iterator[tuple[Dim, Dim]]:
        data, target = shapes[0] or (), self._facts.value(node.input[1])
        open_dims = [dim for dim in data if not isinstance(dim, int)]
        if target is None or len(open_dims) != 1:
            return
        wanted = [int(size) for size in target.reshape(-1)]
        kept = [data[axis] if size == 0 else size for axis, size in enumerate(wanted)]
        known = math.prod(dim for dim in data if isinstance(dim, int))
        total = math.prod(size for size in kept if isinstance(size, int) and size != -1)
        if open_dims[0] in kept or not known:  # it stays as it is
            return
        if -1 in kept:
            yield open_dims[0], total // math.gcd(total, known)
        elif total % known == 0:
            yield open_dims[0], total // known

    def _split(self, node: NodeProto, shapes: list[tuple[Dim, ...] | None]) -> Iterator[tuple[Dim, Dim]]:
        parts = self._facts.value(node.input[1]) if len(node.input) > 1 else attributes(node).get("split")
        if parts is not None and shapes[0] is not None:
            yield shapes[0][attributes(node).get("axis", 0)], int(np.sum(parts))

    def dims(self, name: str, axes: Sequence[int] | None = None) -> frozenset[str]:
        """The dynamic sizes in a tensor's shape, or along some axes; any at all where that is not known."""
        shape = self.shape(name)
        if shape is None:
            return frozenset(self.names)
        chosen = shape if axes is None else [shape[axis] for axis in axes if -len(shape) <= axis < len(shape)]
        found = frozenset(dim for dim in chosen if isinstance(dim, str))
        return frozenset(self.names) if None in chosen else found

    def value(self, name: str) -> np.ndarray | None:
        """The value of a small constant, or of what is computed of such."""
        return self._facts.value(name)

    def is_constant(self, name: str) -> bool:
        """Whether a tensor, however large, is a constant."""
        producer = self._graph.producers.get(name)
        return name in self._graph.constants or (producer is not None and producer.op_type == "Constant")

    @property
    def graph(self) -> Graph:
        """The model's nodes."""
        return self._graph


_Shapes = list[tuple[Dim, ...] | None]


def _matmul(_sizes: DynamicSizes, _node: NodeProto, shapes: _Shapes) -> Iterator[tuple[Dim, Dim]]:
    left, right = shapes[0] or (), shapes[1] or ()
    yield left[-1], right[-2 if len(right) > 1 else -1]


def _gemm(_sizes: DynamicSizes, node: NodeProto, shapes: _Shapes) -> Iterator[tuple[Dim, Dim]]:
    left, right, settings = shapes[0] or (), shapes[1] or (), attributes(node)
    yield left[0 if settings.get("transA", 0) else 1], right[1 if settings.get("transB", 0) else 0]


def _conv(_sizes: DynamicSizes, node: NodeProto, shapes: _Shapes) -> Iterator[tuple[Dim, Dim]]:
    channels = (shapes[1] or ())[1]
    if isinstance(channels, int):
        yield (shapes[0] or ())[1], channels * attributes(node).get("group", 1)


def _by_channel(_sizes: DynamicSizes, _node: NodeProto, shapes: _Shapes) -> Iterator[tuple[Dim, Dim]]:
    yield (shapes[0] or ())[1], (shapes[1] or ())[0]


def _broadcast(_sizes: DynamicSizes, _node: NodeProto, shapes: _Shapes) -> Iterator[tuple[Dim, Dim]]:
    known = [shape for shape in shapes if shape]
    for axis in range(1, 1 + max(map(len, known), default=0)):
        dims = [shape[-axis] for shape in known if len(shape) >= axis and shape[-axis] != 1]
        yield from pairwise(dims)


def _concat(_sizes: DynamicSizes, node: NodeProto, shapes: _Shapes) -> Iterator[tuple[Dim, Dim]]:
    known = [shape for shape in shapes if shape is not None]
    axis = attributes(node).get("axis", 0) % len(known[0])
    for one, other in pairwise(known):
        yield from (pair for place, pair in enumerate(zip(one, other, strict=False)) if place != axis)


def _recurrent(_sizes: DynamicSizes, _node: NodeProto, shapes: _Shapes) -> Iterator[tuple[Dim, Dim]]:
    yield (shapes[0] or ())[2], (shapes[1] or ())[2]
    for state in shapes[5:7]:
        if state is not None and shapes[2] is not None:
            yield state[0], shapes[2][0]
            yield state[2], shapes[2][2]


_Pairs = Callable[[DynamicSizes, NodeProto, _Shapes], Iterator[tuple[Dim, Dim]]]
_BROADCAST = (
    *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "LayerNormalization", "Less", "LessOrEqual", "Max"),
    *("Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "RMSNormalization", "Sub", "Sum", "Where", "Xor"),
)
_PAIRS: dict[str, _Pairs] = {
    **dict.fromkeys(_BROADCAST, _broadcast),
    **dict.fromkeys(("BatchNormalization", "ConvTranspose", "InstanceNormalization"), _by_channel),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    "Concat": _concat,
    "Conv": _conv,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Reshape": DynamicSizes._reshaped,
    "Split": DynamicSizes._split,
}
