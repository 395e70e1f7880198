"""Small sources, operators and plans for tests of the engine: real ones, driven from outside."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shoal.dataflow.connectors.base import Fetched, Split
from shoal.dataflow.connectors.memory import BatchesSource, CollectSink
from shoal.dataflow.language.elements import TIME
from shoal.dataflow.language.functions import make_ref
from shoal.dataflow.language.keys import key_groups
from shoal.dataflow.language.logical import Custom, EventTime, Node, Sink, Source
from shoal.dataflow.operators.base import Context, OperatorState, Output, StepOperator
from shoal.testing.streams import Recording, RecordingSink

SCHEMA = pa.schema([("key", pa.utf8()), ("value", pa.int64()), ("time", pa.int64())])
SUMS = pa.schema([("key", pa.utf8()), ("start", pa.int64()), ("total", pa.int64())])
MICROS = EventTime("time", unit="us")


def rows(*values: tuple[str, int, int]) -> pa.RecordBatch:
    """A batch of (key, value, time)."""
    return pa.RecordBatch.from_pylist(
        [{"key": key, "value": value, "time": time} for key, value, time in values], schema=SCHEMA
    )


def table_source(batch: pa.RecordBatch, time: EventTime | None = None, **options: Any) -> Source:
    return Source(connector=BatchesSource((batch,)), schema=batch.schema, time=time, **options)


def custom(node: Node, factory: Callable[[], StepOperator], *more: Node, **options: Any) -> Custom:
    options.setdefault("schema", SCHEMA)
    return Custom(inputs=(node, *more), factory=make_ref(factory), **options)


def collect(node: Node, uid: str = "out") -> Sink:
    return Sink(inputs=(node,), connector=CollectSink(), uid=uid)


# -- sources ----------------------------------------------------------------------------------------------


class Tap:
    """What a `TapSource` gives: filled by the test, read by tasks of several lives."""

    def __init__(self, splits: int = 1) -> None:
        self.changed = threading.Condition()
        self.batches: dict[str, list[pa.RecordBatch]] = {str(each): [] for each in range(splits)}
        self.closed: set[str] = set()
        self.fetched = 0
        #: How often a reader came back with nothing.
        self.empty = 0

    def give(self, batch: pa.RecordBatch, split: str = "0") -> None:
        with self.changed:
            self.batches[split].append(batch)
            self.changed.notify_all()

    def close(self, *splits: str) -> None:
        with self.changed:
            self.closed |= set(splits) or set(self.batches)
            self.changed.notify_all()

    def wait_fetched(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.fetched >= count, timeout=10)

    def wait_empty(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.empty >= count, timeout=10)


@dataclass(frozen=True, slots=True)
class TapSource:
    """An endless source (or one with an end) whose batches come from a test."""

    tap: Tap
    is_bounded: bool = False
    label: str = "tap"

    def find_schema(self) -> pa.Schema:
        return SCHEMA

    def find_splits(self) -> Sequence[Split]:
        return [Split(name) for name in self.tap.batches]

    def open_reader(self, splits: Sequence[Split], schema: pa.Schema, *, clock: Any) -> TapReader:
        return TapReader(self.tap, splits)


class TapReader:
    def __init__(self, tap: Tap, splits: Sequence[Split]) -> None:
        self._tap = tap
        self._at = {split.name: 0 for split in splits}
        self._woken = False

    def seek(self, split: Split, position: Any) -> None:
        self._at[split.name] = position

    def _next(self) -> str | None:
        return next((name for name, at in self._at.items() if at < len(self._tap.batches[name])), None)

    def fetch(self, *, max_rows: int, timeout: float) -> Fetched | None:
        with self._tap.changed:
            if self._next() is None:
                self._tap.changed.wait_for(lambda: self._next() is not None or self._woken, timeout=timeout)
            self._woken = False
            name = self._next()
            if name is None:
                self._tap.empty += 1
                self._tap.changed.notify_all()
                return None
            batch = self._tap.batches[name][self._at[name]]
            self._at[name] += 1
            self._tap.fetched += 1
            self._tap.changed.notify_all()
            return Fetched(Split(name), batch, self._at[name])

    def ended(self) -> frozenset[Split]:
        done = (name for name, at in self._at.items() if at >= len(self._tap.batches[name]))
        return frozenset(Split(name) for name in done if name in self._tap.closed)

    def wake(self) -> None:
        with self._tap.changed:
            self._woken = True
            self._tap.changed.notify_all()

    def close(self) -> None:
        pass


def tap_source(tap: Tap, *, time: EventTime | None = MICROS, bounded: bool = False, uid: str = "") -> Source:
    return Source(connector=TapSource(tap, bounded), schema=SCHEMA, time=time, uid=uid)


# -- operators --------------------------------------------------------------------------------------------


class Multiply(StepOperator):
    """Stateless: value times something."""

    def __init__(self, by: int = 2) -> None:
        self._by = by

    def process(self, batch: pa.RecordBatch, out: Output, *, port: int = 0) -> None:
        values = pa.array([value * self._by for value in batch["value"].to_pylist()], pa.int64())
        out.emit(batch.set_column(batch.schema.get_field_index("value"), "value", values))


class WindowSums(StepOperator):
    """Sums by key and tumbling window of ten: state by key group, rows out when the watermark passes the end."""

    SIZE = 10

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int], int] = defaultdict(int)
        self._total = 128

    def open(self, context: Context) -> None:
        self._groups = context.key_groups

    def process(self, batch: pa.RecordBatch, out: Output, *, port: int = 0) -> None:
        times = batch[TIME].to_pylist()
        for key, value, time in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), times, strict=True):
            assert group_of(key) in self._groups
            self._sums[key, time // self.SIZE * self.SIZE] += value

    def on_watermark(self, time: int, out: Output) -> None:
        done = sorted(each for each in self._sums if each[1] + self.SIZE <= time)
        if done:
            made = [{"key": key, "start": start, "total": self._sums.pop((key, start))} for key, start in done]
            out.emit(pa.RecordBatch.from_pylist(made, schema=SUMS))

    def snapshot(self) -> OperatorState:
        groups: dict[int, list] = defaultdict(list)
        for (key, start), total in self._sums.items():
            groups[group_of(key)].append([key, start, total])
        return OperatorState({group: json.dumps(entries).encode() for group, entries in groups.items()})

    def restore(self, states: Iterable[OperatorState]) -> None:
        for state in states:
            for group, blob in state.keyed.items():
                assert group in self._groups
                for key, start, total in json.loads(blob):
                    self._sums[key, start] += total


def group_of(key: str) -> int:
    return int(key_groups(pa.record_batch({"key": [key]}), ["key"], 128)[0])


def window_sums(node: Node, uid: str = "sums") -> Custom:
    return custom(node, WindowSums, keys=("key",), schema=SUMS, uid=uid)


def expected_sums(batches: Iterable[pa.RecordBatch]) -> list[tuple[str, int, int]]:
    totals: dict[tuple[str, int], int] = defaultdict(int)
    for batch in batches:
        for row in batch.to_pylist():
            totals[row["key"], row["time"] // 10 * 10] += row["value"]
    return sorted((key, start, total) for (key, start), total in totals.items())


def sums_of(table: pa.Table) -> list[tuple[str, int, int]]:
    return sorted((row["key"], row["start"], row["total"]) for row in table.to_pylist())


# -- sinks ------------------------------------------------------------------------------------------------


def recording_sink(node: Node, recording: Recording, uid: str = "out", *, commits_in_tasks: bool = False) -> Sink:
    return Sink(inputs=(node,), connector=RecordingSink(recording, commits_in_tasks), uid=uid)
