"""Results that were emitted and may change: what early and corrected results take back.

A window that emits more than one result emits changes, as aggregates without a window do: `+I` at first, then `-U` with
the old values and `+U` with the new ones. What did not change is not emitted again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME
from shoal.dataflow.language.keys import Array, Integers
from shoal.dataflow.operators.aggregates.plan import AggregatePlan
from shoal.dataflow.operators.keys.index import KeyIndex
from shoal.dataflow.operators.keys.tables import late_table, numbers_of, restored_slots
from shoal.dataflow.state.tables import TableState

_END, _RESULT = "__end", "__result_"


@dataclass(frozen=True, slots=True)
class Results:
    """Results of some cells, in the order of cells."""

    cells: Integers
    columns: list[Array]

    def at(self, rows: Integers) -> Results:
        """Some of them."""
        index = pa.array(rows)
        return Results(self.cells[rows], [column.take(index) for column in self.columns])


@dataclass(frozen=True, slots=True)
class Change:
    """Rows to be emitted, all with one word."""

    word: str
    results: Results


class EmittedResults:
    """The results of windows that were emitted, by the window's end."""

    def __init__(self) -> None:
        self._by_end: dict[int, Results] = {}
        #: The cells whose results changed since the last snapshot, by the window's end; None before the first one.
        self._changed: dict[int, list[Integers]] | None = None
        self._floor = START_OF_TIME

    def change(self, end: int, new: Results) -> Iterator[Change]:
        """The changes to emit so that these results stand."""
        order = np.argsort(new.cells, kind="stable")
        new = new.at(order)
        if self._changed is not None:
            self._changed.setdefault(end, []).append(new.cells)
        old = self._by_end.get(end)
        if old is None:
            self._by_end[end] = new
            yield Change("+I", new)
            return
        places = np.minimum(np.searchsorted(old.cells, new.cells), len(old.cells) - 1)
        known = old.cells[places] == new.cells
        before, now = old.at(places[known]), new.at(np.flatnonzero(known))
        moved = np.flatnonzero(rows_differ(before.columns, now.columns))
        fresh = np.flatnonzero(~known)
        self._by_end[end] = _joined(old.at(np.flatnonzero(~np.isin(old.cells, new.cells))), new)
        for word, results in (("-U", before.at(moved)), ("+U", now.at(moved)), ("+I", new.at(fresh))):
            if len(results.cells):
                yield Change(word, results)

    def drop(self, time: int) -> None:
        """Forget windows that ended up to a moment: they change no more."""
        self._floor = max(self._floor, min(time + 1, END_OF_TIME))
        for end in [end for end in self._by_end if end <= time]:
            del self._by_end[end]
            if self._changed is not None:
                self._changed.pop(end, None)

    def renumber(self, moved: Integers) -> None:
        """Slots have new numbers, in the same order."""
        for end, results in self._by_end.items():
            self._by_end[end] = Results(moved[results.cells], results.columns)
        if self._changed is not None:
            self._changed = {end: [moved[cells] for cells in parts] for end, parts in self._changed.items()}

    def live_slots(self, live: Any) -> None:
        """Mark the slots that have results."""
        for results in self._by_end.values():
            live[results.cells] = True

    def changes(self, index: KeyIndex, plan: AggregatePlan, total: int) -> Callable[[], TableState]:
        """Those that changed since the last time, with their keys; all of them at first."""
        changed, self._changed = self._changed, {}
        found = dict(self._by_end)
        if changed is not None:
            found = {
                end: results.at(np.flatnonzero(np.isin(results.cells, np.concatenate(changed[end]))))
                for end, results in self._by_end.items()
                if end in changed
            }
        slots = np.concatenate([np.zeros(0, np.int64), *(each.cells for each in found.values())])
        ends = np.concatenate([np.zeros(0, np.int64), *(np.full(len(each.cells), end) for end, each in found.items())])
        parts = [[each.columns[place] for each in found.values()] for place in range(len(plan.outputs))]
        columns = [
            pa.concat_arrays(arrays) if arrays else pa.array([], output.type)
            for arrays, output in zip(parts, plan.outputs, strict=True)
        ]
        extra = {_END: ends, **{f"{_RESULT}{place}": column for place, column in enumerate(columns)}}
        return late_table(index, slots, extra, total, by=(_END,), floor=(_END, self._floor))

    def begin_tracking(self) -> None:
        """All that there is now is known."""
        self._changed = {}

    def end_tracking(self) -> None:
        """The next snapshot has everything."""
        self._changed = None

    def take_in(self, table: Any, index: KeyIndex, plan: AggregatePlan) -> None:
        """The inverse, for some keys."""
        slots, ends = restored_slots(index, table), numbers_of(table, _END)
        columns = [table.column(f"{_RESULT}{place}").combine_chunks() for place in range(len(plan.outputs))]
        every = Results(slots, columns)
        for end in np.unique(ends).tolist():
            mine = every.at(np.flatnonzero(ends == end))
            known = self._by_end.get(end)
            mine = mine.at(np.argsort(mine.cells, kind="stable"))
            self._by_end[end] = mine if known is None else _joined(known, mine)


def _joined(one: Results, other: Results) -> Results:
    """Results of cells that are in one of two, in the order of cells."""
    if not len(one.cells):
        return other
    columns = [pa.concat_arrays([a, b]) for a, b in zip(one.columns, other.columns, strict=True)]
    every = Results(np.concatenate([one.cells, other.cells]), columns)
    return every.at(np.argsort(every.cells, kind="stable"))


def rows_differ(old: Sequence[Array], new: Sequence[Array]) -> Any:
    """Which rows are not the same in some column; there is at least one."""
    different = np.zeros(len(old[0]) if old else 0, np.bool_)
    for one, other in zip(old, new, strict=True):
        if pa.types.is_nested(one.type):
            different |= np.array([a != b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)], np.bool_)
            continue
        unequal = pc.fill_null(pc.not_equal(one, other), False)
        if pa.types.is_floating(one.type):  # not-a-number is not equal to itself, and is no change
            both = pc.and_(pc.is_nan(one), pc.is_nan(other))
            unequal = pc.and_not(unequal, pc.fill_null(both, False))
        apart = pc.xor(one.is_null(), other.is_null())
        different |= pc.or_(unequal, apart).to_numpy(zero_copy_only=False)
    return different
