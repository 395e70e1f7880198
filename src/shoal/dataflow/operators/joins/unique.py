"""The regular join whose right side has at most one row for each key, as a primary key has.

A left row that has met its partner can meet no other: it goes out and is forgotten. So only the right rows are kept,
and those left rows whose partner has not come. A partner is found by one array access. A second right row of a key is
refused: results would depend on the order in which rows come.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import PreconditionError
from shoal.dataflow.language.elements import Batch
from shoal.dataflow.language.keys import Integers, key_groups
from shoal.dataflow.operators.base import OperatorState, Output
from shoal.dataflow.operators.batches import stacked
from shoal.dataflow.operators.joins.base import LEFT, RIGHT, KeyedJoin
from shoal.dataflow.operators.joins.buffer import Segment
from shoal.dataflow.operators.joins.matching import slot_ranges
from shoal.dataflow.operators.keys.columns import with_room
from shoal.dataflow.operators.keys.tables import check_fingerprint
from shoal.dataflow.state.blobs import pack, unpack
from shoal.dataflow.state.dirty import DirtyCells
from shoal.dataflow.state.tables import Table, TableState

_MATCHED = "__join_matched"
#: The newest rows are put to the others when they are more than this, and more than a share of them.
_LEAST_RECENT = 4_096
_SHARE = 8


class UniqueJoin(KeyedJoin):
    """Pairs of rows with equal keys, of which there is one on the right."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._partners = _Rows()
        #: The number of the right row of each slot; -1 where there is none.
        self._number = np.full(0, -1, np.int64)
        #: Whether each right row has had a partner, and its slot. Kept where rows without a partner come out.
        self._matched = np.zeros(0, np.bool_)
        #: The right rows that changed since the last snapshot, by number.
        self._dirty = DirtyCells()

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Find partners among the rows of the other side, then wait for them."""
        batch = self.without_null_keys(batch, port, out)
        if not batch.num_rows:
            return
        slots = self.slots_of(batch, port)
        self._number = _grown(self._number, len(self.index))
        if port == LEFT:
            self._take_left(batch, slots, out)
        else:
            self._take_right(batch, slots, out)

    def on_end(self, out: Output) -> None:
        """Rows that never had a partner."""
        if self.keeps[LEFT]:
            for segment in self.buffers[LEFT].segments:
                self.emit_alone(segment.rows, LEFT, out)
        rows = self._partners.whole()
        if self.keeps[RIGHT] and rows is not None:
            self.emit_alone(rows.filter(pa.array(~self._matched[: rows.num_rows])), RIGHT, out)

    def statistics(self) -> dict[str, int]:
        """What waits."""
        return {"left_rows": len(self.buffers[LEFT]), "right_rows": len(self._partners), "keys": len(self.index)}

    def snapshot(self) -> OperatorState:
        """Rows that changed, by key group."""
        left, _is_whole = self.buffers[LEFT].changes(self.groups_of)
        tables = {} if left is None else {"left": left}
        is_whole = not self._dirty.is_tracking
        changed = self._dirty.take()
        if len(self._partners):
            numbers = np.arange(len(self._partners)) if is_whole else changed
            order, rows = self._partners.take(numbers)
            numbers = numbers if order is None else numbers[order]
            table = pa.Table.from_batches([rows]).append_column(_MATCHED, pa.array(self._matched[numbers]))
            # A key has one row, so its slot is known by the row; the name of a key column is the right side's.
            groups = key_groups(rows, self.columns.right_keys, self.context.key_groups.total)
            tables["right"] = TableState(table, groups, self.columns.right_keys)
        return OperatorState(shared=pack({}, **self.fingerprint), tables=tables, is_whole=is_whole)

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Take rows in."""
        for state in states:
            if state.shared:
                check_fingerprint(unpack(state.shared).facts, self.fingerprint)
            if "right" in state.tables and len(state.tables["right"].rows):
                rows = state.tables["right"].rows
                matched = rows.column(_MATCHED).to_numpy()
                self._remember(_batch(rows.drop_columns([_MATCHED])), matched)
            if "left" in state.tables:
                self._take_in(state.tables["left"].rows, LEFT)
                self._number = _grown(self._number, len(self.index))
        self._dirty.begin()

    # -- rows in ----------------------------------------------------------------------------------------------

    def _take_left(self, batch: Batch, slots: Integers, out: Output) -> None:
        numbers = self._number[slots]
        found = numbers >= 0
        places: Integers | None = None
        if not found.all():
            alone = np.flatnonzero(~found)
            self._wait(batch.take(pa.array(alone)), slots[alone])
            places = np.flatnonzero(found)
            numbers = numbers[places]
        if len(numbers) and self.keeps[RIGHT]:
            self._dirty.mark(numbers[~self._matched[numbers]], len(self._partners))
            self._matched[numbers] = True
        for start in range(0, len(numbers), self.context.max_rows):
            some = slice(start, start + self.context.max_rows)
            order, theirs = self._partners.take(numbers[some])
            out.emit(self.columns.assemble(_taken(batch, places, some, order), theirs))

    def _take_right(self, batch: Batch, slots: Integers, out: Output) -> None:
        self._refuse_second(batch, slots)
        numbers = self._remember(batch, np.zeros(len(slots), np.bool_), slots)
        kept: list[Segment] = []
        gone: list[Segment] = []
        for segment in self.buffers[LEFT].segments:
            ranges = slot_ranges(segment.slots, slots)
            found = ranges[1] > ranges[0]
            if not found.any():
                kept.append(segment)
                continue
            self._matched[numbers[found]] = True
            self.emit_pairs(batch, RIGHT, segment, ranges, out)
            met = np.isin(segment.slots, slots[found])
            kept.append(segment.at(np.flatnonzero(~met)))
            gone.append(segment.at(np.flatnonzero(met)))
        self.buffers[LEFT].replace(kept, gone, self.groups_of)

    def _wait(self, rows: Batch, slots: Integers) -> None:
        self.buffers[LEFT].add(rows, slots, np.zeros(len(slots), np.int64))

    def _remember(self, batch: Batch, matched: Any, slots: Integers | None = None) -> Integers:
        slots = self.slots_of(batch, RIGHT) if slots is None else slots
        first = len(self._partners)
        numbers = np.arange(first, first + batch.num_rows)
        self._partners.append(batch)
        self._number = _grown(self._number, len(self.index))
        self._number[slots] = numbers
        self._matched = with_room(self._matched, len(self._partners))
        self._matched[numbers] = matched
        self._dirty.mark(numbers, len(self._partners))
        return numbers

    def _refuse_second(self, batch: Batch, slots: Integers) -> None:
        again = self._number[slots] >= 0
        if not again.any():
            ordered = np.sort(slots)
            twice = ordered[1:][ordered[1:] == ordered[:-1]]
            if not len(twice):
                return
            again = np.isin(slots, twice)
        row = batch.slice(int(np.flatnonzero(again)[0]), 1).select(self.columns.right_keys).to_pylist()[0]
        raise PreconditionError(
            f"the right side of a join has a second row with {row}",
            hint="right_is_unique is for keys of which there is one row; leave it out",
            key=str(row),
        )


