"""Where streams begin: `Stream.from_kafka("orders")`, `Stream.from_parquet("events/")` and the others.

Each makes a source node around the description of a connector; nothing is opened, read or connected to. Part of
`shoal.dataflow.api.streams.stream`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Any

import pyarrow as pa

from shoal.core.errors import InvalidError, PreconditionError, problem
from shoal.dataflow.api import legacy
from shoal.dataflow.api.context import Broker, TopicSpec, current, name_broker
from shoal.dataflow.api.streams.steps import S_co, Steps
from shoal.dataflow.connectors.base import SourceConnector
from shoal.dataflow.connectors.rows import first_odd, guessed
from shoal.dataflow.errors import Location, PlanError
from shoal.dataflow.language.elements import Batch, Schema
from shoal.dataflow.language.expressions.values import make_rows
from shoal.dataflow.language.functions import find_location, make_ref
from shoal.dataflow.language.lengths import Span, micros
from shoal.dataflow.language.logical import (
    EventTime,
    OnError,
    Source,
)

BATCH_ROWS = 10_000


class Reading(Steps[S_co]):
    """Sources."""

    __slots__ = ()

    @classmethod
    def from_source(
        cls,
        connector: SourceConnector,
        *,
        schema: Schema | None = None,
        event_time: str | None = None,
        disorder: Span = 0,
        time_unit: str = "",
        idle_after: Span | None = 5,
    ) -> S_co:
        """Rows of a connector of one's own."""
        at = find_location()
        time = make_time(event_time, disorder, time_unit, idle_after, at)
        return cls._begin(Source(connector=connector, schema=_schema(schema, at), time=time, at=at))

    @classmethod
    def _of(cls, connector: Any, schema: Any, event_time: str | None, disorder: Span, unit: str) -> S_co:
        at = find_location()
        time = make_time(event_time, disorder, unit, 5, at)
        return cls._begin(Source(connector=connector, schema=_schema(schema, at), time=time, at=at))

    @classmethod
    def from_batches(
        cls, batches: Iterable[Batch], *, event_time: str | None = None, disorder: Span = 0, time_unit: str = ""
    ) -> S_co:
        """Arrow batches that are there already. They must have one schema."""
        at = find_location()
        made = tuple(_batch_of(each, at) for each in batches)
        if not made:
            hint = "an empty table has columns: Stream.from_table(schema.empty_table())"
            raise PlanError([problem("from_batches", None, "needs at least one batch")], at=at, hint=hint)
        for number, each in enumerate(made):
            if not each.schema.equals(made[0].schema):
                rule = f"must have the columns of the first: {', '.join(made[0].schema.names)}"
                raise PlanError([problem(f"batch {number}", ", ".join(each.schema.names), rule)], at=at)
        return cls._of_batches(made, make_time(event_time, disorder, time_unit, 5, at), at)

    @classmethod
    def from_table(
        cls,
        table: Any,
        batch_size: int = BATCH_ROWS,
        *,
        event_time: str | None = None,
        disorder: Span = 0,
        time_unit: str = "",
    ) -> S_co:
        """The rows of an Arrow table."""
        at = find_location()
        if not isinstance(table, pa.Table):
            raise PlanError([problem("table", type(table).__name__, "must be a pyarrow Table")], at=at)
        batches = table.to_batches(max_chunksize=batch_size) or [_empty(table.schema)]
        return cls._of_batches(tuple(batches), make_time(event_time, disorder, time_unit, 5, at), at)

    @classmethod
    def from_dicts(
        cls,
        rows: Iterable[Mapping[str, Any]],
        batch_size: int = BATCH_ROWS,
        *,
        schema: Schema | None = None,
        event_time: str | None = None,
        disorder: Span = 0,
        time_unit: str = "",
    ) -> S_co:
        """Rows as dictionaries. Types are those of the values, or those of the schema."""
        at = find_location()
        listed = [dict(each) for each in rows]
        if not listed and schema is None:
            raise PlanError(
                [problem("rows", None, "are none, so nothing tells their columns")], at=at, hint="give schema="
            )
        declared = _schema(schema, at)
        try:
            table = pa.Table.from_batches([make_rows(listed, declared)])
        except InvalidError as error:
            number = first_odd(listed, lambda part: make_rows(part, declared)) + 1
            problems = [problem(each.field, each.value, f"{each.rule}, in row {number}") for each in error.problems]
            raise PlanError(problems, at=at, hint=error.hint or "say the types: schema=") from error
        batches = table.to_batches(max_chunksize=batch_size) or [_empty(table.schema)]
        return cls._of_batches(tuple(batches), make_time(event_time, disorder, time_unit, 5, at), at)

    @classmethod
    def from_pylist(cls, rows: Iterable[Mapping[str, Any]], batch_size: int = BATCH_ROWS, **options: Any) -> S_co:
        """The same as `from_dicts`."""
        made: Callable[..., S_co] = cls.from_dicts
        return made(rows, batch_size, **options)

    @classmethod
    def _of_batches(cls, batches: tuple[Batch, ...], time: EventTime | None, at: Location | None) -> S_co:
        from shoal.dataflow.connectors.memory import BatchesSource

        return cls._begin(Source(connector=BatchesSource(batches), schema=batches[0].schema, time=time, at=at))

    @classmethod
    def from_iterable(
        cls,
        items: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        schema: Schema | None = None,
        batch_size: int = BATCH_ROWS,
        bounded: bool = True,
        event_time: str | None = None,
        disorder: Span = 0,
        time_unit: str = "",
        on_error: str | OnError = OnError.FAIL,
    ) -> S_co:
        """Whatever can be iterated: batches, tables, dictionaries or lists of them.

        Give the function that makes the iterator, not the iterator, if the program is to be restarted or sent
        elsewhere: only a function can be called again. `bounded=False` says that it never ends.
        """
        from shoal.dataflow.connectors.memory import IterableSource

        at = find_location()
        if not callable(items) and not isinstance(items, Iterable):
            raise PlanError([problem("items", items, "must be iterable, or a function that gives an iterable")], at=at)
        connector = IterableSource(
            make_ref(items if callable(items) else _again(items), at=at),
            batch_size=batch_size,
            bounded=bounded,
            replayable=callable(items) or isinstance(items, Sequence),
            on_error=make_policy(on_error, at),
        )
        if schema is None and isinstance(items, Sequence):
            schema = _seen_columns(items)
        return cls._of(connector, schema, event_time, disorder, time_unit)

    @classmethod
    def from_generator(cls, function: Callable[[], Iterable[Any]], **options: Any) -> S_co:
        """What a generator function yields; the same as `from_iterable`."""
        made: Callable[..., S_co] = cls.from_iterable
        return made(function, **options)

    @classmethod
    def from_list(cls, items: Sequence[Any], **options: Any) -> S_co:
        """Values in a list: dictionaries, or single values in a column `value`."""
        rows = [each if isinstance(each, Mapping) else {"value": each} for each in items]
        made: Callable[..., S_co] = cls.from_dicts
        return made(rows, **options)

    @classmethod
    def from_parquet(
        cls,
        path: str,
        *,
        columns: Sequence[str] | None = None,
        batch_size: int = 65_536,
        schema: Schema | None = None,
        event_time: str | None = None,
        disorder: Span = 0,
        time_unit: str = "",
    ) -> S_co:
        """Parquet files: one, a directory, or a pattern. Only the columns that the program uses are read.

        A column of `schema` that may be null, and that a file does not have, is null there.
        """
        from shoal.dataflow.connectors.files.sources import ParquetSource

        declared = _schema(schema, find_location())
        optional = () if declared is None else tuple(each.name for each in declared if each.nullable)
        connector = ParquetSource(str(path), columns=_names(columns), batch_size=batch_size, optional=optional)
        return cls._of(connector, schema, event_time, disorder, time_unit)

    @classmethod
    def from_csv(
        cls,
        path: str,
        *,
        columns: Sequence[str] | None = None,
        batch_size: int = 65_536,
        schema: Schema | None = None,
        event_time: str | None = None,
        disorder: Span = 0,
        time_unit: str = "",
        on_error: str | OnError = OnError.FAIL,
    ) -> S_co:
        """CSV files with a header: one, a directory, or a pattern.

        A line that cannot be read fails the run with its number, or is left out and counted (`on_error="skip"`), or
        goes to the side output `errors` with its file and number (`on_error="side"`).
        """
        from shoal.dataflow.connectors.files.sources import CsvSource

        connector = _text_source(CsvSource, path, columns, batch_size, on_error)
        return cls._of(connector, schema, event_time, disorder, time_unit)

    @classmethod
    def from_json(
        cls,
        path: str,
        *,
        columns: Sequence[str] | None = None,
        batch_size: int = 65_536,
        schema: Schema | None = None,
        event_time: str | None = None,
        disorder: Span = 0,
        time_unit: str = "",
        on_error: str | OnError = OnError.FAIL,
    ) -> S_co:
        """Files of JSON lines: one, a directory, or a pattern.

        A line that cannot be read fails the run with its number, or is left out and counted (`on_error="skip"`), or
        goes to the side output `errors` with its file and number (`on_error="side"`).
        """
        from shoal.dataflow.connectors.files.sources import JsonLinesSource

        connector = _text_source(JsonLinesSource, path, columns, batch_size, on_error)
        return cls._of(connector, schema, event_time, disorder, time_unit)

    @classmethod
    def from_sql(
        cls,
        sql: str,
        database: str = ":memory:",
        *,
        batch_size: int = 65_536,
        schema: Schema | None = None,
        event_time: str | None = None,
        disorder: Span = 0,
        time_unit: str = "",
    ) -> S_co:
        """The rows of a query, through DuckDB."""
        from shoal.dataflow.connectors.sql import SqlSource

        connector = SqlSource(sql, database=database, batch_size=batch_size)
        return cls._of(connector, schema, event_time, disorder, time_unit)

    @classmethod
    def from_kafka(
        cls,
        *where: Any,
        bootstrap_servers: Broker | None = None,
        topic: str | None = None,
        group_id: str | None = None,
        schema: Schema | None = None,
        codec_type: str | None = None,
        codec_options: Mapping[str, Any] | None = None,
        event_time: str | None = None,
        disorder: Span | None = None,
        time_unit: str = "",
        idle_after: Span | EllipsisType | None = ...,
        start: str = "earliest",
        on_error: str | OnError = OnError.FAIL,
        bounded: bool = False,
        metadata: Sequence[str] | Mapping[str, str] = (),
        **others: Any,
    ) -> S_co:
        """The records of a topic: `from_kafka("orders")`, with the app's broker and group.

        Also with what `app.topic(…)` gave, or `from_kafka(bootstrap_servers, topic, group_id)`, where the first may be
        `KafkaSettings`. Columns are those of `app.topic(…, schema=)`, else those named here, else those of a sample
        that is read at start. Event time is the column named here or for the topic, else the record's own timestamp.
        A partition that was read to its end and stayed empty for `idle_after` no longer holds the watermark back; said
        here or for the topic, else 5 seconds; None is never. `bounded` reads up to what is there at the start, and
        ends. `metadata` adds what the topic knows of each record, as columns `record_key`, `record_partition`,
        `record_offset`, `record_timestamp` and `record_headers`, or with names of your own: `{"offset": "position"}`.
        """
        from shoal.dataflow.connectors.topics.endpoints import TopicSource
        from shoal.dataflow.connectors.topics.metadata import make_metadata, with_metadata

        at = find_location()
        legacy.refuse_others("from_kafka", others, Reading.from_kafka, at=at)
        said = place_of_topic("from_kafka", where, broker=bootstrap_servers, topic=topic, group=group_id, at=at)
        facts = make_metadata(metadata, at=at)
        connector = TopicSource(
            said.name,
            broker=said.broker,
            group=said.group,
            codec=codec_type or said.codec or "json",
            start=start,
            on_error=make_policy(on_error, at),
            options=tuple((codec_options or {}).items()),
            bounded=bounded,
            metadata=facts,
        )
        check_unit(time_unit, at)
        time = said.time
        if event_time is not None or disorder is not None:
            column = said.time.column if event_time is None else event_time
            behind = said.time.disorder if disorder is None else micros(disorder, "disorder", at=at)
            time = EventTime(column, behind, time_unit or said.time.unit, said.time.idle_after)
        if not isinstance(idle_after, EllipsisType):
            time = replace(time, idle_after=make_idle(idle_after, at))
        declared = _told_first(said.schema, _schema(schema, at))
        if declared is not None:
            declared = with_metadata(declared, facts, at=at)
        return cls._begin(Source(connector=connector, schema=declared, time=time, at=at))

    @classmethod
    def from_topic(cls, topic: Any, **options: Any) -> S_co:
        """The records of a topic of the app, in Kafka or in its local log."""
        made: Callable[..., S_co] = cls.from_kafka
        return made(topic, **options)


