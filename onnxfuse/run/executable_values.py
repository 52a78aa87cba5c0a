"""The values of a model whose nodes are all onnxfuse's, and the nodes, as the native library takes them."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.kinds import DOMAIN
from onnxfuse.model.dtypes import DType, from_numpy
from onnxfuse.model.graph import Graph, Model, Node, describe
from onnxfuse.run.executable_library import (
    MOST_DIMENSIONS,
    Handle,
    NativeAttribute,
    NativeNode,
    NativeValue,
    native_library,
)


class Values:
    """The values that a model's nodes read and write, numbered."""

    def __init__(self, model: Model) -> None:
        self._indices: dict[int, int] = {}
        self._names: list[str] = []
        self.dtypes: list[DType] = []
        self.constants: dict[int, np.ndarray] = {}
        self.nodes = len(model.graph.nodes)
        computed = {id(tensor) for node in model.graph.nodes for tensor in node.outputs}
        for node in model.graph.nodes:
            if node.domain != DOMAIN or "\0" in node.op:
                raise OnnxfuseError(
                    f"{describe(node)} is not one of onnxfuse's nodes: run the model in onnxfuse.InferenceSession"
                )
        for tensor in model.graph.outputs:
            if id(tensor) not in computed:
                raise OnnxfuseError(f"output {tensor.name!r} is not computed by a node")
        self.inputs = {tensor.name: (self.index(tensor), tensor) for tensor in model.graph.inputs}
        self.outputs = {tensor.name: (self.index(tensor), tensor) for tensor in model.graph.outputs}
        self.output_names = [tensor.name for tensor in model.graph.outputs]
        self.output_indices = {index for index, _ in self.outputs.values()}
        self._read_defaults(model.graph)

    def _read_defaults(self, graph: Graph) -> None:
        """Inputs that have a value unless the caller gives another."""
        for initializer in graph.source.initializers:
            if isinstance(initializer.tensor, gs.Variable) and initializer.tensor.name in self.inputs:
                self._keep(self.index(initializer.tensor), initializer.values.load())

    def _keep(self, index: int, array: np.ndarray) -> None:
        """A constant, or a default value.  Raises OnnxfuseError if it has more dimensions than fused nodes take."""
        if array.ndim > MOST_DIMENSIONS:
            raise OnnxfuseError(f"{self._names[index]!r} has more than {MOST_DIMENSIONS} dimensions")
        self.constants[index] = contiguous(array)

    def index(self, tensor: gs.Tensor) -> int:
        """The number of a tensor, -1 for an input that is left out.  Raises OnnxfuseError for types of no Program."""
        if not tensor.name and not isinstance(tensor, gs.Constant):
            return -1
        if (known := self._indices.get(id(tensor))) is not None:
            return known
        dtype = from_numpy(tensor.dtype)
        if dtype is None:
            kind = "unknown" if tensor.dtype is None else f"{tensor.dtype}, which fused nodes do not take"
            raise OnnxfuseError(f"the type of {tensor.name!r} is {kind}")
        index = self._indices[id(tensor)] = len(self._names)
        self._names.append(tensor.name)
        self.dtypes.append(dtype)
        if isinstance(tensor, gs.Constant):
            self._keep(index, tensor.values)
        return index

    def create(self, nodes: Sequence[Node], threads: int) -> Handle:
        """What the library makes of the nodes.  Raises OnnxfuseError if it refuses one."""
        described = (NativeNode * len(nodes))(*map(self._describe, nodes))
        values = (NativeValue * len(self._names))(
            *(
                NativeValue(name.encode(), dtype.onnx, index in self.output_indices)
                for index, (name, dtype) in enumerate(zip(self._names, self.dtypes, strict=True))
            )
        )
        library = native_library()
        created = library.onnxfuse_executable_create(described, len(nodes), values, len(values), threads)
        return Handle(created, library.onnxfuse_executable_release)

    def _describe(self, node: Node) -> NativeNode:
        attributes = [described for name, value in node.attrs.items() if (described := _attribute(name, value))]
        inputs, outputs = ([self.index(tensor) for tensor in tensors] for tensors in (node.inputs, node.outputs))
        return NativeNode(
            node.op.encode(),
            (node.name or "").encode(),
            (ctypes.c_int64 * len(inputs))(*inputs),
            len(inputs),
            (ctypes.c_int64 * len(outputs))(*outputs),
            len(outputs),
            (NativeAttribute * len(attributes))(*attributes),
            len(attributes),
        )

    @staticmethod
    def find(named: Mapping[str, tuple[int, gs.Tensor]], name: str, kind: str) -> tuple[int, gs.Tensor]:
        """An input or an output.  Raises OnnxfuseError if there is none of that name."""
        if name not in named:
            raise OnnxfuseError(f"the model has no {kind} {name!r}; it has {', '.join(map(repr, named)) or 'none'}")
        return named[name]


def _attribute(name: str, value: Any) -> NativeAttribute | None:
    """An attribute for the library; None for one that no operator on the CPU has, such as code for a GPU."""
    if "\0" in name:
        return None
    if isinstance(value, str):
        text = value.encode()
        return NativeAttribute(name.encode(), text, len(text), None, 0)
    if isinstance(value, int):
        return NativeAttribute(name.encode(), None, 0, (ctypes.c_int64 * 1)(value), -1)
    if isinstance(value, list) and all(isinstance(number, int) for number in value):
        return NativeAttribute(name.encode(), None, 0, (ctypes.c_int64 * len(value))(*value), len(value))
    return None


def contiguous(value: Any) -> np.ndarray:
    """The array, or a copy, in one piece and aligned."""
    return np.require(value, requirements=("C", "A"))
