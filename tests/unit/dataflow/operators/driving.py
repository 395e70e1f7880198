"""Drives operators in tests as tasks do: batches shared out by key, watermarks to all, snapshots and restores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from shoal.dataflow.language.elements import END_OF_TIME, TIME
from shoal.dataflow.language.keys import KeyGroups, key_groups, partition, tasks_of
from shoal.dataflow.operators.base import Context, OperatorState, StepOperator
from shoal.dataflow.state import dirty
from shoal.dataflow.state.blobs import unpack
from shoal.dataflow.state.tables import merge_tables

TOTAL = 16
START = datetime(2026, 1, 1, tzinfo=UTC)


class HandClock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now = START

    def monotonic(self) -> float:
        return (self.now - START).total_seconds()

    def wall(self) -> datetime:
        return self.now

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("operators do not sleep")

    def advance(self, micros: int) -> int:
        self.now += timedelta(microseconds=micros)
        return self.micros

    @property
    def micros(self) -> int:
        return (self.now - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


class Collected:
    """An output that keeps what it gets."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.sides: dict[str, list[Any]] = {}

    def emit(self, batch: Any) -> None:
        assert batch.num_rows
        batch.validate(full=True)
        self.batches.append(batch)

    def emit_side(self, tag: str, batch: Any) -> None:
        self.sides.setdefault(tag, []).append(batch)

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        return rows_of(self.batches, *names)

    def side_rows(self, tag: str, *names: str) -> list[tuple[Any, ...]]:
        return rows_of(self.sides.get(tag, []), *names)


def rows_of(batches: Iterable[Any], *names: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for batch in batches:
        columns = [_values(batch.column(name)) for name in (names or batch.schema.names)]
        found += zip(*columns, strict=True)
    return found


def _values(array: Any) -> list[Any]:
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.timestamp("us")).view(pa.int64()).to_pylist()
    return array.to_pylist()


class Fleet:
    """So many operators, each with its share of the keys. Without keys there is one."""

    def __init__(
        self,
        make: Callable[[], StepOperator],
        keys: Sequence[Sequence[str]],
        width: int = 1,
        *,
        max_rows: int = 7,
        scratch: str = "",
        states: Sequence[OperatorState] = (),
        clock: HandClock | None = None,
    ) -> None:
        self.make, self.keys, self.width = make, keys, width
        self.max_rows, self.scratch = max_rows, scratch
        self.out = Collected()
        self.clock = clock or HandClock()
        self.operators = []
        #: The snapshots that each operator's state is made of, and how many calls there were.
        self.layers: list[list[OperatorState]] = []
        self.calls = 0
        for subtask in range(width):
            operator = make()
            groups = KeyGroups(-(-subtask * TOTAL // width), -(-(subtask + 1) * TOTAL // width), TOTAL)
            place = f"{scratch}/{width}-{subtask}" if scratch else ""
            operator.open(Context("op", subtask, width, groups, self.clock, place, max_rows))
            if states:
                mine = [cut_state(state, groups) for state in states]
                operator.restore(mine)
                self.layers.append([merged_state(mine)])
            else:
                self.layers.append([])
            self.operators.append(operator)

    def feed(self, batch: Any, port: int = 0) -> None:
        self.look()
        names = self.keys[port]
        if self.width == 1:
            self.operators[0].process(batch, self.out, port=port)
            return
        tasks = tasks_of(key_groups(batch, names, TOTAL), self.width, TOTAL)
        for task, part in partition(batch, tasks, self.width):
            self.operators[task].process(part, self.out, port=port)

    def look(self) -> None:
        """Checkpoints come between any two calls; here at every third."""
        self.calls += 1
        if self.calls % 3 == 0:
            with pytest.MonkeyPatch.context() as patch:
                if self.calls % 6:  # else all is taken where most has changed
                    patch.setattr(dirty, "_MOST", 0)
                self.take_snapshots()

    def watermark(self, time: int) -> None:
        self.look()
        for operator in self.operators:
            operator.on_watermark(time, self.out)

    def tick(self) -> None:
        for operator in self.operators:
            due = operator.next_tick()
            if due is not None and due <= self.clock.micros:
                operator.on_tick(self.clock.micros, self.out)

    def end(self) -> None:
        self.watermark(END_OF_TIME)
        for operator in self.operators:
            operator.on_end(self.out)
            operator.close()

    def snapshot(self) -> list[OperatorState]:
        """What a restart would get: the last whole snapshot of each, and what changed since."""
        self.take_snapshots()
        for layers in self.layers:
            layers[:] = [merged_state(layers)]
        return [layers[0] for layers in self.layers]

    def take_snapshots(self) -> None:
        """Keep what each operator snapshots now. Its tables are read later, when more rows have come."""
        for operator, layers in zip(self.operators, self.layers, strict=True):
            state = operator.snapshot()
            for content in [*state.keyed.values(), *([state.shared] if state.shared else [])]:
                assert isinstance(content, bytes)
                unpack(content)
            if state.is_whole:
                layers.clear()
            layers.append(state)

    def restored(self, width: int) -> Fleet:
        """Others in the place of these, from their snapshot; what came out so far stays with them."""
        states = self.snapshot()
        for operator in self.operators:
            operator.close()
        other = Fleet(
            self.make,
            self.keys,
            width,
            max_rows=self.max_rows,
            scratch=f"{self.scratch}/r" if self.scratch else "",
            states=states,
            clock=self.clock,
        )
        other.out = self.out
        return other


def merged_state(layers: Sequence[OperatorState]) -> OperatorState:
    """Snapshots one after the other as one."""
    last = layers[-1]
    return OperatorState(last.keyed, last.shared, merge_tables([layer.tables for layer in layers]))


def cut_state(state: OperatorState, groups: KeyGroups) -> OperatorState:
    """What concerns some key groups."""
    return OperatorState(
        {group: content for group, content in state.keyed.items() if group in groups},
        state.shared,
        {name: table.of_groups(groups.first, groups.end) for name, table in state.tables.items()},
    )


def batch_of(rows: Sequence[tuple[int, Any, Any]], key: Any = None, value: Any = None) -> Any:
    """Rows of (time, key, value)."""
    times, keys, values = ([row[place] for row in rows] for place in range(3))
    return pa.record_batch(
        {
            "key": pa.array(keys, key or pa.string()),
            "value": pa.array(values, value or pa.int64()),
            TIME: pa.array(times, pa.int64()),
        }
    )


def cut(rows: Sequence[Any], sizes: Sequence[int]) -> list[Sequence[Any]]:
    """Rows in batches of these sizes, again and again."""
    batches, start, turn = [], 0, 0
    while start < len(rows):
        size = sizes[turn % len(sizes)]
        batches.append(rows[start : start + size])
        start, turn = start + size, turn + 1
    return batches