# ---------------------------------------------------------------------------------------------------------
# Shared with sinks


def place_of_topic(
    what: str,
    where: Sequence[Any],
    *,
    broker: Broker | None,
    topic: str | None,
    group: str | None,
    at: Location | None,
) -> TopicSpec:
    """Which topic is meant, at which broker, for which group: from the arguments, from the app, or an error."""
    where = [getattr(each, "spec", each) for each in where]  # what app.topic() gave
    if len(where) > 1 and not isinstance(where[0], str | TopicSpec):  # settings of Kafka, or a mistake
        broker, where[0] = where[0], ""
    wrong = [each for each in where if not isinstance(each, str | TopicSpec)]
    if wrong:
        raise PlanError([problem(what, wrong[0], "must be the name of a topic, or one of app.topic()")], at=at)
    if len(where) > 3 or (len(where) > 1 and any(isinstance(each, TopicSpec) for each in where)):
        raise PlanError([problem(what, len(where), "takes a topic, or a broker, a topic and a group")], at=at)
    if len(where) == 1:
        topic = where[0] if isinstance(where[0], str) else topic
        if isinstance(where[0], TopicSpec):
            return where[0]
    elif where:
        broker, topic = where[0] or broker, str(where[1])
        group = str(where[2]) if len(where) == 3 else group
    if not topic:
        raise PlanError([problem("topic", topic, "must be named")], at=at, hint=f'{what}("orders")')
    return _known_topic(what, topic, broker, group, at)


