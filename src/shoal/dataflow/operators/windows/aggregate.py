"""Aggregates over tumbling and sliding windows of event time.

Each window emits its result once, when the watermark reaches its end. A row is late for a window that has ended at the
watermark before its batch; late for all of them, it goes to the side output `late`. With allowed lateness a row still
corrects results that were emitted. With that, or with early results, the results are changes: see `operators.emitted`.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import InternalError
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME, Batch
from shoal.dataflow.language.keys import Integers, combined
from shoal.dataflow.language.windows import Firing, SlidingWindow
from shoal.dataflow.operators.aggregates.columns import join
from shoal.dataflow.operators.aggregates.plan import AggregatePlan
from shoal.dataflow.operators.aggregates.sparse import Sparse, concat, distinct_rounds
from shoal.dataflow.operators.aggregates.store import Rows, combine
from shoal.dataflow.operators.aggregating import Aggregating
from shoal.dataflow.operators.base import Context, OperatorState, Output
from shoal.dataflow.operators.batches import emit_chunks, event_times, processing_time
from shoal.dataflow.operators.emitted import Change, EmittedResults, Results
from shoal.dataflow.operators.grouping import Grouping
from shoal.dataflow.operators.keys.index import KeyIndex
from shoal.dataflow.operators.keys.liveness import Liveness
from shoal.dataflow.operators.keys.tables import (
    check_fingerprint,
    fingerprint,
    late_table,
    numbers_of,
    restore_windows,
    restored_slots,
    state_columns,
)
from shoal.dataflow.operators.windows import bounds, ranges
from shoal.dataflow.operators.windows.matrix import WindowMatrix, cut_block
from shoal.dataflow.operators.windows.packed import Block, PackedPanes, distinct_panes, together
from shoal.dataflow.operators.windows.panes import Pane, present_only
from shoal.dataflow.operators.windows.sliding import Combination, between, make_combination
from shoal.dataflow.state.blobs import pack, unpack
from shoal.dataflow.state.dirty import are_most
from shoal.dataflow.state.tables import LateTables, TableState

LATE = "late"
#: The column of a snapshot that has the pane.
PANE = "__pane"
#: Results of more windows are never in memory at once: those made in a matrix, and those of windows with few rows.
_MOST_AT_ONCE = 256
_MOST_SMALL = 4096
#: What a pane costs in a matrix, in results of ranges: so many, and one more for so many keys.
_RESULTS_OF_A_PANE = 128
_RESULTS_OF_KEYS = 8


class WindowAggregate(Aggregating):
    """Results by key and window."""

    def __init__(self, *, grouping: Grouping, window: SlidingWindow, firing: Firing | None = None) -> None:
        super().__init__(grouping)
        self._fingerprint = fingerprint(grouping.keys, grouping.description, window)
        self._window = window
        self._is_tumbling = window.size == window.slide
        self._firing = firing or Firing()
        self._emitted = None if self._firing == Firing() else EmittedResults()
        self._index = KeyIndex(grouping.keys)
        self._liveness = Liveness()
        self._combination: Combination | None = None
        self._matrix: WindowMatrix | None = None
        self._panes: dict[int, Pane] = {}
        self._packed = PackedPanes(())
        self._order: list[int] | None = []
        self._watermark = START_OF_TIME
        self._changed: set[int] = set()
        self._next_early: int | None = None
        self._late = 0
        self._results: list[tuple[Integers, Sparse]] = []
        self._changes: list[tuple[int, Change]] = []
        self._waiting = 0
        #: Whether there was a snapshot: from then on only what changes is in the next one.
        self._is_tracking = False

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
        panes = times // self._window.pane
        if self._emitted is None:
            piece, panes = self._without_packed(piece, panes)
            if not len(panes):
                return
        touched = self._cut(piece, panes)
        for pane, part in touched:
            for each in distinct_rounds(part) if self._grouping.is_partial and isinstance(part, Sparse) else [part]:
                self._pane(pane).add(each, len(self._index))
        self._after(touched, out)

    def on_watermark(self, time: int, out: Output) -> None:
        """Emit the results of the windows that have ended."""
        if time <= self._watermark:
            return
        before, self._watermark = self._watermark, time
        if not self._panes and not self._packed:
            return
        if self._emitted is not None:
            for end in list(bounds.due_ends(self._window, self._pane_order(), before, time)):
                self._fire(end, out)
        elif self._is_tumbling:
            if before // self._window.size == time // self._window.size:
                return
            self._fire_tumbling(out)
        else:
            self._fire_sliding(before, out)
        self._flush(out)
        self._drop_panes()

    def on_tick(self, now: int, out: Output) -> None:
        """Emit preliminary results of the windows that changed."""
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
            self._emit(end, self._window_of(end), out)
        self._flush(out)

    def next_tick(self) -> int | None:
        """When preliminary results are due."""
        return self._next_early

    def statistics(self) -> dict[str, int]:
        """What is held, and what was late."""
        return {"late": self._late, "keys": len(self._index), "panes": len(self._panes) + len(self._packed)}

    def snapshot(self) -> OperatorState:
        """What changed of panes, by key group."""
        shared = self.shared_state()
        if self._plan is None or not self._index.is_bound:
            return OperatorState(shared=shared)
        is_whole = not self._is_tracking or self._has_changed_mostly()
        if is_whole:
            self._forget_changes()
        self._is_tracking = True
        makers = {"panes": self._changed_panes(self._plan)}
        if self._emitted is not None:
            makers["emitted"] = self._emitted.changes(self._index, self._plan, self._context.key_groups.total)
        return OperatorState(shared=shared, tables=LateTables(makers), is_whole=is_whole)

    def shared_state(self) -> bytes:
        """What belongs to no key: the columns of the input, and event time."""
        tables = {} if self._plan is None else {"input": self._plan.schema.empty_table()}
        return pack(tables, watermark=self._watermark, **self._fingerprint)

    @property
    def watermark(self) -> int:
        """How far event time has come."""
        return self._watermark

    @property
    def plan(self) -> AggregatePlan:
        """What is kept; known as soon as rows have come, or were restored."""
        return self._plan_there()

    def panes(self) -> set[int]:
        """The panes that have rows."""
        return {*self._panes, *self._packed.before(END_OF_TIME)}

    def size_of_panes(self) -> int:
        """How many bytes all of them are as a table."""
        return self._all_panes(self._plan_there()).nbytes if self.panes() else 0

    def take_all(self) -> TableState:
        """All panes, of which there is one at least. They are here no longer."""
        plan = self._plan_there()
        found = self._all_panes(plan)
        self._panes, self._order, self._packed = {}, [], self._no_packed(plan)
        if self._is_tracking:
            self._packed.begin_tracking()
        self._index, self._liveness = KeyIndex(self._grouping.keys), Liveness()
        if self._combination is not None:
            self._combination.reset()
        return found

    def check(self, state: OperatorState) -> None:
        """Refuse state of another form."""
        if state.shared:
            check_fingerprint(unpack(state.shared).facts, self._fingerprint)

    def _all_panes(self, plan: AggregatePlan) -> TableState:
        capacity = len(self._index)
        parts = [(pane, self._panes[pane].peek(capacity)) for pane in self._pane_order()]
        return self._table(plan, parts, self._packed.peek(START_OF_TIME, END_OF_TIME, capacity))()

    def _changed_panes(self, plan: AggregatePlan) -> Callable[[], TableState]:
        capacity = len(self._index)
        parts = [(pane, self._panes[pane].changes(capacity)) for pane in self._pane_order()]
        return self._table(plan, parts, self._packed.changes(capacity))

    def _table(
        self, plan: AggregatePlan, parts: Sequence[tuple[int, Sparse]], packed: Block
    ) -> Callable[[], TableState]:
        """Panes as a table."""
        blocks = [Block(np.full(len(sparse), pane), sparse) for pane, sparse in parts if len(sparse)]
        blocks = [*blocks, packed] if len(packed) or not blocks else blocks
        sparse = concat([block.sparse for block in blocks])
        panes = np.concatenate([block.panes for block in blocks])
        extra, floor = {PANE: panes, **state_columns(plan, sparse)}, (PANE, self.first_needed())
        return late_table(self._index, sparse.cells, extra, self._context.key_groups.total, by=(PANE,), floor=floor)

    def _has_changed_mostly(self) -> bool:
        """Whether so much changed that everything is written, and nothing has to be merged."""
        changed = self._packed.count_changed() + sum(pane.dirty.count() for pane in self._panes.values())
        return are_most(changed, self._packed.count() + sum(pane.count() for pane in self._panes.values()))

    def _forget_changes(self) -> None:
        """The next snapshot has everything."""
        self._packed.end_tracking()
        for pane in self._panes.values():
            pane.dirty.is_tracking = False
        if self._emitted is not None:
            self._emitted.end_tracking()

    def first_needed(self) -> int:
        """Panes before it are in no window that is open."""
        limit = self._watermark - self._firing.allowed_lateness if self._watermark < END_OF_TIME else END_OF_TIME
        return max(bounds.first_needed(self._window, limit) // self._window.pane, START_OF_TIME)

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Take panes in."""
        self._watermark = restore_windows(states, self._fingerprint, bind=self._bind, take_in=self._take_in)
        self._is_restored = self._is_tracking = self._plan is not None
        if self._is_tracking:
            self._drop_panes()  # what had ended is not taken out of files one by one
            self._packed.begin_tracking()
            for pane in self._panes.values():
                pane.dirty.begin()
            if self._emitted is not None:
                self._emitted.begin_tracking()

    # -- rows in ----------------------------------------------------------------------------------------------

    def _plan_there(self) -> AggregatePlan:
        if self._plan is None:
            raise InternalError("panes without a schema")
        return self._plan

    def _bind(self, schema: Any) -> AggregatePlan:
        self._plan = self._grouping.bind(schema)
        self._packed = self._no_packed(self._plan)
        if not self._is_tumbling:
            self._combination = make_combination(self._plan)
            self._matrix = WindowMatrix(self._plan, self._window)
        return self._plan

    def _no_packed(self, plan: AggregatePlan) -> PackedPanes:
        return PackedPanes(plan.specs, takes_parts=self._grouping.is_partial and self._is_tumbling)

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
        if self._matrix is not None and self._matrix.is_possible and self._emitted is None and isinstance(piece, Rows):
            block = cut_block(self._plan_there().specs, piece, panes, len(self._index))
            if block is not None:
                return list(block)
        return list(_cut(piece, panes))

    def _without_packed(self, piece: Sparse | Rows, panes: Integers) -> tuple[Sparse | Rows, Integers]:
        """Put the rows of panes with few rows each to the others like them; what is left is cut by pane."""
        if not self._packed.suits(panes):
            if self._packed:
                self._firm(distinct_panes([panes]))
            return piece, panes
        if not self._panes and self._combination is None:
            self._packed.add(piece, panes, len(self._index))
            return piece, panes[:0]
        alone = np.isin(panes, self._pane_order()) if self._panes else np.zeros(len(panes), np.bool_)
        if not alone.all():
            rest = np.flatnonzero(~alone)
            self._packed.add(piece if len(rest) == len(panes) else _at(piece, rest), panes[rest], len(self._index))
            if self._combination is not None and self._combination.covers(int(panes[rest].min())):
                self._combination.reset()
        mine = np.flatnonzero(alone)
        return (piece, panes) if len(mine) == len(panes) else (_at(piece, mine), panes[mine])

    def _firm(self, panes: Integers) -> None:
        """Those of these panes that are kept with others become panes of their own."""
        panes = panes[self._packed.has(panes)]
        if len(panes):
            for number, part in self._packed.take(panes, len(self._index)).each():
                self._panes[number] = self._new_pane()
                self._panes[number].begin(part, len(self._index))
            self._order = None

    def _new_pane(self) -> Pane:
        padded = self._matrix is not None and self._matrix.is_possible
        return Pane(self._plan_there().specs, can_be_padded=padded, is_tracking=self._is_tracking)

    def _pane(self, number: int) -> Pane:
        pane = self._panes.get(number)
        if pane is None:
            pane = self._panes[number] = self._new_pane()
            self._order = None
        if self._combination is not None and self._combination.covers(number):
            self._combination.reset()
        return pane

    def _after(self, touched: list[tuple[int, Sparse | Rows]], out: Output) -> None:
        """Corrections and preliminary results, for those who want them."""
        if self._emitted is None:
            return
        if self._firing.allowed_lateness:
            self._correct(touched, out)
        if self._firing.early_every:
            self._changed.update(pane for pane, _part in touched)
            if self._next_early is None:
                self._next_early = processing_time(self._context.clock) + self._firing.early_every

    def _correct(self, touched: list[tuple[int, Sparse | Rows]], out: Output) -> None:
        """Emit results again that were emitted before some of their rows came."""
        keys: dict[int, list[Integers]] = {}
        for pane, part in touched:
            for end in bounds.ends_of(self._window, pane * self._window.pane):
                if self._watermark - self._firing.allowed_lateness < end <= self._watermark:
                    keys.setdefault(end, []).append(part.cells)
        for end in sorted(keys):
            whole = self._window_of(end)
            self._emit(end, whole.at(np.flatnonzero(np.isin(whole.cells, np.concatenate(keys[end])))), out)
        if keys:
            self._flush(out)

    # -- results out ------------------------------------------------------------------------------------------

    def _pane_order(self) -> list[int]:
        if self._order is None:
            self._order = sorted(self._panes)
        return self._order

    def _fire_tumbling(self, out: Output) -> None:
        """All windows that have ended: each is one pane."""
        limit = self._watermark // self._window.size
        packed = self._packed.below(limit, len(self._index))
        self._note_gone(packed.sparse.cells)
        for pane in itertools.takewhile(lambda number: number < limit, self._pane_order()):
            if len(packed) and packed.panes[0] < pane:
                self._emit_block(packed.between(int(packed.panes[0]), pane), out)
                packed = packed.between(pane, limit)
            self._emit((pane + 1) * self._window.size, self._freeze(pane), out)
        self._emit_block(packed, out)

    def _emit_block(self, block: Block, out: Output) -> None:
        for start in range(0, len(block), self._context.max_rows):
            rows = slice(start, start + self._context.max_rows)
            self._put((block.panes[rows] + 1) * self._window.size, block.sparse.at(rows), out)

    def _fire_sliding(self, before: int, out: Output) -> None:
        limit = self._watermark // self._window.pane + 1
        panes = heapq.merge(self._pane_order(), self._packed.before(limit))
        ends = bounds.due_ends(self._window, panes, before, self._watermark)
        while some := list(itertools.islice(ends, _MOST_SMALL)):
            if not self._fire_small(some, out):
                self._fire_large(some, out)

    def _fire_small(self, ends: list[int], out: Output) -> bool:
        """Many windows that have few rows each; False when they are not like that."""
        first, end = (ends[0] - self._window.size) // self._window.pane, ends[-1] // self._window.pane
        alone = [(pane, self._freeze(pane)) for pane in between(self._pane_order(), first, end)]
        block = self._packed.peek(first, end, len(self._index))
        specs = self._plan_there().specs
        if not ranges.is_worth_it(specs, len(block) + sum(len(sparse) for _pane, sparse in alone), len(ends)):
            return False
        block = together(block, [(pane, present_only(sparse)) for pane, sparse in alone])
        most = ranges.MOST_RESULTS
        if self._matrix is not None and self._matrix.is_quick(min(len(ends), _MOST_AT_ONCE)):
            # A matrix pays for every pane, also of the window before its first end, and every key; a span for a result.
            panes = 1 + self._window.size // self._window.pane / min(len(ends), _MOST_AT_ONCE)
            most = int(panes * (_RESULTS_OF_A_PANE + len(self._index) // _RESULTS_OF_KEYS))
        portions = ranges.turns(block, specs, self._window, ends, len(self._index), most=most)
        for portion in portions or ():
            many = ranges.results(block, specs, self._window, portion)
            if many is None:
                self._fire_large(portion, out)
            else:
                self._put(*many, out)
        return portions is not None

    def _fire_large(self, ends: Sequence[int], out: Output) -> None:
        if self._packed:
            self._firm(np.fromiter(self._packed.before(ends[-1] // self._window.pane), np.int64))
        for start in range(0, len(ends), _MOST_AT_ONCE):
            some = ends[start : start + _MOST_AT_ONCE]
            many = None
            if self._matrix is not None:
                many = self._matrix.results(self._pane_order(), some, self._freeze, len(self._index))
            if many is not None:
                self._put(*many, out)
                continue
            for each in some:
                self._fire(each, out)

    def _fire(self, end: int, out: Output) -> None:
        if self._combination is None:
            sparse = self._panes[(end - self._window.size) // self._window.pane].freeze(len(self._index))
        else:
            first, last = (end - self._window.size) // self._window.pane, end // self._window.pane
            sparse = self._combination.result(self._pane_order(), first, last, self._freeze, len(self._index))
        self._emit(end, sparse, out)

    def _freeze(self, pane: int) -> Sparse:
        return self._panes[pane].freeze(len(self._index))

    def _window_of(self, end: int) -> Sparse:
        """A window's panes put together, apart from the running combination."""
        pane = self._window.pane
        numbers = between(self._pane_order(), (end - self._window.size) // pane, end // pane)
        parts = [self._panes[number].peek(len(self._index)) for number in numbers]
        return combine(self._plan_there().specs, parts, len(self._index))

    def _emit(self, end: int, sparse: Sparse, out: Output) -> None:
        sparse = present_only(sparse)
        if not len(sparse):
            return
        if self._emitted is not None:
            self._emit_changes(self._emitted, end, sparse, out)
            return
        self._put(np.full(len(sparse), end), sparse, out)

    def _put(self, ends: Integers, sparse: Sparse, out: Output) -> None:
        """Results wait for others until they make a batch."""
        self._results.append((ends, sparse))
        self._waiting += len(sparse)
        if self._waiting >= self._context.max_rows:
            self._flush(out)

    def _emit_changes(self, emitted: EmittedResults, end: int, sparse: Sparse, out: Output) -> None:
        for change in emitted.change(end, Results(sparse.cells, self._plan_there().results(sparse))):
            self._changes.append((end, change))
            self._waiting += len(change.results.cells)
        if self._waiting >= self._context.max_rows:
            self._flush(out)

    def _flush_changes(self, out: Output) -> None:
        changes, self._changes = self._changes, []
        if not changes:
            return
        lengths = [len(change.results.cells) for _end, change in changes]
        cells = np.concatenate([change.results.cells for _end, change in changes])
        ends = np.repeat([end for end, _change in changes], lengths)
        batch = self._grouping.assemble(
            self._plan_there(),
            self._index.take(cells),
            Sparse(cells, cells, ()),  # the results are made already
            results=[
                join(list(parts)) for parts in zip(*(change.results.columns for _end, change in changes), strict=True)
            ],
            windows=(ends - self._window.size, ends),
            changes=pa.array([change.word for _end, change in changes], pa.string()).take(
                pa.array(np.repeat(np.arange(len(changes)), lengths))
            ),
        )
        emit_chunks(out, batch, self._context.max_rows)

    def _flush(self, out: Output) -> None:
        self._flush_changes(out)
        results, self._results, self._waiting = self._results, [], 0
        results = [(ends, sparse) for ends, sparse in results if len(sparse)]
        if not results:
            return
        plan, sparse = self._plan_there(), concat([sparse for _ends, sparse in results])
        ends = np.concatenate([ends for ends, _sparse in results])
        keys = self._index.take(sparse.cells)
        batch = self._grouping.assemble(plan, keys, sparse, windows=(ends - self._window.size, ends))
        emit_chunks(out, batch, self._context.max_rows)

    def _drop_panes(self) -> None:
        """Free panes whose windows are all over, and keys without rows."""
        limit = self._watermark - self._firing.allowed_lateness if self._watermark < END_OF_TIME else END_OF_TIME
        needed = self.first_needed()
        order = self._pane_order()
        gone, self._order = order[: bisect.bisect_left(order, needed)], order[bisect.bisect_left(order, needed) :]
        if self._emitted is not None:
            self._emitted.drop(limit)
        for number in gone:
            pane = self._panes.pop(number)
            self._changed.discard(number)
            if self._liveness.is_watching(len(self._index)):
                self._note_gone(pane.peek(len(self._index)).cells)
        if self._packed:
            self._note_gone(self._packed.below(needed, len(self._index)).sparse.cells)
        if self._liveness.is_due(len(self._index)):
            self._compact()

    def _note_gone(self, slots: Integers) -> None:
        if len(slots) and self._liveness.is_watching(len(self._index)):
            self._liveness.note(slots, len(self._index))

    def _compact(self) -> None:
        capacity = len(self._index)
        live = self._liveness.begin(capacity)
        for pane in self._panes.values():
            live[pane.peek(capacity).cells] = True
        live[self._packed.slots()] = True
        if self._emitted is not None:
            self._emitted.live_slots(live)
        if self._liveness.decide(live):
            moved = self._index.compact(live)
            for pane in self._panes.values():
                pane.renumber(moved, capacity)
            self._packed.renumber(moved)
            if self._combination is not None:
                self._combination.reset()
            if self._emitted is not None:
                self._emitted.renumber(moved)

    # -- state ------------------------------------------------------------------------------------------------

    def _take_in(self, tables: Mapping[str, Any]) -> None:
        plan = self._plan_there()
        if "panes" in tables:
            table = tables["panes"]
            piece: Sparse | Rows = plan.from_arrow(restored_slots(self._index, table), table)
            panes = numbers_of(table, PANE)
            if self._emitted is None and len(panes):
                piece, panes = self._without_packed(piece, panes)
            for pane, part in _cut(piece, panes) if len(panes) else ():
                self._pane(pane).add(part, len(self._index))
        if "emitted" in tables and self._emitted is not None:
            self._emitted.take_in(tables["emitted"], self._index, plan)


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
