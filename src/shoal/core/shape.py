"""Frozen dataclasses from untrusted mappings: one reader for settings, specs and their JSON Schemas.

A field's type says what it is and its `Annotated` rules say what is allowed:

    @dataclass(frozen=True, slots=True)
    class Probe:
        port: Annotated[int, Range(1, 65535)]
        path: Annotated[str, MaxLength(1024)] = "/"

`build(Probe, mapping)` reads such a value and reports every broken rule at once, with the path of the field.
`check(value)` applies the same rules to a value that was made in code. `json_schema(Probe)` publishes them.
Called by `shoal.core.config`, by `shoal.model` and by the converters of `shoal.wire`.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Protocol, TypeVar

from shoal.core import durations
from shoal.core.errors import InvalidError, Problem, problem

T = TypeVar("T")


class Rule(Protocol):
    """A rule on one value."""

    def broken(self, value: Any) -> str | None:
        """The rule in words if `value` breaks it, else None."""
        ...

    def schema(self) -> dict[str, Any]:
        """The same rule as JSON Schema keywords."""
        ...


@dataclass(frozen=True, slots=True)
class Pattern:
    """The whole text must match; `..` never does, because ids become parts of paths."""

    pattern: str
    rule: str
    allow_empty: bool = False

    def broken(self, value: str) -> str | None:
        """The rule in words if broken."""
        if not value and self.allow_empty:
            return None
        return None if re.fullmatch(self.pattern, value) and ".." not in value else self.rule

    def schema(self) -> dict[str, Any]:
        """JSON Schema keywords."""
        return {
            "pattern": f"^({self.pattern})?$" if self.allow_empty else f"^{self.pattern}$",
            "description": self.rule,
        }


@dataclass(frozen=True, slots=True)
class Range:
    """Inclusive bounds of a number."""

    low: float
    high: float

    def broken(self, value: float) -> str | None:
        """The rule in words if broken."""
        inside = not math.isnan(value) and self.low <= value <= self.high
        return None if inside else f"must be between {self.low:,} and {self.high:,}"

    def schema(self) -> dict[str, Any]:
        """JSON Schema keywords."""
        return {"minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class MaxLength:
    """Bound on the length of a text or the number of entries; texts hold no NUL."""

    most: int
    least: int = 0

    def broken(self, value: Any) -> str | None:
        """The rule in words if broken."""
        if isinstance(value, str) and "\x00" in value:
            return "must not contain a NUL character"
        if len(value) > self.most:
            return f"must have at most {self.most:,} {'characters' if isinstance(value, str) else 'entries'}"
        if len(value) < self.least:
            return "must not be empty" if self.least == 1 else f"must have at least {self.least:,} entries"
        return None

    def schema(self) -> dict[str, Any]:
        """JSON Schema keywords; `json_schema` picks the ones that fit the type."""
        return {"x-max": self.most, "x-min": self.least}


@dataclass(frozen=True, slots=True)
class OneOf:
    """A closed set of words."""

    words: tuple[str, ...]

    def broken(self, value: str) -> str | None:
        """The rule in words if broken."""
        return None if value in self.words else f"must be one of {', '.join(word or '(empty)' for word in self.words)}"

    def schema(self) -> dict[str, Any]:
        """JSON Schema keywords."""
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Check:
    """Any other rule, as a function that returns the rule in words when broken."""

    function: Callable[[Any], str | None]
    note: str = ""

    def broken(self, value: Any) -> str | None:
        """The rule in words if broken."""
        return self.function(value)

    def schema(self) -> dict[str, Any]:
        """JSON Schema keywords."""
        return {"description": self.note} if self.note else {}


def build(cls: type[T], mapping: object, *, at: str = "", what: str = "") -> T:
    """Make a `cls` from a mapping, or raise `InvalidError` with everything that is wrong with it."""
    problems: list[Problem] = []
    value = _read(cls, mapping, at, problems)
    if not problems:
        _check_into(value, cls, at, problems)
    if problems:
        raise InvalidError(problems, what=what)
    return typing.cast("T", value)


def check(value: Any, *, at: str = "") -> None:
    """Apply every rule to a value made in code. Raises `InvalidError`."""
    problems = find_problems(value, at=at)
    if problems:
        raise InvalidError(problems)


def find_problems(value: Any, *, at: str = "") -> list[Problem]:
    """Every broken rule of a dataclass value, deep."""
    problems: list[Problem] = []
    _check_into(value, type(value), at, problems)
    return problems


def to_mapping(value: Any) -> Any:
    """The plain form that `build` reads back: the inverse for dataclasses, enums, durations, tuples and mappings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_mapping(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, timedelta):
        return durations.format_duration(value)
    if isinstance(value, Mapping):
        return {key: to_mapping(each) for key, each in value.items()}
    if isinstance(value, list | tuple | frozenset | set):
        return [to_mapping(each) for each in value]
    return value


