"""Aggregates over count windows: so many rows of a key in the order of their arrival, beginning every so many rows.

Only full windows give a result, at once. Its event time is that of the row that made the window full, and never behind
the watermark: so it does not depend on how rows are cut into batches, and is not late. Rows are kept in panes of as
many rows as no window cuts: the pane that is being filled, and the full ones that a window still needs. How many rows a
key had is never forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from shoal.dataflow.language.elements import START_OF_TIME, Batch
from shoal.dataflow.language.keys import Integers
from shoal.dataflow.language.windows import CountWindow
from shoal.dataflow.operators.aggregates.lanes import grown
from shoal.dataflow.operators.aggregates.plan import AggregatePlan
from shoal.dataflow.operators.aggregates.sparse import Sparse, concat, occurrence
from shoal.dataflow.operators.aggregates.store import Store
from shoal.dataflow.operators.aggregating import Aggregating
from shoal.dataflow.operators.base import Context, OperatorState, Output
from shoal.dataflow.operators.batches import emit_chunks, event_times, has_time
from shoal.dataflow.operators.grouping import Grouping
from shoal.dataflow.operators.keyed_state import check_kept, numbers_of, restored_slots, said_kept, state_table
from shoal.dataflow.operators.keyindex import KeyIndex
from shoal.dataflow.state.blobs import pack, pack_groups, unpack

_COUNT, _PLACE = "__count", "__place"
_OPEN = -1


class CountAggregate(Aggregating):
    """Results by key and count."""

    def __init__(self, *, grouping: Grouping, window: CountWindow) -> None:
        super().__init__(grouping)
        self._kept = said_kept(grouping.keys, grouping.description, window)
        self._pane = math.gcd(window.size, window.slide)
        self._length = window.size // self._pane
        self._step = window.slide // self._pane
        self._index = KeyIndex(grouping.keys)
        self._counts = np.zeros(0, np.int64)
        #: What is being filled, by slot; and the last full panes, by slot and place in its ring.
        self._open, self._ring = Store(()), Store(())
        self._arrived = 0
        self._watermark = START_OF_TIME

    def open(self, context: Context) -> None:
        """Remember the sizes."""
        self._context = context

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Count the rows into panes; full ones may complete a window."""
        if not batch.num_rows:
            return
        plan = self._bound(batch)
        times = self._times(batch)
        slots = self._index.slots(batch)
        self._ensure(len(self._index))
        panes = (self._counts[slots] + occurrence(slots)) // self._pane
        touched, pane_slots, pane_numbers, of_row, lasts = _groups(slots, panes)
        filled = Store(plan.specs, len(pane_slots))
        going_on = np.flatnonzero(
            self._open.rows[pane_slots] * (pane_numbers == self._counts[pane_slots] // self._pane)
        )
        filled.merge(self._open.take(pane_slots[going_on]).with_cells(going_on))
        self._open.clear(pane_slots[going_on])
        filled.update(of_row, plan.inputs(batch, times))
        self._counts[touched] += np.bincount(slots, minlength=len(self._counts))[touched]
        full = filled.rows[: len(pane_slots)] == self._pane
        part = np.flatnonzero(~full)
        self._open.merge(filled.take(part).with_cells(pane_slots[part]))
        done = np.flatnonzero(full)
        moments = np.maximum(times[lasts[done]], self._watermark)
        self._complete(pane_slots[done], pane_numbers[done], filled.take(done), moments, out)

    def on_watermark(self, time: int, out: Output) -> None:
        """Remember it."""
        self._watermark = max(self._watermark, time)

    def statistics(self) -> dict[str, int]:
        """What is held."""
        return {"keys": len(self._index)}

    def snapshot(self) -> OperatorState:
        """Counts and panes by key group."""
        if self._plan is None:
            return OperatorState()
        shared = pack(
            {"input": self._plan.schema.empty_table()}, arrived=self._arrived, watermark=self._watermark, **self._kept
        )
        everyone = np.arange(len(self._index))
        ring = self._ring.present()
        slots = np.concatenate([everyone, ring // self._length])
        places = np.concatenate([np.full(len(everyone), _OPEN), ring % self._length])
        sparse = concat([self._open.take(everyone), self._ring.take(ring)])
        extra = {_COUNT: self._counts[slots], _PLACE: places}
        table = state_table(self._index, slots, self._plan, sparse, extra)
        groups = self._index.groups(slots, self._context.key_groups.total)
        return OperatorState(pack_groups({"panes": (table, groups)}), shared)

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Take counts and panes in."""
        watermarks = []
        for state in states:
            if not state.shared:
                continue
            shared = unpack(state.shared)
            check_kept(shared.facts, self._kept)
            plan = self._plan or self._bind(shared.tables["input"].schema)
            self._arrived = max(self._arrived, shared.facts["arrived"])
            watermarks.append(shared.facts["watermark"])
            for content in state.keyed.values():
                table = unpack(content).tables["panes"]
                slots = restored_slots(self._index, table)
                self._ensure(len(self._index))
                self._counts[slots] = numbers_of(table, _COUNT)
                places = numbers_of(table, _PLACE)
                sparse = plan.from_arrow(slots, table)
                self._open.merge(sparse.at(np.flatnonzero(places == _OPEN)))
                full = np.flatnonzero(places != _OPEN)
                self._ring.merge(sparse.at(full).with_cells(slots[full] * self._length + places[full]))
        self._watermark = min(watermarks, default=START_OF_TIME)
        self._is_restored = self._plan is not None

    def _bind(self, schema: Any) -> AggregatePlan:
        self._plan = self._grouping.bind(schema)
        self._open, self._ring = Store(self._plan.specs), Store(self._plan.specs)
        return self._plan

    def _times(self, batch: Batch) -> Integers:
        if has_time(batch.schema):
            return event_times(batch)
        self._arrived += batch.num_rows
        return np.arange(self._arrived - batch.num_rows, self._arrived)

    def _ensure(self, keys: int) -> None:
        if keys > len(self._counts):
            self._counts = grown(self._counts, max(keys, 2 * len(self._counts)), 0)
        self._open.ensure(keys)
        if self._length > 1:
            self._ring.ensure(keys * self._length)

    def _complete(self, slots: Integers, numbers: Integers, panes: Sparse, moments: Integers, out: Output) -> None:
        """Full panes, ordered by slot and number, and when each became full."""
        if self._length == 1:
            self._give(slots, panes, moments, out)
            return
        turns = occurrence(slots)
        for turn in range(int(turns.max()) + 1 if len(turns) else 0):
            rows = np.flatnonzero(turns == turn)
            places = slots[rows] * self._length + numbers[rows] % self._length
            self._ring.clear(places)
            self._ring.merge(panes.at(rows).with_cells(places))
            firsts = numbers[rows] + 1 - self._length
            due = np.flatnonzero((firsts >= 0) & (firsts % self._step == 0))
            if len(due):
                whole = self._window(slots[rows[due]], firsts[due])
                self._give(slots[rows[due]], whole, moments[rows[due]], out)

    def _window(self, slots: Integers, firsts: Integers) -> Sparse:
        """The panes of windows put together, oldest first."""
        whole = Store(self._ring.specs, len(slots))
        cells = np.arange(len(slots))
        for place in range(self._length):
            panes = slots * self._length + (firsts + place) % self._length
            whole.merge(self._ring.take(panes).with_cells(cells))
        return whole.take(cells)

    def _give(self, slots: Integers, sparse: Sparse, times: Integers, out: Output) -> None:
        if self._plan is not None and len(slots):
            batch = self._grouping.assemble(self._plan, self._index.take(slots), sparse, times=times)
            emit_chunks(out, batch, self._context.max_rows)


def _groups(slots: Integers, panes: Integers) -> tuple[Integers, Integers, Integers, Integers, Integers]:
    """The slots, then slot and number of each pane that rows fall into, the pane of each row, each pane's last row."""
    order = np.lexsort((panes, slots))
    ordered, numbers = slots[order], panes[order]
    begins = np.ones(len(slots), np.bool_)
    begins[1:] = (ordered[1:] != ordered[:-1]) | (numbers[1:] != numbers[:-1])
    starts = np.flatnonzero(begins)
    of_row = np.empty(len(slots), np.int64)
    of_row[order] = np.cumsum(begins) - 1
    lasts = order[np.append(starts[1:], len(slots)) - 1]
    return np.unique(slots), ordered[starts], numbers[starts], of_row, lasts
