"""Aggregates over tumbling and sliding windows of event time.

Each window gives its result once, when the watermark reaches its end. A row is late for a window that has ended at the
watermark before its batch; late for all of them, it goes to the side output `late`. With allowed lateness a row still
corrects results that were given. With that, or with early results, the results are changes: see `operators.given`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import InternalError
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME, Batch
from shoal.dataflow.language.keys import Integers, combined
from shoal.dataflow.language.windows import Firing, SlidingWindow
from shoal.dataflow.operators.aggregates.plan import AggregatePlan
from shoal.dataflow.operators.aggregates.sparse import Sparse, concat, distinct_rounds
from shoal.dataflow.operators.aggregates.store import Rows, combine
from shoal.dataflow.operators.aggregating import Aggregating
from shoal.dataflow.operators.base import Context, OperatorState, Output
from shoal.dataflow.operators.batches import emit_chunks, event_times, processing_time
from shoal.dataflow.operators.given import GivenResults, Results
from shoal.dataflow.operators.grouping import Grouping
from shoal.dataflow.operators.keyed_state import numbers_of, restore_windows, restored_slots, said_kept, state_table
from shoal.dataflow.operators.keyindex import KeyIndex
from shoal.dataflow.operators.liveness import Liveness
from shoal.dataflow.operators.windows import bounds
from shoal.dataflow.operators.windows.matrix import WindowMatrix, cut_block
from shoal.dataflow.operators.windows.panes import Pane, present_only
from shoal.dataflow.operators.windows.sliding import Combination, between, make_combination
from shoal.dataflow.state.blobs import pack, pack_groups

LATE = "late"
_PANE = "__pane"
#: Results of more windows are never in memory at once.
_MOST_AT_ONCE = 256


class WindowAggregate(Aggregating):
    """Results by key and window."""

    def __init__(self, *, grouping: Grouping, window: SlidingWindow, firing: Firing | None = None) -> None:
        super().__init__(grouping)
        self._kept = said_kept(grouping.keys, grouping.description, window)
        self._window = window
        self._firing = firing or Firing()
        self._given = None if self._firing == Firing() else GivenResults()
        self._index = KeyIndex(grouping.keys)
        self._liveness = Liveness()
        self._combination: Combination | None = None
        self._matrix: WindowMatrix | None = None
        self._panes: dict[int, Pane] = {}
        self._order: list[int] | None = []
        self._watermark = START_OF_TIME
        self._changed: set[int] = set()
        self._next_early: int | None = None
        self._late = 0
        self._results: list[tuple[int, Sparse]] = []

    def open(self, context: Context) -> None:
        """Remember the clock and the sizes."""
        self._context = context

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Sort the rows into panes."""
        plan = self._bound(batch)
        times = event_times(batch)
        batch, times = self._without_late(batch, times, out)
        if not len(times):
            return
        slots = self._index.slots(batch)
        piece = self._grouping.piece(plan, batch, slots, times)
        touched = self._cut(piece, times // self._window.pane)
        for pane, part in touched:
            for each in distinct_rounds(part) if self._grouping.is_partial and isinstance(part, Sparse) else [part]:
                self._pane(pane).add(each, len(self._index))
        self._after(touched, out)

    def on_watermark(self, time: int, out: Output) -> None:
        """Give the results of the windows that have ended."""
        if time <= self._watermark:
            return
        before, self._watermark = self._watermark, time
        if self._panes:
            ends = bounds.due_ends(self._window, self._pane_order(), before, time)
            self._fire_all(list(ends), out)
            self._flush(out)
            self._drop_panes()

    def on_tick(self, now: int, out: Output) -> None:
        """Give preliminary results of the windows that changed."""
        if self._next_early is None or now < self._next_early:
            return
        self._next_early = None
        ends = {
            end
            for pane in self._changed
            for end in bounds.ends_of(self._window, pane * self._window.pane)
            if end > self._watermark
        }
        self._changed.clear()
        for end in sorted(ends):
            self._give(end, self._window_of(end), out)
        self._flush(out)

    def next_tick(self) -> int | None:
        """When preliminary results are due."""
        return self._next_early

    def statistics(self) -> dict[str, int]:
        """What is held, and what was late."""
        return {"late": self._late, "keys": len(self._index), "panes": len(self._panes)}

    def snapshot(self) -> OperatorState:
        """Panes by key group."""
        if self._plan is None:
            return OperatorState(shared=pack({}, watermark=self._watermark, **self._kept))
        shared = pack({"input": self._plan.schema.empty_table()}, watermark=self._watermark, **self._kept)
        parts = [(pane, self._panes[pane].peek(len(self._index))) for pane in self._pane_order()]
        parts = [(pane, sparse) for pane, sparse in parts if len(sparse)]
        total = self._context.key_groups.total
        tables: dict[str, tuple[Any, Integers]] = {}
        if parts:
            sparse = concat([sparse for _pane, sparse in parts])
            panes = np.concatenate([np.full(len(each), pane) for pane, each in parts])
            table = state_table(self._index, sparse.cells, self._plan, sparse, {_PANE: panes})
            tables["panes"] = (table, self._index.groups(sparse.cells, total))
        given = None if self._given is None else self._given.to_table(self._index)
        if given is not None:
            tables["given"] = (given[0], self._index.groups(given[1], total))
        return OperatorState(pack_groups(tables), shared)

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Take panes in."""
        self._watermark = restore_windows(states, self._kept, bind=self._bind, take_in=self._take_in)
        self._is_restored = self._plan is not None

    # -- rows in ----------------------------------------------------------------------------------------------

    def _plan_there(self) -> AggregatePlan:
        if self._plan is None:
            raise InternalError("panes without a schema")
        return self._plan

    def _bind(self, schema: Any) -> AggregatePlan:
        self._plan = self._grouping.bind(schema)
        if self._window.size != self._window.slide:
            self._combination = make_combination(self._plan)
            self._matrix = WindowMatrix(self._plan, self._window)
        return self._plan

    def _without_late(self, batch: Batch, times: Integers, out: Output) -> tuple[Batch, Integers]:
        """Put aside the rows that are late for all of their windows."""
        limit = self._watermark - self._firing.allowed_lateness
        if not len(times) or bounds.last_end(self._window, int(times.min())) > limit:
            return batch, times
        late = bounds.last_ends(self._window, times) <= limit
        rows = batch.filter(pa.array(late))
        if self._grouping.is_partial:
            self._late += int(combined(rows.column("__rows")).to_numpy().sum())
        else:
            self._late += rows.num_rows
            out.emit_side(LATE, rows)
        return batch.filter(pa.array(~late)), times[~late]

    def _cut(self, piece: Sparse | Rows, panes: Integers) -> list[tuple[int, Sparse | Rows]]:
        """A batch cut by pane; at once for all panes where that is possible."""
        if self._matrix is not None and self._matrix.is_possible and self._given is None and isinstance(piece, Rows):
            block = cut_block(self._plan_there().specs, piece, panes, len(self._index))
            if block is not None:
                return list(block)
        return list(_cut(piece, panes))

    def _pane(self, number: int) -> Pane:
        pane = self._panes.get(number)
        if pane is None:
            padded = self._matrix is not None and self._matrix.is_possible
            pane = self._panes[number] = Pane(self._plan_there().specs, can_be_padded=padded)
            self._order = None
        if self._combination is not None and self._combination.covers(number):
            self._combination.reset()
        return pane

    def _after(self, touched: list[tuple[int, Sparse | Rows]], out: Output) -> None:
        """Corrections and preliminary results, for those who want them."""
        if self._given is None:
            return
        if self._firing.allowed_lateness:
            self._correct(touched, out)
        if self._firing.early_every:
            self._changed.update(pane for pane, _part in touched)
            if self._next_early is None:
                self._next_early = processing_time(self._context.clock) + self._firing.early_every

    def _correct(self, touched: list[tuple[int, Sparse | Rows]], out: Output) -> None:
        """Give results again that were given before some of their rows came."""
        keys: dict[int, list[Integers]] = {}
        for pane, part in touched:
            for end in bounds.ends_of(self._window, pane * self._window.pane):
                if self._watermark - self._firing.allowed_lateness < end <= self._watermark:
                    keys.setdefault(end, []).append(part.cells)
        for end in sorted(keys):
            whole = self._window_of(end)
            self._give(end, whole.at(np.flatnonzero(np.isin(whole.cells, np.concatenate(keys[end])))), out)
        if keys:
            self._flush(out)

    # -- results out ------------------------------------------------------------------------------------------

    def _pane_order(self) -> list[int]:
        if self._order is None:
            self._order = sorted(self._panes)
        return self._order

    def _fire_all(self, ends: list[int], out: Output) -> None:
        for start in range(0, len(ends), _MOST_AT_ONCE):
            some = ends[start : start + _MOST_AT_ONCE]
            many = None
            if self._matrix is not None and self._given is None:
                many = self._matrix.results(self._pane_order(), some, self._freeze, len(self._index))
            if many is not None:
                self._put_out(*many, out)
                continue
            for end in some:
                self._fire(end, out)

    def _fire(self, end: int, out: Output) -> None:
        if self._combination is None:
            sparse = self._panes[(end - self._window.size) // self._window.pane].freeze(len(self._index))
        else:
            first, last = (end - self._window.size) // self._window.pane, end // self._window.pane
            sparse = self._combination.result(self._pane_order(), first, last, self._freeze, len(self._index))
        self._give(end, sparse, out)

    def _freeze(self, pane: int) -> Sparse:
        return self._panes[pane].freeze(len(self._index))

    def _window_of(self, end: int) -> Sparse:
        """A window's panes put together, apart from the running combination."""
        pane = self._window.pane
        numbers = between(self._pane_order(), (end - self._window.size) // pane, end // pane)
        parts = [self._panes[number].peek(len(self._index)) for number in numbers]
        return combine(self._plan_there().specs, parts, len(self._index))

    def _give(self, end: int, sparse: Sparse, out: Output) -> None:
        sparse = present_only(sparse)
        if not len(sparse):
            return
        if self._given is not None:
            self._give_changes(self._given, end, sparse, out)
            return
        self._results.append((end, sparse))
        if sum(len(part) for _end, part in self._results) >= self._context.max_rows:
            self._flush(out)

    def _give_changes(self, given: GivenResults, end: int, sparse: Sparse, out: Output) -> None:
        plan = self._plan_there()
        for change in given.change(end, Results(sparse.cells, plan.results(sparse))):
            cells = change.results.cells
            ends = np.full(len(cells), end)
            batch = self._grouping.assemble(
                plan,
                self._index.take(cells),
                sparse.at(slice(0, len(cells))),
                results=change.results.columns,
                windows=(ends - self._window.size, ends),
                changes=pa.repeat(pa.scalar(change.word, pa.string()), len(cells)),
            )
            emit_chunks(out, batch, self._context.max_rows)

    def _flush(self, out: Output) -> None:
        results, self._results = self._results, []
        if results:
            parts = [part for _end, part in results]
            self._put_out(np.repeat([end for end, _part in results], list(map(len, parts))), concat(parts), out)

    def _put_out(self, ends: Integers, sparse: Sparse, out: Output) -> None:
        if not len(sparse) or self._plan is None:
            return
        keys = self._index.take(sparse.cells)
        batch = self._grouping.assemble(self._plan, keys, sparse, windows=(ends - self._window.size, ends))
        emit_chunks(out, batch, self._context.max_rows)

    def _drop_panes(self) -> None:
        """Let go of panes whose windows are all over, and of keys that have no rows any more."""
        limit = self._watermark - self._firing.allowed_lateness if self._watermark < END_OF_TIME else END_OF_TIME
        gone = [pane for pane in self._pane_order() if bounds.last_end(self._window, pane * self._window.pane) <= limit]
        if self._given is not None:
            self._given.drop(limit)
        if not gone:
            return
        for number in gone:
            pane = self._panes.pop(number)
            self._changed.discard(number)
            if self._liveness.is_watching(len(self._index)):
                self._liveness.note(pane.peek(len(self._index)).cells, len(self._index))
        self._order = None
        if self._liveness.is_due(len(self._index)):
            self._compact()

    def _compact(self) -> None:
        capacity = len(self._index)
        live = self._liveness.begin(capacity)
        for pane in self._panes.values():
            live[pane.peek(capacity).cells] = True
        if self._given is not None:
            self._given.live_slots(live)
        if self._liveness.decide(live):
            moved = self._index.compact(live)
            for pane in self._panes.values():
                pane.renumber(moved, capacity)
            if self._combination is not None:
                self._combination.reset()
            if self._given is not None:
                self._given.renumber(moved)

    # -- state ------------------------------------------------------------------------------------------------

    def _take_in(self, tables: Mapping[str, Any]) -> None:
        plan = self._plan_there()
        if "panes" in tables:
            table = tables["panes"]
            sparse = plan.from_arrow(restored_slots(self._index, table), table)
            for pane, part in _cut(sparse, numbers_of(table, _PANE)):
                self._pane(pane).add(part, len(self._index))
        if "given" in tables and self._given is not None:
            self._given.take_in(tables["given"], self._index, plan)


def _cut(piece: Sparse | Rows, panes: Integers) -> Iterable[tuple[int, Sparse | Rows]]:
    """A piece cut by pane. Rows of a pane stay in their order."""
    low, high = int(panes.min()), int(panes.max())
    if low == high:
        yield low, piece
        return
    steps = panes[1:] - panes[:-1]
    if (steps < 0).any():
        small = high - low < 65_536  # two-byte numbers are sorted by radix
        order = np.argsort((panes - low).astype(np.uint16) if small else panes, kind="stable")
        panes, piece = panes[order], _at(piece, order)
        steps = panes[1:] - panes[:-1]
    edges = [0, *(np.flatnonzero(steps) + 1).tolist(), len(panes)]
    for start, end in itertools.pairwise(edges):
        yield int(panes[start]), _at(piece, slice(start, end))


def _at(piece: Sparse | Rows, rows: Any) -> Sparse | Rows:
    return piece.at(rows) if isinstance(piece, Sparse) else Rows(piece.cells[rows], piece.inputs.at(rows))
