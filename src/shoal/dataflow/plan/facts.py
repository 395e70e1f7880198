"""What is known of a node's output before anything runs, and the checks that all nodes share.

`shoal.dataflow.plan.inference` works facts out node by node; `shoal.dataflow.plan.resolve` does so for a whole plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from shoal.core.errors import Problem, problem
from shoal.dataflow.errors import Location, PlanError
from shoal.dataflow.language.binding import missing_column
from shoal.dataflow.language.elements import HIDDEN_PREFIX, WINDOW_END, WINDOW_START, Schema
from shoal.dataflow.language.expressions import datatypes
from shoal.dataflow.language.expressions.datatypes import WINDOW_TYPE, types
from shoal.dataflow.language.logical import (
    EventTime,
    Node,
    Source,
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What comes out of a node."""

    #: The user's columns; None when only a running function knows them.
    schema: Schema | None
    #: Whether it comes to an end.
    bounded: bool = True
    #: Whether rows have an event time.
    time: bool = False
    #: Whether rows are changes, with a column `op`.
    changes: bool = False
    #: Of changes: the columns that say which row is meant.
    keys: tuple[str, ...] = ()
    #: Whether a step behind it reads the event time, so that rows have to carry it.
    needs_time: bool = False
    #: The column that the event time was read of, where rows still have it; None for any other time.
    time_from: EventTime | None = None


class Answers(Protocol):
    """What only the outside knows."""

    def schema_of(self, source: Source) -> Schema | None:
        """The columns of a source that declares none; None when nobody asks it now."""
        ...

    def probe(self, node: Node, schema: Schema) -> Schema | None:
        """The columns that a node with an opaque function emits for these; None when only a run can tell."""
        ...


class NoAnswers:
    """Asks nobody: what a definition and `explain()` may know."""

    def schema_of(self, source: Source) -> Schema | None:
        """Not asked."""
        return None

    def probe(self, node: Node, schema: Schema) -> Schema | None:
        """Not tried."""
        return None


def window_fields() -> list[Any]:
    """The columns that say which window a row is the result of."""
    return [pa.field(WINDOW_START, WINDOW_TYPE), pa.field(WINDOW_END, WINDOW_TYPE)]


_NAMES_HINT = "give each column its own name: .alias(…), select(name=…)"


def make_schema(fields: Sequence[Any], *, at: Location | None, what: str, hint: str = _NAMES_HINT) -> Schema:
    """A schema of a node's output; refuses names that are there twice, and the engine's own."""
    problems = name_problems([each.name for each in fields], what)
    if problems:
        raise PlanError(problems, at=at, hint=hint)
    return pa.schema(fields)


def name_problems(names: Sequence[str], what: str) -> list[Problem]:
    """What is wrong with the names of some columns."""
    problems = [
        problem(f"{what}: column {name!r}", None, f"would be there {count} times")
        for name, count in Counter(names).items()
        if count > 1
    ]
    problems += [
        problem(f"{what}: column {name!r}", None, f"has a name that begins with {HIDDEN_PREFIX}, which is the engine's")
        for name in names
        if name.startswith(HIDDEN_PREFIX)
    ]
    if "" in names:
        problems.append(problem(f"{what}: column", "", "must have a name"))
    return problems


def check_columns(names: Iterable[str], schema: Schema | None, *, at: Location | None, what: str) -> None:
    """Refuse columns that are not there. Nothing is known without a schema."""
    if schema is None:
        return
    for name in names:
        if name not in schema.names:
            raise missing_column(name, schema, at=at, where=what)


def check_keys(keys: Sequence[str], schema: Schema | None, *, at: Location | None, what: str) -> None:
    """Refuse keys that are not there, are there twice, or cannot be told apart."""
    for name, count in Counter(keys).items():
        if count > 1:
            raise PlanError([problem(f"{what} {name!r}", None, f"is named {count} times")], at=at)
    if schema is None:
        return
    check_columns(keys, schema, at=at, what=what)
    for name in keys:
        kind = datatypes.plain(schema.field(name).type)
        if types.is_nested(kind):
            raise PlanError([problem(f"{what} {name!r}", None, f"is {kind}; keys are single values")], at=at)


def check_event_time(time: EventTime, schema: Schema | None, *, at: Location | None) -> None:
    """Refuse a time column that is not there or counts nothing known."""
    if schema is None or not time.column:
        return
    check_columns([time.column], schema, at=at, what="event time column")
    kind = schema.field(time.column).type
    if types.is_timestamp(kind) or types.is_date(kind):
        return
    field = f"event time column {time.column!r}"
    if not types.is_integer(kind):
        hint = _time_hint(time.column, kind)
        raise PlanError([problem(field, None, f"is {kind}; event time is a timestamp")], at=at, hint=hint)
    if not time.unit:
        hint = f'say it: event_time({time.column!r}, unit="ms"), or time_unit="ms" where the source is made'
        raise PlanError([problem(field, None, f"is {kind}, and nothing says what it counts")], at=at, hint=hint)


def _time_hint(name: str, kind: Any) -> str:
    """What to write to get event time out of a column that holds none."""
    column = f'col("{name}")'
    if types.is_floating(kind) or types.is_decimal(kind):
        micros = f'fn.round({column} * 1_000_000).cast("int64")'
        return (
            "if it counts seconds, make them whole microseconds and name event time behind that: "
            f'.with_columns({{"{name}": {micros}}}).event_time("{name}", unit="us")'
        )
    if types.is_string(kind) or types.is_large_string(kind):
        return (
            "make it one and name event time behind that: "
            f'.with_columns({{"{name}": fn.to_timestamp({column})}}).event_time("{name}")'
        )
    return "name a column of timestamps, or of whole numbers with the unit that they count"


def time_columns(schema: Schema | None) -> list[str]:
    """Columns that could be the event time."""
    return [] if schema is None else [each.name for each in schema if datatypes.is_time_or_date(each.type)]
