"""Aggregates without a window: the result at the end of bounded input, or changes of it all the time.

Changes say in `op` what they do to the row of their key that came before: `+I` a new one, `-U` and `+U` the old and the
new one, `-D` the last. A batch emits retractions first, then new results; what did not change is not emitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import Batch
from shoal.dataflow.language.keys import Array, Integers
from shoal.dataflow.operators.aggregates.plan import AggregatePlan
from shoal.dataflow.operators.aggregates.sparse import Sparse, distinct_rounds
from shoal.dataflow.operators.aggregates.store import Store
from shoal.dataflow.operators.aggregating import Aggregating
from shoal.dataflow.operators.base import Context, OperatorState, Output
from shoal.dataflow.operators.batches import emit_chunks, event_times, has_time
from shoal.dataflow.operators.emitted import rows_differ
from shoal.dataflow.operators.grouping import Grouping
from shoal.dataflow.operators.keys.index import KeyIndex
from shoal.dataflow.operators.keys.liveness import Liveness
from shoal.dataflow.operators.keys.tables import (
    check_fingerprint,
    fingerprint,
    key_table,
    late_table,
    restored_slots,
    state_columns,
)
from shoal.dataflow.state.blobs import pack, unpack
from shoal.dataflow.state.dirty import DirtyCells, GoneKeys
from shoal.dataflow.state.tables import LateTables


class RunningAggregate(Aggregating):
    """One result for each key. `emits_changes` on endless input; `takes_changes` when its input has `op`."""

    def __init__(self, *, grouping: Grouping, emits_changes: bool, takes_changes: bool = False) -> None:
        super().__init__(grouping)
        self._fingerprint = fingerprint(grouping.keys, grouping.description)
        self._emits_changes = emits_changes
        self._takes_changes = takes_changes
        self._index = KeyIndex(grouping.keys)
        self._liveness = Liveness()
        self._store = Store(())
        self._arrived = 0
        self._dirty, self._gone = DirtyCells(), GoneKeys()

    def open(self, context: Context) -> None:
        """Remember the sizes."""
        self._context = context

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Take rows in, and emit what changed."""
        if not batch.num_rows:
            return
        plan = self._bound(batch)
        times = self._times(batch)
        slots = self._index.slots(batch)
        self._store.ensure(len(self._index))
        self._dirty.mark_rows(slots, len(self._index))
        if not self._emits_changes and not self._takes_changes:
            self._update(plan, batch, slots, times)
            return
        touched = np.unique(slots)
        if not self._emits_changes:
            was = self._store.rows[touched] != 0
            self._update(plan, batch, slots, times)
            self._drop(touched[was & (self._store.rows[touched] == 0)])
            return
        before = self._store.take(touched)
        old = plan.results(before)
        self._update(plan, batch, slots, times)
        self._emit_changes(plan, before, old, out, int(times.max()))

    def on_end(self, out: Output) -> None:
        """Emit the results, where nothing was emitted before."""
        if self._plan is None or self._emits_changes:
            return
        cells = self._store.present()
        for start in range(0, len(cells), self._context.max_rows):
            some = cells[start : start + self._context.max_rows]
            keys = self._index.take(some)
            out.emit(self._grouping.assemble(self._plan, keys, self._store.take(some), times=self._moments(some)))

    def statistics(self) -> dict[str, int]:
        """What is held."""
        return {"keys": len(self._index)}

    def snapshot(self) -> OperatorState:
        """Results that changed, by key group."""
        if self._plan is None:
            return OperatorState()
        shared = pack({"input": self._plan.schema.empty_table()}, arrived=self._arrived, **self._fingerprint)
        if not self._index.is_bound:
            return OperatorState(shared=shared)
        is_whole = self._dirty.is_mostly(len(self._index))
        changed, gone = self._dirty.take(), self._gone.take()
        cells = self._store.present() if is_whole else changed[self._store.rows[changed] != 0]
        gone = (None, np.zeros(0, np.int64)) if is_whole else gone
        kept = state_columns(self._plan, self._store.take(cells))
        tables = LateTables({"cells": late_table(self._index, cells, kept, self._context.key_groups.total, gone=gone)})
        return OperatorState(shared=shared, tables=tables, is_whole=is_whole)

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Take results in."""
        for state in states:
            if not state.shared:
                continue
            shared = unpack(state.shared)
            check_fingerprint(shared.facts, self._fingerprint)
            plan = self._plan or self._bind(shared.tables["input"].schema)
            self._arrived = max(self._arrived, shared.facts["arrived"])
            if "cells" in state.tables:
                table = state.tables["cells"].rows.combine_chunks()
                slots = restored_slots(self._index, table)
                self._store.ensure(len(self._index))
                self._store.merge(plan.from_arrow(slots, table))
        self._is_restored = self._plan is not None
        self._dirty.begin()

    def _bind(self, schema: Any) -> AggregatePlan:
        self._plan = self._grouping.bind(schema, takes_back=self._takes_changes)
        if self._takes_changes and not self._plan.is_reversible:
            raise InvalidError(
                [problem("aggregate", None, "over changes only count, sum and mean can be calculated")],
                hint="use them, or aggregate a stream without changes",
            )
        self._store = Store(self._plan.specs)
        return self._plan

    def _times(self, batch: Batch) -> Integers:
        """What decides which row is first: event time, or the order of arrival."""
        if has_time(batch.schema):
            return event_times(batch)
        self._arrived += batch.num_rows
        return np.arange(self._arrived - batch.num_rows, self._arrived)

    def _moments(self, cells: Integers) -> Integers | None:
        return np.zeros(len(cells), np.int64) if self._grouping.emits_time else None

    def _update(self, plan: AggregatePlan, batch: Batch, slots: Integers, times: Integers) -> None:
        if self._takes_changes and not self._grouping.is_partial:
            self._store.update(slots, plan.inputs(batch, times, with_changes=True))
            return
        piece = self._grouping.piece(plan, batch, slots, times)
        for part in distinct_rounds(piece) if isinstance(piece, Sparse) else [piece]:
            self._store.add(part)

    # -- changes ----------------------------------------------------------------------------------------------

    def _emit_changes(self, plan: AggregatePlan, before: Sparse, old: list[Array], out: Output, time: int) -> None:
        after = self._store.take(before.cells)
        new = plan.results(after)
        was, is_now = before.rows != 0, after.rows != 0
        moved = was & is_now & rows_differ(old, new)
        gone = was & ~is_now
        less, more = np.flatnonzero(moved | gone), np.flatnonzero(moved | (is_now & ~was))
        self._emit(before, old, less, words=np.where(gone, "-D", "-U"), out=out, time=time)
        self._emit(after, new, more, words=np.where(was, "+U", "+I"), out=out, time=time)
        self._drop(before.cells[gone])

    def _drop(self, cells: Integers) -> None:
        """Forget keys whose rows were all taken back."""
        if not len(cells):
            return
        self._store.clear(cells)
        if self._dirty.is_tracking:
            self._gone.add(key_table(self._index, cells), self._index.groups(cells, self._context.key_groups.total))
        self._forget()

    def _emit(
        self, sparse: Sparse, results: list[Array], rows: Integers, *, words: Any, out: Output, time: int
    ) -> None:
        if not len(rows) or self._plan is None:
            return
        index = pa.array(rows)
        batch = self._grouping.assemble(
            self._plan,
            self._index.take(sparse.cells[rows]),
            sparse.at(rows),
            results=[array.take(index) for array in results],
            changes=pa.array(words[rows].tolist(), pa.string()),
            times=np.full(len(rows), time),
        )
        emit_chunks(out, batch, self._context.max_rows)

    def _forget(self) -> None:
        """Give up the slots of keys that are gone."""
        if self._plan is None or not self._liveness.is_due(len(self._index)):
            return
        live = self._liveness.begin(len(self._index))
        cells = self._store.present()
        live[cells] = True
        if self._liveness.decide(live):
            kept = self._store.take(cells)
            moved = self._index.compact(live)
            self._store = Store(self._plan.specs, len(self._index))
            self._store.merge(kept.with_cells(moved[cells]))
            self._dirty.renumber(moved)
