"""Values of plan documents: how what stands in a node becomes JSON, and back. For `shoal.dataflow.plan.documents`.

Plain values are themselves. Others are mappings with a `$` that says what they are: expressions, windows, schemas
(Arrow IPC in base64), functions and batches (names of blobs), times, decimals, connectors (their class and fields).
Reading makes values of this package's own classes only; nothing that a document names is imported or called beyond
them.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import functools
import hashlib
import importlib
import importlib.util
import math
import re
import types as python_types
import typing
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from shoal.dataflow.connectors.abilities import SupportsCollect
from shoal.dataflow.errors import Location
from shoal.dataflow.language.expressions.trees import Call, Column, Expression, Literal, Named
from shoal.dataflow.language.functions import pickle_function
from shoal.dataflow.language.logical import (
    Aggregation,
    EventTime,
    FunctionRef,
    JoinKind,
    JoinMode,
    OnError,
)
from shoal.dataflow.language.windows import CountWindow, Firing, SessionWindow, SlidingWindow
from shoal.dataflow.plan.facts import Facts
from shoal.dataflow.plan.foreign import ForeignConnector
from shoal.dataflow.plan.physical import Edge, Exchange, Link, Role

_CONNECTORS = "shoal.dataflow.connectors"
#: Where the connectors of a name in documents are, when it is not the module of that name: documents outlive folders.
_MODULES = {"files": "files.sources", "file_sinks": "files.sinks", "topics": "topics.endpoints"}
_NAMES = {module: name for name, module in _MODULES.items()}
_MODULE = re.compile(r"[a-z_]+:[A-Za-z]+")


class BadValueError(Exception):
    """A value that cannot be written, or cannot be read."""

    def __init__(self, rule: str, *, value: object = None, at: str = "", hint: str = "") -> None:
        super().__init__(rule)
        self.value = value
        self.at = at
        self.hint = hint


class Blobs:
    """What lies beside a document: bytes; and, for a document that stays in its process, live objects."""

    def __init__(self, contents: Mapping[str, bytes] | None = None, *, live: Mapping[str, Any] | None = None) -> None:
        self.contents: dict[str, bytes] = dict(contents or {})
        #: Functions, data and connectors as they are, by name; None when the document may leave the process.
        self.live: dict[str, Any] | None = None if live is None else dict(live)

    def keep(self, value: Any) -> str | None:
        """The name of a live object; None when the document may leave the process."""
        if self.live is None:
            return None
        name = f"live-{len(self.live)}"
        self.live[name] = value
        return name

    def find(self, name: Any, at: str) -> Any:
        """The live object of a name."""
        if self.live is None or name not in self.live:
            raise BadValueError("names an object of another process", value=name, at=at)
        return self.live[name]

    def put(self, prefix: str, content: bytes) -> str:
        """Keep bytes under a name that is made of them."""
        name = f"{prefix}-{hashlib.sha256(content).hexdigest()[:32]}"
        self.contents[name] = content
        return name

    def get(self, name: Any, at: str) -> bytes:
        """The bytes of a name."""
        if not isinstance(name, str) or name not in self.contents:
            raise BadValueError("names a blob that is not beside the document", value=name, at=at)
        return self.contents[name]


#: What is written field by field, by its name.
_VALUES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Aggregation,
        Column,
        CountWindow,
        Edge,
        EventTime,
        Facts,
        Firing,
        Link,
        Literal,
        Location,
        Named,
        SessionWindow,
        SlidingWindow,
    )
}
_ENUMS: dict[str, type[enum.Enum]] = {kind.__name__: kind for kind in (Exchange, JoinKind, JoinMode, OnError, Role)}


# ---------------------------------------------------------------------------------------------------------
# Writing


def encode(value: Any, blobs: Blobs, *, at: Location | None = None) -> Any:
    """A value as JSON. Raises `BadValueError`, and `PlanError` for functions that cannot be pickled."""
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$": "float", "value": str(value)}
    if isinstance(value, tuple | list):
        return [encode(each, blobs, at=at) for each in value]
    if isinstance(value, FunctionRef | Call):
        return (_encode_call if isinstance(value, Call) else _encode_function)(value, blobs, at)  # type: ignore[arg-type]
    if type(value).__name__ in _VALUES and isinstance(value, _VALUES[type(value).__name__]):
        return {"$": type(value).__name__, **_encode_fields(value, blobs, at)}
    for kind, write in _WRITERS.items():
        if isinstance(value, kind):
            return write(value, blobs)
    return _encode_object(value, blobs, at)


def _encode_object(value: Any, blobs: Blobs, at: Location | None) -> dict[str, Any]:
    """A connector; of a document that stays in its process whatever else there is."""
    try:
        return _encode_connector(value, blobs, at)
    except BadValueError:
        name = blobs.keep(value)
        if name is None:
            raise
        return {"$": "live", "name": name}


def _encode_fields(value: Any, blobs: Blobs, at: Location | None) -> dict[str, Any]:
    return {
        each.name: encode(getattr(value, each.name), blobs, at=at) for each in dataclasses.fields(value) if each.init
    }


def _encode_call(value: Call, blobs: Blobs, at: Location | None) -> dict[str, Any]:
    """The parts of an expression, each behind those that it is made of, and once. Not nested: some are very deep."""
    parts: list[Any] = []
    numbers: dict[int, int] = {}
    waiting: list[Expression] = [value]
    while waiting:
        part = waiting[-1]
        missing = [each for each in _arguments(part) if id(each) not in numbers]
        if missing:
            waiting += reversed(missing)
            continue
        waiting.pop()
        if id(part) not in numbers:
            numbers[id(part)] = len(parts)
            given = [numbers[id(each)] for each in _arguments(part)]
            own = {"call": part.function, "of": given} if isinstance(part, Call) else encode(part, blobs, at=at)
            parts.append(own)
    return {"$": "Call", "parts": parts}


def _arguments(part: Expression) -> tuple[Expression, ...]:
    return part.arguments if isinstance(part, Call) else ()


def _encode_function(ref: FunctionRef, blobs: Blobs, at: Location | None) -> dict[str, Any]:
    name = ref.name
    if ref.target is not None:
        live = blobs.keep(ref.target)
        if live is not None:
            return {"$": "function", "name": live, "label": ref.label, "reads": ref.reads}
        name, content = pickle_function(ref, at=at)
        blobs.contents[name] = content
    return {"$": "function", "name": name, "label": ref.label, "reads": ref.reads}


def _encode_schema(value: Any, _blobs: Blobs) -> dict[str, Any]:
    return {"$": "schema", "ipc": base64.b64encode(value.serialize().to_pybytes()).decode()}


def _encode_batch(value: Any, blobs: Blobs) -> dict[str, Any]:
    live = blobs.keep(value)
    if live is not None:
        return {"$": "live", "name": live}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write_batch(value)
    return {"$": "batch", "blob": blobs.put("batch", sink.getvalue().to_pybytes())}


_WRITERS: dict[Any, Callable[[Any, Blobs], dict[str, Any]]] = {
    enum.Enum: lambda value, _blobs: {"$": type(value).__name__, "value": value.value},
    bytes: lambda value, _blobs: {"$": "bytes", "value": base64.b64encode(value).decode()},
    Decimal: lambda value, _blobs: {"$": "decimal", "value": str(value)},
    dt.datetime: lambda value, _blobs: {"$": "datetime", "value": value.isoformat()},
    dt.date: lambda value, _blobs: {"$": "date", "value": value.isoformat()},
    dt.time: lambda value, _blobs: {"$": "time", "value": value.isoformat()},
    dt.timedelta: lambda value, _blobs: {"$": "timedelta", "value": value // dt.timedelta(microseconds=1)},
    pa.Schema: _encode_schema,
    pa.RecordBatch: _encode_batch,
    Mapping: lambda value, blobs: {
        "$": "map",
        "items": [[encode(k, blobs), encode(v, blobs)] for k, v in value.items()],
    },
}


def _encode_connector(value: Any, blobs: Blobs, at: Location | None) -> dict[str, Any]:
    """A connector of ours by its class and fields; one of the user's as a blob."""
    module = type(value).__module__
    if isinstance(value, ForeignConnector):
        return {"$": "foreign", **_encode_fields(value, blobs, at)}
    if not (hasattr(value, "open_reader") or hasattr(value, "open_writer")):
        raise BadValueError(f"holds a {type(value).__name__}, which cannot be written down")
    if module.startswith(f"{_CONNECTORS}.") and dataclasses.is_dataclass(value):
        if isinstance(value, SupportsCollect):
            hint = "end the stream with a sink that others can reach, such as to_parquet"
            raise BadValueError("collects into the memory of this process", hint=hint)
        place = module.removeprefix(f"{_CONNECTORS}.")
        name = f"{_NAMES.get(place, place)}:{type(value).__name__}"
        return {"$": "connector", "class": name, "fields": _encode_fields(value, blobs, at)}
    if blobs.live is not None:
        raise BadValueError("is a connector of the user's own")
    ref = FunctionRef("", type(value).__name__, "", value)
    name, content = pickle_function(ref, at=at)
    blobs.contents[name] = content
    foreign = ForeignConnector.describing(value, name)
    return {"$": "foreign", **_encode_fields(foreign, blobs, at)}


