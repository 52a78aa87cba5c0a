"""The names of a model's local functions, found without reading the graph, which is most of a file.

This is for what happens whenever a session is created, so it does without the ``onnx`` package, whose import takes
longer than many a session.  The format is that of Protocol Buffers (protobuf.dev/programming-guides/encoding).
"""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

# The numbers of fields in onnx.proto.
_MODEL_FUNCTIONS = 25
_FUNCTION_NAME = 1
_FUNCTION_DOMAIN = 10

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def function_names(model: str | bytes | Path, domain: str) -> frozenset[str] | None:
    """The names of the local functions of ``domain`` in a serialized ModelProto, given as a path or as its bytes.

    None if it cannot be read as one.
    """
    names = set()
    try:
        with BytesIO(model) if isinstance(model, bytes) else Path(model).open("rb") as file:
            for _, function in _strings(file, {_MODEL_FUNCTIONS}):
                found = dict(_strings(BytesIO(function), {_FUNCTION_NAME, _FUNCTION_DOMAIN}))
                if found.get(_FUNCTION_DOMAIN, b"") == domain.encode():
                    names.add(found.get(_FUNCTION_NAME, b"").decode())
    except (OSError, EOFError, UnicodeDecodeError):
        return None
    return frozenset(names)


def _strings(file: BinaryIO, wanted: set[int]) -> Iterator[tuple[int, bytes]]:
    """The fields of a message that have one of the ``wanted`` numbers and hold bytes; all others are skipped."""
    size = file.seek(0, 2)
    file.seek(0)
    while file.tell() < size:
        field, wire_type = divmod(_varint(file), 8)
        if wire_type == _VARINT:
            _varint(file)
            continue
        length = _varint(file) if wire_type == _BYTES else {_FIXED64: 8, _FIXED32: 4}.get(wire_type)
        if length is None or file.tell() + length > size:
            raise EOFError
        if wire_type == _BYTES and field in wanted:
            yield field, file.read(length)
        else:
            file.seek(length, 1)


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise EOFError
