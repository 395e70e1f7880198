"""Frozen dataclasses from untrusted mappings: one reader for settings, specs and their JSON Schemas.

A field's type says what it is and its `Annotated` rules say what is allowed:

    @dataclass(frozen=True, slots=True)
    class Probe:
        port: Annotated[int, Range(1, 65535)]
        path: Annotated[str, MaxLength(1024)] = "/"

`build(Probe, mapping)` reads such a value and reports every broken rule at once, with the path of the field.
`check(value)` applies the same rules to a value that was made in code. `json_schema(Probe)` publishes them.
A rule across fields is a method `extra_problems(at)` of the dataclass that yields `Problem`s.
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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Protocol, TypeVar

from shoal.core import durations
from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.ids import IDENTIFIER, IDENTIFIER_RULE

T = TypeVar("T")

#: More problems than this help nobody, and an answer has to fit into a reply.
MAX_PROBLEMS = 100
_MAX_SHOWN_KEY = 80
#: From this share of equal letters on, a name was probably meant.
_ALIKE = 0.7

# What a value leaves behind that could not be read; its problem is on the list.
_BROKEN: Any = object()


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
            "pattern": f"^(?:{self.pattern}){'?' if self.allow_empty else ''}$",
            "not": {"pattern": r"\.\."},
            "description": self.rule,
        }


Identifier = Annotated[str, Pattern(IDENTIFIER.pattern, IDENTIFIER_RULE)]
"""A text that may be used as an id."""


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
        return None if value in self.words else f"must be one of {', '.join(word for word in self.words if word)}"

    def schema(self) -> dict[str, Any]:
        """JSON Schema keywords."""
        return {"enum": [str(word) for word in self.words]}


@dataclass(frozen=True, slots=True)
class NumberToo:
    """A text that may be written as a whole number without quotes, such as a port or its name."""

    def broken(self, value: str) -> str | None:
        """Never: it widens what is read and forbids nothing."""
        return None

    def schema(self) -> dict[str, Any]:
        """JSON Schema keywords."""
        return {"type": ["string", "integer"]}


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
    """Make a `cls` from a mapping, or raise `InvalidError` with everything that is wrong with it.

    A null counts as absent: the field takes its default, or is reported as required.
    """
    value = read_value(cls, mapping, at=at, what=what)
    return typing.cast("T", value)


def read_value(kind: Any, given: object, *, at: str = "", what: str = "") -> Any:
    """Read a value of any kind that a field may have, rules included. Raises `InvalidError`."""
    problems: list[Problem] = []
    value = _read(kind, given, at, problems)
    if problems:
        raise InvalidError(_bounded(problems), what=what)
    return value


def check(value: Any, *, at: str = "") -> None:
    """Apply every rule to a value made in code. Raises `InvalidError`."""
    problems = find_problems(value, at=at)
    if problems:
        raise InvalidError(problems)


def find_problems(value: Any, *, at: str = "") -> list[Problem]:
    """Every broken rule of a dataclass value, deep."""
    problems: list[Problem] = []
    _check_into(value, _form_of(type(value)), at, problems)
    return _bounded(problems)


def field_kinds(cls: type) -> dict[str, Any]:
    """The declared kind of each field, rules included, in order."""
    hints = _hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def unknown_field(key: object, known: Iterable[str], *, at: str = "") -> Problem:
    """A field that does not exist, with the one that was probably meant."""
    names = sorted(known)
    close = difflib.get_close_matches(str(key)[:_MAX_SHOWN_KEY], names, n=1, cutoff=_ALIKE)
    meant = f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"
    return Problem(field=_path(at, key), value="", rule=f"is not a known field; {meant}")


def plain_kind(kind: Any) -> Any:
    """A field's kind without its rules, and without the None of an optional one."""
    kind, _rules = _strip(kind)
    return plain_kind(_inner(kind)) if _is_union(kind) else kind


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
    if isinstance(value, frozenset | set):
        return sorted(to_mapping(each) for each in value)  # in one order, so that equal values have equal bytes
    if isinstance(value, list | tuple):
        return [to_mapping(each) for each in value]
    return value


# ---------------------------------------------------------------------------------------------------------
# Reading


def _read(kind: Any, given: Any, at: str, problems: list[Problem]) -> Any:
    kind, rules = _strip(kind)
    if _is_union(kind):
        if given is None:
            return None
        return _read(Annotated[_inner(kind), *rules] if rules else _inner(kind), given, at, problems)
    if isinstance(given, kind if isinstance(kind, type) else ()) and dataclasses.is_dataclass(given):
        _check_into(given, _form_of(kind), at, problems)
        return given
    before = len(problems)
    value = _read_plain(kind, rules, given, at, problems)
    if len(problems) == before:
        _apply(rules, value, at, problems)
    return value


