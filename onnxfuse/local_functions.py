"""The names of a model's local functions, found without reading the graph, which is most of a file.

This is for what happens whenever a session is created, so it does without the ``onnx`` package, whose import takes
longer than many a session.  The format is that of Protocol Buffers (protobuf.dev/programming-guides/encoding).
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

# The numbers of fields in onnx.proto.
_MODEL_FUNCTIONS = 25
_FUNCTION_NAME = 1
_FUNCTION_DOMAIN = 10

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES = 10  # at most

_Read = Callable[[int, int], bytes]
"""The bytes from one place up to another, or up to the end if that comes first."""


def function_names(model: str | bytes | Path, domain: str) -> frozenset[str] | None:
    """The names of the local functions of ``domain`` in a serialized ModelProto, given as a path or as its bytes.

    None if it cannot be read as one.
    """
    try:
        if isinstance(model, bytes):
            return frozenset(_names(_slices(model), len(model), domain))
        file = os.open(model, os.O_RDONLY)
        try:
            return frozenset(_names(lambda at, end: os.pread(file, end - at, at), os.fstat(file).st_size, domain))
        finally:
            os.close(file)
    except (OSError, EOFError, IndexError, UnicodeDecodeError):
        return None


def _names(read: _Read, size: int, domain: str) -> Iterator[str]:
    for number, at, end in _strings(read, size):
        if number == _MODEL_FUNCTIONS:
            function = read(at, end)
            found = {number: function[at:end] for number, at, end in _strings(_slices(function), len(function))}
            if found.get(_FUNCTION_DOMAIN, b"") == domain.encode():
                yield found.get(_FUNCTION_NAME, b"").decode()


def _slices(data: bytes) -> _Read:
    return lambda at, end: data[at:end]


def _strings(read: _Read, size: int) -> Iterator[tuple[int, int, int]]:
    """The number of each field of a message that holds bytes, and where these begin and end."""
    at = 0
    while at < size:
        head = read(at, at + 2 * _VARINT_BYTES)
        key, used = _varint(head, 0)
        number, wire_type = divmod(key, 8)
        if wire_type == _VARINT:
            at += _varint(head, used)[1]
            continue
        if wire_type == _BYTES:
            length, used = _varint(head, used)
        elif wire_type in (_FIXED64, _FIXED32):
            length = 8 if wire_type == _FIXED64 else 4
        else:
            raise EOFError
        at, start = at + used + length, at + used
        if at > size:
            raise EOFError
        if wire_type == _BYTES:
            yield number, start, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at ``at``, and where it ends."""
    value = 0
    for shift in range(0, 7 * _VARINT_BYTES, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise EOFError
