"""Topics as users hold them: `orders = app.topic("orders", schema=…)`, and `await orders.send({"amount": 5})`.

Made by `shoal.dataflow.api.apps.app`. Sending goes through `shoal.topics`, in a thread of its own, one flush for each
call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.errors import InvalidError, NotFoundError, problem
from shoal.dataflow.api.apps.lifetime import in_own_thread
from shoal.dataflow.api.context import TopicSpec
from shoal.dataflow.errors import PlanError
from shoal.dataflow.language.elements import Schema
from shoal.dataflow.language.expressions.values import make_rows
from shoal.dataflow.language.logical import Source
from shoal.dataflow.plan.prepare import ask_connector

#: The column of a value that is no mapping.
VALUE = "value"


class Topic:
    """A topic of an app."""

    __slots__ = ("spec",)

    def __init__(self, spec: TopicSpec) -> None:
        self.spec = spec

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.name

    @property
    def schema(self) -> Schema | None:
        """Its columns, where they were declared."""
        return self.spec.schema

    def __repr__(self) -> str:
        return f"<Topic {self.spec.name}>"

    async def send(self, value: Any, key: Any = None) -> None:
        """Append one record, and come back when it is written."""
        await self.send_many([value], keys=None if key is None else [key])

    async def send_many(self, values: Sequence[Any], *, keys: Sequence[Any] | None = None) -> None:
        """Append records in one go."""
        rows = [_as_row(each) for each in values]
        if rows:
            await in_own_thread(lambda: append_rows(self.spec, rows, keys))


def find_columns(source: Source) -> Schema | None:
    """What a source's system says its columns are. Blocks. A topic that is not there gets the line to write."""
    try:
        return ask_connector(source)
    except PlanError as error:
        if not isinstance(error.__cause__, NotFoundError):
            raise
        missing = with_line(error.__cause__)
        raise PlanError(error.problems, at=error.at, hint=missing.hint) from error


def with_line(error: NotFoundError) -> NotFoundError:
    """The error about a topic that is not there, with the line of a program that makes it."""
    if error.facts.get("kind") != "topic":
        return error
    name = error.facts["name"]
    hint = f'write to it first, or say what it holds: app.topic("{name}", schema={{"id": "int64", …}})'
    return NotFoundError("topic", name, hint=hint)


def make_topic(spec: TopicSpec) -> None:
    """Make a topic that is not there yet. Blocks."""
    from shoal.dataflow.connectors.topics.brokers import topics_of
    from shoal.topics.base import ensure_topic

    with topics_of(spec.broker) as topics:
        ensure_topic(topics, spec.name, partitions=spec.partitions)


def append_rows(spec: TopicSpec, rows: Sequence[Mapping[str, Any]], keys: Sequence[Any] | None) -> None:
    """Encode rows and append them to a topic, which is made when it is not there. Blocks."""
    from shoal.dataflow.api.apps.sending import append_records
    from shoal.topics.base import records
    from shoal.topics.codecs import codec

    rows = [_named(each, spec) for each in rows]
    try:
        batch = make_rows(rows, spec.schema)
    except InvalidError as error:
        raise InvalidError(error.problems, what=f"topic {spec.name}", hint=error.hint) from error
    encoded = codec(spec.codec or "json").encode(batch)
    chosen = _keys(spec, rows, keys)
    if chosen is not None and len(encoded.values) != len(rows):
        rule = "cannot have a key for each record: this codec puts many into one message"
        raise InvalidError([problem("key", chosen[0], rule)], what=spec.name)
    append_records(spec.broker, spec.name, records(encoded.values, keys=chosen), partitions=spec.partitions)


def _keys(spec: TopicSpec, rows: Sequence[Mapping[str, Any]], keys: Sequence[Any] | None) -> list[bytes | None] | None:
    if keys is None and not spec.key:
        return None
    return [_key_bytes(each) for each in (keys if keys is not None else [row.get(spec.key) for row in rows])]


def _key_bytes(key: Any) -> bytes | None:
    """A key as sinks write it: bytes as they are, everything else as its text."""
    return key if key is None or isinstance(key, bytes) else str(key).encode()


def _named(row: Mapping[str, Any], spec: TopicSpec) -> Mapping[str, Any]:
    """A row; a value that came without a name gets that of the topic's one column."""
    known = spec.schema
    if known is None or VALUE in known.names or set(row) != {VALUE}:
        return row
    if len(known) != 1:
        rule = f"must be a mapping with the columns {', '.join(known.names)}"
        raise InvalidError([problem("value", row[VALUE], rule)], what=f"topic {spec.name}")
    return {known.names[0]: row[VALUE]}


def _as_row(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {VALUE: value}