def _read_plain(kind: Any, rules: tuple[Rule, ...], given: Any, at: str, problems: list[Problem]) -> Any:
    origin = typing.get_origin(kind)
    if origin in (tuple, list, frozenset, set):
        return _read_sequence(kind, rules, given, at, problems)
    if origin in (dict, Mapping):
        return _read_mapping(kind, rules, given, at, problems)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(typing.cast("type", kind), given, at, problems)
    if kind is str and isinstance(given, int) and not isinstance(given, bool) and NumberToo() in rules:
        return str(given) if abs(given) < 10**18 else _refuse(at, given, "must be a smaller number", problems)
    return _read_scalar(kind, given, at, problems)


def _read_sequence(kind: Any, rules: tuple[Rule, ...], given: Any, at: str, problems: list[Problem]) -> Any:
    if not isinstance(given, list | tuple | frozenset | set):
        return _refuse(at, given, "must be a list", problems)
    if _is_too_long(rules, given, at, problems):
        return _BROKEN
    inner = typing.get_args(kind)[0]
    values = [_read(inner, each, f"{at}[{index}]", problems) for index, each in enumerate(given)]
    if any(value is _BROKEN for value in values):
        return _BROKEN
    return frozenset(values) if typing.get_origin(kind) in (frozenset, set) else tuple(values)


def _read_mapping(kind: Any, rules: tuple[Rule, ...], given: Any, at: str, problems: list[Problem]) -> Any:
    if not isinstance(given, Mapping):
        return _refuse(at, given, "must be a mapping", problems)
    if _is_too_long(rules, given, at, problems):
        return _BROKEN
    key_kind, value_kind = typing.get_args(kind)
    result = {}
    for key, each in given.items():
        if not isinstance(key, str):
            problems.append(problem(at, key, "keys must be text; put them in quotes"))
            continue
        path = _path(at, key)
        _check_into(key, _form_of(key_kind), path, problems)
        result[key] = _read(value_kind, each, path, problems)
    return result


def _read_dataclass(cls: type, given: Any, at: str, problems: list[Problem]) -> Any:
    if not isinstance(given, Mapping):
        return _refuse(at or cls.__name__, given, "must be a mapping", problems)
    kinds = field_kinds(cls)
    values: dict[str, Any] = {}
    before = len(problems)
    for key, each in given.items():
        if key not in kinds:
            problems.append(unknown_field(key, kinds, at=at))
        elif each is not None:
            values[key] = _read(kinds[key], each, _path(at, key), problems)
    for field in dataclasses.fields(cls):
        if field.name in values or not _is_required(field):
            continue
        if _is_union(_strip(kinds[field.name])[0]) and field.name in given:
            values[field.name] = None
        else:
            problems.append(Problem(field=_path(at, field.name), value="", rule="is required"))
    if len(problems) > before:
        return _BROKEN
    value = cls(**values)
    problems.extend(_extra_problems(value, at))
    return value


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
            return _refuse(at, given, f"must be one of {words}", problems)
    if kind is float and isinstance(given, int | float) and not isinstance(given, bool):
        return _read_number(given, at, problems)
    if isinstance(given, kind) and not (kind is int and isinstance(given, bool)):
        return given
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", bytes: "bytes"}
    hint = "; put it in quotes" if kind is str and isinstance(given, int | float | bool) else ""
    return _refuse(at, given, f"must be {names.get(kind, kind.__name__)}{hint}", problems)


def _read_number(given: float, at: str, problems: list[Problem]) -> Any:
    try:
        number = float(given)
    except OverflowError:
        number = math.inf
    return number if math.isfinite(number) else _refuse(at, given, "must be a finite number", problems)


def _read_duration(given: Any, at: str, problems: list[Problem]) -> Any:
    if isinstance(given, timedelta):
        return given
    try:
        return durations.parse_duration(given if isinstance(given, str) else "")
    except ValueError as error:
        return _refuse(at, given, str(error), problems)


def _refuse(at: str, given: Any, rule: str, problems: list[Problem]) -> Any:
    problems.append(problem(at, given, rule))
    return _BROKEN


def _is_too_long(rules: tuple[Rule, ...], given: Any, at: str, problems: list[Problem]) -> bool:
    """Whether a bound on the number of entries is broken: then no entry is looked at, however many there are."""
    before = len(problems)
    _apply(tuple(rule for rule in rules if isinstance(rule, MaxLength)), given, at, problems)
    return len(problems) > before


def _path(at: str, key: object) -> str:
    shown = str(key)[:_MAX_SHOWN_KEY]
    if not shown or not shown.isprintable():
        shown = repr(shown)
    return f"{at}.{shown}" if at else shown


def _bounded(problems: list[Problem]) -> list[Problem]:
    if len(problems) <= MAX_PROBLEMS:
        return problems
    more = Problem(field="…", value="", rule=f"and {len(problems) - MAX_PROBLEMS} more problems")
    return [*problems[:MAX_PROBLEMS], more]


# ---------------------------------------------------------------------------------------------------------
# Checking


