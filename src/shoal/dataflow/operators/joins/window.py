"""The windowed join: pairs of rows with equal keys in the same window, emitted when the window ends.

Rows wait for the end of their windows; a row whose windows have all ended is late. With sliding windows a pair comes
out once for each window that both rows are in. The result has the window's bounds, and its last microsecond as event
time, as windowed aggregates. Windows that end at once are joined at once, so that many small ones cost no more than
one with as many rows: what comes out is in the order of windows, and never more in one batch than it may hold.

Where rows may lie on disk they are kept in slices by key, which are joined one after the other, so that a window may
have more rows than fit into memory. Windows then come in their order within each slice.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME, Batch
from shoal.dataflow.language.keys import Array, Integers, combined, groups_of, hash_arrays, partition
from shoal.dataflow.language.windows import SlidingWindow
from shoal.dataflow.operators.base import OperatorState, Output
from shoal.dataflow.operators.batches import event_times, same_type
from shoal.dataflow.operators.joins.base import LEFT, RIGHT, KeyedJoin
from shoal.dataflow.operators.joins.columns import keys_of
from shoal.dataflow.operators.joins.matching import pairs, slot_ranges, spread
from shoal.dataflow.operators.joins.panes import PaneRows
from shoal.dataflow.operators.keys.index import KeyIndex
from shoal.dataflow.operators.keys.tables import check_fingerprint
from shoal.dataflow.operators.windows import bounds
from shoal.dataflow.state.blobs import pack, unpack
from shoal.dataflow.state.tables import Table, TableState, merge

_SIDES = ("left", "right")
#: Slices of the keys of a task, where rows may lie on disk.
_SLICES = 16
#: Bytes of rows of all slices and both sides that stay in memory then.
MOST_BYTES = 32 * 1024 * 1024


class WindowJoin(KeyedJoin):
    """Pairs of rows with equal keys and window."""

    restores_in_pieces = True

    def __init__(self, *, window: SlidingWindow, emits_time: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        self.fingerprint = {name: f"{words} in {window}" for name, words in self.fingerprint.items()}
        self._window = window
        self._emits_time = emits_time
        slices, make_store = (_SLICES, self._open_store) if self.is_stored else (1, None)
        most = MOST_BYTES // (2 * slices)
        #: The rows of both sides, of each slice.
        self._slices = [(PaneRows(make_store, most), PaneRows(make_store, most)) for _ in range(slices)]

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Let rows wait for the end of their windows."""
        late = bounds.last_ends(self._window, event_times(batch)) <= self.watermark
        if late.any():
            self.put_aside(batch.filter(pa.array(late)), port, out)
            batch = batch.filter(pa.array(~late))
        if not self.keeps[port]:
            batch = self.without_null_keys(batch, port, out)
        for number, some in self._sliced(batch, port):
            self._slices[number][port].add(some, event_times(some) // self._window.pane)

    def _sliced(self, batch: Batch, port: int) -> list[tuple[int, Batch]]:
        """The rows of each slice."""
        if len(self._slices) == 1:
            return [(0, batch)] if batch.num_rows else []
        hashes = hash_arrays(self._key_columns(batch, port))
        slices = groups_of(hashes, self.context.key_groups.total) % len(self._slices)
        return partition(batch, slices, len(self._slices))

    def on_watermark(self, time: int, out: Output) -> None:
        """Emit the pairs of the windows that have ended, and free rows that no window needs."""
        if time <= self.watermark:
            return
        before, self.watermark = self.watermark, time
        for sides in self._slices:
            self._fire_slice(sides, before, out)

    def _fire_slice(self, sides: _Sides, before: int, out: Output) -> None:
        time = self.watermark
        panes = sorted({*sides[LEFT].panes, *sides[RIGHT].panes})
        if not panes:
            return
        due = bounds.due_ends(self._window, panes, before, time)
        while some := list(itertools.islice(due, self.context.max_rows)):
            self._fire(np.array(some), panes, sides, out)
        first = bounds.first_needed(self._window, time) // self._window.pane if time < END_OF_TIME else panes[-1] + 1
        for side in sides:
            side.free_before(first)

    def statistics(self) -> dict[str, int]:
        """What waits, and what was late."""
        left, right = (sum(len(sides[port]) for sides in self._slices) for port in (LEFT, RIGHT))
        return {**self.late_rows(), "left_rows": left, "right_rows": right}

    def snapshot(self) -> OperatorState:
        """Waiting rows that came, by key group."""
        total = self.context.key_groups.total
        found: dict[str, list[TableState]] = {name: [] for name in _SIDES}
        whole = []
        for sides in self._slices:
            for port, name in enumerate(_SIDES):
                table, is_whole = sides[port].changes(self._key_names(port), total)
                found[name] += [] if table is None else [table]
                whole.append(is_whole)
        return OperatorState(
            shared=pack({}, watermark=self.watermark, **self.fingerprint),
            tables={name: parts[0] if len(parts) == 1 else merge(parts) for name, parts in found.items() if parts},
            is_whole=all(whole),
        )

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Take waiting rows in. The states come one by one, and all tasks had one watermark."""
        watermarks = []
        for state in states:
            if state.shared:
                facts = unpack(state.shared).facts
                check_fingerprint(facts, self.fingerprint)
                watermarks.append(facts["watermark"])
            first = bounds.first_needed(self._window, min(watermarks, default=START_OF_TIME)) // self._window.pane
            for port, name in enumerate(_SIDES):
                if name in state.tables:
                    self._restore_side(state.tables[name].rows, port, first)
        self.watermark = min(watermarks, default=START_OF_TIME)
        for sides in self._slices:
            for side in sides:
                side.begin_tracking()

    def _restore_side(self, rows: Table, port: int, first: int) -> None:
        if len(self._slices) == 1:
            self._slices[0][port].restore(rows, first)
            return
        for batch in rows.combine_chunks().to_batches():
            for number, some in self._sliced(batch, port):
                self._slices[number][port].restore(pa.Table.from_batches([some]), first)

    # -- pairs ------------------------------------------------------------------------------------------------

    def _fire(self, ends: Integers, panes: list[int], sides: _Sides, out: Output) -> None:
        """Windows that are due, in their order: as many of them at once as a batch has rows, one of them at least."""
        pane = self._window.pane
        starts = ends - self._window.size
        panes = panes[bisect_left(panes, int(starts[0]) // pane) : bisect_left(panes, int(ends[-1]) // pane)]
        numbers = np.array(panes)
        first, behind = (np.searchsorted(numbers, bound // pane) for bound in (starts, ends))
        totals = [np.append(0, np.cumsum(side.counts(panes))) for side in sides]
        for some in _stretches(sum(total[behind] - total[first] for total in totals), self.context.max_rows):
            low, high = first[some.start], behind[some.stop - 1]
            rows = [side.of(panes[low:high]) for side in sides]
            ranges = [(total[first[some]] - total[low], total[behind[some]] - total[low]) for total in totals]
            self._emit(_Windows(ends[some], rows, ranges), out)

    def _emit(self, windows: _Windows, out: Output) -> None:
        """Of each window its pairs, then left rows that are alone, then right ones."""
        entries = self._entries(windows)
        for places, others in pairs(entries.first, entries.first + entries.counts, self.context.max_rows):
            left = _at(windows.rows[LEFT], entries.left[places])
            right = _at(windows.rows[RIGHT], entries.right[others])
            ends = windows.ends[entries.windows[places]]
            times = ends - 1 if self._emits_time else None
            out.emit(self.columns.assemble(left, right, windows=(ends - self._window.size, ends), times=times))

    def _entries(self, windows: _Windows) -> _Entries:
        """What comes out of windows, without the rows themselves: there may be more pairs than fit into memory."""
        if any(rows is None for rows in windows.rows):
            found = [_NO_ROWS, _NO_ROWS]
            matched = _Entries(_NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS)
        else:
            matched, found = self._matched(windows)
        if not any(self.keeps):
            return matched
        alone = [
            windows.others(port, found[port]) if self.keeps[port] else (_NO_ROWS, _NO_ROWS) for port in (LEFT, RIGHT)
        ]
        (left_windows, left), (right_windows, right) = alone
        known, nobody = len(matched.right), len(matched.right) + len(right)
        first = np.concatenate([matched.first, np.full(len(left), nobody), np.arange(known, nobody)])
        numbers = np.concatenate([matched.windows, left_windows, right_windows])
        order = np.argsort(numbers, kind="stable")
        return _Entries(
            numbers[order],
            np.concatenate([matched.left, left, np.full(len(right), _NOBODY)])[order],
            first[order],
            np.concatenate([matched.counts, np.ones(len(left) + len(right), np.int64)])[order],
            np.concatenate([matched.right, right, [_NOBODY]]),
        )

    def _matched(self, windows: _Windows) -> tuple[_Entries, list[Integers]]:
        """Left rows with partners, and what of each side has one, as places among the rows of all windows."""
        rows, slots = self._candidates(*windows.rows)
        # The window is one more column of the key: a row is there once for each window that it is in.
        numbers, places, keys = [], [], []
        keys_known = 1 + max((int(each.max()) for each in slots if len(each)), default=0)
        for port in (LEFT, RIGHT):
            number, place = spread(*(np.searchsorted(rows[port], bound) for bound in windows.ranges[port]))
            numbers.append(number)
            places.append(rows[port][place])
            keys.append(number * keys_known + slots[port][place])
        order = np.argsort(keys[RIGHT], kind="stable")
        first, behind = slot_ranges(keys[RIGHT][order], keys[LEFT])
        has = np.flatnonzero(behind > first)
        found = [windows.places(LEFT, numbers[LEFT][has], places[LEFT][has]), _NO_ROWS]
        if self.keeps[RIGHT]:
            met = np.flatnonzero(np.isin(keys[RIGHT], keys[LEFT]))
            found[RIGHT] = windows.places(RIGHT, numbers[RIGHT][met], places[RIGHT][met])
        counts = (behind - first)[has]
        return _Entries(numbers[LEFT][has], places[LEFT][has], first[has], counts, places[RIGHT][order]), found

    def _candidates(self, left: Batch, right: Batch) -> tuple[list[Integers], list[Integers]]:
        """The rows of each side that may have a partner on the other, and the slots of their keys."""
        columns = [self._key_columns(left, LEFT), self._key_columns(right, RIGHT)]
        rows = [_all_with_keys(each, side.num_rows) for each, side in zip(columns, (left, right), strict=True)]
        # The larger side is sifted by the smaller one: what can have no partner need not be looked at again.
        small, large = (LEFT, RIGHT) if left.num_rows < right.num_rows else (RIGHT, LEFT)
        rows[large] = _sifted(rows[large], columns[large], columns[small])
        index = KeyIndex(self.columns.left_keys)
        slots = [
            index.slots_of([each.take(pa.array(some)) for each in side], len(some))
            for side, some in zip(columns, rows, strict=True)
        ]
        return rows, slots

    def _key_names(self, port: int) -> tuple[str, ...]:
        return self.columns.left_keys if port == LEFT else self.columns.right_keys

    def _key_columns(self, rows: Batch, port: int) -> list[Array]:
        """The keys of one side, in the types of the left one's."""
        kinds = [self.columns.left.field(name).type for name in self.columns.left_keys]
        found = keys_of(rows, self._key_names(port))
        return [same_type(combined(column), kind) for column, kind in zip(found, kinds, strict=True)]


_Sides: TypeAlias = tuple[PaneRows, PaneRows]
_NO_ROWS = np.zeros(0, np.int64)
_NOBODY = -1


@dataclass(frozen=True, slots=True)
class _Windows:
    """Windows that are looked at together: when each ends, and the range of its rows among those of each side."""

    ends: Integers
    rows: list[Any]
    ranges: list[tuple[Integers, Integers]]

    def places(self, port: int, windows: Integers, rows: Integers) -> Integers:
        """Where rows are when the rows of all windows stand one after the other."""
        first, end = self.ranges[port]
        counts = end - first
        return np.asarray((np.cumsum(counts) - counts - first)[windows] + rows)

    def others(self, port: int, places: Integers) -> tuple[Integers, Integers]:
        """All rows but those at these places: window and row of each."""
        windows, rows = spread(*self.ranges[port])
        mask = np.ones(len(rows), np.bool_)
        mask[places] = False
        return windows[mask], rows[mask]


@dataclass(frozen=True, slots=True)
class _Entries:
    """What comes out, in its order: left rows, each with a stretch of `right`; nobody's number is -1."""

    windows: Integers
    left: Integers
    first: Integers
    counts: Integers
    right: Integers


def _stretches(rows: Integers, most: int) -> Iterator[slice]:
    """Neighbours that have so many rows in all, or one that has more."""
    reach = np.cumsum(rows)
    start = 0
    while start < len(rows):
        end = max(start + 1, int(np.searchsorted(reach, reach[start] - rows[start] + most, "right")))
        yield slice(start, end)
        start = end


def _at(rows: Batch | None, places: Integers) -> Batch | None:
    """Some rows, nulls for nobody; None when there is nobody."""
    missing = places < 0
    if rows is None or missing.all():
        return None
    return rows.take(pa.array(places, mask=missing) if missing.any() else pa.array(places))


def _all_with_keys(columns: list[Array], rows: int) -> Integers:
    """The rows whose key is not null in any column: the others match nothing."""
    valid: Any = None
    for column in columns:
        if column.null_count:
            there = column.is_valid().to_numpy(zero_copy_only=False)
            valid = there if valid is None else valid & there
    return np.arange(rows) if valid is None else np.flatnonzero(valid)


def _sifted(rows: Integers, columns: list[Array], others: list[Array]) -> Integers:
    """The rows whose values are all among those of the other side, column by column."""
    for column, values in zip(columns, others, strict=True):
        if not _is_plain(column.type):
            continue
        some = column if len(rows) == len(column) else column.take(pa.array(rows))
        rows = rows[pc.is_in(some, value_set=values).to_numpy(zero_copy_only=False)]
    return rows


def _is_plain(kind: Any) -> bool:
    """Whether Arrow can look a value up, and means the same by equal as keys do: not so for -0.0 and NaN."""
    check = pa.types
    is_text = check.is_string(kind) or check.is_large_string(kind) or check.is_binary(kind)
    return bool(is_text or check.is_integer(kind) or check.is_temporal(kind))
