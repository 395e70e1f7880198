"""Aggregates over count windows: so many rows of a key in the order of their arrival, beginning every so many rows.

Only full windows emit a result, at once. Its event time is that of the row that made the window full, and never behind
the watermark: so it does not depend on how rows are cut into batches, and is not late. Rows are kept in panes of as
many rows as no window cuts: the pane that is being filled, and the full ones that a window still needs. How many rows a
key had is never forgotten. All windows that a batch makes full are put together at once, out of blocks that overlapping
ones share; only floats and reductions are added up pane by pane, because their order matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shoal.dataflow.language.elements import START_OF_TIME, Batch
from shoal.dataflow.language.keys import Integers
from shoal.dataflow.language.windows import CountWindow
from shoal.dataflow.operators.aggregates.accumulators import grown
from shoal.dataflow.operators.aggregates.plan import AccumulatorSpec, AggregatePlan
from shoal.dataflow.operators.aggregates.sparse import Sparse, concat, occurrence
from shoal.dataflow.operators.aggregates.store import Store
from shoal.dataflow.operators.aggregating import Aggregating
from shoal.dataflow.operators.base import Context, OperatorState, Output
from shoal.dataflow.operators.batches import emit_chunks, event_times, has_time
from shoal.dataflow.operators.grouping import Grouping
from shoal.dataflow.operators.keys.index import KeyIndex
from shoal.dataflow.operators.keys.tables import (
    check_fingerprint,
    fingerprint,
    late_table,
    numbers_of,
    restored_slots,
    state_columns,
)
from shoal.dataflow.state.blobs import pack, unpack
from shoal.dataflow.state.dirty import DirtyCells
from shoal.dataflow.state.tables import LateTables

_COUNT, _PLACE = "__count", "__place"
_OPEN = -1
#: So many panes, or rows where a pane keeps them, are put together at once.
_AT_ONCE = 1 << 20


class CountAggregate(Aggregating):
    """Results by key and count."""

    def __init__(self, *, grouping: Grouping, window: CountWindow) -> None:
        super().__init__(grouping)
        self._fingerprint = fingerprint(grouping.keys, grouping.description, window)
        self._pane = math.gcd(window.size, window.slide)
        self._length = window.size // self._pane
        self._step = window.slide // self._pane
        self._index = KeyIndex(grouping.keys)
        self._counts = np.zeros(0, np.int64)
        #: What is being filled, by slot; and the last full panes, by slot and place in its ring.
        self._open, self._ring = Store(()), Store(())
        self._arrived = 0
        self._watermark = START_OF_TIME
        self._dirty = DirtyCells()

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
        self._dirty.mark(slots, len(self._index))
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
            {"input": self._plan.schema.empty_table()},
            arrived=self._arrived,
            watermark=self._watermark,
            **self._fingerprint,
        )
        if not self._index.is_bound:
            return OperatorState(shared=shared)
        is_whole = self._dirty.is_mostly(len(self._index))
        changed = self._dirty.take()
        everyone = np.arange(len(self._index)) if is_whole else changed
        ring = self._ring.present() if is_whole else self._ring_of(changed)
        slots = np.concatenate([everyone, ring // self._length])
        places = np.concatenate([np.full(len(everyone), _OPEN), ring % self._length])
        sparse = concat([self._open.take(everyone), self._ring.take(ring)])
        extra = {_COUNT: self._counts[slots], _PLACE: places}
        extra |= state_columns(self._plan, sparse)
        # All panes of a key are written together, and take the place of those that it had.
        tables = LateTables({"panes": late_table(self._index, slots, extra, self._context.key_groups.total)})
        return OperatorState(shared=shared, tables=tables, is_whole=is_whole)

    def _ring_of(self, slots: Integers) -> Integers:
        """The full panes that some keys have in the ring."""
        if self._length == 1:
            return np.zeros(0, np.int64)
        cells: Integers = (slots[:, None] * self._length + np.arange(self._length)).reshape(-1)
        return np.asarray(cells[self._ring.rows[cells] != 0])

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Take counts and panes in."""
        watermarks = []
        for state in states:
            if not state.shared:
                continue
            shared = unpack(state.shared)
            check_fingerprint(shared.facts, self._fingerprint)
            plan = self._plan or self._bind(shared.tables["input"].schema)
            self._arrived = max(self._arrived, shared.facts["arrived"])
            watermarks.append(shared.facts["watermark"])
            if "panes" in state.tables:
                table = state.tables["panes"].rows.combine_chunks()
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
        self._dirty.begin()

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
            self._emit(slots, panes, moments, out)
            return
        firsts = numbers + 1 - self._length
        is_due = (firsts >= 0) & (firsts % self._step == 0)
        # The first window of every key that is full now, then the second of each.
        order = np.argsort(occurrence(slots), kind="stable")
        due = order[is_due[order]]
        at_once = self._windows_at_once(slots[due])
        for start in range(0, len(due), at_once):
            some = due[start : start + at_once]
            row, places = self._in_a_row(slots[some], firsts[some], slots, numbers, panes)
            self._emit(slots[some], _windows(self._ring.specs, row, places, self._length), moments[some], out)
        self._remember(slots, numbers, panes)

    def _windows_at_once(self, slots: Integers) -> int:
        """How many windows are looked at together: they share panes, and what they need has to fit into memory."""
        if any(spec.kind.startswith("log:") for spec in self._ring.specs):
            return max(1, _AT_ONCE // (self._length * self._pane))
        if len(np.unique(slots)) * self._length <= _AT_ONCE:
            return max(1, len(slots))
        return max(1, _AT_ONCE // self._length)

    def _in_a_row(
        self, slots: Integers, firsts: Integers, known: Integers, numbers: Integers, panes: Sparse
    ) -> tuple[Sparse, Integers]:
        """The panes of windows, those of each slot in a row: old ones out of the ring, new ones from `panes`.

        Also the place of each window's first pane.
        """
        owners, of_window = np.unique(slots, return_inverse=True)
        lowest = np.full(len(owners), np.iinfo(np.int64).max)
        np.minimum.at(lowest, of_window, firsts)
        lengths = np.zeros(len(owners), np.int64)
        np.maximum.at(lengths, of_window, firsts - lowest[of_window] + self._length)
        bases = np.cumsum(lengths) - lengths
        of_place = np.repeat(np.arange(len(owners)), lengths)
        wanted = np.arange(len(of_place)) + (lowest - bases)[of_place]
        first_new = np.searchsorted(known, owners)
        since = wanted - numbers[first_new][of_place]
        old, new = np.flatnonzero(since < 0), np.flatnonzero(since >= 0)
        from_ring = self._ring.take(owners[of_place[old]] * self._length + wanted[old] % self._length)
        row = concat([from_ring, panes.at(first_new[of_place[new]] + since[new])])
        if len(old) and len(new) and old[-1] > new[0]:
            row = row.at(np.argsort(np.concatenate([old, new])))
        return row, bases[of_window] + firsts - lowest[of_window]

    def _remember(self, slots: Integers, numbers: Integers, panes: Sparse) -> None:
        """Keep the last full panes of each slot."""
        if not len(slots):
            return
        lasts = numbers[np.searchsorted(slots, slots, "right") - 1]
        rows = np.flatnonzero(numbers > lasts - self._length)
        places = slots[rows] * self._length + numbers[rows] % self._length
        self._ring.clear(places)
        self._ring.merge(panes.at(rows).with_cells(places))

    def _emit(self, slots: Integers, sparse: Sparse, times: Integers, out: Output) -> None:
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


def _windows(specs: Sequence[AccumulatorSpec], panes: Sparse, firsts: Integers, length: int) -> Sparse:
    """Windows of so many neighbouring panes, oldest first."""
    parts: dict[int, tuple[Any, ...]] = {}
    rows = np.zeros(0, np.int64)
    for combine in (_doubled, _one_by_one):
        chosen = [number for number, spec in enumerate(specs) if _has_an_order(spec) == (combine is _one_by_one)]
        if chosen or combine is _doubled:
            some = Sparse(panes.cells, panes.rows, tuple(panes.parts[number] for number in chosen))
            whole = combine([specs[number] for number in chosen], some, firsts, length)
            parts.update(zip(chosen, whole.parts, strict=True))
            rows = whole.rows
    return Sparse(np.arange(len(firsts)), rows, tuple(parts[number] for number in range(len(specs))))


def _has_an_order(spec: AccumulatorSpec) -> bool:
    """Whether it matters what is put together first: floats round, and a user's function may be anything."""
    return spec.kind in ("moments", "fold") or (spec.kind == "sum" and spec.dtype.kind == "f")


def _one_by_one(specs: Sequence[AccumulatorSpec], panes: Sparse, firsts: Integers, length: int) -> Sparse:
    """A pane after the other, of all windows at once."""
    whole, cells = Store(specs, len(firsts)), np.arange(len(firsts))
    for place in range(length):
        whole.merge(panes.at(firsts + place).with_cells(cells))
    return whole.take(cells)


def _doubled(specs: Sequence[AccumulatorSpec], panes: Sparse, firsts: Integers, length: int) -> Sparse:
    """Blocks of one pane, of two, of four and so on: a window is one block for each bit of its length.

    Windows that overlap share blocks, so the cost of each grows with the logarithm of the overlap at most.
    """
    begins = [firsts + (length & ((1 << level) - 1)) for level in range(length.bit_length())]
    needed = [np.unique(begins[-1])]
    for level in reversed(range(len(begins) - 1)):
        above = needed[0]
        mine = [begins[level]] if length >> level & 1 else []
        needed.insert(0, np.unique(np.concatenate([above, above + (1 << level), *mine])))
    whole, cells = Store(specs, len(firsts)), np.arange(len(firsts))
    blocks = panes.at(needed[0])
    for level, begin in enumerate(begins):
        if level:
            blocks = _twice(specs, blocks, needed[level - 1], needed[level], 1 << (level - 1))
        if length >> level & 1:
            whole.merge(blocks.at(np.searchsorted(needed[level], begin)).with_cells(cells))
    return whole.take(cells)


def _twice(specs: Sequence[AccumulatorSpec], blocks: Sparse, places: Integers, wanted: Integers, size: int) -> Sparse:
    """Blocks of twice the size, each of two neighbours."""
    store, cells = Store(specs, len(wanted)), np.arange(len(wanted))
    for begin in (wanted, wanted + size):
        store.merge(blocks.at(np.searchsorted(places, begin)).with_cells(cells))
    return store.take(cells)