@dataclass(frozen=True, slots=True)
class _Form:
    """What there is to check in a value of one kind: its rules, and what is inside."""

    rules: tuple[Rule, ...]
    option: _Form | None = None
    entry: _Form | None = None
    pair: tuple[_Form, _Form] | None = None
    #: Nothing is inside: a text, a number, a word of an enumeration.
    is_plain: bool = False


def _check_into(value: Any, form: _Form, at: str, problems: list[Problem]) -> None:
    if value is None:
        return
    _apply(form.rules, value, at, problems)
    if form.is_plain:
        return
    if form.option is not None:
        _check_into(value, form.option, at, problems)
    elif form.entry is not None:
        for index, each in enumerate(value):
            _check_into(each, form.entry, f"{at}[{index}]", problems)
    elif form.pair is not None:
        for key, each in value.items():
            path = _path(at, key)
            _check_into(key, form.pair[0], path, problems)
            _check_into(each, form.pair[1], path, problems)
    elif dataclasses.is_dataclass(value):
        made: type = type(value)
        for name, inner in _checked_fields(made):
            _check_into(getattr(value, name), inner, f"{at}.{name}" if at else name, problems)
        problems.extend(_extra_problems(value, at))


def _form_of(kind: Any) -> _Form:
    kind, rules = _strip(kind)
    origin = typing.get_origin(kind)
    if _is_union(kind):
        return _Form(rules, option=_form_of(_inner(kind)))
    if origin in (tuple, list, frozenset, set):
        return _Form(rules, entry=_form_of(typing.get_args(kind)[0]))
    if origin in (dict, Mapping):
        key, value = typing.get_args(kind)
        return _Form(rules, pair=(_form_of(key), _form_of(value)))
    return _Form(rules, is_plain=isinstance(kind, type) and not dataclasses.is_dataclass(kind))


@functools.cache
def _checked_fields(cls: type) -> tuple[tuple[str, _Form], ...]:
    """The fields in which a rule can be broken. Worked out once: every spec that comes in is checked."""
    forms = ((name, _form_of(kind)) for name, kind in field_kinds(cls).items())
    return tuple((name, form) for name, form in forms if not _is_free(form))


def _is_free(form: _Form) -> bool:
    """Whether whatever it holds is good."""
    inside = (form.option, form.entry, *(form.pair or ()))
    return not form.rules and (
        form.is_plain or (any(inside) and all(each is None or _is_free(each) for each in inside))
    )


def _apply(rules: tuple[Rule, ...], value: Any, at: str, problems: list[Problem]) -> None:
    for rule in rules:
        words = rule.broken(value)
        if words is not None:
            problems.append(problem(at, value, words))


def _extra_problems(value: Any, at: str) -> list[Problem]:
    extra = getattr(value, "extra_problems", None)
    return [] if extra is None else list(extra(at))


# ---------------------------------------------------------------------------------------------------------
# Kinds


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _inner(union: Any) -> Any:
    """What an optional kind is when it is there."""
    return next(kind for kind in typing.get_args(union) if kind is not type(None))


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


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
    """The JSON Schema (2020-12) of what `build(cls, …)` accepts, except that a null is left out and not written."""
    body = _schema_of(cls)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title or cls.__name__, **body}


def _schema_of(kind: Any) -> dict[str, Any]:
    kind, rules = _strip(kind)
    body = _plain_schema(kind)
    suffix = {"string": "Length", "array": "Items", "object": "Properties"}.get(str(body.get("type")), "Length")
    for rule in rules:
        words = dict(rule.schema())
        most, least = words.pop("x-max", None), words.pop("x-min", 0)
        if most is not None:
            words[f"max{suffix}"] = most
            if least:
                words[f"min{suffix}"] = least
        body.update(words)
    return body


def _plain_schema(kind: Any) -> dict[str, Any]:
    origin = typing.get_origin(kind)
    if _is_union(kind):
        return _schema_of(_inner(kind))
    if origin in (tuple, list, frozenset, set):
        return {"type": "array", "items": _schema_of(typing.get_args(kind)[0])}
    if origin in (dict, Mapping):
        key_kind, value_kind = typing.get_args(kind)
        names = {word: rule for word, rule in _schema_of(key_kind).items() if word != "type"}
        body = {"type": "object", "additionalProperties": _schema_of(value_kind)}
        return {**body, "propertyNames": names} if names else body
    if dataclasses.is_dataclass(kind):
        return _dataclass_schema(typing.cast("type", kind))
    if kind is timedelta:
        return {"type": "string", "pattern": f"^{durations.PATTERN}$"}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    words = {str: "string", int: "integer", float: "number", bool: "boolean"}
    return {"type": words[kind]} if kind in words else {}


def _dataclass_schema(cls: type) -> dict[str, Any]:
    required = [field.name for field in dataclasses.fields(cls) if _is_required(field)]
    body: dict[str, Any] = {
        "type": "object",
        "properties": {name: _schema_of(kind) for name, kind in field_kinds(cls).items()},
        "additionalProperties": False,
    }
    if required:
        body["required"] = required
    return body
