"""Results of many overlapping windows at once: panes as rows of a matrix, keys as its columns.

The panes are cut into blocks as long as a window. Within each block the combination of every pane with all before it,
and with all behind it, is made row by row; any window is then one of each. Sums of whole numbers are simpler still: a
window is the difference of two sums from the beginning. When a watermark passes many windows this costs less than
moving one combination from window to window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shoal.dataflow.language.windows import SlidingWindow
from shoal.dataflow.operators.aggregates.columns import Cells, Vector, is_any, no_counts
from shoal.dataflow.operators.aggregates.plan import AccumulatorSpec, AggregatePlan
from shoal.dataflow.operators.aggregates.sparse import Sparse
from shoal.dataflow.operators.aggregates.store import Rows, Store
from shoal.dataflow.operators.windows.sliding import Freeze, between

#: Sums within it cannot have wrapped around.
_SAFE = 1 << 62
#: A matrix has no more entries than this.
_MAX_ENTRIES = 1 << 22
#: So many panes of one batch are worth a matrix, when at least one of so many entries has a row.
_MIN_PANES = 4
_FILL = 4
#: Fewer windows at once are not worth it.
_MIN_WINDOWS = 4


class WindowMatrix:
    """Makes the results of many windows. Its memory is used again and again: new pages cost more than the sums."""

    def __init__(self, plan: AggregatePlan, window: SlidingWindow) -> None:
        self._specs = plan.specs
        self._window = window
        self._length = window.size // window.pane
        self.is_possible = all(spec.function_of_two is not None for spec in plan.specs)
        self._memory: dict[tuple[str, np.dtype[Any]], Vector] = {}

    def is_quick(self, windows: int) -> bool:
        """Whether so many windows at once can be worth it."""
        return self.is_possible and windows >= max(_MIN_WINDOWS, self._length // 8)

    def results(
        self, panes: Sequence[int], ends: Sequence[int], freeze: Freeze, capacity: int
    ) -> tuple[Cells, Sparse] | None:
        """The windows that end at `ends`: the end of each row, and the rows. None when another way is better."""
        if not self.is_quick(len(ends)):
            return None
        first = (ends[0] - self._window.size) // self._window.pane
        blocks = -(-(ends[-1] // self._window.pane - first) // self._length)
        shape = (blocks, self._length, capacity)
        if blocks * self._length * capacity > _MAX_ENTRIES:
            return None
        frozen = [(pane - first, freeze(pane)) for pane in between(panes, first, first + blocks * self._length)]
        starts = np.array([(end - self._window.size) // self._window.pane - first for end in ends])
        rows = self._sums([(at, part.cells, part.rows) for at, part in frozen], shape, starts)
        chosen, cells, picked = _present(rows)
        parts = []
        for number, spec in enumerate(self._specs):
            values = [(at, part.cells, part.parts[number][0]) for at, part in frozen]
            if spec.kind == "nulls" and not any(is_any(each[2]) for each in values):
                parts.append((no_counts(len(cells)),))
                continue
            if spec.invertible:
                if spec.kind == "sum" and _peak(values) * self._length >= _SAFE:
                    return None  # a sum might go beyond its type: they have to be made one by one, which looks at it
                whole = self._sums(values, shape, starts)
            else:
                whole = self._combined(values, spec.identity, spec.function_of_two, shape, starts)
            parts.append((whole[picked].reshape(-1),))
        return np.asarray(ends, np.int64)[chosen], Sparse(cells, rows[picked].reshape(-1), tuple(parts))

    def _sums(self, values: Sequence[tuple[int, Cells, Vector]], shape: tuple[int, int, int], starts: Cells) -> Vector:
        """Sums of whole numbers over windows: what there is up to the end without what there is up to the start."""
        kind, keys = values[0][2].dtype, shape[2]
        prefix = self._space("prefix", kind, (shape[0] * shape[1] + 1) * keys).reshape(-1, keys)
        prefix[0] = 0
        done = 0
        for at, cells, column in values:
            if at > done:
                prefix[done + 1 : at + 1] = prefix[done]
            last = int(cells[-1]) + 1 if len(cells) else 0
            if last == len(cells):  # every slot up to the last
                np.add(prefix[at, :last], column, out=prefix[at + 1, :last])
                prefix[at + 1, last:] = prefix[at, last:]
            else:
                prefix[at + 1] = prefix[at]
                prefix[at + 1, cells] += column
            done = at + 1
        prefix[done + 1 :] = prefix[done]
        # Sums over all panes may wrap around; what is left after subtracting is right all the same.
        return np.asarray(prefix[starts + self._length] - prefix[starts])

    def _combined(
        self,
        values: Sequence[tuple[int, Cells, Vector]],
        identity: Any,
        function: Any,
        shape: tuple[int, int, int],
        starts: Cells,
    ) -> Vector:
        """The windows that begin at these rows, as rows of a matrix."""
        before = self._matrix(values, identity, shape)
        behind = self._space("behind", before.dtype, before.size).reshape(shape)
        behind[:] = before
        length = self._length
        # Row by row: the library's own accumulation goes down the columns one by one, which is many times slower.
        for place in range(1, length):
            function(before[:, place], before[:, place - 1], out=before[:, place])
            function(behind[:, -place - 1], behind[:, -place], out=behind[:, -place - 1])
        result = before.reshape(-1, shape[2])[starts + length - 1]
        cut = np.flatnonzero(starts % length)  # the others are a block, and complete
        result[cut] = function(behind.reshape(-1, shape[2])[starts[cut]], result[cut])
        return np.asarray(result)

    def _matrix(
        self, values: Sequence[tuple[int, Cells, Vector]], identity: Any, shape: tuple[int, int, int]
    ) -> Vector:
        kind = values[0][2].dtype
        flat = self._space("before", kind, shape[0] * shape[1] * shape[2])
        flat.fill(identity)
        rows = flat.reshape(-1, shape[2])
        for at, cells, column in values:
            if len(cells) and cells[-1] + 1 == len(cells):
                rows[at, : len(cells)] = column
            else:
                rows[at, cells] = column
        return flat.reshape(shape)

    def _space(self, name: str, kind: np.dtype[Any], size: int) -> Vector:
        space = self._memory.get((name, kind))
        if space is None or len(space) < size:
            space = self._memory[name, kind] = np.empty(size, kind)
        return space[:size]


def cut_block(
    specs: Sequence[AccumulatorSpec], rows: Rows, panes: Cells, capacity: int
) -> Iterator[tuple[int, Sparse]] | None:
    """The rows of many panes, put together in one matrix and cut into its rows. None when it would be mostly empty."""
    low, high = int(panes.min()), int(panes.max())
    count = high - low + 1
    if count < _MIN_PANES or count * capacity > _FILL * len(panes):
        return None
    store = Store(specs, count * capacity)
    store.update((panes - low) * capacity + rows.cells, rows.inputs)
    return _rows_of(store.head(count * capacity), low, capacity)


def _rows_of(whole: Sparse, first: int, capacity: int) -> Iterator[tuple[int, Sparse]]:
    cells = np.arange(capacity)
    for start in range(0, len(whole), capacity):
        part = whole.at(slice(start, start + capacity))
        if part.rows.any():
            yield first + start // capacity, part.with_cells(cells)


def _peak(values: Sequence[tuple[int, Cells, Vector]]) -> int:
    """The greatest distance from zero."""
    every = np.concatenate([column for _at, _cells, column in values])
    return max(int(every.max()), -int(every.min())) if len(every) else 0


def _present(rows: Vector) -> tuple[Cells, Cells, Any]:
    """Of a matrix of windows and keys: the window and the key of each entry above zero, and how to pick these."""
    if rows.all():
        windows, keys = rows.shape
        return np.repeat(np.arange(windows), keys), np.tile(np.arange(keys), windows), slice(None)
    there = np.nonzero(rows)
    return there[0], there[1], there
