"""The rows of the matrix: every operator, join and sink of Shoal, each with a stream that uses it.

`OPERATORS` and `SINKS` are the tables. `test_tables` fails when something of Shoal is in neither. `stalls` and
`outputs` run them in virtual time, over inputs of every pace.
"""

from __future__ import annotations

import contextlib
import enum
import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from shoal import FunctionContext, ProcessFunction, Record, Stream, count, session, sliding, tumbling
from shoal.dataflow.api.streams.tables import Table
from shoal.dataflow.connectors.files.sinks import CsvSink, JsonLinesSink, ParquetSink
from shoal.dataflow.connectors.memory import CallbackSink, CollectSink
from shoal.dataflow.connectors.sql import SqlSink
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.dataflow.connectors.topics.endpoints import TopicSink
from shoal.dataflow.execution.event_time import AssignTimes
from shoal.dataflow.execution.morsels import MorselStep
from shoal.dataflow.language.expressions.trees import col
from shoal.dataflow.language.logical import Node
from shoal.dataflow.operators import distinct, merge, partial, running, stateless
from shoal.dataflow.operators.counts import CountAggregate
from shoal.dataflow.operators.joins.asof import AsOfJoin
from shoal.dataflow.operators.joins.interval import IntervalJoin
from shoal.dataflow.operators.joins.lookup import BroadcastJoin, TableJoin
from shoal.dataflow.operators.joins.regular import RegularJoin
from shoal.dataflow.operators.joins.unique import UniqueJoin
from shoal.dataflow.operators.joins.window import WindowJoin
from shoal.dataflow.operators.sessions.aggregate import SessionAggregate
from shoal.dataflow.operators.users import opaque, records
from shoal.dataflow.operators.users.custom import CustomOperator
from shoal.dataflow.operators.users.process import ProcessOperator
from shoal.dataflow.operators.windows.aggregate import WindowAggregate
from shoal.dataflow.operators.windows.stored import StoredWindowAggregate
from shoal.topics.base import TopicPartition

SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.float64()), ("time", pa.int64())])
#: Seconds between two checkpoints: the least that there is, and the default.
TINY, NORMAL = 0.01, 1.0


# -- operators and joins ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Case:
    """A row of the table: a stream over some inputs, and the class whose work it is."""

    name: str
    made_by: type
    build: Callable[..., Stream]
    inputs: int = 1
    #: Splits of each input, each in a task of its own. Inputs of a merge are sorted as a whole, and have one.
    splits: int = 2
    settings: dict[str, Any] = field(default_factory=dict)
    #: So many of its inputs, the first ones, may be endless. A row meets what came before it in the others: they end.
    endless: int = 3

    def __str__(self) -> str:
        return self.name


class Totals(ProcessFunction):
    def open(self, context: FunctionContext) -> None:
        self.total = context.reducing_state("total", lambda a, b: a + b)

    def process(self, record: Record, context: FunctionContext):
        context.set_timer("1s")
        self.total.add(record.value)
        yield {"key": context.key[0] if isinstance(context.key, tuple) else context.key, "total": self.total.get()}

    def on_timer(self, time: int, context: FunctionContext):
        self.total.clear()


class Kept:
    """An operator of a user's own, with state."""

    def __init__(self) -> None:
        self.rows = 0

    def process_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.rows += batch.num_rows
        return batch

    def snapshot(self) -> dict[int, int]:
        return {1: self.rows}

    def restore(self, states: list[dict[int, int]]) -> None:
        self.rows = sum(state[1] for state in states)


PROCESSED = {"key": "int64", "total": "double"}

