"""Arbitrary protobuf messages, for tests of what must never happen: any bytes that parse may arrive.

`messages(Cls)` is a hypothesis strategy: fields are left out or filled with everything their type can hold, with a
preference for the values that programs stumble over. `changed(message)` starts from a good message and makes one or
two of its fields strange, so that what is wrong lies deep behind what is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

M = TypeVar("M", bound=Message)

_MAX_DEPTH = 5
_MAX_ITEMS = 3

_AWKWARD_TEXT = (
    "", " ", "..", "../../etc/passwd", "/", "a/b", "-", ".", "a\x00b", "a\nb", "é", "²", "٣", "9" * 5000, "x" * 300,
    "Running", "Stopped", "process", "container", "compose", "vm", "always", "tcp", "127.0.0.1:80", "[::1]:80", ":1",
)  # fmt: skip


def _integers(bits: int) -> st.SearchStrategy[int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.sampled_from((0, 1, -1, low, high, -62135596800 if bits == 64 else 65536)) | st.integers(low, high)


_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: st.sampled_from(_AWKWARD_TEXT) | st.text(st.characters(codec="utf-8"), max_size=20),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=40),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.TYPE_FIXED64: _integers(64).map(lambda value: value & 2**64 - 1),
    FieldDescriptor.TYPE_UINT32: _integers(32).map(lambda value: value & 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: _integers(64).map(lambda value: value & 2**64 - 1),
    FieldDescriptor.TYPE_INT32: _integers(32),
    FieldDescriptor.TYPE_INT64: _integers(64),
    FieldDescriptor.TYPE_ENUM: st.integers(0, 10) | st.sampled_from((100, -1, 2**31 - 1)),
}


def messages(cls: type[M]) -> st.SearchStrategy[M]:
    """Messages of this type, as strange as its fields allow."""
    return _contents(cls.DESCRIPTOR, 0).map(lambda fields: _filled(cls(), fields))


@st.composite
def changed(draw: st.DrawFn, message: M) -> M:
    """The message with one or two fields, at any depth, left out or filled with something else."""
    result = type(message)()
    result.CopyFrom(message)
    for _ in range(draw(st.integers(1, 2))):
        places = [*_places(result, 0)]
        owner, field, depth = draw(st.sampled_from(places)) if places else (None, None, 0)
        if owner is None or field is None:
            break
        owner.ClearField(field.name)
        if draw(st.integers(0, 4)):
            _filled(owner, {field.name: draw(_values(field, depth))})
    return result


def _places(message: Message, depth: int) -> Iterator[tuple[Message, Any, int]]:
    """Every field of a message and of the messages that are set in it."""
    for field in message.DESCRIPTOR.fields:
        yield message, field, depth
        nested = field.message_type
        if nested is None or nested.GetOptions().map_entry or depth >= _MAX_DEPTH:
            continue
        value = getattr(message, field.name)
        parts = value if field.is_repeated else [value] if message.HasField(field.name) else []
        for part in parts:
            yield from _places(part, depth + 1)


def _contents(descriptor: Any, depth: int) -> st.SearchStrategy[dict[str, Any]]:
    fields = {
        field.name: _values(field, depth)
        for field in descriptor.fields
        if depth < _MAX_DEPTH or field.message_type is None
    }
    return st.fixed_dictionaries({}, optional=fields)


def _values(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, value = message.fields_by_name["key"], message.fields_by_name["value"]
        return st.dictionaries(_values(key, depth + 1), _values(value, depth + 1), max_size=_MAX_ITEMS)
    one = _contents(message, depth + 1) if message is not None else _SCALARS[field.type]
    return st.lists(one, max_size=_MAX_ITEMS) if field.is_repeated else one


def _filled(message: M, fields: dict[str, Any]) -> M:
    for name, value in fields.items():
        descriptor = message.DESCRIPTOR.fields_by_name[name]
        nested = descriptor.message_type
        if nested is not None and nested.GetOptions().map_entry:
            getattr(message, name).update(value)
        elif descriptor.is_repeated and nested is not None:
            for each in value:
                _filled(getattr(message, name).add(), each)
        elif descriptor.is_repeated:
            getattr(message, name).extend(value)
        elif nested is not None:
            part = getattr(message, name)
            part.SetInParent()
            _filled(part, value)
        else:
            setattr(message, name, value)
    return message
