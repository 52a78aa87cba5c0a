"""The data of TensorProtos: how large it is, where it lies, whether it is all there, reading and copying it.

Data outside the model file is laid out as ONNX's external data: a TensorProto whose ``data_location`` is
EXTERNAL names a file relative to the model's directory, an offset and a length.  The location comes from the
model file, so it is treated as hostile.
"""

import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxfuse.errors import OnnxfuseError

_CHUNK = 4 << 20

_BITS: dict[int, int] = {
    TensorProto.BFLOAT16: 16,
    TensorProto.FLOAT8E4M3FN: 8,
    TensorProto.FLOAT8E4M3FNUZ: 8,
    TensorProto.FLOAT8E5M2: 8,
    TensorProto.FLOAT8E5M2FNUZ: 8,
    TensorProto.FLOAT8E8M0: 8,
    TensorProto.FLOAT6E2M3: 6,
    TensorProto.FLOAT6E3M2: 6,
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.FLOAT4E2M1: 4,
    TensorProto.INT2: 2,
    TensorProto.UINT2: 2,
}


def element_count(tensor: TensorProto) -> int:
    """Number of elements that the tensor's dimensions declare."""
    return prod(tensor.dims)


def byte_size(tensor: TensorProto) -> int | None:
    """Bytes of the tensor's raw data, by its type and dimensions; None where the type has no fixed size."""
    bits = _BITS.get(tensor.data_type)
    if bits is None:
        try:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        except KeyError:
            return None
        if dtype.hasobject:
            return None
        bits = int(dtype.itemsize) * 8
    return (element_count(tensor) * bits + 7) // 8


def check_inline(tensor: TensorProto) -> None:
    """Raise OnnxfuseError, naming the tensor, unless the TensorProto holds as much data as it declares."""
    if tensor.HasField("raw_data"):
        held, expected = len(tensor.raw_data), byte_size(tensor)
    else:
        try:
            held = len(getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type)))
        except KeyError:
            raise OnnxfuseError(f"tensor {tensor.name!r} has the unknown data type {tensor.data_type}") from None
        expected = element_count(tensor)
        if _BITS.get(tensor.data_type, 8) in (2, 4):
            expected = byte_size(tensor)
        elif tensor.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
            expected *= 2
    if held != expected:
        raise OnnxfuseError(f"tensor {tensor.name!r}: it holds {held} bytes or values where {expected} are needed")


def is_external(tensor: TensorProto) -> bool:
    """Whether the tensor's data lies in a file of its own."""
    return tensor.data_location == TensorProto.EXTERNAL


def tensors(
    proto: ModelProto | GraphProto | FunctionProto | NodeProto | AttributeProto,
) -> Iterator[TensorProto]:
    """Every TensorProto in ``proto``: initializers, attributes, subgraphs, functions and training graphs."""
    pending: list[Message] = [proto]
    while pending:
        item = pending.pop()
        if isinstance(item, ModelProto):
            pending.append(item.graph)
            pending.extend(item.functions)
            for training in item.training_info:
                pending += [training.initialization, training.algorithm]
        elif isinstance(item, GraphProto):
            yield from item.initializer
            for sparse in item.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            pending.extend(node for node in item.node if node.attribute)
        elif isinstance(item, FunctionProto):
            pending.extend(item.attribute_proto)
            pending.extend(node for node in item.node if node.attribute)
        elif isinstance(item, NodeProto):
            pending.extend(item.attribute)
        elif not isinstance(item, AttributeProto):
            raise TypeError(f"no tensors in a {type(item).__name__}")
        elif item.type == AttributeProto.TENSOR:
            yield item.t
        elif item.type == AttributeProto.TENSORS:
            yield from item.tensors
        elif item.type == AttributeProto.GRAPH:
            pending.append(item.g)
        elif item.type == AttributeProto.GRAPHS:
            pending.extend(item.graphs)
        elif item.type == AttributeProto.SPARSE_TENSOR:
            yield from (item.sparse_tensor.values, item.sparse_tensor.indices)
        elif item.type == AttributeProto.SPARSE_TENSORS:
            for sparse in item.sparse_tensors:
                yield from (sparse.values, sparse.indices)


class Stored(Protocol):
    """The bytes of a tensor that are not in memory: as ``TensorProto.raw_data`` has them."""

    @property
    def length(self) -> int:
        """How many they are."""

    def chunks(self) -> Iterator[bytes | memoryview]:
        """All of them, in pieces.  Raises OnnxfuseError where they cannot be had."""


NOTHING_STORED: Mapping[str, Stored] = MappingProxyType({})
"""By names of initializers: all have their data themselves."""