def _known_topic(what: str, topic: str, broker: Broker | None, group: str | None, at: Location | None) -> TopicSpec:
    definition = current()
    known = definition.topics.get(topic) if definition is not None else None
    own = definition.broker if definition else ""
    name = (definition.group if definition else "") or group or ""
    place = name_broker(broker, group=name, own=own, at=at) if broker else known.broker if known else own
    if not place:
        raise PlanError(
            [problem(f"{what}({topic!r})", None, "needs a broker, and stands in no @app.dataflow function")],
            at=at,
            hint=f'put it into one, or name it: {what}("localhost:9092", {topic!r}, "my-group")',
        )
    group = group or (known.group if known else "") or (definition.group if definition else "")
    if known is None:
        return TopicSpec(topic, place, group)
    return TopicSpec(topic, place, group, known.schema, known.time, known.codec, known.key, known.partitions)


def _told_first(*schemas: Schema | None) -> Schema | None:
    return next((each for each in schemas if each is not None), None)


def make_time(
    column: str | None, disorder: Span, unit: str, idle_after: Span | None, at: Location | None
) -> EventTime | None:
    """Event time as a user set it; None when it was not set."""
    behind = micros(disorder, "disorder", at=at)
    check_unit(unit, at)
    if column is None:
        if behind:
            hint = 'name the column: event_time="ts"'
            raise PlanError([problem("disorder", disorder, "says nothing without event time")], at=at, hint=hint)
        return None
    return EventTime(column, behind, unit, make_idle(idle_after, at))


