"""What a topic knows of a record beside its value, as columns: key, partition, offset, timestamp and headers.

`Stream.from_topic("orders", metadata=["offset"])` asks for them. Used by `shoal.dataflow.connectors.topics.endpoints`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from shoal.core.errors import Problem, problem
from shoal.dataflow.errors import Location, PlanError
from shoal.dataflow.language.elements import HIDDEN_PREFIX, Batch, Schema
from shoal.topics.base import HEADERS

#: Facts of a record, each with the column that is taken for it.
Metadata = tuple[tuple[str, str], ...]

TYPES: Mapping[str, Any] = {
    "key": pa.binary(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us"),
    "headers": HEADERS,
}


def make_metadata(wanted: Sequence[str] | Mapping[str, str], *, at: Location | None) -> Metadata:
    """Facts by name, or with a name for the column of each. Raises `PlanError` for what records do not have."""
    if isinstance(wanted, str):
        wanted = (wanted,)
    named = wanted if isinstance(wanted, Mapping) else {each: f"record_{each}" for each in wanted}
    rule = f"records have {', '.join(TYPES)}"
    problems: list[Problem] = [problem("metadata", each, rule) for each in named if each not in TYPES]
    columns = list(named.values())
    for column in columns:
        if not isinstance(column, str) or not column or column.startswith(HIDDEN_PREFIX):
            problems.append(problem("metadata", column, f"must name a column, not beginning with {HIDDEN_PREFIX}"))
        elif columns.count(column) > 1:
            problems.append(problem("metadata", column, "must be named once"))
    if problems:
        raise PlanError(problems, at=at, hint='metadata=["offset"], or metadata={"offset": "position"}')
    return tuple(named.items())


def with_metadata(schema: Schema, metadata: Metadata, *, at: Location | None = None) -> Schema:
    """The columns of the values, and those of the records behind them. Raises `PlanError` for a name of both."""
    taken = [column for _, column in metadata if column in schema.names]
    if taken:
        rule = "is a column of the values already"
        hint = f'another name for it: metadata={{"{metadata[0][0]}": "my_name"}}'
        raise PlanError([problem("metadata", each, rule) for each in taken], at=at, hint=hint)
    for fact, column in metadata:
        schema = schema.append(pa.field(column, TYPES[fact]))
    return schema


class MetadataColumns:
    """Puts the facts that a schema asks for into rows that were decoded from records."""

    def __init__(self, schema: Schema, metadata: Metadata) -> None:
        facts = {column: fact for fact, column in metadata}
        self._schema = schema
        self._facts = {name: facts[name] for name in schema.names if name in facts}
        #: The columns of the values.
        self.payload: Schema = pa.schema([field for field in schema if field.name not in self._facts])

    @property
    def wanted(self) -> frozenset[str]:
        """The facts that are read."""
        return frozenset(self._facts.values())

    def add(self, rows: Batch, partition: int, records: Batch, record_of: Any) -> Batch:
        """The rows with all columns of the schema.

        Args:
            rows: what the records were decoded to.
            partition: where they come from.
            records: of schema `FETCHED`.
            record_of: for each row the index of its record.
        """
        if not self._facts:
            return rows
        columns = [
            self._column(self._facts[name], partition, records, record_of) if name in self._facts else rows.column(name)
            for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    @staticmethod
    def _column(fact: str, partition: int, records: Batch, record_of: Any) -> Any:
        if fact == "partition":
            return pa.repeat(pa.scalar(partition, TYPES[fact]), len(record_of))
        column = records.column(records.schema.get_field_index(fact))
        return column.take(record_of).cast(TYPES[fact])
