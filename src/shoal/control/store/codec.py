"""Converts records to JSON documents and back.

`shoal.core.shape` reads what people write and refuses what breaks a rule. What was accepted once must stay readable
after a rule became stricter, so this codec follows the types and checks no rules. It keeps what JSON has no form
for: moments to the microsecond, durations, bytes, enums, sets. The text is plain ASCII, so every database keeps every
character, NUL and lone surrogates too.

A field that a document lacks gets its default, and a field that the class lacks is left out: programs one version
apart read each other's documents. A change beyond that raises `FORMAT` and adds a step to `_UPGRADES`.

Called by `shoal.control.store.rows`.
"""

from __future__ import annotations

import base64
import collections.abc
import dataclasses
import enum
import functools
import json
import types
import typing
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from shoal.core.errors import InternalError, PreconditionError
from shoal.model.stored import stored_name

T = TypeVar("T")

FORMAT = 1
"""The number that is stored beside each document."""

Convert = Callable[[Any], Any]

_UPGRADES: dict[int, Callable[[str, dict[str, Any]], dict[str, Any]]] = {}
"""From a format to the one after it: takes the name of the class and the document."""

_encode_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_MICROSECOND = timedelta(microseconds=1)
#: What a text that is no document of ours may raise on its way into a record.
_BROKEN = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


class DocumentCodec(Generic[T]):
    """Writes the fields of one class as a document, except those that have a column of their own."""

    def __init__(self, cls: type[T], *, columns: Collection[str] = ()) -> None:
        self._cls = cls
        hints = typing.get_type_hints(cls)
        fields = [each for each in dataclasses.fields(typing.cast("Any", cls)) if each.name not in columns]
        self._fields = tuple((each.name, stored_name(each), *_converters(hints[each.name])) for each in fields)

    def encode(self, value: T) -> str:
        """The document of a record."""
        return _encode_json({key: encode(getattr(value, name)) for name, key, encode, _decode in self._fields})

    def decode(self, text: str, *, written_as: int, **columns: Any) -> T:
        """Rebuild a record from its document, the document's format and the fields kept in columns.

        Raises `PreconditionError` when it was written by a newer version, and `InternalError` when it is broken.
        """
        try:
            document = json.loads(text)
            if written_as != FORMAT:
                document = _upgrade(self._cls.__name__, document, written_as)
            values = {name: decode(document[key]) for name, key, _encode, decode in self._fields if key in document}
            return self._cls(**values, **columns)
        except _BROKEN as error:
            raise InternalError(f"a stored {self._cls.__name__} cannot be read: {error!r}") from error


def _upgrade(name: str, document: dict[str, Any], written_as: int) -> dict[str, Any]:
    if written_as > FORMAT:
        raise PreconditionError(
            f"a stored {name} has format {written_as}; this program knows formats up to {FORMAT}",
            hint="run the version of shoal that wrote it, or a newer one",
            format=written_as,
        )
    for step in range(written_as, FORMAT):
        document = _UPGRADES[step](name, document)
    return document


# ---------------------------------------------------------------------------------------------------------
# Converters by type


@functools.cache
def _converters(kind: Any) -> tuple[Convert, Convert]:
    kind = _bare(kind)
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _optional(next(each for each in arguments if each is not type(None)))
    if origin is tuple:
        return _sequence(arguments[0], tuple, list)
    if origin is frozenset:
        return _sequence(arguments[0], frozenset, sorted)
    if origin in (dict, collections.abc.Mapping):
        return _mapping(arguments[1])
    if dataclasses.is_dataclass(kind):
        return _dataclass(typing.cast("type", kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum(kind)
    raise InternalError(f"no way is known to store a value of type {kind!r}")


def _bare(kind: Any) -> Any:
    while True:
        if typing.get_origin(kind) is typing.Annotated:
            kind = typing.get_args(kind)[0]
        elif hasattr(kind, "__supertype__"):  # a NewType
            kind = kind.__supertype__
        else:
            return kind


def _same(value: Any) -> Any:
    return value


def _encode_moment(value: datetime) -> str:
    if value.tzinfo is None:
        raise InternalError("a moment without a time zone cannot be stored", moment=value)
    return value.isoformat()


_SCALARS: dict[Any, tuple[Convert, Convert]] = {
    str: (_same, _same),
    int: (_same, _same),
    bool: (_same, _same),
    # A whole number in a field of type float is written as it is; it reads back equal.
    float: (_same, _same),
    bytes: (lambda value: base64.b64encode(value).decode("ascii"), base64.b64decode),
    datetime: (_encode_moment, datetime.fromisoformat),
    timedelta: (lambda value: value // _MICROSECOND, lambda count: timedelta(microseconds=count)),
}


def _optional(kind: Any) -> tuple[Convert, Convert]:
    encode, decode = _converters(kind)
    if encode is _same:
        return _same, _same
    return (
        lambda value: None if value is None else encode(value),
        lambda value: None if value is None else decode(value),
    )


def _sequence(kind: Any, made: Callable[[Any], Any], listed: Callable[[Any], Any]) -> tuple[Convert, Convert]:
    encode, decode = _converters(kind)
    if encode is _same:
        return listed, made
    return (
        lambda value: listed([encode(each) for each in value]),
        lambda value: made([decode(each) for each in value]),
    )


def _mapping(kind: Any) -> tuple[Convert, Convert]:
    encode, decode = _converters(kind)
    if encode is _same:
        return dict, _same
    return (
        lambda value: {key: encode(each) for key, each in value.items()},
        lambda value: {key: decode(each) for key, each in value.items()},
    )


def _enum(kind: type[enum.Enum]) -> tuple[Convert, Convert]:
    return lambda value: value.value, kind


def _dataclass(cls: type) -> tuple[Convert, Convert]:
    hints = typing.get_type_hints(cls)
    fields = tuple((each.name, *_converters(hints[each.name])) for each in dataclasses.fields(cls))

    def encode(value: Any) -> Mapping[str, Any]:
        return {name: encode_field(getattr(value, name)) for name, encode_field, _ in fields}

    def decode(document: Mapping[str, Any]) -> Any:
        return cls(**{name: decode_field(document[name]) for name, _, decode_field in fields if name in document})

    return encode, decode
