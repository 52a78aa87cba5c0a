"""Mutations of model files: of their bytes, and of the fields of the messages that they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import AttributeProto

AttrType = onnx.defs.OpSchema.AttrType

INTEGERS = (0, 1, -1, 2, 3, 7, 127, 128, 255, 1 << 15, (1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, -0.0, 1.0, 1e-45, 3.4e38, float("inf"), float("-inf"), float("nan"))
STRINGS = ("", "x", "y", "é", "\n", "a" * 5000, "../../etc/passwd", "/dev/zero", "ai.onnx", "ai.onnx.ml", "onnxfuse")
OPERATORS = ("Add", "If", "Loop", "Scan", "Cast", "Reshape", "Conv", "Constant", "FusedElementwise", "Nothing", "Clip")
DOMAINS = ("", "ai.onnx.ml", "com.microsoft", "onnxfuse", "acme")
MAX_STRING = 1 << 16
"""Longer byte strings are weights, which a mutation leaves alone."""


def mutated(data: bytes, other: bytes, choose: Random) -> tuple[bytes, str]:
    """A damaged copy of a model file, and what was done to it.  ``other`` is a file that parts are taken from."""
    names = []
    for _ in range(choose.choice((1, 1, 1, 2, 4))):
        if choose.random() < 0.6:
            change = choose.choice(_FIELDS)
            data = _in_message(data, change, choose)
            names.append(change.__name__)
        elif data:
            edit = choose.choice(_BYTES)
            data = edit(data, other, choose)
            names.append(edit.__name__)
    return data, ", ".join(name.strip("_") for name in names)


# --- bytes ---


def _flip(data: bytes, _other: bytes, choose: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(choose.choice((1, 1, 2, 8))):
        changed[_place(data, choose)] ^= 1 << choose.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, _other: bytes, choose: Random) -> bytes:
    at = _place(data, choose)
    return data[:at] + bytes([choose.choice((0, 1, 127, 128, 255))]) * choose.randint(1, 9) + data[at + 1 :]


def _truncate(data: bytes, _other: bytes, choose: Random) -> bytes:
    return data[: _place(data, choose)]


def _remove(data: bytes, _other: bytes, choose: Random) -> bytes:
    at = _place(data, choose)
    return data[:at] + data[at + choose.choice((1, 2, 8, 64)) :]


def _splice(data: bytes, other: bytes, choose: Random) -> bytes:
    """Part of another file, in the middle or to the end."""
    at, start = _place(data, choose), _place(other, choose)
    part = other[start : start + choose.choice((4, 32, 256, 4096))]
    return data[:at] + part + data[at + choose.choice((0, len(part), len(data))) :]


def _break_text(data: bytes, _other: bytes, choose: Random) -> bytes:
    """A byte that is not UTF-8 in a name."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, RuntimeError):
        return data
    names = [
        name.encode() for message in _messages(model) for name in _names(message) if isinstance(name, str) and name
    ]
    if not names:
        return data
    name = choose.choice(names)
    at = data.find(bytes([len(name)]) + name) + 1 if len(name) < 128 else 0
    return data[:at] + b"\xff" + data[at + 1 :] if at else data


def _place(data: bytes, choose: Random) -> int:
    """Somewhere in a file, most often near one of its ends, where the structure is; the middle may be all weights."""
    edge = min(len(data), 4096)
    where = choose.choice((choose.randrange(len(data)), choose.randrange(edge), len(data) - 1 - choose.randrange(edge)))
    return max(0, where)


_BYTES: tuple[Callable[[bytes, bytes, Random], bytes], ...] = (
    *(_flip, _overwrite, _truncate, _remove, _splice, _break_text),
)

# --- fields ---


