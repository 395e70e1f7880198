"""Runs a user's process function: one record after the other, with the state and the timers of its key.

Event-time timers are called when the watermark has come to them, in their order; those of processing time when the
clock has. State lies in memory or in RocksDB; values, timers and the watermark are in the snapshot. When a function
raises and the policy is not to fail, what it had changed of its state stays changed; a timer that raises is put aside
as a row that has its key and is empty otherwise. A row that it emits and that does not fit the declared columns counts
as if it had raised; the other rows of that record come out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.errors import PlanError, near
from shoal.dataflow.language.elements import START_OF_TIME, TIME, TRACE, Batch, Schema
from shoal.dataflow.language.keys import key_groups
from shoal.dataflow.language.logical import OnError
from shoal.dataflow.operators.base import Context, OperatorState, Output, StepOperator, TaskOutput
from shoal.dataflow.operators.batches import emit_chunks, event_times, has_time, processing_time
from shoal.dataflow.operators.policies import ErrorPolicy
from shoal.dataflow.operators.rows import (
    CHUNK,
    MISFITS,
    as_mapping,
    column_values,
    find_misfits,
    learn_batch,
    make_batch,
    make_records,
    visible_names,
)
from shoal.dataflow.operators.users.current import CurrentKey
from shoal.dataflow.operators.users.functions import KeyedFunction, make_process
from shoal.dataflow.state import handles
from shoal.dataflow.state.backends import open_backend
from shoal.dataflow.state.base import StateBackend, StateKey
from shoal.dataflow.state.blobs import pack, unpack
from shoal.dataflow.state.keycodec import decode_key, encode_key
from shoal.dataflow.state.timers import Timers

log = logging.getLogger(__name__)

#: Rows of one call that are emitted together at most: a timer may bring any number.
_MAX_WAITING = 8_192

#: Leaves out what a call was for, a record or a timer, by the policy.
Reject = Callable[[Any, Exception], None]


class ProcessOperator(StepOperator):
    """A process function in a task. `state` is `memory` or `rocks`."""

    def __init__(
        self,
        *,
        function: KeyedFunction | Callable[[], KeyedFunction],
        keys: tuple[str, ...] = (),
        schema: Schema | None = None,
        policy: ErrorPolicy | None = None,
        state: str = "memory",
    ) -> None:
        if state not in ("memory", "rocks"):
            raise InvalidError([problem("state", state, "must be memory or rocks")])
        self._function = make_process(function, at=None if policy is None else policy.at)
        self._keys = keys
        self._schema = schema
        self._is_declared = schema is not None
        self._policy = policy or ErrorPolicy()
        self._kind = state
        self._timers, self._clock_timers = Timers(), Timers()
        self._watermark = START_OF_TIME
        self._has_time = False
        self._input: Schema | None = None
        self._unread: set[str] = set()

    def open(self, context: Context) -> None:
        """Let the function name its state."""
        self._context = context
        self._backend = open_backend(self._kind, context.scratch)
        self._state = handles.FunctionState(self._backend)
        self._current = CurrentKey(self._state, self._timers, self._clock_timers, context.clock)
        self._current.watermark = self._watermark
        self._function.open(self._current)

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Call the function for each row."""
        self._has_time = self._has_time or has_time(batch.schema)
        self._input = batch.schema
        for start in range(0, batch.num_rows, CHUNK):
            self._process_chunk(batch.slice(start, CHUNK), out)
        first = self._timers.next_time()
        if first is not None and first <= self._watermark:  # set for a time that has passed already
            self._fire(self._timers, self._watermark, out)

    def on_watermark(self, time: int, out: Output) -> None:
        """Call the timers that are due."""
        if time > self._watermark:
            self._watermark = self._current.watermark = time
            self._fire(self._timers, time, out)

    def on_tick(self, now: int, out: Output) -> None:
        """Call the timers that the clock has come to, and free what has outlived its time."""
        self._fire(self._clock_timers, now, out)
        self._backend.expire(now)

    def next_tick(self) -> int | None:
        """When the clock matters next."""
        moments = (self._clock_timers.next_time(), self._backend.next_expiry())
        return min((each for each in moments if each is not None), default=None)

    def statistics(self) -> Mapping[str, int]:
        """Rows that were left out, and timers that wait."""
        return {**self._policy.statistics(), "timers": len(self._timers) + len(self._clock_timers)}

    def snapshot(self) -> OperatorState:
        """State and timers that changed, by key group."""
        self._state.flush()
        found = {name: part.changes() for name, part in self._parts().items()}
        is_whole = all(each for _table, each in found.values())
        known = {} if self._input is None else {"input": self._input.empty_table()}
        shared = pack(known, watermark=self._watermark, has_time=self._has_time)
        tables = {name: table for name, (table, _each) in found.items()}
        return OperatorState(shared=shared, tables=tables, is_whole=is_whole)

    restores_in_pieces = True

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Take state and timers in."""
        watermarks = []
        for state in states:
            if state.shared:
                shared = unpack(state.shared)
                watermarks.append(shared.facts["watermark"])
                self._has_time = self._has_time or shared.facts["has_time"]
                if "input" in shared.tables:
                    self._input = shared.tables["input"].schema
            for name, part in self._parts().items():
                if name in state.tables:
                    part.restore(state.tables[name])
        self._watermark = self._current.watermark = min(watermarks, default=START_OF_TIME)

    def _parts(self) -> dict[str, StateBackend | Timers]:
        """What is in a snapshot, by the name of its table."""
        return {"state": self._backend, "timers": self._timers, "clock_timers": self._clock_timers}

    def close(self) -> None:
        """Close the function and its state."""
        self._function.close()
        self._backend.close()

    # -- calling ----------------------------------------------------------------------------------------------

    def _process_chunk(self, chunk: Batch, out: Output) -> None:
        current, function = self._current, self._function

        def reject(row: int, error: Exception) -> None:
            self._policy.reject(chunk.slice(row, 1), error, out)

        places = self._places(chunk)
        self._begin()
        self._state.read_ahead(list(dict.fromkeys(places)))
        times = event_times(chunk).tolist() if has_time(chunk.schema) else [self._state.now] * chunk.num_rows
        traces = chunk.column(TRACE).to_pylist() if TRACE in chunk.schema.names else [None] * chunk.num_rows
        records = make_records(chunk, visible_names(chunk.schema))
        for row, (place, time, trace, record) in enumerate(zip(places, times, traces, records, strict=True)):
            current.move(place, time, row, trace)
            try:
                current.take(function.process(record, current))
            except Exception as error:  # noqa: BLE001 - whatever a user's function raises
                reject(row, error)
        self._put_out(out, reject)

    def _fire(self, timers: Timers, time: int, out: Output) -> None:
        def reject(timer: tuple[int, StateKey], error: Exception) -> None:
            self._reject_timer(*timer, error, out)

        self._begin()
        for moment, place in timers.pop_due(time):
            self._current.move(place, moment, (moment, place))
            try:
                self._current.take(self._function.on_timer(moment, self._current))
            except Exception as error:  # noqa: BLE001 - whatever a user's function raises
                reject((moment, place), error)
            if len(self._current.rows) >= _MAX_WAITING:
                self._put_out(out, reject)
                self._begin()
        self._put_out(out, reject)

    def _reject_timer(self, moment: int, place: StateKey, error: Exception, out: Output) -> None:
        """Put aside, or leave out, what a timer was to do: a row with its key, and nothing else."""
        if self._policy.on_error is OnError.FAIL or self._input is None:
            raise self._policy.failure(error, None) from error
        values = dict(zip(self._keys, decode_key(place[1]), strict=True)) if self._keys else {}
        row = pa.RecordBatch.from_pylist([{**values, TIME: moment}], schema=self._input)
        self._policy.reject(row, error, out)

    def _begin(self) -> None:
        self._state.now = processing_time(self._context.clock)

    def _places(self, chunk: Batch) -> list[StateKey]:
        """Key group and key of each row."""
        if not self._keys:
            return [(0, b"")] * chunk.num_rows
        groups = key_groups(chunk, self._keys, self._context.key_groups.total).tolist()
        columns = [column_values(chunk.column(name)) for name in self._keys]
        encoded: dict[tuple[Any, ...], bytes] = {}
        places = []
        for group, *values in zip(groups, *columns, strict=True):
            key = tuple(values)
            content = encoded.get(key)
            if content is None:
                content = encoded[key] = encode_key(key)
            places.append((group, content))
        return places

    def _put_out(self, out: Output, reject: Reject) -> None:
        """Rows that the function emitted, with their times; and what it changed of its state."""
        current = self._current
        self._state.flush()
        if current.rows:
            batch = self._batch(reject)
            if batch is not None:
                emit_chunks(out, batch, self._context.max_rows)
        sides, current.sides = current.sides, {}
        for tag, rows in sides.items():
            out.emit_side(tag, make_batch([as_mapping(row) for row in rows], None))
            self._refuse_unread(tag, len(rows), out)

    def _batch(self, reject: Reject) -> Batch | None:
        """Its rows as a batch. For one that does not fit its columns it is as if the function had raised."""
        current = self._current
        rows, times, traces, origins = current.rows, current.times, current.traces, current.origins
        current.rows, current.times, current.traces, current.origins = [], [], [], []
        try:
            batch = self._made(rows)
        except MISFITS as error:
            good = self._good_rows(rows, origins, reject, error)
            if not good:
                return None
            batch = self._made([rows[place] for place in good])
            times, traces = [times[place] for place in good], [traces[place] for place in good]
        if not self._is_declared:
            self._schema = batch.schema
        if self._has_time:
            batch = batch.append_column(TIME, pa.array(np.array(times, np.int64)))
        if self._input is not None and TRACE in self._input.names:
            batch = batch.append_column(TRACE, pa.array(traces, pa.binary()))
        return batch

    def _made(self, rows: list[Any]) -> Batch:
        return make_batch(rows, self._schema) if self._is_declared else learn_batch(rows, self._schema)

    def _good_rows(self, rows: list[Any], origins: list[Any], reject: Reject, error: Exception) -> list[int]:
        """The places of the rows that fit. A record that emitted several that do not is rejected once."""
        bad: set[int] = set()
        rejected: set[Any] = set()
        for place, misfit in find_misfits(rows, self._schema):
            bad.add(place)
            if origins[place] not in rejected:
                rejected.add(origins[place])
                reject(origins[place], misfit)
        if not bad:  # each fits alone, and together they do not: without a schema they disagree
            raise self._policy.failure(error, None, among=len(rows)) from error
        return [place for place in range(len(rows)) if place not in bad]

    def _refuse_unread(self, tag: str, rows: int, out: Output) -> None:
        """Rows for a side output that nobody reads would be lost: its tag is probably misspelt."""
        if not isinstance(out, TaskOutput) or tag in out.read_tags:  # an output that is no task's takes whatever comes
            return
        if out.is_look:
            if tag not in self._unread:
                self._unread.add(tag)
                log.warning("%s puts rows out on the side output %r, which is not read here", self._policy.label, tag)
            return
        there = near(tag, sorted(out.read_tags), "side outputs that are read")
        rule = f"gets rows ({rows} so far), and nobody reads it; {there}"
        raise PlanError(
            [problem(f"side output {tag!r}", None, rule)],
            at=self._policy.at,
            hint=f'read it: stream.side_output("{tag}").to_parquet("{tag}/"), or do not emit_side to it',
        )
