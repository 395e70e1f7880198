"""Operators of users' own: an object with `process_batch`, made anew in each task by its factory.

It may also have `open(context)`, `process_morsel(batch)` (then that is called), `on_watermark(time)`, `finish()`, each
returning rows or nothing, `snapshot()`, `restore(states)`, `parallelism_hint` and `close()`. What `snapshot` returns is
`KeyedState` for state by key, or any other value, of which `restore` gets a list: each task's. Only the type tells the
two apart. Rows that `process_batch` emits have the event times of the batch, or those of the time column where it was
changed; rows of `on_watermark` and `finish` have the time up to which event time has come, so that they are not late.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import END_OF_TIME, TIME, TRACE, Batch, Schema
from shoal.dataflow.operators.base import Context, OperatorState, Output, StepOperator
from shoal.dataflow.operators.batches import emit_chunks, event_times
from shoal.dataflow.operators.policies import ErrorPolicy
from shoal.dataflow.operators.rows import VALUE, visible_names
from shoal.dataflow.operators.users.opaque import TimeColumn, as_batch, fit, with_hidden
from shoal.dataflow.operators.users.own import (
    SupportsClose,
    SupportsFinish,
    SupportsMorsels,
    SupportsOpen,
    SupportsRestore,
    SupportsSnapshot,
    SupportsWatermarks,
    UserOperator,
)
from shoal.dataflow.state.blobs import pack, unpack
from shoal.dataflow.state.groups import KeyedState


class CustomOperator(StepOperator):
    """Runs a user's operator."""

    def __init__(
        self,
        *,
        factory: Callable[[], UserOperator],
        schema: Schema | None = None,
        policy: ErrorPolicy | None = None,
        emits_time: bool = False,
        time: TimeColumn | None = None,
    ) -> None:
        made: Any = factory() if isinstance(factory, type) or not isinstance(factory, UserOperator) else factory
        if not isinstance(made, UserOperator):
            raise InvalidError([problem("operator", type(made).__name__, "must have a method process_batch")])
        self._operator = made
        self._call = made.process_morsel if isinstance(made, SupportsMorsels) else made.process_batch
        self._schema = schema
        self._policy = policy or ErrorPolicy()
        self._emits_time = emits_time
        self._time = time
        self._carries_trace = False
        #: The latest event time of a row or a watermark.
        self._greatest = 0

    def open(self, context: Context) -> None:
        """Open the user's, when it wants that."""
        self._context = context
        if isinstance(self._operator, SupportsOpen):
            self._operator.open(context)

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Call the user's with the columns that users know of."""
        visible = batch.select(visible_names(batch.schema))
        if self._emits_time and batch.num_rows:
            self._greatest = max(self._greatest, int(event_times(batch).max()))
        self._carries_trace = TRACE in batch.schema.names
        try:
            results = self._batches(self._call(visible))
        except Exception as error:  # noqa: BLE001 - it may have taken some of the rows in: none is tried again
            self._policy.reject(batch, error, out)
            return
        for result in results:
            self._emit(with_hidden(result, batch, self._time), out)

    def on_watermark(self, time: int, out: Output) -> None:
        """Tell it how far event time has come."""
        if time < END_OF_TIME:
            self._greatest = max(self._greatest, time)
        if isinstance(self._operator, SupportsWatermarks):
            self._put_out(self._operator.on_watermark(time), out)

    def on_end(self, out: Output) -> None:
        """Let it emit what is left."""
        if isinstance(self._operator, SupportsFinish):
            self._put_out(self._operator.finish(), out)

    def statistics(self) -> Mapping[str, int]:
        """Rows that were left out."""
        return self._policy.statistics()

    def snapshot(self) -> OperatorState:
        """The snapshot of the user's operator."""
        if not isinstance(self._operator, SupportsSnapshot):
            return OperatorState()
        state = self._operator.snapshot()
        if state is None:
            return OperatorState()
        if isinstance(state, KeyedState):
            self._check_groups(state)
            return OperatorState({group: _packed(content) for group, content in state.items()})
        return OperatorState(shared=_packed(pickle.dumps(state)))

    def _check_groups(self, state: KeyedState) -> None:
        """Refuse state of key groups that are another task's: of two states of one group only one would be restored."""
        mine = self._context.key_groups
        wrong = [group for group in state if group not in mine]
        if wrong:
            rule = f"must be one of this task's, {mine.first} to {mine.end - 1}"
            hint = "context.key_groups, which open(context) gets, has the groups of the task"
            raise InvalidError([problem("key group", group, rule) for group in wrong], what="keyed state", hint=hint)

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Give it back: `KeyedState` of its key groups, or a list with the value of each task."""
        keyed: dict[int, bytes] = {}
        shared: list[Any] = []
        for state in states:
            keyed.update({group: _unpacked(content) for group, content in state.keyed.items()})
            if state.shared:
                shared.append(pickle.loads(_unpacked(state.shared)))  # noqa: S301 - what this operator wrote itself
        if isinstance(self._operator, SupportsRestore) and (keyed or shared):
            self._operator.restore(KeyedState(keyed) if keyed else shared)

    def close(self) -> None:
        """Close the user's, when it wants that."""
        if isinstance(self._operator, SupportsClose):
            self._operator.close()

    def _put_out(self, returned: Any, out: Output) -> None:
        """Rows that belong to no batch that came in."""
        for batch in self._batches(returned):
            self._emit(self._with_hidden(batch), out)

    def _with_hidden(self, batch: Batch) -> Batch:
        """Rows that belong to no batch that came in."""
        if self._emits_time:
            batch = batch.append_column(TIME, pa.array(np.full(batch.num_rows, self._greatest, np.int64)))
        if self._carries_trace:
            batch = batch.append_column(TRACE, pa.nulls(batch.num_rows, pa.binary()))
        return batch

    def _batches(self, returned: Any) -> list[Batch]:
        if returned is None:
            return []
        single = pa.RecordBatch | pa.Table | Mapping | pa.Array | pa.ChunkedArray
        several = [returned] if isinstance(returned, single) else list(returned)
        batches = [as_batch(each, VALUE) for each in several]
        return [batch if self._schema is None else fit(batch, self._schema) for batch in batches]

    def _emit(self, batch: Batch, out: Output) -> None:
        if batch.num_rows:
            emit_chunks(out, batch, self._context.max_rows)


def _packed(content: bytes) -> bytes:
    return pack({"content": pa.table({"bytes": pa.array([content], pa.large_binary())})})


def _unpacked(content: bytes) -> bytes:
    found: bytes = unpack(content).tables["content"].column("bytes")[0].as_py()
    return found
