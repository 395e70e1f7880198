"""The matrix of steps under checkpoints: one table of every operator, join and sink, and inputs of every pace.

`OPERATORS` and `SINKS` are the rows of the table. Each builds a stream over some inputs; `run` starts it, waits for
checkpoints, and stops it. Used by `test_checkpoint_matrix` here and, for all combinations, in `tests/long/dataflow`.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shoal import FunctionContext, ProcessFunction, Record, Stream, count, session, sliding, tumbling
from shoal.dataflow.api.tables import Table
from shoal.dataflow.connectors.base import Fetched, Split
from shoal.dataflow.connectors.file_sinks import CsvSink, JsonLinesSink, ParquetSink
from shoal.dataflow.connectors.memory import CallbackSink, CollectSink
from shoal.dataflow.connectors.sql import SqlSink
from shoal.dataflow.connectors.topics import TopicSink
from shoal.dataflow.execution import engine
from shoal.dataflow.execution.event_time import AssignTimes
from shoal.dataflow.execution.morsels import MorselStep
from shoal.dataflow.language.expressions import col
from shoal.dataflow.language.logical import Node
from shoal.dataflow.language.settings import CheckpointSettings, FlowSettings
from shoal.dataflow.operators import distinct, merge, opaque, partial, records, running, stateless
from shoal.dataflow.operators.base import Operator
from shoal.dataflow.operators.counts import CountAggregate
from shoal.dataflow.operators.custom import CustomOperator
from shoal.dataflow.operators.joins.asof import AsOfJoin
from shoal.dataflow.operators.joins.interval import IntervalJoin
from shoal.dataflow.operators.joins.lookup import BroadcastJoin, TableJoin
from shoal.dataflow.operators.joins.regular import RegularJoin
from shoal.dataflow.operators.joins.unique import UniqueJoin
from shoal.dataflow.operators.joins.window import WindowJoin
from shoal.dataflow.operators.process import ProcessOperator
from shoal.dataflow.operators.sessions.aggregate import SessionAggregate
from shoal.dataflow.operators.windows.aggregate import WindowAggregate

SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.float64()), ("time", pa.int64())])
#: Seconds between two checkpoints: the least that there is, and the default.
TINY, NORMAL = 0.01, 1.0
#: Seconds within which checkpoints come and a stop returns. A flow that stalls takes longer than any.
PATIENCE = 20.0


class Pace(enum.Enum):
    """How an input gives its rows."""

    ENDLESS = "endless"  # as fast as they are read
    SLOW = "slow"  # one now and then, without an end
    IDLE = "idle"  # none, without an end
    LOADING = "loading"  # one now and then, with an end that does not come while the flow runs
    ENDED = "ended"  # some, then the end

    @property
    def is_bounded(self) -> bool:
        return self in (Pace.LOADING, Pace.ENDED)


@dataclass(frozen=True)
class PacedSource:
    """A source of one pace. The rows of a split are in the order of every column, and no key comes twice."""

    pace: Pace
    most_splits: int = 1
    label: str = "paced"

    @property
    def is_bounded(self) -> bool:
        return self.pace.is_bounded

    def find_schema(self) -> pa.Schema:
        return SCHEMA

    def find_splits(self) -> Sequence[Split]:
        return [Split(str(number)) for number in range(self.most_splits)]

    def open_reader(self, splits: Sequence[Split], schema: pa.Schema, *, clock: Any) -> PacedReader:
        assert len(splits) <= 1, "a task reads one split"
        return PacedReader(self, schema, splits[0] if splits else None)


class PacedReader:
    def __init__(self, source: PacedSource, schema: pa.Schema, split: Split | None) -> None:
        self._pace = source.pace
        self._step = source.most_splits
        self._schema = schema
        self._split = split
        self._row = 0
        self._woken = threading.Event()

    def seek(self, split: Split, position: Any) -> None:
        self._row = position

    def fetch(self, *, max_rows: int, timeout: float) -> Fetched | None:
        match self._pace:
            case Pace.SLOW | Pace.LOADING if self._split is not None:
                if not self._woken.wait(min(timeout, 0.004)):
                    return self._rows(self._split, 1)
            case Pace.ENDLESS if self._split is not None:
                return self._rows(self._split, 20)
            case Pace.ENDED if self._split is not None and not self._row:
                return self._rows(self._split, 50)
            case Pace.ENDED:
                return None
            case _:
                self._woken.wait(timeout)
        self._woken.clear()
        return None

    def _rows(self, split: Split, number: int) -> Fetched:
        numbers = [row * self._step + int(split.name) for row in range(self._row, self._row + number)]
        self._row += number
        rows = {"key": numbers, "value": [float(each) for each in numbers], "time": [each * 1000 for each in numbers]}
        return Fetched(split, pa.record_batch(rows, schema=SCHEMA).select(self._schema.names), self._row)

    def ended(self) -> frozenset[Split]:
        has_ended = self._pace is Pace.ENDED and self._row and self._split is not None
        return frozenset({self._split}) if has_ended else frozenset()

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        pass


# -- the table --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A row of the table: a stream over some inputs, and the class whose work it is."""

    name: str
    made_by: type
    build: Callable[..., Stream]
    inputs: int = 1
    #: Splits of each input, each in a task of its own. Inputs of a merge are sorted as a whole, and have one.
    splits: int = 2
    settings: dict[str, Any] = field(default_factory=dict)

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
        settings={"morsel_workers": 2, "morsel_rows": 8},
    ),
    # Steps with state
    Case("distinct", distinct.Distinct, lambda a: a.distinct("key", ttl="1s")),
    Case("distinct in windows", distinct.Distinct, lambda a: a.group_by("key").window(tumbling(seconds=1)).distinct()),
    Case("running", running.RunningAggregate, lambda a: a.group_by("key").aggregate(total=("value", "sum"))),
    Case("running over all", running.RunningAggregate, lambda a: a.aggregate(n=("*", "count"))),
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
    Case("session", SessionAggregate, lambda a: a.window(session(gap_seconds=1)).count()),
    Case("count window", CountAggregate, lambda a: a.window(count(10)).sum("value")),
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
    Case("join with ttl", RegularJoin, lambda a, b: a.join(b, on="key", how="outer", ttl="1s"), 2),
    Case("join of unique", UniqueJoin, lambda a, b: a.join(b, on="key", right_is_unique=True), 2),
    Case("window join", WindowJoin, lambda a, b: a.join(b, on="key", window=tumbling(seconds=1), how="left"), 2),
    Case("interval join", IntervalJoin, lambda a, b: a.join(b, on="key", within=("-1s", "1s"), how="outer"), 2),
    Case("as-of join", AsOfJoin, lambda a, b: a.asof_join(b, on="key"), 2),
    Case("table join", TableJoin, lambda a, b: a.join(Table("t", b, ("key",)), on="key", how="left"), 2),
    Case("broadcast join", BroadcastJoin, lambda a, b: a.join(b, on="key", how="left", broadcast=True), 2),
    Case("broadcast join with itself", BroadcastJoin, lambda a: a.join(a, on="key", broadcast=True)),
    Case(
        "broadcast joins in a row",
        BroadcastJoin,
        lambda a, b, c: a.join(b.select("key"), on="key", broadcast=True).join(
            c.select("key"), on="key", broadcast=True
        ),
        3,
    ),
)