def _in_message(data: bytes, change: Any, choose: Random) -> bytes:
    """Change one field of one message of the model; the file as it is if it cannot be read or written."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
        messages = list(_messages(model))
        change(choose.choice(messages[: choose.choice((20, len(messages)))]), messages, choose)
        return model.SerializeToString()
    except (DecodeError, ValueError, TypeError, RuntimeError):
        return data


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in value if _is_repeated(field) else (value,):
                yield from _messages(item)


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _set(message: Message, messages: list[Message], choose: Random) -> None:
    """Another value for a field that is set, or any field."""
    fields = [field for field, _ in message.ListFields()] if choose.random() < 0.8 else message.DESCRIPTOR.fields
    fields = [field for field in fields if field.type != FieldDescriptor.TYPE_MESSAGE]
    if not fields:
        return
    field = choose.choice(fields)
    if not _is_repeated(field):
        setattr(message, field.name, _value(field, message, messages, choose))
        return
    values = getattr(message, field.name)
    if len(values) and choose.random() < 0.6:
        values[choose.randrange(len(values))] = _value(field, message, messages, choose)
    else:
        values.append(_value(field, message, messages, choose))


def _value(field: FieldDescriptor, message: Message, messages: list[Message], choose: Random) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return choose.choice(FLOATS)
        case FieldDescriptor.CPPTYPE_STRING:
            text = choose.choice(
                (*STRINGS, *_names(choose.choice(messages)), *_names(message), choose.choice(OPERATORS))
            )
            if field.type == FieldDescriptor.TYPE_BYTES:
                return choose.choice((b"", b"\xff\xfe", b"a\0b", text.encode()))
            return text
        case FieldDescriptor.CPPTYPE_ENUM:
            return choose.choice([value.number for value in field.enum_type.values])
        case FieldDescriptor.CPPTYPE_INT32:
            return choose.choice([value for value in (*INTEGERS, *range(25)) if -(1 << 31) <= value < 1 << 31])
        case FieldDescriptor.CPPTYPE_UINT64:
            return abs(choose.choice(INTEGERS))
        case _:
            return choose.choice(INTEGERS)


def _names(message: Message) -> list[str]:
    """The strings of a message: names of nodes, tensors, operators."""
    found: list[str] = []
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            found += list(value) if _is_repeated(field) else [value]
    return found


def _clear(message: Message, _messages: list[Message], choose: Random) -> None:
    fields = [field for field, _ in message.ListFields()]
    if fields:
        message.ClearField(choose.choice(fields).name)


def _duplicate(message: Message, _messages: list[Message], choose: Random) -> None:
    """An element of a repeated field once more, at the end."""
    if (field := _repeated(message, choose)) is not None:
        values = getattr(message, field.name)
        value = choose.choice(values)
        if not (isinstance(value, (str, bytes)) and len(value) > MAX_STRING):
            values.extend([value])


def _drop(message: Message, _messages: list[Message], choose: Random) -> None:
    """One element of a repeated field less."""
    if (field := _repeated(message, choose)) is not None:
        values = getattr(message, field.name)
        del values[choose.randrange(len(values))]


def _reverse(message: Message, _messages: list[Message], choose: Random) -> None:
    """The elements of a repeated field in the other order."""
    if (field := _repeated(message, choose)) is not None:
        values = getattr(message, field.name)
        copies = [
            type(value).FromString(value.SerializeToString()) if isinstance(value, Message) else value
            for value in values
        ]
        del values[:]
        values.extend(reversed(copies))


def _repeated(message: Message, choose: Random) -> FieldDescriptor | None:
    fields = [field for field, value in message.ListFields() if _is_repeated(field) and len(value) < MAX_STRING]
    return choose.choice(fields) if fields else None


def _transplant(message: Message, messages: list[Message], choose: Random) -> None:
    """The contents of another message of the same type: a graph in itself, a tensor's data in another's place."""
    others = [other for other in messages if other.DESCRIPTOR is message.DESCRIPTOR and other is not message]
    if others:
        contents = choose.choice(others).SerializeToString()
        if len(contents) < 1 << 20:
            message.ParseFromString(contents) if choose.random() < 0.5 else message.MergeFromString(contents)


# --- nodes ---


def _attribute(_message: Message, messages: list[Message], choose: Random) -> None:
    """A value, most often of the right type, for an attribute that the operator has; the node may not have given it."""
    node = _node(messages, choose)
    if node is None or not onnx.defs.has(node.op_type):
        return
    attributes = onnx.defs.get_schema(node.op_type).attributes
    names = [name for name in sorted(attributes) if attributes[name].type in _VALUES]
    if not names:
        return
    name = choose.choice(names)
    attribute = next((one for one in node.attribute if one.name == name), None) or node.attribute.add()
    attribute.Clear()
    attribute.name = name
    usual = _VALUES[attributes[name].type]
    kind, field_name = usual if choose.random() < 0.9 else choose.choice(list(_VALUES.values()))
    attribute.type = kind
    field = attribute.DESCRIPTOR.fields_by_name[field_name]
    if _is_repeated(field):
        values = [_value(field, attribute, messages, choose) for _ in range(choose.randrange(6))]
        getattr(attribute, field_name).extend(values)
    else:
        setattr(attribute, field_name, _value(field, attribute, messages, choose))


_VALUES = {
    AttrType.INT: (AttributeProto.INT, "i"),
    AttrType.FLOAT: (AttributeProto.FLOAT, "f"),
    AttrType.STRING: (AttributeProto.STRING, "s"),
    AttrType.INTS: (AttributeProto.INTS, "ints"),
    AttrType.FLOATS: (AttributeProto.FLOATS, "floats"),
    AttrType.STRINGS: (AttributeProto.STRINGS, "strings"),
}
"""The types of attributes that are numbers or text, and the fields that hold them."""


def _make_foreign(_message: Message, messages: list[Message], choose: Random) -> None:
    """A node of the same name in another domain, whose inputs and outputs nobody checks."""
    node = _node(messages, choose)
    if node is not None:
        node.domain = choose.choice(DOMAINS)
        del node.input[choose.randint(0, len(node.input)) :]
        if choose.random() < 0.2:
            del node.output[choose.randint(0, len(node.output)) :]


def _node(messages: list[Message], choose: Random) -> onnx.NodeProto | None:
    nodes = [message for message in messages if isinstance(message, onnx.NodeProto)]
    return choose.choice(nodes) if nodes else None


_FIELDS: tuple[Callable[[Message, list[Message], Random], None], ...] = (
    *(_set, _set, _set, _clear, _duplicate, _drop, _reverse, _transplant, _attribute, _attribute, _make_foreign),
)
