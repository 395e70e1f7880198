"""What changed since the last snapshot: cells of arrays, and keys that are gone.

Nothing is noted before the first snapshot, which takes everything; so a run without checkpoints pays nothing. Used by
operators that keep their state in arrays by cell.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.dataflow.state.tables import Integers, Table, stack

#: When more than one cell of so many changed, all of them are taken: then nothing has to be merged.
_MOST = 2
#: With so many rows for each cell all cells are marked: to look at every row costs more than to write a few cells more.
_ROWS_OF_A_CELL = 8


def are_most(changed: int, live: int) -> bool:
    """Whether so many of all changed that all should be taken."""
    return changed * _MOST > live


class DirtyCells:
    """Flags for cells."""

    __slots__ = ("_flags", "is_tracking")

    def __init__(self, *, is_tracking: bool = False) -> None:
        self.is_tracking = is_tracking
        self._flags = np.zeros(0, np.bool_)

    def mark(self, cells: Any, capacity: int) -> None:
        """These cells changed; none is at or above `capacity`."""
        if self.is_tracking:
            if capacity > len(self._flags):
                longer = np.zeros(max(capacity, 2 * len(self._flags)), np.bool_)
                longer[: len(self._flags)] = self._flags
                self._flags = longer
            self._flags[cells] = True

    def mark_rows(self, cells: Any, capacity: int) -> None:
        """The cells of rows changed, or of all cells some more. Cells without rows must be known elsewhere."""
        self.mark(slice(0, capacity) if len(cells) >= _ROWS_OF_A_CELL * capacity else cells, capacity)

    def count(self) -> int:
        """How many changed."""
        return int(np.count_nonzero(self._flags))

    def is_mostly(self, live: int) -> bool:
        """Whether all of so many cells should be taken: none was taken yet, or most of them changed."""
        return not self.is_tracking or are_most(self.count(), live)

    def take(self) -> Integers:
        """The cells that changed. From now on those count that change later."""
        cells = np.flatnonzero(self._flags)
        self.begin()
        return cells

    def begin(self) -> None:
        """All that there is now is known: only what changes from now on counts."""
        self.is_tracking = True
        self._flags[:] = False

    def renumber(self, moved: Integers) -> None:
        """Cells have new numbers; those below zero are gone."""
        cells = np.flatnonzero(self._flags[: len(moved)])
        self._flags = np.zeros(len(moved), np.bool_)
        found = moved[cells]
        self._flags[found[found >= 0]] = True


class GoneKeys:
    """Keys that were removed, with their key groups."""

    __slots__ = ("_groups", "_keys")

    def __init__(self) -> None:
        self._keys: list[Table] = []
        self._groups: list[Integers] = []

    def add(self, keys: Table, groups: Integers) -> None:
        """Some more."""
        if len(groups):
            self._keys.append(keys)
            self._groups.append(groups)

    def take(self) -> tuple[Table | None, Integers]:
        """All of them since the last time."""
        keys, groups, self._keys, self._groups = self._keys, self._groups, [], []
        return (stack(keys), np.concatenate(groups)) if keys else (None, np.zeros(0, np.int64))


class RowIds:
    """Numbers by which rows without a key are known within their key group."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> Integers:
        """So many new ones."""
        first, self._next = self._next, self._next + count
        return np.arange(first, self._next, dtype=np.int64)

    def go_on_from(self, ids: Integers) -> None:
        """These are taken, by rows of a snapshot."""
        if len(ids):
            self._next = max(self._next, int(ids.max()) + 1)
