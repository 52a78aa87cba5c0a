"""Models as bytes, of which the data of large tensors is never in memory as a whole."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from google.protobuf.message import EncodeError, Message
from onnx import GraphProto, ModelProto, TensorProto

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.protos import copy_fields
from onnxfuse.model.tensor_data import NOTHING_STORED, Stored

_LIMIT = (1 << 31) - 1
_GRAPH = ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = TensorProto.RAW_DATA_FIELD_NUMBER
_NAME = TensorProto.NAME_FIELD_NUMBER
_LENGTH_DELIMITED = 2
_TOO_LARGE = "the model is too large for one file, even with its data outside it"


def write_model(proto: ModelProto, file: BinaryIO, stored: Mapping[str, Stored] = NOTHING_STORED) -> None:
    """Write what ``proto.SerializeToString()`` gives, of which no more than an initializer is in memory at once.

    ``stored`` has the data of initializers, by their names, that have none in ``proto``.  Raises OnnxfuseError for a
    model that is too large for protobuf, before anything is written.
    """
    try:
        before, after = _around(proto, _GRAPH)
        first, last = _around(proto.graph, _INITIALIZER)
    except (EncodeError, ValueError) as error:
        raise OnnxfuseError(_TOO_LARGE) from error
    sizes = [_size_of(tensor, stored.get(tensor.name)) for tensor in proto.graph.initializer]
    heads = [_head(_INITIALIZER, size) for size in sizes]
    size = len(first) + sum(map(len, heads)) + sum(sizes) + len(last)
    graph = _head(_GRAPH, size) if proto.HasField("graph") else b""
    if len(before) + len(graph) + size + len(after) > _LIMIT:
        raise OnnxfuseError(_TOO_LARGE)
    file.write(before + graph + first)
    for head, tensor in zip(heads, proto.graph.initializer, strict=True):
        file.write(head)
        data = stored.get(tensor.name)
        if data is None:
            file.write(tensor.SerializeToString())
            continue
        before, behind = _around(tensor, _RAW_DATA)
        file.write(before + _head(_RAW_DATA, data.length))
        file.writelines(data.chunks())
        file.write(behind)
    file.write(last + after)


def _size_of(tensor: TensorProto, data: Stored | None) -> int:
    """The bytes of a tensor with data that it does not hold itself."""
    own = tensor.ByteSize()
    return own if data is None else own + len(_head(_RAW_DATA, data.length)) + data.length


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


@dataclass(frozen=True)
class Place:
    """Where in a file some bytes are."""

    offset: int
    length: int


def outline(data: Bytes, most: int) -> bytes:
    """The bytes of a model without the data of those initializers of its main graph that have more than ``most`` bytes.

    Raises ValueError for what are no bytes of a model.
    """

    def without_data(begin: int, end: int) -> list[Bytes]:
        return [data[start:stop] for number, start, _, stop in _fields(data, begin, end) if number not in _DATA]

    return _with_initializers(data, without_data, most)


def divide(data: Bytes, most: int) -> tuple[bytes, dict[str, Place]]:
    """``outline``, and where the raw data lies that it lacks, by the names of initializers.

    It has all of an initializer with data in other fields than ``raw_data``, or in several, and of those of one name.
    """
    found: dict[str, Place] = {}
    names: Counter[str] = Counter()

    def without_raw_data(begin: int, end: int) -> list[Bytes] | None:
        fields = list(_fields(data, begin, end))
        held = [(number, content, stop) for number, _, content, stop in fields if number in _HOLDS_DATA]
        named = [
            bytes(data[content:stop]).decode() for number, _, content, stop in fields if number == _NAME and content
        ]
        if len(named) != 1:
            return None
        names[named[0]] += 1
        ((number, content, stop),) = held if len(held) == 1 else ((0, None, 0),)
        if number != _RAW_DATA or content is None or end - begin <= most:
            return None
        found[named[0]] = Place(content, stop - content)
        return [data[start:after] for number, start, _, after in fields if number != _RAW_DATA]

    light = _with_initializers(data, without_raw_data, 0)
    if any(count > 1 for count in names.values()):
        return bytes(data), {}
    return light, found


def _with_initializers(data: Bytes, parts_of: Callable[[int, int], list[Bytes] | None], most: int) -> bytes:
    """The bytes of a model with other parts of initializers of the main graph that have more than ``most`` bytes.

    ``parts_of`` gives them for the tensor between two places; None where it stays as it is.
    """
    parts: list[Bytes] = []
    for number, start, content, end in _fields(data, 0, len(data)):
        if number != _GRAPH or content is None:
            parts.append(data[start:end])
            continue
        kept: list[Bytes] = []
        for inner, first, tensor, last in _fields(data, content, end):
            is_large = inner == _INITIALIZER and tensor is not None and last - tensor > most
            others = parts_of(tensor, last) if is_large and tensor is not None else None
            if others is None:
                kept.append(data[first:last])
            else:
                kept += [_head(_INITIALIZER, sum(map(len, others))), *others]
        parts += [_head(_GRAPH, sum(map(len, kept))), *kept]
    return b"".join(parts)


_NUMBERS = {field.name: field.number for field in TensorProto.DESCRIPTOR.fields}
_DATA = {
    number
    for name, number in _NUMBERS.items()
    if name.endswith("_data") and name not in ("external_data", "string_data")
}
_HOLDS_DATA = {number for name, number in _NUMBERS.items() if name.endswith("_data")} | {_NUMBERS["data_location"]}


def _fields(data: Bytes, begin: int, end: int) -> Iterator[tuple[int, int, int | None, int]]:
    """The fields of the message between two places of ``data``: the number of each, where it begins, where its content
    does if it has a length, and where it ends.

    https://protobuf.dev/programming-guides/encoding.  Raises ValueError for what is no message.
    """
    at = begin
    while at < end:
        start = at
        tag, at = _read_varint(data, at, end)
        content: int | None = None
        match tag & 7:
            case 0:
                _, at = _read_varint(data, at, end)
            case 1:
                at += 8
            case 2:
                size, content = _read_varint(data, at, end)
                at = content + size
            case 5:
                at += 4
            case kind:
                raise ValueError(f"a field of kind {kind}")
        if at > end:
            raise ValueError("a field that ends behind the end")
        yield tag >> 3, start, content, at


def _read_varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number without an end")