# ---------------------------------------------------------------------------------------------------------
# Reading


def _read(kind: Any, given: Any, at: str, problems: list[Problem]) -> Any:
    kind, _rules = _strip(kind)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        if given is None:
            return None
        inner = [arg for arg in typing.get_args(kind) if arg is not type(None)]
        return _read(inner[0], given, at, problems)
    if origin in (tuple, list):
        return _read_sequence(typing.get_args(kind)[0], given, at, problems)
    if origin in (dict, Mapping):
        return _read_mapping(typing.get_args(kind)[1], given, at, problems)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(typing.cast("type", kind), given, at, problems)
    return _read_scalar(kind, given, at, problems)


def _read_sequence(kind: Any, given: Any, at: str, problems: list[Problem]) -> Any:
    if not isinstance(given, list | tuple):
        problems.append(problem(at, given, "must be a list"))
        return ()
    return tuple(_read(kind, each, f"{at}[{index}]", problems) for index, each in enumerate(given))


def _read_mapping(kind: Any, given: Any, at: str, problems: list[Problem]) -> Any:
    if not isinstance(given, Mapping):
        problems.append(problem(at, given, "must be a mapping"))
        return {}
    result = {}
    for key, each in given.items():
        if not isinstance(key, str):
            problems.append(problem(at, key, "keys must be text; put them in quotes"))
            continue
        result[key] = _read(kind, each, f"{at}.{key}" if at else key, problems)
    return result


def _read_dataclass(cls: type, given: Any, at: str, problems: list[Problem]) -> Any:
    if isinstance(given, cls):
        return given
    if not isinstance(given, Mapping):
        problems.append(problem(at or cls.__name__, given, "must be a mapping"))
        return None
    hints = _hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    values: dict[str, Any] = {}
    before = len(problems)
    for key, each in given.items():
        path = f"{at}.{key}" if at else str(key)
        if key not in fields:
            close = difflib.get_close_matches(str(key), fields, n=1)
            rule = (
                f"is not a known field; did you mean {close[0]}?"
                if close
                else (f"is not a known field; known are {', '.join(sorted(fields))}")
            )
            problems.append(Problem(field=path, value="", rule=rule))
            continue
        if each is None and fields[key].default is not dataclasses.MISSING:
            continue
        values[key] = _read(hints[key], each, path, problems)
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values and name not in given:
            problems.append(Problem(field=f"{at}.{name}" if at else name, value="", rule="is required"))
    return cls(**values) if len(problems) == before else None


def _read_scalar(kind: Any, given: Any, at: str, problems: list[Problem]) -> Any:
    if kind is Any or kind is object:
        return given
    if kind is timedelta:
        return _read_duration(given, at, problems)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(given)
        except ValueError:
            words = ", ".join(str(member.value) for member in kind)
            problems.append(problem(at, given, f"must be one of {words}"))
            return None
    if kind is float and isinstance(given, int) and not isinstance(given, bool):
        return float(given)
    if isinstance(given, kind) and not (kind is int and isinstance(given, bool)):
        return given
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", bytes: "bytes"}
    hint = "; put it in quotes" if kind is str and isinstance(given, int | float | bool) else ""
    problems.append(problem(at, given, f"must be {names.get(kind, kind.__name__)}{hint}"))
    return None


