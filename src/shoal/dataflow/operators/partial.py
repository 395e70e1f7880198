"""Aggregation in part, before an exchange: the rows of a key and pane in one batch become one row of partial results.

It keeps nothing from batch to batch and judges no row as late, because the task behind the exchange may be less far in
time than this one. `WindowAggregate` and `RunningAggregate` with a grouping that says `is_partial` take its output:
keys with their key group, the start of the pane as event time, and what the accumulators keep. Rows that turn out to be
late there are counted, but can no longer go to a side output: where `late` is read, rows must go through the exchange
as they are.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from shoal.dataflow.language.elements import GROUP, TIME, Batch, Schema
from shoal.dataflow.language.keys import Integers
from shoal.dataflow.language.windows import SlidingWindow
from shoal.dataflow.operators.aggregates.plan import AggregatePlan
from shoal.dataflow.operators.aggregates.sparse import Sparse
from shoal.dataflow.operators.aggregates.store import Rows, combine
from shoal.dataflow.operators.base import Context, Output, StepOperator
from shoal.dataflow.operators.batches import emit_chunks, event_times, has_time
from shoal.dataflow.operators.grouping import INPUT_SCHEMA, Grouping
from shoal.dataflow.operators.keys.index import KeyIndex
from shoal.dataflow.operators.windows.packed import block_of

#: The keys are remembered only because finding known ones is quicker; with more than these it begins anew.
_MAX_KEYS = 65_536


class PartialAggregate(StepOperator):
    """Partial results by key, and by pane where there is a window."""

    def __init__(self, *, grouping: Grouping, window: SlidingWindow | None = None) -> None:
        self._grouping = grouping
        self._window = window
        self._index = KeyIndex(grouping.keys)
        self._plan: AggregatePlan | None = None
        self._schema: Schema | None = None
        self._arrived = 0

    def open(self, context: Context) -> None:
        """Remember the sizes."""
        self._context = context

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Put the rows of each key and pane together."""
        if not batch.num_rows:
            return
        if self._plan is None:
            self._plan = self._grouping.bind(self._grouping.input_schema(batch.schema))
        if len(self._index) > _MAX_KEYS:
            self._index = KeyIndex(self._grouping.keys)
        slots = self._index.slots(batch)
        times = self._times(batch)
        starts, places = self._panes(times)
        capacity = len(self._index)
        rows = Rows(places * capacity + slots, self._plan.inputs(batch, times))
        sparse = combine(self._plan.specs, [rows], capacity * len(starts))
        emit_chunks(out, self._assemble(self._plan, sparse, starts, capacity), self._context.max_rows)

    def _times(self, batch: Batch) -> Integers:
        """What decides which row is first."""
        if has_time(batch.schema):
            return event_times(batch)
        self._arrived += batch.num_rows
        return np.arange(self._arrived - batch.num_rows, self._arrived)

    def _panes(self, times: Integers) -> tuple[Integers, Integers]:
        """The starts of the panes of a batch, and the place among them of each row."""
        if self._window is None:
            return np.zeros(1, np.int64), np.zeros(len(times), np.int64)
        panes = times // self._window.pane
        low, high = int(panes.min()), int(panes.max())
        if high - low < len(panes):
            return np.arange(low, high + 1) * self._window.pane, panes - low
        found, places = np.unique(panes, return_inverse=True)
        return found * self._window.pane, places

    def _assemble(self, plan: AggregatePlan, sparse: Sparse, starts: Integers, capacity: int) -> Batch:
        block = block_of(starts, sparse, capacity)
        slots = block.sparse.cells
        keys = self._index.take(slots)
        groups = self._index.groups(slots, self._context.key_groups.total).astype(np.int32)
        arrays = [*keys, pa.array(groups), pa.array(block.panes), *plan.to_arrow(sparse)]
        if self._schema is None:
            fields = [pa.field(name, array.type) for name, array in zip(self._grouping.keys, keys, strict=True)]
            metadata = {INPUT_SCHEMA: plan.schema.serialize().to_pybytes()}
            fields += [pa.field(GROUP, pa.int32()), pa.field(TIME, pa.int64()), *plan.state_fields()]
            self._schema = pa.schema(fields, metadata=metadata)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
