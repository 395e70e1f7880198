"""The windowed join: pairs of rows with equal keys that are in the same window, given when the window ends.

Rows wait for the end of their windows; a row whose windows have all ended is late. With sliding windows a pair comes
out once for each window that both rows are in. The result has the window's bounds, and its last microsecond as event
time, as windowed aggregates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME, Batch
from shoal.dataflow.language.keys import Array, Integers, combined, key_groups
from shoal.dataflow.language.windows import SlidingWindow
from shoal.dataflow.operators.base import OperatorState, Output
from shoal.dataflow.operators.batches import event_times, same_type
from shoal.dataflow.operators.joins.base import LEFT, RIGHT, KeyedJoin
from shoal.dataflow.operators.joins.columns import keys_of
from shoal.dataflow.operators.joins.matching import pairs, slot_ranges
from shoal.dataflow.operators.joins.panes import PaneRows
from shoal.dataflow.operators.keyed_state import check_kept
from shoal.dataflow.operators.keyindex import KeyIndex
from shoal.dataflow.operators.windows import bounds
from shoal.dataflow.state.blobs import Table, pack, pack_groups, unpack

_SIDES = ("left", "right")


class WindowJoin(KeyedJoin):
    """Pairs of rows with equal keys and window."""

    def __init__(self, *, window: SlidingWindow, emits_time: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        self.kept = {name: f"{words} in {window}" for name, words in self.kept.items()}
        self._window = window
        self._emits_time = emits_time
        self._sides = (PaneRows(), PaneRows())

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Let rows wait for the end of their windows."""
        late = bounds.last_ends(self._window, event_times(batch)) <= self.watermark
        if late.any():
            self.put_aside(batch.filter(pa.array(late)), port, out)
            batch = batch.filter(pa.array(~late))
        if not self.keeps[port]:
            batch = self.without_null_keys(batch, port, out)
        if batch.num_rows:
            self._sides[port].add(batch, event_times(batch) // self._window.pane)

    def on_watermark(self, time: int, out: Output) -> None:
        """Give the pairs of the windows that have ended, and free rows that no window needs."""
        if time <= self.watermark:
            return
        before, self.watermark = self.watermark, time
        panes = sorted({*self._sides[LEFT].panes, *self._sides[RIGHT].panes})
        if not panes:
            return
        for end in bounds.due_ends(self._window, panes, before, time):
            self._fire(end, out)
        first = bounds.first_needed(self._window, time) // self._window.pane if time < END_OF_TIME else panes[-1] + 1
        for side in self._sides:
            side.free_before(first)

    def statistics(self) -> dict[str, int]:
        """What waits, and what was late."""
        left, right = self._sides
        return {**self.late_rows(), "left_rows": len(left), "right_rows": len(right)}

    def snapshot(self) -> OperatorState:
        """Waiting rows by key group."""
        parts: dict[str, tuple[Table, Integers]] = {}
        for port, name in enumerate(_SIDES):
            whole = self._sides[port].whole()
            if whole is not None:
                groups = key_groups(whole, self._key_names(port), self.context.key_groups.total)
                parts[name] = (pa.Table.from_batches([whole]), groups)
        return OperatorState(pack_groups(parts), pack({}, watermark=self.watermark, **self.kept))

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Take waiting rows in."""
        watermarks = []
        for state in states:
            if state.shared:
                facts = unpack(state.shared).facts
                check_kept(facts, self.kept)
                watermarks.append(facts["watermark"])
            for content in state.keyed.values():
                tables = unpack(content).tables
                for port, name in enumerate(_SIDES):
                    for batch in tables[name].to_batches() if name in tables else ():
                        self._sides[port].add(batch, event_times(batch) // self._window.pane)
        self.watermark = min(watermarks, default=START_OF_TIME)

    # -- pairs ------------------------------------------------------------------------------------------------

    def _fire(self, end: int, out: Output) -> None:
        start, pane = end - self._window.size, self._window.pane
        left, right = (side.between(start // pane, end // pane) for side in self._sides)
        if left is None or right is None:
            for port, side in ((LEFT, left), (RIGHT, right)):
                if side is not None and self.keeps[port]:
                    self._give(side if port == LEFT else None, side if port == RIGHT else None, end, out)
            return
        rows, slots = self._candidates(left, right)
        order = np.argsort(slots[RIGHT], kind="stable")
        ordered, places_of_right = slots[RIGHT][order], rows[RIGHT][order]
        first, behind = slot_ranges(ordered, slots[LEFT])
        for places, others in pairs(first, behind, self.context.max_rows):
            mine, theirs = rows[LEFT][places], places_of_right[others]
            self._give(left.take(pa.array(mine)), right.take(pa.array(theirs)), end, out)
        if self.keeps[LEFT]:
            self._give(left.filter(_others(rows[LEFT][behind > first], left.num_rows)), None, end, out)
        if self.keeps[RIGHT]:
            matched = rows[RIGHT][np.isin(slots[RIGHT], slots[LEFT])]
            self._give(None, right.filter(_others(matched, right.num_rows)), end, out)

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

    def _give(self, left: Batch | None, right: Batch | None, end: int, out: Output) -> None:
        rows = left.num_rows if left is not None else right.num_rows if right is not None else 0
        for start in range(0, rows, self.context.max_rows):
            some = [None if side is None else side.slice(start, self.context.max_rows) for side in (left, right)]
            count = min(self.context.max_rows, rows - start)
            ends = np.full(count, end)
            times = ends - 1 if self._emits_time else None
            batch = self.columns.assemble(some[0], some[1], windows=(ends - self._window.size, ends), times=times)
            out.emit(batch)


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


def _others(places: Integers, rows: int) -> Any:
    """A mask of all rows but these."""
    mask = np.ones(rows, np.bool_)
    mask[places] = False
    return pa.array(mask)