class OpenFile:
    """A file that stays open, so that what is read of it is of the same file when another takes its place."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self.file = path.open("rb", buffering=0)
        self._state = self._look()

    @property
    def size(self) -> int:
        """Bytes that it had when it was opened."""
        return self._state[0]

    def mapped(self) -> memoryview:
        """All of it.  Raises OSError or ValueError for what cannot be mapped, such as an empty file."""
        return memoryview(mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ))

    def _look(self) -> tuple[int, int]:
        state = os.fstat(self.file.fileno())
        return state.st_size, state.st_mtime_ns

    def chunks(self, offset: int, length: int) -> Iterator[bytes]:
        """The bytes from ``offset`` on in pieces of a few MiB.

        Raises OSError, or OnnxfuseError if the file is shorter or was written to since it was opened.
        """
        while length:
            if self._look() != self._state:
                raise OnnxfuseError(f"{self.path} was changed while it was read")
            self.file.seek(offset)
            chunk = self.file.read(min(_CHUNK, length))
            if not chunk:
                raise OnnxfuseError(f"{self.path} is too short")
            offset += len(chunk)
            length -= len(chunk)
            yield chunk

    def __del__(self) -> None:
        if hasattr(self, "file"):
            self.file.close()


@dataclass(frozen=True)
class FileSlice:
    """The bytes of one tensor in a file: one that stays open, or else whichever has the path when they are read."""

    tensor: str
    path: Path
    offset: int
    length: int
    file: OpenFile | None = None

    def chunks(self) -> Iterator[bytes]:
        """The bytes in pieces of a few MiB.  Raises OnnxfuseError where the file is short, changed or unreadable."""
        try:
            yield from (self.file or OpenFile(self.path)).chunks(self.offset, self.length)
        except OSError as error:
            raise OnnxfuseError(f"tensor {self.tensor!r}: cannot read {self.path}: {error.strerror}") from error
        except OnnxfuseError as error:
            raise OnnxfuseError(f"tensor {self.tensor!r}: {error}") from error


def read_all(stored: Stored) -> bytes:
    """All the bytes."""
    return b"".join(stored.chunks())


def read_array(stored: Stored) -> np.ndarray:
    """All the bytes, in memory once: those of joined pieces are there twice meanwhile."""
    found, at = np.empty(stored.length, np.uint8), 0
    for chunk in stored.chunks():
        found[at : at + len(chunk)] = np.frombuffer(chunk, np.uint8)
        at += len(chunk)
    return found


def locate(tensor: TensorProto, directory: Path | None) -> FileSlice:
    """Where an external tensor's bytes lie.

    ``directory`` is the model file's.  Raises OnnxfuseError, naming the tensor and the file, when the
    location leaves that directory (absolute, by ``..`` or by a symbolic link), or when the file is missing or
    too short.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    where = f"tensor {tensor.name!r}: external data file {location!r}"
    if directory is None:
        raise OnnxfuseError(f"{where}: the model's own path is not known, so its external data cannot be found")
    if not location or "\0" in location:
        raise OnnxfuseError(f"tensor {tensor.name!r}: its external data names no file")
    if Path(location).is_absolute():
        raise OnnxfuseError(f"{where} is an absolute path; only files in the model's directory are read")
    try:
        path = (directory / location).resolve()
        if not path.is_relative_to(directory.resolve()):
            raise OnnxfuseError(f"{where} lies outside the model's directory")
        if not path.is_file():
            raise OnnxfuseError(f"{where} does not exist" if not path.exists() else f"{where} is not a regular file")
        available = path.stat().st_size
    except (OSError, RuntimeError) as error:
        raise OnnxfuseError(f"{where} cannot be read: {error}") from error
    expected = byte_size(tensor)
    if expected is None:
        raise OnnxfuseError(f"tensor {tensor.name!r}: its element type cannot lie in external data")
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries.get("length") or expected)
    except ValueError:
        raise OnnxfuseError(f"{where}: offset and length must be whole numbers") from None
    if offset < 0 or length != expected:
        raise OnnxfuseError(f"{where}: offset {offset} and length {length} do not fit the tensor's {expected} bytes")
    if offset + length > available:
        raise OnnxfuseError(f"{where} is too short: {available} bytes where {offset + length} are needed")
    return FileSlice(tensor.name, path, offset, length)


def check_all(proto: ModelProto, directory: Path | None) -> None:
    """Raise OnnxfuseError unless the data of every external tensor of ``proto`` is there and may be read."""
    for tensor in tensors(proto):
        if is_external(tensor):
            locate(tensor, directory)