def make_idle(idle_after: Span | None, at: Location | None) -> int:
    """After how many microseconds an empty split is idle; 0 for never, which users write as None."""
    if idle_after is None:
        return 0
    found = micros(idle_after, "idle_after", at=at)
    if not found:
        hint = 'idle_after=None is never, idle_after="1s" after a second'
        raise PlanError([problem("idle_after", idle_after, "must be above 0 seconds, or None")], at=at, hint=hint)
    return found


def check_unit(unit: str, at: Location | None) -> None:
    """Refuse what is no unit of time."""
    if unit not in ("", "s", "ms", "us", "ns"):
        raise PlanError([problem("time unit", unit, "must be s, ms, us or ns")], at=at)


def make_policy(policy: str | OnError, at: Location | None) -> OnError:
    """What happens to rows that cannot be taken."""
    try:
        return OnError(policy)
    except ValueError:
        rule = 'must be "fail", "skip" (dropped and counted) or "side" (to the side output "errors")'
        raise PlanError([problem("on_error", policy, rule)], at=at) from None


def _schema(schema: Any, at: Location | None) -> Schema | None:
    """A schema as users write it: Arrow's, or names with types."""
    if schema is None or isinstance(schema, pa.Schema):
        return schema
    return make_schema(schema, at=at)