class _Rows:
    """Rows that are added and looked up by number: most of them in one batch, the newest in another."""

    def __init__(self) -> None:
        self._main: Batch | None = None
        self._recent: list[Batch] = []
        self._main_rows = 0
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def append(self, batch: Batch) -> None:
        """The next numbers."""
        self._recent.append(batch)
        self._rows += batch.num_rows
        if self._rows - self._main_rows > max(_LEAST_RECENT, self._main_rows // _SHARE):
            self.whole()

    def whole(self) -> Batch | None:
        """All of them, in order."""
        if self._recent:
            parts = [*([] if self._main is None else [self._main]), *self._recent]
            self._main, self._recent, self._main_rows = stacked(parts), [], self._rows
        return self._main

    def take(self, numbers: Integers) -> tuple[Integers | None, Batch]:
        """Rows by their numbers, and the order in which they are emitted where that is another one."""
        old = numbers < self._main_rows
        if self._main is None or not old.any():
            return None, self._newest().take(pa.array(numbers - self._main_rows))
        if old.all():
            return None, self._main.take(pa.array(numbers))
        places = [np.flatnonzero(old), np.flatnonzero(~old)]
        mine = self._main.take(pa.array(numbers[places[0]]))
        theirs = self._newest().take(pa.array(numbers[places[1]] - self._main_rows))
        return np.concatenate(places), stacked([mine, theirs])

    def _newest(self) -> Batch:
        if len(self._recent) > 1:
            self._recent = [stacked(self._recent)]
        return self._recent[0]


def _taken(batch: Batch, places: Integers | None, some: slice, order: Integers | None) -> Batch:
    """Some of the rows at these places, or of all rows, in an order. They are copied once at most."""
    if places is None and order is None:
        return batch.slice(some.start, some.stop - some.start)
    rows = np.arange(some.start, min(some.stop, batch.num_rows)) if places is None else places[some]
    return batch.take(pa.array(rows if order is None else rows[order]))


def _grown(numbers: Integers, count: int) -> Integers:
    """The array with room for so many slots, without a row each."""
    if len(numbers) >= count:
        return numbers
    grown = np.full(max(count, 2 * len(numbers), 64), -1, np.int64)
    grown[: len(numbers)] = numbers
    return grown


def _batch(table: Table) -> Batch:
    return table.combine_chunks().to_batches()[0]