OPERATORS = (
    # Stateless steps
    Case("filter", stateless.Filter, lambda a: a.filter(col("value") >= 0)),
    Case("filter by batches", opaque.FilterBatches, lambda a: a.filter(lambda batch: batch["value"].is_valid())),
    Case("select", stateless.Project, lambda a: a.select("key", twice=col("value") * 2)),
    Case("map", opaque.MapBatches, lambda a: a.map(lambda batch: batch, schema=SCHEMA)),
    Case("flat map", opaque.MapBatches, lambda a: a.flat_map(lambda batch: [batch, batch], schema=SCHEMA)),
    Case("records", records.MapRecords, lambda a: a.records().map(lambda r: {"key": r.key}, schema={"key": "int64"})),
    Case("event time", AssignTimes, lambda a: a.filter(col("value") >= 0).event_time("time", unit="us")),
    Case(
        "morsels",
        MorselStep,
        lambda a: a.filter(col("value") >= 0).select("key", twice=col("value") * 2),
        settings={"morsel_workers": 2, "morsel_rows": 1},
    ),
    # Steps with state
    Case("distinct", distinct.Distinct, lambda a: a.distinct("key", ttl="1s")),
    Case("distinct in windows", distinct.Distinct, lambda a: a.group_by("key").window(tumbling(seconds=1)).distinct()),
    Case("running", running.RunningAggregate, lambda a: a.group_by("key").aggregate(total=("value", "sum"))),
    Case("running over all", running.RunningAggregate, lambda a: a.aggregate(n=("*", "count"))),
    Case(
        "running over changes",
        running.RunningAggregate,
        lambda a: a.group_by("key").aggregate(total=("value", "sum")).aggregate(n=("*", "count"), all=("total", "sum")),
    ),
    Case(
        "running over changes of a join",
        running.RunningAggregate,
        lambda a, b: a.join(b, on="key", how="left", ttl="10m").group_by("key").aggregate(n=("*", "count")),
        2,
    ),
    Case("reduce", running.RunningAggregate, lambda a: a.group_by("key").reduce(lambda one, other: other)),
    Case("tumbling", WindowAggregate, lambda a: a.group_by("key").window(tumbling(seconds=1)).sum("value")),
    Case(
        "tumbling with corrections",
        WindowAggregate,
        lambda a: a.group_by("key").window(tumbling(seconds=1), allowed_lateness="1s", early_every="20ms").count(),
    ),
    Case(
        "two stages",
        partial.PartialAggregate,
        lambda a: a.window(tumbling(seconds=1)).aggregate(n=("*", "count"), top=("value", "max")),
    ),
    Case("sliding", WindowAggregate, lambda a: a.group_by("key").window(sliding(1, 0.1)).mean("value")),
    Case(
        "sliding in rocks",
        StoredWindowAggregate,
        lambda a: (
            a.group_by("key").window(sliding(1, 0.1)).aggregate(n=("*", "count"), kinds=("value", "count_distinct"))
        ),
        settings={"state": "rocks"},
    ),
    Case("session", SessionAggregate, lambda a: a.window(session(gap_seconds=1)).count()),
    # Which rows are in one window depends on their order: there is one split.
    Case("count window", CountAggregate, lambda a: a.window(count(10)).sum("value"), splits=1),
    Case("process", ProcessOperator, lambda a: a.key_by("key").process(Totals, schema=PROCESSED)),
    Case(
        "process in rocks",
        ProcessOperator,
        lambda a: a.key_by("key").process(Totals, schema=PROCESSED),
        settings={"state": "rocks"},
    ),
    Case("own operator", CustomOperator, lambda a: a.apply(Kept, schema=SCHEMA)),
    # Steps with several inputs
    Case("own operator of two", CustomOperator, lambda a, b: a.apply(Kept, b, schema=SCHEMA), 2),
    Case("union", stateless.Filter, lambda a, b: a.union(b).filter(col("value") >= 0), 2),
    Case(
        "union of unions",
        WindowAggregate,
        lambda a, b, c: a.union(b.union(c)).union(a).group_by("key").window(tumbling(seconds=1)).count(),
        3,
    ),
    Case("merge", merge.Merge, lambda a, b: a.merge(b, by="time"), 2, 1),
    Case("merge of three", merge.Merge, lambda a, b, c: Stream.merge(a, b, c, by="time"), 3, 1),
    Case("merge of a merge", merge.Merge, lambda a, b, c: a.merge(b.merge(c, by="time"), by="time"), 3, 1),
    Case("merge with itself", merge.Merge, lambda a: a.merge(a.filter(col("value") > 5), by="time"), 1, 1),
    Case("join", RegularJoin, lambda a, b: a.join(b, on="key"), 2),
    Case("join with ttl", RegularJoin, lambda a, b: a.join(b, on="key", how="outer", ttl="10m"), 2),
    Case(
        "join in rocks",
        RegularJoin,
        lambda a, b: a.join(b, on="key", how="left", ttl="10m"),
        2,
        settings={"state": "rocks"},
    ),
    Case(
        "interval join in rocks",
        IntervalJoin,
        lambda a, b: a.join(b, on="key", within=("-1s", "1s"), how="left"),
        2,
        settings={"state": "rocks"},
    ),
    Case("join of unique", UniqueJoin, lambda a, b: a.join(b, on="key", right_is_unique=True), 2),
    Case("window join", WindowJoin, lambda a, b: a.join(b, on="key", window=tumbling(seconds=1), how="left"), 2),
    Case(
        "window join in rocks",
        WindowJoin,
        lambda a, b: a.join(b, on="key", window=tumbling(seconds=1), how="outer"),
        2,
        settings={"state": "rocks"},
    ),
    Case("interval join", IntervalJoin, lambda a, b: a.join(b, on="key", within=("-1s", "1s"), how="outer"), 2),
    Case("as-of join", AsOfJoin, lambda a, b: a.asof_join(b, on="key"), 2),
    Case("table join", TableJoin, lambda a, b: a.join(Table("t", b, ("key",)), on="key", how="left"), 2, endless=1),
    Case("broadcast join", BroadcastJoin, lambda a, b: a.join(b, on="key", how="left", broadcast=True), 2, endless=1),
    Case("broadcast join with itself", BroadcastJoin, lambda a: a.join(a, on="key", broadcast=True), endless=0),
    Case(
        "broadcast joins in a row",
        BroadcastJoin,
        lambda a, b, c: a.join(b.select("key"), on="key", broadcast=True).join(
            c.select("key"), on="key", broadcast=True
        ),
        3,
        endless=1,
    ),
)