# ---------------------------------------------------------------------------------------------------------
# Reading


def decode(given: Any, blobs: Blobs, at: str = "") -> Any:
    """A value from JSON. Raises `BadValueError` that says where, and `InvalidError` for a value's own rules."""
    if isinstance(given, list):
        return tuple(decode(each, blobs, f"{at}[{place}]") for place, each in enumerate(given))
    if not isinstance(given, Mapping):
        return given
    kind = given.get("$")
    if not isinstance(kind, str):
        raise BadValueError("must say what kind of value it is", value=kind, at=f"{at}.$")
    if kind in _VALUES:
        return _decode_value(_VALUES[kind], given, blobs, at)
    if kind in _ENUMS:
        try:
            return _ENUMS[kind](given.get("value"))
        except ValueError:
            words = ", ".join(str(each.value) for each in _ENUMS[kind])
            raise BadValueError(f"must be one of {words}", value=given.get("value"), at=at) from None
    reader = _READERS.get(kind)
    if reader is None:
        raise BadValueError("is no kind of value", value=kind, at=f"{at}.$")
    try:
        return reader(given, blobs, at)
    except (LookupError, TypeError, ValueError, ArithmeticError, OSError, pa.ArrowException) as error:
        raise BadValueError(f"is no {kind}", value=given.get("value"), at=at) from error