def make_schema(schema: Any, *, at: Location | None = None) -> Schema:
    """A schema from names and types: `{"amount": "double"}`, Arrow types, or Python's own."""
    if isinstance(schema, pa.Schema):
        return schema
    if not isinstance(schema, Mapping):
        rule = 'must be a pyarrow Schema, or names with types: {"amount": "double"}'
        raise PlanError([problem("schema", schema, rule)], at=at)
    from shoal.dataflow.language.expressions.datatypes import parse_type

    plain = {int: "int64", float: "double", str: "string", bool: "bool", bytes: "binary"}
    fields = []
    for name, kind in schema.items():
        try:
            known = plain.get(kind, kind) if isinstance(kind, type) else kind
            fields.append(pa.field(str(name), parse_type(known) if isinstance(known, str) else known))
        except (ValueError, TypeError) as error:
            rule = 'must be a type such as "int64", "double", "string", "timestamp[us]"'
            raise PlanError([problem(f"schema: {name}", kind, rule)], at=at) from error
    return pa.schema(fields)


def _batch_of(value: Any, at: Location | None) -> Batch:
    if not isinstance(value, pa.RecordBatch):
        raise PlanError([problem("batch", type(value).__name__, "must be a pyarrow RecordBatch")], at=at)
    return value


def _empty(schema: Schema) -> Batch:
    return pa.RecordBatch.from_pylist([], schema=schema)


def _text_source(
    kind: Callable[..., SourceConnector],
    path: str,
    columns: Sequence[str] | None,
    batch_size: int,
    on_error: str | OnError,
) -> SourceConnector:
    """A source of files of lines: both kinds are told the same."""
    policy = make_policy(on_error, find_location())
    return kind(str(path), columns=_names(columns), batch_size=batch_size, on_error=policy)


def _names(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if columns is None else tuple(columns)


def _seen_columns(items: Sequence[Any]) -> Schema | None:
    """The columns of the first of some rows, with types that the others need too; None when these are not rows.

    What is whole or null in the first may have a fraction later. What does not fit even so is a bad row.
    """
    rows = [row for item in items for row in (item if isinstance(item, list | tuple) else (item,))]
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        return None
    names = [name for name, value in rows[0].items() if type(value) is int or value is None]
    found = {name: next((row[name] for row in rows if isinstance(row.get(name), float)), None) for name in names}
    fractions = {name: value for name, value in found.items() if value is not None}
    try:
        # A float decides for whole numbers before it, and for them alone: text beside it stays a bad row.
        whole = guessed(rows)
        wide = make_rows([fractions], None).schema
    except InvalidError:
        return None
    return pa.schema([wide.field(each.name) if _may_widen(each, wide) else each for each in whole])


def _may_widen(field: Any, wide: Schema) -> bool:
    return field.name in wide.names and pa.types.is_integer(field.type)


def _again(items: Iterable[Any]) -> Callable[[], Iterator[Any]]:
    """A function over something that was given as it is; an iterator can be gone through once only."""
    is_used = False

    def iterate() -> Iterator[Any]:
        nonlocal is_used
        found = iter(items)
        if found is items and is_used:
            raise PreconditionError(
                f"the {type(items).__name__} that it reads can be gone through once only, and an earlier run did",
                hint="give a list, or the function that makes the iterator: it is called anew for each run",
            )
        is_used = True
        return found

    return iterate