# -- sinks ------------------------------------------------------------------------------------------------


class Promise(enum.Enum):
    """How often a row is visible after a crash and a restart."""

    ONCE = "once"
    AT_LEAST_ONCE = "at least once"
    #: What was there before the crash is gone: it was the process's memory.
    NONE = "none"


@dataclass(frozen=True, eq=False)
class SinkCase:
    """A sink: how a stream ends in it, and what a reader sees of it."""

    name: str
    kind: type
    build: Callable[[Stream, Path], Node]
    #: The rows that are visible, in any order.
    read: Callable[[Path], list[dict[str, Any]]]
    promise: Promise = Promise.ONCE

    def __str__(self) -> str:
        return self.name


#: What callbacks were given and what sinks have collected, by folder: they live in memory.
SEEN: dict[Path, list[dict[str, Any]]] = {}
COLLECTED: dict[Path, CollectSink] = {}


def _to_callback(stream: Stream, at: Path) -> Node:
    seen = SEEN.setdefault(at, [])
    return stream.to_callback(lambda batch: seen.extend(batch.to_pylist())).node


def _to_memory(stream: Stream, at: Path) -> Node:
    return stream.to_sink(COLLECTED.setdefault(at, CollectSink())).node


def _collected(at: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = COLLECTED[at].into.table().to_pylist()
    return rows


def _files(at: Path, ending: str) -> list[Path]:
    return [path for path in at.rglob(f"*.{ending}") if ".pending" not in path.parts]


def _parquet(at: Path) -> list[dict[str, Any]]:
    return [row for path in _files(at, "parquet") for row in pq.read_table(path).to_pylist()]


def _csv(at: Path) -> list[dict[str, Any]]:
    return [row for path in _files(at, "csv") for row in pa_csv.read_csv(path).to_pylist()]


def _json(at: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in _files(at, "jsonl") for line in path.read_text().splitlines()]


def _sqlite(at: Path) -> list[dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(at / "rows.sqlite")) as database:
        return _queried(database, "select 1 from sqlite_master where name = 'rows'")


def _duckdb(at: Path) -> list[dict[str, Any]]:
    with duckdb.connect(str(at / "rows.duckdb")) as database:
        return _queried(database, "select 1 from duckdb_tables() where table_name = 'rows'")


def _queried(database: Any, has_table: str) -> list[dict[str, Any]]:
    if not database.execute(has_table).fetchall():  # there were no rows
        return []
    rows = database.execute('select "key", "value", "time" from "rows"').fetchall()
    return [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]


def read_topic(at: Path) -> list[dict[str, Any]]:
    place = TopicPartition("rows", 0)
    found: list[dict[str, Any]] = []
    with topics_of(str(at / "log")) as topics:
        if place.topic not in topics.names():
            return []
        with topics.reader() as reader:
            reader.assign({place: 0})
            end = topics.next_offsets([place])[place]
            while reader.positions()[place] < end:
                for fetched in reader.read(timeout=1.0):
                    found += [json.loads(value) for value in fetched.batch["value"].to_pylist()]
    return found


SINKS = (
    SinkCase("callback", CallbackSink, _to_callback, lambda at: SEEN[at], Promise.AT_LEAST_ONCE),
    SinkCase("collect", CollectSink, _to_memory, _collected, Promise.NONE),
    SinkCase("parquet", ParquetSink, lambda a, at: a.to_parquet(f"{at}/parquet/").node, _parquet),
    SinkCase("csv", CsvSink, lambda a, at: a.to_csv(f"{at}/csv/").node, _csv),
    SinkCase("json", JsonLinesSink, lambda a, at: a.to_json(f"{at}/json/").node, _json),
    SinkCase("sqlite", SqlSink, lambda a, at: a.to_sql("rows", f"{at}/rows.sqlite").node, _sqlite),
    SinkCase("duckdb", SqlSink, lambda a, at: a.to_sql("rows", f"{at}/rows.duckdb").node, _duckdb),
    SinkCase("topic", TopicSink, lambda a, at: a.to_kafka(f"{at}/log", "rows").node, read_topic),
)
