"""Where streams end: `to_kafka("results")`, `to_parquet("results/")` and others. Part of `Stream`.

Each makes a sink node around the description of a connector, and returns an `SinkStream`, which can be run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.dataflow.api.context import Broker, TopicSpec, note_sink
from shoal.dataflow.api.streams.reading import place_of_topic
from shoal.dataflow.api.streams.sink_stream import SinkStream
from shoal.dataflow.api.streams.steps import S_co, Steps
from shoal.dataflow.api.streams.transforms import column_names, one_of
from shoal.dataflow.connectors.abilities import SupportsPartitions
from shoal.dataflow.connectors.base import SinkConnector
from shoal.dataflow.errors import Location, refuse
from shoal.dataflow.language.functions import find_location, make_ref
from shoal.dataflow.language.logical import Sink
from shoal.dataflow.plan.facts import check_columns


class Writing(Steps[S_co]):
    """Sinks."""

    __slots__ = ()

    def to_sink(self, connector: SinkConnector) -> SinkStream:
        """Rows into a connector of one's own."""
        return self._end(connector, find_location())

    def to_kafka(
        self,
        *where: Broker | TopicSpec,
        bootstrap_servers: Broker | None = None,
        topic: str | None = None,
        codec_type: str | None = None,
        codec_options: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> SinkStream:
        """Rows into a topic: `to_kafka("results")`, with the app's broker; or `to_kafka(bootstrap_servers, topic)`.

        `key` is the column that becomes the record's key: it decides the partition, and what a change replaces.
        """
        from shoal.dataflow.connectors.topics.endpoints import TopicSink

        at = find_location()
        said = place_of_topic("to_kafka", where, broker=bootstrap_servers, topic=topic, group=None, at=at)
        known = self._facts.keys[0] if len(self._facts.keys) == 1 else None
        named = key or said.key or known
        check_columns([named] if named else [], self._facts.schema, at=at, what="key")
        connector = TopicSink(
            said.name,
            broker=said.broker,
            codec=codec_type or said.codec or "json",
            key=named,
            options=tuple((codec_options or {}).items()),
            partitions=said.partitions,
        )
        return self._end(connector, at)

    def to_topic(self, topic: str | TopicSpec, **options: Any) -> SinkStream:
        """Rows into a topic of the app, in Kafka or in its local log."""
        return self.to_kafka(topic, **options)

    def to_parquet(self, path: str, *, partition_by: str | Sequence[str] = (), overwrite: bool = False) -> SinkStream:
        """Rows into Parquet files below a directory; with `partition_by` in folders `column=value` of it.

        A path that ends in .parquet is one file. One that is there already is replaced with `overwrite` only.
        """
        from shoal.dataflow.connectors.files.sources import ParquetSink

        at = find_location()
        named = column_names((partition_by,) if isinstance(partition_by, str) else tuple(partition_by), "partition", at)
        check_columns(named, self._facts.schema, at=at, what="to_parquet: partition_by")
        return self._end_in_files(ParquetSink(str(path), partition_by=named, overwrite=overwrite), "to_parquet", at)

    def to_csv(self, path: str, *, overwrite: bool = False) -> SinkStream:
        """Rows into CSV files below a directory; or into one file, with a path that ends in .csv, as `to_parquet`."""
        from shoal.dataflow.connectors.files.sources import CsvSink

        return self._end_in_files(CsvSink(str(path), overwrite=overwrite), "to_csv", find_location())

    def to_json(self, path: str, *, overwrite: bool = False) -> SinkStream:
        """Rows into files of JSON lines below a directory; or into one file: .jsonl, .ndjson or .json."""
        from shoal.dataflow.connectors.files.sources import JsonLinesSink

        return self._end_in_files(JsonLinesSink(str(path), overwrite=overwrite), "to_json", find_location())

    def to_sql(
        self,
        table: str,
        database: str = "",
        *,
        mode: str = "append",
        key: str | Sequence[str] | None = None,
    ) -> SinkStream:
        """Rows into a table of a file: SQLite by its name (.sqlite, .db), else DuckDB.

        With `key` a row replaces the one with the same key.
        """
        from shoal.dataflow.connectors.sql import SqlSink, is_in_memory

        at = find_location()
        if is_in_memory(database):
            rule = "must be a file: a database in memory is gone, with all rows, when the program ends"
            hint = f'write .to_sql({table!r}, "{table}.duckdb") or .to_sql({table!r}, "{table}.sqlite")'
            raise refuse("to_sql: database", database or None, rule, at=at, hint=hint)
        one_of(mode, ("append", "upsert"), "mode", at)
        named = column_names((key,), "key", at) if key else ()
        if mode == "upsert" and not named:
            named = self._facts.keys
        check_columns(named, self._facts.schema, at=at, what="to_sql: key")
        return self._end(SqlSink(table, database=database, keys=named), at)

    def to_callback(self, function: Callable[[Any], Any]) -> SinkStream:
        """Each batch to a function."""
        from shoal.dataflow.connectors.memory import CallbackSink

        at = find_location()
        return self._end(CallbackSink(make_ref(function, at=at, what="callback")), at)

    def _end_in_files(self, connector: Any, what: str, at: Location | None) -> SinkStream:
        """One file has one writer, whatever the parallelism of the flow; a folder has one in each task."""
        in_folders = isinstance(connector, SupportsPartitions) and bool(connector.partition_by)
        is_one = connector.path.endswith(connector.endings) and not in_folders
        if connector.overwrite and not is_one:
            rule = (
                f"is for one file, a path that ends in {' or '.join(connector.endings)}: a folder keeps what is in it"
            )
            raise refuse(f"{what}: overwrite", True, rule, at=at)
        return self._end(connector, at, parallelism=1 if is_one else None)

    def _end(self, connector: Any, at: Location | None, *, parallelism: int | None = None) -> SinkStream:
        node = Sink(inputs=(self._node,), connector=connector, parallelism=parallelism, at=at)
        output = SinkStream.behind(node, self._facts)
        note_sink(node)
        return output
