"""The objects that passes work on: onnx_graphsurgeon's, which also remember what they were imported from.

onnx_graphsurgeon's own importer and exporter drop names, documentation, metadata, overloads, annotations and
every attribute type that they do not know.  These classes keep the ONNX message that each object came from,
so that what no pass changes is written back as it was.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import GraphProto, NodeProto, SparseTensorProto, TensorProto
from onnx_graphsurgeon.ir.tensor import LazyValues

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model import tensor_data

STANDARD_DOMAINS = ("", "ai.onnx", None)
"""How the domain of ONNX's own operators is written in a file and in a graph."""

UNKNOWN_DOMAIN = "onnxfuse.unknown"
"""The domain that a node of the standard domain has in a graph if nothing is known of it; no file has it."""

VIEWS = {"Flatten", "Reshape", "Squeeze", "Unsqueeze"}
"""Operators whose result has the elements of the input, in their order, in another shape."""


def producer_of(tensor: gs.Tensor | None) -> "Node | None":
    """The node that makes a tensor; None for an input, a constant and None."""
    return tensor.inputs[0] if tensor is not None and tensor.inputs else None


@cache
def numpy_dtype(data_type: int) -> np.dtype | None:
    """The NumPy (or ml_dtypes) type of a ``TensorProto.DataType``; None where it is undefined or unknown."""
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(data_type))
    except (KeyError, TypeError):
        return None


class LazyTensor(LazyValues):
    """The values of a TensorProto, read when they are first asked for.

    ``load`` returns a read-only array: a constant can only change by being given other values, which is how
    export tells a constant that was read from one that was changed.
    """

    def __init__(self, tensor: TensorProto, directory: Path | None, stored: tensor_data.Stored | None = None):
        """``directory`` is the one that external data is relative to; ``stored`` has the data that ``tensor`` lacks."""
        self.tensor = tensor
        self.directory = directory
        self.stored = stored
        self.shape = tuple(tensor.dims)
        self.dtype = numpy_dtype(tensor.data_type)
        self.nbytes = tensor_data.byte_size(tensor) or 0
        self._loaded: weakref.ref[np.ndarray] | None = None

    def load(self) -> np.ndarray:
        """The values, read-only.  Raises OnnxfuseError when they cannot be read."""
        try:
            values = self._decode()
        except (TypeError, ValueError, KeyError) as error:
            raise OnnxfuseError(f"tensor {self.tensor.name!r} cannot be read: {error}") from error
        values.flags.writeable = False
        self._loaded = weakref.ref(values)
        return values

    def holds(self, values: object) -> bool:
        """Whether ``values`` are these, unread or as ``load`` returned them."""
        return values is self or (self._loaded is not None and values is self._loaded())

    def _decode(self) -> np.ndarray:
        tensor = self.tensor
        stored = self.stored
        if stored is None and tensor_data.is_external(tensor):
            stored = tensor_data.locate(tensor, self.directory)
        if stored is not None:
            if self.dtype is not None and self.dtype.itemsize * prod(self.shape) == stored.length:  # as NumPy has them
                return tensor_data.read_array(stored).view(self.dtype).reshape(self.shape)
            tensor = TensorProto(dims=tensor.dims, data_type=tensor.data_type, raw_data=tensor_data.read_all(stored))
        elif tensor.data_type == TensorProto.STRING:
            texts = np.empty(len(tensor.string_data), dtype=object)
            texts[:] = [decode_text(text) for text in tensor.string_data]
            return texts.reshape(self.shape)
        # A view, so that making it read-only and watching it concerns no array of anybody else's.
        return np.asarray(onnx.numpy_helper.to_array(tensor)).view()