def _decode_value(kind: Any, given: Mapping[str, Any], blobs: Blobs, at: str) -> Any:
    hints = hints_of(kind)
    values: dict[str, Any] = {}
    for name, each in given.items():
        if name == "$":
            continue
        if name not in hints:
            raise BadValueError("is not a known field", at=f"{at}.{name}")
        values[name] = decode(each, blobs, f"{at}.{name}")
        if not matches(values[name], hints[name]):
            raise BadValueError(f"must be {words_for(hints[name])}", value=each, at=f"{at}.{name}")
    missing = [
        each.name
        for each in dataclasses.fields(kind)
        if each.init and each.name not in values and each.default is dataclasses.MISSING
    ]
    if missing:
        raise BadValueError("is required", at=f"{at}.{missing[0]}")
    return kind(**values)


def _decode_function(given: Mapping[str, Any], blobs: Blobs, at: str) -> FunctionRef:
    fields = [given.get("name"), given.get("label"), given.get("reads", "")]
    if not all(isinstance(each, str) for each in fields) or not given.get("name"):
        raise BadValueError("must have a name and a label", value=given.get("name"), at=at)
    if blobs.live is not None and fields[0] in blobs.live:
        return FunctionRef("", str(fields[1]), str(fields[2]), blobs.live[str(fields[0])])
    return FunctionRef(str(fields[0]), str(fields[1]), str(fields[2]))


def _decode_schema(given: Mapping[str, Any], _blobs: Blobs, _at: str) -> Any:
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(given["ipc"], validate=True)))
    _ = schema.names  # a name that is no text is noticed here
    return schema


def _decode_batch(given: Mapping[str, Any], blobs: Blobs, at: str) -> Any:
    with pa.ipc.open_stream(pa.py_buffer(blobs.get(given.get("blob"), at))) as reader:
        batch = next(iter(reader), None)
    if batch is None:
        raise BadValueError("names a blob without a batch", value=given.get("blob"), at=at)
    # Arrow trusts what it reads: offsets that lead elsewhere would end the process. Names may be no text.
    batch.validate(full=True)
    _ = batch.schema.names
    return batch


def _decode_call(given: Mapping[str, Any], blobs: Blobs, at: str) -> Expression:
    parts: list[Expression] = []
    entries = given.get("parts")
    if not isinstance(entries, list) or not entries:
        raise BadValueError("must be a list of parts", value=entries, at=f"{at}.parts")
    for number, entry in enumerate(entries):
        place = f"{at}.parts[{number}]"
        if not isinstance(entry, Mapping) or "call" not in entry:
            part = decode(entry, blobs, place)
            if not isinstance(part, Expression):
                raise BadValueError("must be an expression", value=entry, at=place)
            parts.append(part)
            continue
        of = entry.get("of")
        if not isinstance(of, list) or not all(type(each) is int and 0 <= each < number for each in of):
            raise BadValueError("must be numbers of earlier parts", value=of, at=f"{place}.of")
        if not isinstance(entry["call"], str):
            raise BadValueError("must be the name of a function", value=entry["call"], at=f"{place}.call")
        parts.append(Call(entry["call"], tuple(parts[each] for each in of)))
    return parts[-1]


