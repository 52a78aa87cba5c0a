"""A model as bytes, without a copy of all of it in memory."""

from collections.abc import Iterator
from typing import BinaryIO

from google.protobuf.message import EncodeError, Message
from onnx import GraphProto, ModelProto

from onnxfuse.errors import OnnxfuseError

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
    before, behind = type(message)(), type(message)()
    for field, value in message.ListFields():
        part = before if field.number < number else behind
        if field.number == number:
            continue
        if hasattr(value, "MergeFrom"):
            getattr(part, field.name).MergeFrom(value)
        else:
            setattr(part, field.name, value)
    return before.SerializeToString(), behind.SerializeToString()


def _head(number: int, size: int) -> bytes:
    """What precedes a field of so many bytes."""
    return bytes(_varint(number << 3 | _LENGTH_DELIMITED)) + bytes(_varint(size))


def _varint(value: int) -> Iterator[int]:
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value