class LazySparseTensor(LazyTensor):
    """The values of a SparseTensorProto, made dense when they are first asked for."""

    def __init__(self, sparse: SparseTensorProto, directory: Path | None):
        """``directory`` is the one that external data is relative to."""
        super().__init__(sparse.values, directory)
        self.sparse = sparse
        self.shape = tuple(sparse.dims)
        self.nbytes = int(np.prod(self.shape)) * (self.dtype.itemsize if self.dtype else 0)

    def _decode(self) -> np.ndarray:
        dense = np.zeros(self.shape, dtype=self.dtype)
        values = super()._decode()
        indices = LazyTensor(self.sparse.indices, self.directory).load()
        try:
            if indices.ndim == 1:
                dense.reshape(-1)[indices] = values
            else:
                dense[tuple(indices.T)] = values
        except IndexError as error:
            raise ValueError(f"bad sparse indices: {error}") from error
        return dense


class ComputedValues(LazyValues):
    """Values that are made of others, of this shape and type, each time they are asked for: of large ones no more than
    a part is in memory at once while a model is written.

    ``parts`` gives them one after the other along the first axis, or as a whole.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, parts: Callable[[], Iterator[np.ndarray]]) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = int(np.prod(shape)) * dtype.itemsize
        self._parts = parts

    def load(self) -> np.ndarray:
        """The values, read-only."""
        parts = list(self._parts())
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        values.flags.writeable = False
        return values

    @property
    def length(self) -> int:
        """See ``tensor_data.Stored``."""
        return self.nbytes

    def chunks(self) -> Iterator[memoryview]:
        """See ``tensor_data.Stored``."""
        for part in self._parts():
            yield np.ascontiguousarray(part).reshape(-1).view(np.uint8).data


def decode_text(raw: bytes) -> str | bytes:
    """ONNX strings are UTF-8 by convention only: text where it decodes, else the bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


class Node(gs.Node):
    """A node that also has an overload, a doc string and metadata, and is equal only to itself.

    ``output_types`` describe outputs whose types cannot be inferred from the node; they go into the graph's
    value_info.  ``source`` is the NodeProto that it was imported from; it is never changed.  ``source_tensors`` are the
    values of its tensor attributes, by attribute name, as they were imported.

    ``unknown`` is why nothing is known of a node of the standard domain, else empty.  Such a node has
    ``UNKNOWN_DOMAIN`` and an ``op`` that no operator has, so that whoever reads nodes by operator passes it over;
    ``operator`` is its name in files.
    """

    def __init__(
        self,
        op: str,
        name: str | None = None,
        attrs: dict[str, Any] | None = None,
        inputs: Sequence[gs.Tensor] | None = None,
        outputs: Sequence[gs.Tensor] | None = None,
        domain: str | None = None,
        overload: str = "",
        doc_string: str = "",
        metadata: dict[str, str] | None = None,
        source: NodeProto | None = None,
    ):
        """The arguments up to ``domain`` are those of ``gs.Node``; ``source`` is for the importer alone."""
        super().__init__(op, name, attrs, inputs, outputs, domain)
        self.overload = overload
        self.doc_string = doc_string
        self.metadata = {} if metadata is None else metadata
        self.output_types: list[onnx.ValueInfoProto] = []
        self.source = source
        self.source_tensors: dict[str, list[LazyTensor]] = {}
        self.unknown = ""
        self._operator = ""

    def make_unknown(self, reason: str) -> None:
        """Take the node, of the standard domain, for one of which nothing is known."""
        self.unknown, self._operator = reason, self.operator
        self.op, self.domain = f"unknown {self._operator}", UNKNOWN_DOMAIN

    @property
    def operator(self) -> str:
        """The name of the operator in files."""
        return self._operator or str(self.op)

    # gs.Node compares names, attributes and tensors at length, and takes two like nodes for one when it
    # unlinks.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def copy(
        self,
        inputs: Sequence[gs.Tensor] | None = None,
        outputs: Sequence[gs.Tensor] | None = None,
        tensor_map: dict[str, gs.Tensor] | None = None,
    ) -> "Node":
        """A copy with other inputs and outputs; the copy remembers no NodeProto."""
        attrs = {
            name: value.copy(tensor_map) if isinstance(value, gs.Graph) else value for name, value in self.attrs.items()
        }
        copied = Node(
            self.op,
            self.name,
            attrs,
            inputs,
            outputs,
            self.domain,
            self.overload,
            self.doc_string,
            dict(self.metadata),
        )
        copied.unknown, copied._operator = self.unknown, self._operator
        return copied