def _decode_map(given: Mapping[str, Any], blobs: Blobs, at: str) -> dict[Any, Any]:
    return {decode(name, blobs, at): decode(value, blobs, at) for name, value in given["items"]}


def _decode_connector(given: Mapping[str, Any], blobs: Blobs, at: str) -> Any:
    name, fields = given.get("class"), given.get("fields")
    kind = _connector_class(str(name))
    if kind is None:
        raise BadValueError("is no connector", value=name, at=f"{at}.class")
    if not isinstance(fields, Mapping):
        raise BadValueError("must be a mapping", value=fields, at=f"{at}.fields")
    known = {each.name for each in dataclasses.fields(kind) if each.init}
    unknown = [each for each in fields if each not in known]
    if unknown:
        raise BadValueError("is not a known field", at=f"{at}.fields.{unknown[0]}")
    values = {each: decode(value, blobs, f"{at}.fields.{each}") for each, value in fields.items()}
    hints = hints_of(kind)
    for each, value in values.items():
        if not matches(value, hints[each]):
            raise BadValueError(f"must be {words_for(hints[each])}", value=fields[each], at=f"{at}.fields.{each}")
    try:
        return kind(**values)
    except TypeError as error:
        raise BadValueError(f"does not fit {name}: {error}", at=f"{at}.fields") from error


def _connector_class(name: str) -> Any:
    """A connector class of ours by its name; None for anything else that a document may say."""
    if not _MODULE.fullmatch(name):
        return None
    place, _, attribute = name.partition(":")
    module = _MODULES.get(place, place)
    if importlib.util.find_spec(f"{_CONNECTORS}.{module}") is None:
        return None
    kind = getattr(importlib.import_module(f"{_CONNECTORS}.{module}"), attribute, None)
    opens = hasattr(kind, "open_reader") or hasattr(kind, "open_writer")
    return kind if isinstance(kind, type) and dataclasses.is_dataclass(kind) and opens else None


def _decode_foreign(given: Mapping[str, Any], blobs: Blobs, at: str) -> ForeignConnector:
    made: ForeignConnector = _decode_value(ForeignConnector, given, blobs, at)
    return made


_READERS: dict[str, Callable[[Mapping[str, Any], Blobs, str], Any]] = {
    "float": lambda given, _blobs, _at: float(given["value"]),
    "bytes": lambda given, _blobs, _at: base64.b64decode(given["value"], validate=True),
    "decimal": lambda given, _blobs, _at: Decimal(given["value"]),
    "datetime": lambda given, _blobs, _at: dt.datetime.fromisoformat(given["value"]),
    "date": lambda given, _blobs, _at: dt.date.fromisoformat(given["value"]),
    "time": lambda given, _blobs, _at: dt.time.fromisoformat(given["value"]),
    "timedelta": lambda given, _blobs, _at: dt.timedelta(microseconds=given["value"]),
    "schema": _decode_schema,
    "batch": _decode_batch,
    "function": _decode_function,
    "map": _decode_map,
    "Call": _decode_call,
    "connector": _decode_connector,
    "foreign": _decode_foreign,
    "live": lambda given, blobs, at: blobs.find(given.get("name"), at),
}


# ---------------------------------------------------------------------------------------------------------
# Types of fields


def hints_of(kind: Any) -> dict[str, Any]:
    """The declared types of a class's fields."""
    return _hints_of(kind)


_hints_of = functools.cache(typing.get_type_hints)


def matches(value: Any, hint: Any) -> bool:
    """Whether a value is of a declared type."""
    if hint is Any or hint is None:
        return True
    origin = typing.get_origin(hint)
    if origin in (typing.Union, python_types.UnionType):
        return any(value is None if each is type(None) else matches(value, each) for each in typing.get_args(hint))
    if origin is tuple:
        inner, *rest = typing.get_args(hint)
        if not isinstance(value, tuple):
            return False
        if rest == [...]:
            return all(matches(each, inner) for each in value)
        return len(value) == 1 + len(rest) and all(map(matches, value, (inner, *rest)))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def words_for(hint: Any) -> str:
    """A declared type for people."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, python_types.UnionType):
        return " or ".join(words_for(each) for each in typing.get_args(hint) if each is not type(None))
    if origin is tuple:
        return f"a list of {words_for(typing.get_args(hint)[0])}"
    plain = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Expression: "an expression"}
    return plain.get(hint, f"a {getattr(hint, '__name__', hint)}")
