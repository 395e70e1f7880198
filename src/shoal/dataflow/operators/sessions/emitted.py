"""Results of sessions that were emitted and may change. Such a session may grow, or merge with others.

Then what was emitted is taken back (`-D`) and the new one is emitted (`+I`); with equal bounds it is `-U` and `+U`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.dataflow.language.keys import Array, Integers
from shoal.dataflow.operators.aggregates.plan import AggregatePlan
from shoal.dataflow.operators.emitted import rows_differ
from shoal.dataflow.operators.keys.index import KeyIndex
from shoal.dataflow.operators.keys.tables import numbers_of, restored_slots
from shoal.dataflow.operators.sessions.table import SessionTable

_START, _END, _RESULT = "__start", "__end", "__result_"


@dataclass(frozen=True, slots=True)
class _Emitted:
    start: int
    end: int
    #: The result, a column of one row each.
    columns: list[Array]


@dataclass(frozen=True, slots=True)
class SessionChange:
    """Rows to be emitted, all with one word."""

    word: str
    slots: Integers
    windows: tuple[Integers, Integers]
    columns: list[Array]


class EmittedSessions:
    """What was emitted of sessions that are still kept, by cell."""

    def __init__(self) -> None:
        self._by_cell: dict[int, list[_Emitted]] = {}

    def change(
        self, cells: Integers, slots: Integers, windows: tuple[Integers, Integers], columns: list[Array]
    ) -> Iterator[SessionChange]:
        """The changes to emit so that these results stand."""
        rows: dict[str, list[tuple[int, _Emitted]]] = {}
        for place, cell in enumerate(cells.tolist()):
            new = _Emitted(
                int(windows[0][place]), int(windows[1][place]), [column.slice(place, 1) for column in columns]
            )
            old, self._by_cell[cell] = self._by_cell.get(cell, []), [new]
            slot = int(slots[place])
            if len(old) == 1 and (old[0].start, old[0].end) == (new.start, new.end):
                if rows_differ(old[0].columns, new.columns).any():
                    rows.setdefault("-U", []).append((slot, old[0]))
                    rows.setdefault("+U", []).append((slot, new))
                continue
            rows.setdefault("-D", []).extend((slot, each) for each in old)
            rows.setdefault("+I", []).append((slot, new))
        for word in ("-D", "-U", "+U", "+I"):
            if rows.get(word):
                yield _change(word, rows[word])

    def move(self, others: Integers, cells: Integers) -> None:
        """Sessions have become part of others."""
        for other, cell in zip(others.tolist(), cells.tolist(), strict=True):
            emitted = self._by_cell.pop(other, [])
            if emitted:
                self._by_cell.setdefault(cell, []).extend(emitted)

    def forget(self, cells: Integers) -> None:
        """These change no more."""
        for cell in cells.tolist():
            self._by_cell.pop(cell, None)

    def to_columns(self, table: SessionTable, cells: Integers, plan: AggregatePlan) -> tuple[Integers, dict[str, Any]]:
        """Those of some cells: the slot of each, and columns."""
        by_cell = ((cell, self._by_cell.get(cell, [])) for cell in cells.tolist())
        change = _change("", [(int(table.slots[cell]), each) for cell, emitted in by_cell for each in emitted])
        if not change.columns:
            change = replace(change, columns=[pa.array([], output.type) for output in plan.outputs])
        columns = {_START: change.windows[0], _END: change.windows[1]}
        columns |= {f"{_RESULT}{place}": column for place, column in enumerate(change.columns)}
        return change.slots, columns

    def take_in(self, table: Any, index: KeyIndex, sessions: SessionTable) -> None:
        """The inverse: each belongs to the session that its beginning lies in."""
        slots, starts, ends = restored_slots(index, table), numbers_of(table, _START), numbers_of(table, _END)
        names = [name for name in table.column_names if name.startswith(_RESULT)]
        columns = [table.column(name).combine_chunks() for name in names]
        for place, slot in enumerate(slots.tolist()):
            cells = sessions.cells_of(np.array([slot]))
            inside = (sessions.lows[cells] <= starts[place]) & (sessions.highs[cells] >= starts[place])
            emitted = _Emitted(int(starts[place]), int(ends[place]), [column.slice(place, 1) for column in columns])
            for cell in cells[inside].tolist():
                self._by_cell.setdefault(cell, []).append(emitted)


def _change(word: str, rows: list[tuple[int, _Emitted]]) -> SessionChange:
    slots = np.array([slot for slot, _emitted in rows], np.int64)
    starts = np.array([emitted.start for _slot, emitted in rows], np.int64)
    ends = np.array([emitted.end for _slot, emitted in rows], np.int64)
    columns = [pa.concat_arrays(parts) for parts in zip(*(emitted.columns for _slot, emitted in rows), strict=True)]
    return SessionChange(word, slots, (starts, ends), columns)