#: A sink, and how a stream ends in it.
SINKS: tuple[tuple[type, Callable[[Stream, Path], Node]], ...] = (
    (CallbackSink, lambda a, _at: a.to_callback(_nothing).node),
    (CollectSink, lambda a, _at: a.to_sink(CollectSink()).node),
    (ParquetSink, lambda a, at: a.to_parquet(f"{at}/parquet/").node),
    (CsvSink, lambda a, at: a.to_csv(f"{at}/csv/").node),
    (JsonLinesSink, lambda a, at: a.to_json(f"{at}/json/").node),
    (SqlSink, lambda a, at: a.to_sql("rows", f"{at}/rows.sqlite").node),
    (SqlSink, lambda a, at: a.to_sql("rows", f"{at}/rows.duckdb").node),
    (TopicSink, lambda a, at: a.to_kafka(f"{at}/log", "rows").node),
)


def _nothing(batch: pa.RecordBatch) -> None:
    """Rows go nowhere."""


def streams(paces: Sequence[Pace], splits: int = 2) -> list[Stream]:
    """Inputs of these paces."""
    sources = [PacedSource(pace, splits) for pace in paces]
    return [
        Stream.from_source(source, event_time="time", time_unit="us").uid(f"in-{number}")
        for number, source in enumerate(sources)
    ]