def _read_duration(given: Any, at: str, problems: list[Problem]) -> timedelta | None:
    if isinstance(given, timedelta):
        return given
    try:
        return durations.parse_duration(given if isinstance(given, str) else "")
    except ValueError as error:
        problems.append(problem(at, given, str(error)))
        return None


# ---------------------------------------------------------------------------------------------------------
# Checking


def _check_into(value: Any, kind: Any, at: str, problems: list[Problem]) -> None:
    kind, rules = _strip(kind)
    if value is None:
        return
    for rule in rules:
        words = rule.broken(value)
        if words is not None:
            problems.append(problem(at, value, words))
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        inner = [arg for arg in typing.get_args(kind) if arg is not type(None)]
        _check_into(value, inner[0], at, problems)
    elif origin in (tuple, list):
        for index, each in enumerate(value):
            _check_into(each, typing.get_args(kind)[0], f"{at}[{index}]", problems)
    elif origin in (dict, Mapping):
        key_kind, value_kind = typing.get_args(kind)
        for key, each in value.items():
            path = f"{at}.{key}" if at else str(key)
            _check_into(key, key_kind, path, problems)
            _check_into(each, value_kind, path, problems)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = _hints(type(value))
        for field in dataclasses.fields(value):
            path = f"{at}.{field.name}" if at else field.name
            _check_into(getattr(value, field.name), hints[field.name], path, problems)
        extra = getattr(value, "extra_problems", None)
        if extra is not None:
            problems.extend(extra(at))


def _strip(kind: Any) -> tuple[Any, tuple[Rule, ...]]:
    if typing.get_origin(kind) is Annotated:
        inner, *rules = typing.get_args(kind)
        inner, deeper = _strip(inner)
        return inner, (*deeper, *rules)
    if hasattr(kind, "__supertype__"):  # a NewType
        return _strip(kind.__supertype__)
    return kind, ()


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


# ---------------------------------------------------------------------------------------------------------
# Publishing


def json_schema(cls: type, *, title: str = "") -> dict[str, Any]:
    """The JSON Schema (2020-12) of what `build(cls, …)` accepts."""
    body = _schema_of(cls)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title or cls.__name__, **body}


def _schema_of(kind: Any) -> dict[str, Any]:
    kind, rules = _strip(kind)
    body = _plain_schema(kind)
    for rule in rules:
        words = dict(rule.schema())
        most, least = words.pop("x-max", None), words.pop("x-min", 0)
        if most is not None:
            suffix = {"string": "Length", "array": "Items", "object": "Properties"}[body.get("type", "string")]
            words[f"max{suffix}"] = most
            if least:
                words[f"min{suffix}"] = least
        body.update(words)
    return body


def _plain_schema(kind: Any) -> dict[str, Any]:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _schema_of(next(arg for arg in typing.get_args(kind) if arg is not type(None)))
    if origin in (tuple, list):
        return {"type": "array", "items": _schema_of(typing.get_args(kind)[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema_of(typing.get_args(kind)[1])}
    if dataclasses.is_dataclass(kind):
        return _dataclass_schema(typing.cast("type", kind))
    if kind is timedelta:
        return {"type": "string", "pattern": f"^{durations.PATTERN}$"}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    words = {str: "string", int: "integer", float: "number", bool: "boolean"}
    return {"type": words[kind]} if kind in words else {}


def _dataclass_schema(cls: type) -> dict[str, Any]:
    hints = _hints(cls)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    required = [f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    body: dict[str, Any] = {
        "type": "object",
        "properties": {field.name: _schema_of(hints[field.name]) for field in fields},
        "additionalProperties": False,
    }
    if required:
        body["required"] = required
    return body
