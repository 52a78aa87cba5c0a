"""Models as bytes, of which the data of large tensors is never in memory as a whole."""

from collections.abc import Iterator
from typing import BinaryIO

from google.protobuf.message import EncodeError, Message
from onnx import GraphProto, ModelProto, TensorProto

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.protos import copy_fields

_LIMIT = (1 << 31) - 1
_GRAPH = ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = GraphProto.INITIALIZER_FIELD_NUMBER
_LENGTH_DELIMITED = 2
_TOO_LARGE = "the model is too large for one file, even with its data outside it"


def write_model(proto: ModelProto, file: BinaryIO) -> None:
    """Write what ``proto.SerializeToString()`` gives, of which no more than an initializer is in memory at once.

    Raises OnnxfuseError for a model that is too large for protobuf, before anything is written.
    """
    try:
        before, after = _around(proto, _GRAPH)
        first, last = _around(proto.graph, _INITIALIZER)
    except (EncodeError, ValueError) as error:
        raise OnnxfuseError(_TOO_LARGE) from error
    sizes = [tensor.ByteSize() for tensor in proto.graph.initializer]
    heads = [_head(_INITIALIZER, size) for size in sizes]
    size = len(first) + sum(map(len, heads)) + sum(sizes) + len(last)
    graph = _head(_GRAPH, size) if proto.HasField("graph") else b""
    if len(before) + len(graph) + size + len(after) > _LIMIT:
        raise OnnxfuseError(_TOO_LARGE)
    file.write(before + graph + first)
    for head, tensor in zip(heads, proto.graph.initializer, strict=True):
        file.write(head)
        file.write(tensor.SerializeToString())
    file.write(last + after)


def _around(message: Message, number: int) -> tuple[bytes, bytes]:
    """The bytes of the fields before and behind one field: protobuf writes them in the order of their numbers."""
    numbers = {field.name: field.number for field in message.DESCRIPTOR.fields}
    before, behind = type(message)(), type(message)()
    copy_fields(message, before, {name for name, own in numbers.items() if own >= number})
    copy_fields(message, behind, {name for name, own in numbers.items() if own <= number})
    return before.SerializeToString(), behind.SerializeToString()


def _head(number: int, size: int) -> bytes:
    """What precedes a field of so many bytes."""
    return bytes(_varint(number << 3 | _LENGTH_DELIMITED)) + bytes(_varint(size))


def _varint(value: int) -> Iterator[int]:
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value


Bytes = bytes | memoryview


def outline(data: Bytes, most: int) -> bytes:
    """The bytes of a model without the data of those initializers of its main graph that have more than ``most`` bytes.

    Raises ValueError for what are no bytes of a model.
    """
    parts: list[Bytes] = []
    for number, whole, content in _fields(data):
        if number != _GRAPH or content is None:
            parts.append(whole)
            continue
        kept: list[Bytes] = []
        for inner, field, tensor in _fields(content):
            is_large = inner == _INITIALIZER and tensor is not None and len(tensor) > most
            kept += _without_data(tensor) if is_large and tensor is not None else [field]
        parts += [_head(_GRAPH, sum(map(len, kept))), *kept]
    return b"".join(parts)


_DATA = {
    number
    for name, number in ((field.name, field.number) for field in TensorProto.DESCRIPTOR.fields)
    if name.endswith("_data") and name not in ("external_data", "string_data")
}


def _without_data(tensor: Bytes) -> list[Bytes]:
    kept = [whole for number, whole, _ in _fields(tensor) if number not in _DATA]
    return [_head(_INITIALIZER, sum(map(len, kept))), *kept]


def _fields(data: Bytes) -> Iterator[tuple[int, Bytes, Bytes | None]]:
    """The fields of a message: the number, all bytes, and the content if it has a length.

    https://protobuf.dev/programming-guides/encoding.  Raises ValueError for what is no message.
    """
    at = 0
    while at < len(data):
        start = at
        tag, at = _read_varint(data, at)
        content: Bytes | None = None
        match tag & 7:
            case 0:
                _, at = _read_varint(data, at)
            case 1:
                at += 8
            case 2:
                size, at = _read_varint(data, at)
                content = data[at : at + size]
                at += size
            case 5:
                at += 4
            case kind:
                raise ValueError(f"a field of kind {kind}")
        if at > len(data):
            raise ValueError("a field that ends behind the end")
        yield tag >> 3, data[start:at], content


def _read_varint(data: Bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number without an end")
