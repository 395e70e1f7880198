"""Turns frozen dataclasses into JSON values and back, by the types of their fields. Bytes become blobs beside the JSON.

Reading is strict: a field that is missing, unknown or of another type raises `BadFieldError` with its path. Only
classes that the caller's types name are made. For `shoal.dataflow.execution.hosts.control_messages`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import InvalidError
from shoal.dataflow.checkpoint.messages import TaskId

_LEAST, _MOST = -(2**63), 2**64 - 1
_TASK = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})", re.ASCII)
#: Every integer is also a valid value of a field that holds a float.
_SCALARS: dict[type, tuple[type, ...]] = {str: (str,), bool: (bool,), int: (int,), float: (float, int)}


class BadFieldError(Exception):
    """A value is not of the type that its field has."""

    def __init__(self, at: str, value: object, rule: str) -> None:
        super().__init__(f"{at}: {rule}")
        self.at = at
        self.value = value
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Form:
    """How the values of one type are written and read."""

    #: Appends bytes to the list of blobs and returns the JSON value.
    write: Callable[[Any, list[bytes]], Any]
    #: Takes the JSON value, the blobs and the path of the value.
    read: Callable[[Any, list[bytes], str], Any]


@functools.cache
def form_of(kind: Any) -> Form:
    """The form of a type. Raises `TypeError` for one that cannot cross."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in _SCALARS:
        return Form(lambda value, _blobs: value, functools.partial(_read_scalar, (kind,)))
    if kind is bytes:
        return Form(_write_blob, _read_blob)
    if kind is TaskId:
        return Form(lambda value, _blobs: str(value), lambda value, _blobs, at: _read_task(value, at))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _tuple_form(form_of(arguments[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_form(arguments[0], form_of(arguments[1]))
    if origin in {types.UnionType, typing.Union}:
        return _union_form(arguments)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_form(kind)
    raise TypeError(f"{kind} cannot cross a control link")


# ---------------------------------------------------------------------------------------------------------
# Single values


def _read_scalar(kinds: tuple[type, ...], value: Any, _blobs: list[bytes], at: str) -> Any:
    allowed = {each for kind in kinds for each in _SCALARS[kind]}
    if type(value) not in allowed:
        raise BadFieldError(at, value, f"must be {' or '.join(kind.__name__ for kind in kinds)}")
    if type(value) is int and not _LEAST <= value <= _MOST:
        raise BadFieldError(at, None, "must fit into 64 bits")
    if type(value) is float and not math.isfinite(value):
        raise BadFieldError(at, value, "must be finite")
    return value


def _write_blob(value: bytes, blobs: list[bytes]) -> int:
    blobs.append(value)
    return len(blobs) - 1


def _read_blob(value: Any, blobs: list[bytes], at: str) -> bytes:
    if type(value) is not int or not 0 <= value < len(blobs):
        raise BadFieldError(at, value, f"must be the number of one of {len(blobs)} blobs")
    return blobs[value]


def _read_task(value: Any, at: str) -> TaskId:
    match = _TASK.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise BadFieldError(at, value, "must be a task, as 'stage.subtask'")
    return TaskId(int(match[1]), int(match[2]))


# ---------------------------------------------------------------------------------------------------------
# Values made of others


def _tuple_form(item: Form) -> Form:
    def write(value: Any, blobs: list[bytes]) -> Any:
        return [item.write(each, blobs) for each in value]

    def read(value: Any, blobs: list[bytes], at: str) -> Any:
        if not isinstance(value, list):
            raise BadFieldError(at, value, "must be a list")
        return tuple(item.read(each, blobs, f"{at}[{index}]") for index, each in enumerate(value))

    return Form(write, read)


def _mapping_form(key: Any, item: Form) -> Form:
    if key not in {str, TaskId}:
        raise TypeError(f"a mapping by {key} cannot cross a control link")

    def write(value: Any, blobs: list[bytes]) -> Any:
        return {str(name): item.write(each, blobs) for name, each in value.items()}

    def read(value: Any, blobs: list[bytes], at: str) -> Any:
        if not isinstance(value, dict):
            raise BadFieldError(at, value, "must be an object")
        read_key = _read_task if key is TaskId else lambda name, _at: name
        return {read_key(name, at): item.read(each, blobs, f"{at}.{name[:40]}") for name, each in value.items()}

    return Form(write, read)


def _union_form(kinds: tuple[Any, ...]) -> Form:
    """An optional value, a scalar of several types, or one of several classes, which its name tells apart."""
    others = tuple(kind for kind in kinds if kind is not types.NoneType)
    if all(kind in _SCALARS for kind in others):
        form = Form(lambda value, _blobs: value, functools.partial(_read_scalar, others))
    elif len(others) == 1:
        form = form_of(others[0])
    else:
        form = _one_of(others)
    if len(others) == len(kinds):
        return form
    return Form(
        lambda value, blobs: None if value is None else form.write(value, blobs),
        lambda value, blobs, at: None if value is None else form.read(value, blobs, at),
    )


def _one_of(kinds: tuple[Any, ...]) -> Form:
    forms = {kind.__name__: form_of(kind) for kind in kinds}

    def write(value: Any, blobs: list[bytes]) -> Any:
        name = type(value).__name__
        return [name, forms[name].write(value, blobs)]

    def read(value: Any, blobs: list[bytes], at: str) -> Any:
        if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str) or value[0] not in forms:
            raise BadFieldError(at, value, f"must be one of {', '.join(forms)} and its fields")
        return forms[value[0]].read(value[1], blobs, f"{at}.{value[0]}")

    return Form(write, read)


def _dataclass_form(cls: Any) -> Form:
    hints = typing.get_type_hints(cls)
    fields = {each.name: form_of(hints[each.name]) for each in dataclasses.fields(cls)}

    def write(value: Any, blobs: list[bytes]) -> Any:
        return {name: form.write(getattr(value, name), blobs) for name, form in fields.items()}

    def read(value: Any, blobs: list[bytes], at: str) -> Any:
        if not isinstance(value, dict):
            raise BadFieldError(at, value, "must be an object")
        for name in value.keys() ^ fields.keys():
            rule = "is missing" if name in fields else "is not a field"
            raise BadFieldError(f"{at}.{name[:40]}", None, rule)
        found = {name: form.read(value[name], blobs, f"{at}.{name}") for name, form in fields.items()}
        try:
            return cls(**found)
        except InvalidError as error:
            raise BadFieldError(at, None, error.message) from error

    return Form(write, read)
