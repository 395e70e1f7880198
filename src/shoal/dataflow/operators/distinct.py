"""Distinct: the first row of each combination of values; for ever, within a window, or until it is forgotten.

Rows go out as they come. Within tumbling windows a combination counts anew in each, and rows of a window that has ended
are late, once the allowed lateness is over, too. With a time to live a combination is forgotten that long (in
processing time) after its first row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME, Batch
from shoal.dataflow.language.keys import Integers
from shoal.dataflow.language.windows import Firing, SlidingWindow, Window
from shoal.dataflow.operators.base import Context, OperatorState, Output, StepOperator
from shoal.dataflow.operators.batches import event_times, processing_time
from shoal.dataflow.operators.keys.columns import with_room
from shoal.dataflow.operators.keys.index import KeyIndex
from shoal.dataflow.operators.keys.liveness import Liveness
from shoal.dataflow.operators.keys.tables import (
    check_fingerprint,
    fingerprint,
    key_names,
    key_table,
    numbers_of,
    restored_slots,
)
from shoal.dataflow.state.blobs import pack, unpack
from shoal.dataflow.state.dirty import DirtyCells
from shoal.dataflow.state.tables import TableState

_WINDOW = "__window"
_UNTIL = "until"


class Distinct(StepOperator):
    """The first row of each combination of `columns`."""

    def __init__(
        self, *, columns: tuple[str, ...], window: Window | None = None, firing: Firing | None = None, ttl: int = 0
    ) -> None:
        if window is not None and (not isinstance(window, SlidingWindow) or window.size != window.slide):
            raise InvalidError([problem("window", window, "must be a tumbling one for distinct")])
        self._columns = columns
        self._fingerprint = fingerprint(columns, "distinct rows", window)
        self._window = window
        self._lateness = firing.allowed_lateness if firing is not None else 0
        self._ttl = ttl
        self._index = KeyIndex([*columns, _WINDOW] if window is not None else columns)
        self._liveness = Liveness()
        #: The moment from which on a combination no longer counts: of event time with a window, else of
        #: processing time.
        self._room = np.zeros(0, np.int64)
        self._count = 0
        self._watermark = START_OF_TIME
        self._late = 0
        self._dirty = DirtyCells()

    def open(self, context: Context) -> None:
        """Remember the clock."""
        self._context = context

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Let the first ones through."""
        if self._window is not None:
            batch = self._without_late(batch, out)
        if not batch.num_rows:
            return
        columns = [batch.column(name) for name in self._columns]
        if self._window is not None:
            ends = event_times(batch) // self._window.size * self._window.size + self._window.size
            columns.append(pa.array(ends))
        known = len(self._index) if self._columns or self._window is not None else self._count
        slots = self._index.slots_of(columns, batch.num_rows)
        fresh = slots >= known
        if self._ttl:
            fresh |= self._outlived(slots, known)
        rows = _firsts(slots, np.flatnonzero(fresh))
        if len(rows):
            self._remember(slots[rows], ends[rows] if self._window is not None else None)
            out.emit(batch if len(rows) == batch.num_rows else batch.take(pa.array(rows)))

    def on_watermark(self, time: int, out: Output) -> None:
        """Forget windows that are over."""
        self._watermark = max(self._watermark, time)
        if self._window is not None:
            self._forget(self._closed())

    def on_tick(self, now: int, out: Output) -> None:
        """Forget what was kept long enough."""
        self._forget(now, always=True)

    def next_tick(self) -> int | None:
        """When the first one is to be forgotten, about."""
        if not self._ttl or not self._count:
            return None
        return int(self._until.min()) + self._ttl // 4

    def statistics(self) -> dict[str, int]:
        """What is held, and what was late."""
        return {"keys": self._count, "late": self._late}

    def snapshot(self) -> OperatorState:
        """Combinations by key group: that of the columns, whatever the window."""
        shared = pack({}, watermark=self._watermark, **self._fingerprint)
        if not self._count:
            return OperatorState(shared=shared, is_whole=not self._dirty.is_tracking)
        is_whole = self._dirty.is_mostly(self._count)
        changed = self._dirty.take()
        slots = np.arange(self._count) if is_whole else changed
        table = key_table(self._index, slots, {_UNTIL: self._until[slots]})
        floor = (_UNTIL, self._first_needed()) if self._ttl or self._window is not None else None
        seen = TableState(table, self._groups(slots), key_names(self._index), floor=floor)
        return OperatorState(shared=shared, tables={"seen": seen}, is_whole=is_whole)

    def _first_needed(self) -> int:
        """What is remembered until an earlier moment no longer counts."""
        last = self._closed() if self._window is not None else processing_time(self._context.clock)
        return last + 1 if last < END_OF_TIME else END_OF_TIME

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Take combinations in."""
        watermarks = []
        for state in states:
            if state.shared:
                facts = unpack(state.shared).facts
                check_fingerprint(facts, self._fingerprint)
                watermarks.append(facts["watermark"])
            if "seen" in state.tables and len(state.tables["seen"].rows):
                table = state.tables["seen"].rows.combine_chunks()
                slots = restored_slots(self._index, table)
                self._remember(slots, numbers_of(table, _UNTIL))
        self._watermark = min(watermarks, default=START_OF_TIME)
        self._dirty.begin()

    @property
    def _until(self) -> Integers:
        return self._room[: self._count]

    def _groups(self, slots: Integers) -> Integers:
        keys = KeyIndex(self._columns)
        columns = self._index.take(slots)[: len(self._columns)]
        return keys.groups(keys.slots_of(columns, len(slots)), self._context.key_groups.total)

    def _without_late(self, batch: Batch, out: Output) -> Batch:
        size = self._window.size if isinstance(self._window, SlidingWindow) else 1
        late = event_times(batch) // size * size + size <= self._closed()
        if not late.any():
            return batch
        self._late += int(late.sum())
        out.emit_side("late", batch.filter(pa.array(late)))
        return batch.filter(pa.array(~late))

    def _closed(self) -> int:
        """Windows that ended by then take no more rows."""
        return max(self._watermark - self._lateness, START_OF_TIME)

    def _outlived(self, slots: Integers, known: int) -> Any:
        now = processing_time(self._context.clock)
        old = np.zeros(len(slots), np.bool_)
        there = slots < known
        old[there] = self._until[slots[there]] <= now
        return old

    def _remember(self, slots: Integers, until: Integers | None) -> None:
        if until is None:
            forever = processing_time(self._context.clock) + self._ttl if self._ttl else 2**63 - 1
            until = np.full(len(slots), forever)
        self._room = with_room(self._room, len(self._index))
        self._count = len(self._index)
        self._until[slots] = until
        self._dirty.mark(slots, self._count)

    def _forget(self, now: int, *, always: bool = False) -> None:
        count = self._count
        if not count or not (always or self._liveness.is_due(count)):
            return
        live = self._until > now
        if self._liveness.decide(live) or always:
            self._dirty.renumber(self._index.compact(live))
            self._room = self._until[live]
            self._count = len(self._room)


def _firsts(slots: Integers, rows: Integers) -> Integers:
    """Of these rows the first of each slot, in the order of rows."""
    _slots, first = np.unique(slots[rows], return_index=True)
    return np.sort(rows[first])
