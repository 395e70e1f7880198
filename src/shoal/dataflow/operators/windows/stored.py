"""Aggregates over windows with more state than memory: panes lie in a state backend by key.

Rows that come are aggregated in memory, by a `WindowAggregate`. When it has grown, what it has is put together with
what the backend has of the same keys and panes. When windows end, their panes are read again, some key groups at a
time, and another `WindowAggregate` makes results of them. Snapshots are those of a `WindowAggregate`, so state moves
between both. For windows that emit once; others need the results that they have emitted at hand.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from shoal.dataflow.language.elements import END_OF_TIME, Batch
from shoal.dataflow.language.windows import SlidingWindow
from shoal.dataflow.operators.aggregates.store import Store
from shoal.dataflow.operators.base import Context, OperatorState, Output, StepOperator
from shoal.dataflow.operators.grouping import Grouping
from shoal.dataflow.operators.windows import bounds
from shoal.dataflow.operators.windows.aggregate import PANE, WindowAggregate
from shoal.dataflow.state.backends import open_backend
from shoal.dataflow.state.cell_store import CellStore
from shoal.dataflow.state.tables import Table, TableState, merge

#: Bytes of panes above which they go to the backend, and of those that are read of it at once.
MOST_BYTES = 16 * 1024 * 1024


class StoredWindowAggregate(StepOperator):
    """Results by key and window."""

    restores_in_pieces = True

    def __init__(self, *, grouping: Grouping, window: SlidingWindow) -> None:
        self._grouping = grouping
        self._window = window
        #: What came last. As long as nothing is stored it is all that there is.
        self._recent = self._make()
        self._cells: CellStore | None = None
        #: What was stored since the last snapshot, as it is now; None before the first one.
        self._changed: list[TableState] | None = None
        #: Bytes that came since it was last looked how large the panes are.
        self._came = 0

    def _make(self) -> WindowAggregate:
        return WindowAggregate(grouping=self._grouping, window=self._window)

    def open(self, context: Context) -> None:
        """Remember the clock and the sizes."""
        self._context = context
        self._recent.open(context)

    def close(self) -> None:
        """Remove what lies on disk."""
        if self._cells is not None:
            self._cells.close()

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Sort the rows into panes."""
        self._recent.process(batch, out, port=port)
        self._came += batch.nbytes
        if self._came > MOST_BYTES:
            self._came = size = self._recent.size_of_panes()
            if 2 * size > MOST_BYTES:
                self._store()

    def on_watermark(self, time: int, out: Output) -> None:
        """Emit the results of the windows that have ended."""
        before = self._recent.watermark
        if self._cells and self._are_due(self._cells, before, time):
            self._store()
            end = None if time == END_OF_TIME else time // self._window.pane  # later panes are in no window that ended
            for panes in self._cells.read(MOST_BYTES, end=end):
                self._fire(panes, time, out)
            self._recent.on_watermark(time, out)
            self._cells.drop_below(self._recent.first_needed())
            return
        self._recent.on_watermark(time, out)

    def _are_due(self, cells: CellStore, before: int, time: int) -> bool:
        """Whether there is a window with rows that ends between these moments."""
        if time <= before or bounds.next_end(self._window, before) > time:
            return False
        panes = sorted(cells.numbers.union(self._recent.panes()))
        return next(bounds.due_ends(self._window, panes, before, time), None) is not None

    def _fire(self, panes: TableState, time: int, out: Output) -> None:
        """Results of some key groups."""
        operator = self._make()
        operator.open(self._context)
        operator.restore([OperatorState(shared=self._recent.shared_state(), tables={"panes": panes})])
        operator.on_watermark(time, out)

    def statistics(self) -> dict[str, int]:
        """What is held, and what was late."""
        stored = self._cells.numbers if self._cells is not None else set()
        found = self._recent.statistics()
        return {**found, "panes": len(stored.union(self._recent.panes())), "rows": len(self._cells or ())}

    # -- state ------------------------------------------------------------------------------------------------

    def snapshot(self) -> OperatorState:
        """What changed of panes, by key group."""
        if not self._cells:
            self._changed = []
            return self._recent.snapshot()
        self._store()
        changed, self._changed = self._changed, []
        parts = list(self._cells.read(MOST_BYTES)) if changed is None else changed
        panes = merge(parts) if parts else self._cells.no_rows()
        panes = TableState(panes.rows, panes.groups, panes.keys, floor=(PANE, self._recent.first_needed()))
        return OperatorState(shared=self._recent.shared_state(), tables={"panes": panes}, is_whole=changed is None)

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Take panes in, in memory as long as they are few. The states come one by one."""
        first: list[OperatorState] | None = []
        size = 0
        for state in states:
            if first is None:
                self._recent.check(state)
                self._store_restored(state)
                continue
            first.append(state)
            size += sum(table.nbytes for table in state.tables.values())
            if size > max(MOST_BYTES, 0):
                self._recent.restore(first)
                self._store()
                first = None
        if first is not None:
            self._recent.restore(first)
        self._changed = []

    def _store_restored(self, state: OperatorState) -> None:
        panes = state.tables.get("panes")
        if panes is None or not len(panes.rows):
            return
        needed = panes.rows.column(PANE).to_numpy() >= self._recent.first_needed()
        rows, groups = panes.rows.filter(pa.array(needed)), panes.groups[needed]
        self._open_cells(panes).put(TableState(rows, groups, panes.keys), self._combined)

    def _store(self) -> None:
        """Put what is in memory to what is stored."""
        self._came = 0
        if not self._recent.panes():
            return
        panes = self._recent.take_all()
        self._open_cells(panes).put(panes, self._combined, self._changed)

    def _open_cells(self, panes: TableState) -> CellStore:
        if self._cells is None:
            backend = open_backend("rocks", self._context.scratch)
            self._cells = CellStore(backend, panes.rows.schema, panes.keys, PANE)
        return self._cells

    def _combined(self, older: Table, newer: Table) -> Table:
        """What is kept of the same cells, put together."""
        plan = self._recent.plan
        cells = np.arange(len(newer))
        store = Store(plan.specs, len(cells))
        for kept in (older, newer):
            store.merge(plan.from_arrow(cells, kept))
        arrays = dict(zip((field.name for field in plan.state_fields()), plan.to_arrow(store.take(cells)), strict=True))
        return pa.table([arrays.get(name, newer.column(name)) for name in newer.schema.names], schema=newer.schema)