@dataclass
class Initializer:
    """An initializer of the imported graph.  ``tensor`` is a Variable when a caller may override it."""

    proto: TensorProto | SparseTensorProto
    tensor: gs.Tensor
    values: LazyTensor
    used: bool = False


@dataclass
class GraphSource:
    """What a graph was imported from, and what it held then."""

    proto: GraphProto
    initializers: list[Initializer] = field(default_factory=list)
    tensors: dict[str, gs.Tensor] = field(default_factory=dict)
    constants: set[str] = field(default_factory=set)


class Graph(gs.Graph):
    """A graph that remembers what it was imported from, and is equal only to itself."""

    def __init__(self, source: GraphSource, **fields: Any):
        """``fields`` are the arguments of ``gs.Graph``."""
        self.source = source
        super().__init__(**fields)

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def standard_op(node: gs.Node) -> str:
    """The name of a node's operator if ONNX defines it; empty for one of another domain, whatever its name is, and for
    one of which nothing is known."""
    return str(node.op) if node.domain in STANDARD_DOMAINS else ""


def text_attribute(node: gs.Node, name: str, default: str = "") -> str:
    """A string attribute of a node, which has it as bytes where it is no text."""
    value = node.attrs.get(name, default)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def permutation_of(node: gs.Node, rank: int | None = None) -> list[int] | None:
    """The axes of what a Transpose reads in the order of its result's, by default backwards.

    ``rank`` is how many there are, where the shape of what it reads does not tell.  None for another node, for a rank
    that is not known, and for axes that are not those of so many.
    """
    if standard_op(node) != "Transpose":
        return None
    order, shape = node.attrs.get("perm"), node.inputs[0].shape
    if rank is None and shape is not None:
        rank = len(shape)
    if order is None:
        return None if rank is None else list(range(rank))[::-1]
    return list(order) if sorted(order) == list(range(len(order) if rank is None else rank)) else None


def moves_ones(node: gs.Node) -> bool:
    """Whether a Transpose moves axes of one element alone, so that elements lie as before."""
    order, shape = permutation_of(node), node.inputs[0].shape
    moved = None if order is None or shape is None else [axis for axis in order if shape[axis] != 1]
    return moved is not None and moved == sorted(moved)


def operator_key(node: gs.Node) -> tuple[str, str]:
    """The domain and the name of a node's operator in files; the standard domain is ``""``."""
    if isinstance(node, Node) and node.unknown:
        return "", node.operator
    return ("" if node.domain in STANDARD_DOMAINS else str(node.domain)), str(node.op)


def function_key(node: gs.Node) -> tuple[str, str, str]:
    """What a node calls a function by: domain, operator and overload, as they are in files."""
    return (*operator_key(node), getattr(node, "overload", ""))


def subgraphs(node: gs.Node) -> list[gs.Graph]:
    """The graphs in a node's attributes, in the order of the attributes; not those nested in them."""
    if not node.attrs:
        return []
    found: list[gs.Graph] = []
    for value in node.attrs.values():
        if isinstance(value, gs.Graph):
            found.append(value)
        elif isinstance(value, list) and value and isinstance(value[0], gs.Graph):  # numbers may be many
            found += value
    return found


def walk(graph: gs.Graph) -> Iterator[gs.Graph]:
    """``graph`` and every graph nested in it, outer before inner."""
    pending = [graph]
    while pending:
        current = pending.pop()
        yield current
        inner = [subgraph for node in current.nodes if node.attrs for subgraph in subgraphs(node)]
        pending.extend(reversed(inner))