# -- one run ----------------------------------------------------------------------------------------------


def run(
    sink: Node, directory: Path, *, interval: float, checkpoints: int, parallelism: int = 2, **options: Any
) -> tuple[engine.RunReport, set[type[Operator]]]:
    """Start, wait for checkpoints, stop. Gives the report and the classes of the operators that ran.

    Raises `DeadlineError` when it stalls, and what failed when something does.
    """
    settings = FlowSettings(
        **{"queue_bytes": 64 * 1024, "poll": 0.01, **options},
        checkpoint=CheckpointSettings(directory=str(directory), interval=interval, min_pause=0.001),
    )
    flow = engine.start([sink], name="matrix", parallelism=parallelism, settings=settings)
    try:
        used = {type(step.operator) for task in flow._hosts._host._tasks.values() for step in task._chain._steps}
        wait_for_checkpoints(flow, checkpoints)
        return flow.stop(timeout=PATIENCE), used
    finally:
        flow.abort()


def wait_for_checkpoints(flow: engine.RunningFlow, wanted: int) -> None:
    """Until so many are complete, or it has ended."""
    pause, waited = threading.Event(), 0.0
    while not flow.is_done and flow.metrics().checkpoints.completed < wanted:
        assert waited < PATIENCE, f"{flow.metrics().checkpoints.completed} checkpoints of {wanted}; {whereabouts(flow)}"
        pause.wait(0.003)
        waited += 0.003


def whereabouts(flow: engine.RunningFlow) -> str:
    """What a flow that stalls waits for: the state of the checkpoint, and what each task has done for it."""
    tasks = [
        f"{task.name} has snapshotted {task._snapshotted}, orders {[*task.mailbox._orders]}, queues "
        + str([(len(queue.items), queue.used, queue.aligned, queue.ended) for queue in _queues(task)])
        for task in flow._hosts._host._tasks.values()
    ]
    return "\n".join([str(flow._attempt and flow._attempt.coordinator and flow._attempt.coordinator._state), *tasks])


def _queues(task: Any) -> Sequence[Any]:
    return task._inbox._queues if hasattr(task, "_inbox") else ()


def params(case: Case, paces: Sequence[Pace], interval: float) -> Any:
    """The parameters of one test."""
    return pytest.param(case, paces, interval, id=f"{case}-{'-'.join(pace.value for pace in paces)}-{interval:g}")


def check(case: Case, paces: Sequence[Pace], interval: float, directory: Path) -> None:
    """Checkpoints come, none fails, and the stop returns with one more."""
    sink = case.build(*streams(paces, case.splits)).to_callback(_nothing).node
    wanted = 3 if interval == TINY else 2
    report, used = run(sink, directory, interval=interval, checkpoints=wanted, **case.settings)
    assert case.made_by in used
    assert report.checkpoints.failed == 0
    assert report.checkpoints.completed > (0 if all(pace is Pace.ENDED for pace in paces) else wanted)
