"""Rows that wait for partners: segments sorted by slot and time, merged as they grow.

Each segment holds at least twice as much as the next one, so there are few of them, and a row is copied only as often
as the logarithm of their number. A row can be marked as matched, and rows that are too old are left out and freed. Rows
have numbers, by which a snapshot knows again those that are gone.

With a row store, the columns of a large segment lie there. It is not merged any more, and what stays in memory of a row
is its slot, time, number and flags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from shoal.dataflow.language.elements import START_OF_TIME, Batch
from shoal.dataflow.language.keys import Integers
from shoal.dataflow.operators.batches import stacked
from shoal.dataflow.state.dirty import RowIds
from shoal.dataflow.state.row_store import MakeRowStore, StoredRows
from shoal.dataflow.state.tables import Table, TableState, stack

Flags: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
#: The key groups of slots.
GroupOf: TypeAlias = Callable[[Integers], Integers]

#: What a snapshot has of each row besides its columns.
_COLUMNS = {"times": np.int64, "matched": np.bool_, "ids": np.int64}
_TIME, _ID = "__join_times", "__join_ids"
_NONE = np.zeros(0, np.int64)
#: Bytes of a segment above which its columns go to the store, where there is one.
MOST_BYTES = 16 * 1024 * 1024
#: Rows that are read from a store at once.
_AT_ONCE = 65_536


@dataclass(slots=True)
class Segment:
    """Rows in the order of slot, time and arrival."""

    slots: Integers
    times: Integers
    matched: Flags
    #: A batch, or rows in a store.
    rows: Any
    #: A number for each row, and whether it changed since the last snapshot.
    ids: Integers
    dirty: Flags

    def __len__(self) -> int:
        return len(self.slots)

    def at(self, places: Integers) -> Segment:
        """Some of them."""
        is_stored = isinstance(self.rows, StoredRows)
        rows = self.rows.select(places) if is_stored else self.rows.take(pa.array(places))
        slots, times, matched = self.slots[places], self.times[places], self.matched[places]
        return Segment(slots, times, matched, rows, self.ids[places], self.dirty[places])

    def batches(self, flags: Flags, most: int) -> Iterator[Batch]:
        """The rows at some places, so many at a time."""
        places = np.flatnonzero(flags)
        for start in range(0, len(places), most):
            yield self.rows.take(pa.array(places[start : start + most]))

    def mark_matched(self, flags: Flags) -> None:
        """These rows have a partner now."""
        self.dirty |= flags & ~self.matched
        self.matched |= flags


class RowBuffer:
    """The rows of one side. `times` may be any moments by which rows are ordered and freed."""

    def __init__(self, make_store: MakeRowStore | None = None) -> None:
        self.segments: list[Segment] = []
        #: Where the columns of segments of more than `MOST_BYTES` go; without it all stay in memory.
        self._make_store = make_store
        #: Rows of earlier times are gone.
        self.floor = START_OF_TIME
        self._ids = RowIds()
        self._schema: Any = None
        #: (numbers, key groups) of rows that are gone, and not by the floor; since the last snapshot.
        self._gone: list[tuple[Integers, Integers]] = []
        self._is_tracking = False

    def __len__(self) -> int:
        return sum(map(len, self.segments))

    def add(
        self, rows: Batch, slots: Integers, times: Integers, matched: Any = None, ids: Integers | None = None
    ) -> None:
        """Take rows in. `matched` says which of them have had a partner; `ids` are those of a snapshot."""
        if not len(slots):
            return
        flags = np.zeros(len(slots), np.bool_) if matched is None else matched
        self._schema = rows.schema
        order = np.lexsort((times, slots))
        if ids is not None:
            self._ids.go_on_from(ids)
        dirty = np.full(len(slots), ids is None)
        ids = self._ids.take(len(slots)) if ids is None else ids
        self.segments.append(Segment(slots, times, flags, rows, ids, dirty).at(order))
        while len(self.segments) > 1 and self._is_to_merge(*self.segments[-2:]):
            newer = self.segments.pop()
            self.segments.append(_merged(self.segments.pop(), newer))
        last = self.segments[-1]
        if self._make_store is not None and last.rows.nbytes > MOST_BYTES:
            last.rows = self._make_store().keep([last.rows])

    @staticmethod
    def _is_to_merge(older: Segment, newer: Segment) -> bool:
        return len(older) < 2 * len(newer) and not isinstance(older.rows, StoredRows)

    def free_before(self, time: int) -> Iterator[Segment]:
        """Forget rows of earlier times; returns them, so that those without a partner can be emitted."""
        kept: list[Segment] = []
        self.floor = max(self.floor, time)
        for segment in self.segments:
            old = segment.times < time
            if not old.any():
                kept.append(segment)
                continue
            yield segment.at(np.flatnonzero(old))
            if not old.all():
                kept.append(segment.at(np.flatnonzero(~old)))
        self.segments = kept

    def replace(self, segments: list[Segment], gone: Iterable[Segment], group_of: GroupOf) -> None:
        """Have these rows and no others; `gone` are those that it had besides."""
        self.segments = [segment for segment in segments if len(segment)]
        if self._is_tracking:
            self._gone += [(segment.ids, group_of(segment.slots)) for segment in gone if len(segment)]

    def live_slots(self, live: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        """Mark the slots that have rows."""
        for segment in self.segments:
            live[segment.slots] = True

    def renumber(self, moved: Integers) -> None:
        """Slots have new numbers, in the same order."""
        for segment in self.segments:
            segment.slots = moved[segment.slots]

    def whole(self) -> Segment | None:
        """All rows in one segment."""
        while len(self.segments) > 1:
            newer = self.segments.pop()
            self.segments.append(_merged(self.segments.pop(), newer))
        return self.segments[0] if self.segments else None

    def changes(self, group_of: GroupOf) -> tuple[TableState | None, bool]:
        """The rows that changed since the last time, and whether these are all that there are, as at first.

        None when there never was a row.
        """
        is_whole, self._is_tracking = not self._is_tracking, True
        parts = []
        for segment in self.segments:
            parts.append(segment.at(np.arange(len(segment)) if is_whole else np.flatnonzero(segment.dirty)))
            segment.dirty = np.zeros(len(segment), np.bool_)
        gone, self._gone = self._gone, []
        if self._schema is None:
            return None, is_whole
        tables = (pa.Table.from_batches(list(part.batches(_all(part), _AT_ONCE)), part.rows.schema) for part in parts)
        rows = stack([self._schema.empty_table(), *tables])
        for name, kind in _COLUMNS.items():
            values = [getattr(part, name) for part in parts]
            rows = rows.append_column(f"__join_{name}", pa.array(np.concatenate([np.zeros(0, kind), *values])))
        slots = np.concatenate([_NONE, *(part.slots for part in parts)])
        ids = pa.table({_ID: np.concatenate([_NONE, *(ids for ids, _groups in gone)])})
        gone_groups = np.concatenate([_NONE, *(groups for _ids, groups in gone)])
        floor = (_TIME, self.floor)
        return TableState(rows, group_of(slots), (_ID,), ids, gone_groups, floor), is_whole

    def restore(self, rows: Table, slots_of: Callable[[Batch], Integers]) -> None:
        """Restore what `changes` returned, merged. That is no change."""
        self._is_tracking = True
        if not len(rows):
            return
        times, matched, ids = (rows.column(f"__join_{name}").combine_chunks() for name in _COLUMNS)
        batch = rows.drop_columns([f"__join_{name}" for name in _COLUMNS]).combine_chunks().to_batches()[0]
        flags = np.array(matched.to_numpy(zero_copy_only=False), np.bool_)
        self.add(batch, slots_of(batch), times.to_numpy(), flags, ids.to_numpy())


def _all(segment: Segment) -> Flags:
    return np.ones(len(segment), np.bool_)


def _merged(older: Segment, newer: Segment) -> Segment:
    """Two segments as one; of equal slots and times the older one's rows come first."""
    slots = np.concatenate([older.slots, newer.slots])
    times = np.concatenate([older.times, newer.times])
    matched = np.concatenate([older.matched, newer.matched])
    rows = stacked([older.rows, newer.rows])
    ids, dirty = np.concatenate([older.ids, newer.ids]), np.concatenate([older.dirty, newer.dirty])
    return Segment(slots, times, matched, rows, ids, dirty).at(np.lexsort((times, slots)))
