"""Aggregates over session windows: rows of a key that follow each other within a gap.

A session reaches from its first row to one gap behind its last, half-open: a row exactly a gap later begins a new one.
So the result does not depend on how rows are cut into batches. Sessions grow in both directions and merge when a row
comes between them, in any order of arrival. A batch is sorted once by key and time; everything after that is done for
all keys together. A row is late when its session, merged with those that are open, has ended at the watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import InternalError
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME, Batch
from shoal.dataflow.language.keys import Integers
from shoal.dataflow.language.windows import Firing, SessionWindow
from shoal.dataflow.operators.aggregates.plan import AggregatePlan
from shoal.dataflow.operators.aggregates.sparse import occurrence
from shoal.dataflow.operators.aggregates.store import Store
from shoal.dataflow.operators.aggregating import Aggregating
from shoal.dataflow.operators.base import Context, OperatorState, Output
from shoal.dataflow.operators.batches import event_times, processing_time
from shoal.dataflow.operators.grouping import Grouping
from shoal.dataflow.operators.keys.index import KeyIndex
from shoal.dataflow.operators.keys.liveness import Liveness
from shoal.dataflow.operators.keys.tables import (
    fingerprint,
    key_table,
    late_table,
    numbers_of,
    restore_windows,
    restored_slots,
    state_columns,
)
from shoal.dataflow.operators.sessions.emitted import EmittedSessions
from shoal.dataflow.operators.sessions.table import SessionTable, Spans, find_spans, join_spans
from shoal.dataflow.state.blobs import pack
from shoal.dataflow.state.dirty import DirtyCells, GoneKeys
from shoal.dataflow.state.tables import LateTables

_LOW, _HIGH, _EMITTED = "__low", "__high", "__emitted"


class SessionAggregate(Aggregating):
    """Results by key and session."""

    def __init__(self, *, grouping: Grouping, window: SessionWindow, firing: Firing | None = None) -> None:
        super().__init__(grouping)
        self._fingerprint = fingerprint(grouping.keys, grouping.description, window)
        self._gap = window.gap
        self._firing = firing or Firing()
        self._emitted = None if self._firing == Firing() else EmittedSessions()
        self._index = KeyIndex(grouping.keys)
        self._liveness = Liveness()
        self._store = Store(())
        self._table = SessionTable()
        self._watermark = START_OF_TIME
        self._next_early: int | None = None
        self._late = 0
        #: The keys whose sessions changed since the last snapshot, and those that have none left.
        self._dirty, self._gone = DirtyCells(), GoneKeys()

    def open(self, context: Context) -> None:
        """Remember the clock and the sizes."""
        self._context = context

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Find the sessions of the batch, and merge them with those that are open."""
        if not batch.num_rows:
            return
        plan = self._bound(batch)
        times = event_times(batch)
        slots = self._index.slots(batch)
        spans, of_row = find_spans(slots, times, self._gap)
        touched = np.unique(spans.slots)
        self._dirty.mark(touched, len(self._index))
        there = self._table.cells_of(touched)
        merged = join_spans(spans, self._table.spans(there), self._gap)
        is_late = merged.spans.highs + self._gap + self._firing.allowed_lateness <= self._watermark
        cells = self._settle(merged.spans, merged.of_second, there, is_late)
        of_row = cells[merged.of_first[of_row]]
        self._table.link(merged.spans.slots[~is_late], cells[~is_late])
        rows = np.flatnonzero(of_row >= 0)
        if len(rows) < batch.num_rows:
            self._put_aside(batch, of_row < 0, out)
            batch, of_row, times = batch.take(pa.array(rows)), of_row[rows], times[rows]
        if len(rows):
            self._store.update(of_row, plan.inputs(batch, times))
            self._after(np.unique(of_row), out)

    def on_watermark(self, time: int, out: Output) -> None:
        """Emit the results of sessions that have ended."""
        if time <= self._watermark:
            return
        self._watermark = time
        ended = self._table.ended(time - self._gap)
        fresh = ended[~self._table.emitted[ended]]
        self._emit(fresh, out)
        self._table.emitted[fresh] = True
        over = ended
        if self._firing.allowed_lateness and time < END_OF_TIME:
            over = ended[self._table.highs[ended] + self._gap + self._firing.allowed_lateness <= time]
        self._drop(over)

    def on_tick(self, now: int, out: Output) -> None:
        """Emit preliminary results."""
        if self._next_early is not None and now >= self._next_early:
            self._next_early = None
            alive = self._table.alive()
            self._emit(alive[~self._table.emitted[alive]], out)

    def next_tick(self) -> int | None:
        """When preliminary results are due."""
        return self._next_early

    def statistics(self) -> dict[str, int]:
        """What is held, and what was late."""
        return {"late": self._late, "keys": len(self._index), "sessions": len(self._table.alive())}

    def snapshot(self) -> OperatorState:
        """Open sessions by key group."""
        if self._plan is None:
            return OperatorState(shared=pack({}, watermark=self._watermark, **self._fingerprint))
        shared = pack({"input": self._plan.schema.empty_table()}, watermark=self._watermark, **self._fingerprint)
        if not self._index.is_bound:
            return OperatorState(shared=shared)
        is_whole = self._dirty.is_mostly(len(self._index))
        changed, gone = self._dirty.take(), self._gone.take()
        cells = self._table.alive() if is_whole else self._table.cells_of(changed)
        gone = (None, np.zeros(0, np.int64)) if is_whole else gone
        flags = self._table.emitted[cells].astype(np.int64)
        extra = {_LOW: self._table.lows[cells], _HIGH: self._table.highs[cells], _EMITTED: flags}
        slots, total = self._table.slots[cells], self._context.key_groups.total
        extra |= state_columns(self._plan, self._store.take(cells))
        # All sessions of a key are written together, and take the place of those that it had.
        makers = {"sessions": late_table(self._index, slots, extra, total, gone=gone)}
        if self._emitted is not None:
            slots, extra = self._emitted.to_columns(self._table, cells, self._plan)
            makers["emitted"] = late_table(self._index, slots, extra, total, gone=gone)
        return OperatorState(shared=shared, tables=LateTables(makers), is_whole=is_whole)

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Take sessions in."""
        self._watermark = restore_windows(states, self._fingerprint, bind=self._bind, take_in=self._take_in)
        self._is_restored = self._plan is not None
        self._dirty.begin()

    # -- sessions ---------------------------------------------------------------------------------------------

    def _bind(self, schema: Any) -> AggregatePlan:
        self._plan = self._grouping.bind(schema)
        self._store = Store(self._plan.specs)
        return self._plan

    def _settle(self, merged: Spans, of_open: Integers, there: Integers, is_late: Any) -> Integers:
        """The cell of each merged session: that of an open one that is in it, or a new one; -1 when it is late."""
        cells = np.full(len(merged.slots), -1, np.int64)
        turns = occurrence(of_open)
        cells[of_open[turns == 0]] = there[turns == 0]
        for turn in range(1, int(turns.max()) + 1 if len(turns) else 1):
            others = there[turns == turn]
            self._store.merge(self._store.take(others).with_cells(cells[of_open[turns == turn]]))
            self._store.clear(others)
            self._table.release(others)
            if self._emitted is not None:
                self._emitted.move(others, cells[of_open[turns == turn]])
        fresh = np.flatnonzero((cells < 0) & ~is_late)
        cells[fresh] = self._table.allocate(len(fresh))
        self._store.ensure(self._table.capacity)
        kept = np.flatnonzero(~is_late)
        self._table.put(cells[kept], merged.at(kept))
        return cells

    def _put_aside(self, batch: Batch, late: Any, out: Output) -> None:
        self._late += int(late.sum())
        out.emit_side("late", batch.filter(pa.array(late)))

    def _after(self, cells: Integers, out: Output) -> None:
        """Corrections of sessions that have ended already, and the next preliminary results."""
        if self._firing.allowed_lateness:
            ended = cells[self._table.highs[cells] + self._gap <= self._watermark]
            self._emit(ended, out)
            self._table.emitted[ended] = True
        if self._firing.early_every and self._next_early is None:
            self._next_early = processing_time(self._context.clock) + self._firing.early_every

    def _emit(self, cells: Integers, out: Output) -> None:
        if self._plan is None:
            return
        self._dirty.mark(self._table.slots[cells], len(self._index))
        for start in range(0, len(cells), self._context.max_rows):
            some = cells[start : start + self._context.max_rows]
            sparse, slots = self._store.take(some), self._table.slots[some]
            windows = (self._table.lows[some], self._table.highs[some] + self._gap)
            if self._emitted is None:
                out.emit(self._grouping.assemble(self._plan, self._index.take(slots), sparse, windows=windows))
                continue
            for change in self._emitted.change(some, slots, windows, self._plan.results(sparse)):
                batch = self._grouping.assemble(
                    self._plan,
                    self._index.take(change.slots),
                    sparse.at(np.zeros(len(change.slots), np.int64)),
                    results=change.columns,
                    windows=change.windows,
                    changes=pa.repeat(pa.scalar(change.word, pa.string()), len(change.slots)),
                )
                out.emit(batch)

    def _drop(self, cells: Integers) -> None:
        if not len(cells):
            return
        slots = np.unique(self._table.slots[cells])
        if self._liveness.is_watching(len(self._index)):
            self._liveness.note(slots, len(self._index))
        self._store.clear(cells)
        self._table.remove(cells, slots)
        self._note_gone(slots)
        if self._emitted is not None:
            self._emitted.forget(cells)
        if self._liveness.is_due(len(self._index)):
            live = self._liveness.begin(len(self._index))
            live[self._table.slots[self._table.alive()]] = True
            if self._liveness.decide(live):
                moved = self._index.compact(live)
                self._table.renumber(moved)
                self._dirty.renumber(moved)

    def _note_gone(self, slots: Integers) -> None:
        """Some sessions of these keys were dropped; some keys may have others."""
        if self._dirty.is_tracking:
            self._dirty.mark(slots, len(self._index))
            gone = slots[~np.isin(slots, self._table.slots[self._table.cells_of(slots)])]
            self._gone.add(key_table(self._index, gone), self._index.groups(gone, self._context.key_groups.total))

    def _take_in(self, tables: Mapping[str, Any]) -> None:
        if self._plan is None:
            raise InternalError("sessions without a schema")
        if "sessions" not in tables:
            return
        table = tables["sessions"]
        slots = restored_slots(self._index, table)
        order = np.argsort(slots, kind="stable")
        cells = self._table.allocate(len(slots))
        self._store.ensure(self._table.capacity)
        self._store.merge(self._plan.from_arrow(cells, table))
        self._table.put(cells, Spans(slots, numbers_of(table, _LOW), numbers_of(table, _HIGH)))
        self._table.emitted[cells] = numbers_of(table, _EMITTED) == 1
        self._table.link(slots[order], cells[order])
        if "emitted" in tables and self._emitted is not None:
            self._emitted.take_in(tables["emitted"], self._index, self._table)
