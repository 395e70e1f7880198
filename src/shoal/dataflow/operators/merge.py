"""The ordered merge: rows of several inputs in the order of a column that each of them is sorted by.

Rows wait until every input that has not ended has brought one that is not before them. Of equal values the lower port's
come first. The columns are those of all inputs, by name; null where an input has none. A watermark keeps its place in
its own input: it counts only when the rows before it are out. So that little waits, the task reads first of the inputs
that hold the others back; the rows that wait are part of a snapshot.

Rows go out in pieces, of as many rows in order as a batch of each input has. Where the steps behind tell the inputs
apart again, the rows of a piece are not woven into each other: it goes out input by input.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import InvalidError, PreconditionError, problem
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME, Batch, Schema
from shoal.dataflow.language.keys import Integers, combined
from shoal.dataflow.operators.aggregates.columns import is_dense_number, numbers
from shoal.dataflow.operators.base import Context, OperatorState, Output, SettlingOutput, StepOperator
from shoal.dataflow.operators.batches import emit_chunks, same_type
from shoal.dataflow.state.blobs import pack, unpack


class _Port:
    """One input: rows that wait, and the watermarks between them."""

    def __init__(self) -> None:
        self.batches: deque[tuple[Batch, Any]] = deque()
        #: How many rows came, how many are out, and the watermarks with the number of rows before each.
        self.came = 0
        self.gone = 0
        self.watermarks: deque[tuple[int, int]] = deque()
        self.watermark = START_OF_TIME
        self.last: Any = None
        self.has_ended = False

    @property
    def waiting(self) -> int:
        return self.came - self.gone

    def advance(self) -> None:
        """Take up the watermarks whose rows are out."""
        while self.watermarks and self.watermarks[0][0] <= self.gone:
            self.watermark = max(self.watermark, self.watermarks.popleft()[1])


class Merge(StepOperator):
    """Several inputs in order."""

    def __init__(self, *, by: str, ports: int, schema: Schema | None = None, keep_apart: bool = False) -> None:
        self._by = by
        self._keep_apart = keep_apart
        self._ports = [_Port() for _ in range(ports)]
        self._schema = schema
        #: A column of nulls of each type.
        self._nulls: dict[Any, Any] = {}

    def open(self, context: Context) -> None:
        """Remember the sizes."""
        self._context = context

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Buffer rows, and emit those whose order is certain."""
        if not batch.num_rows:
            return
        state = self._ports[port]
        values = self._values(batch)
        if (values[1:] < values[:-1]).any() or (state.last is not None and values[0] < state.last):
            raise PreconditionError(
                f"input {port + 1} of a merge is not sorted by {self._by!r}",
                hint="merge takes inputs that are sorted each; use union where order does not matter",
                port=port,
                column=self._by,
            )
        state.last = values[-1].item()
        state.batches.append((batch, values))
        state.came += batch.num_rows
        self._emit(out)

    def on_port_watermark(self, time: int, port: int, out: Output) -> None:
        """Remember where it stands."""
        state = self._ports[port]
        state.watermarks.append((state.came, time))
        state.advance()

    def on_port_end(self, port: int, out: Output) -> None:
        """This input no longer holds others back."""
        state = self._ports[port]
        state.has_ended = True
        state.watermarks.append((state.came, END_OF_TIME))
        self._emit(out)

    def on_end(self, out: Output) -> None:
        """Whatever is left."""
        for state in self._ports:
            state.has_ended = True
        self._emit(out)

    def output_watermark(self, time: int) -> int:
        """The least of the inputs', as far as their rows are out."""
        return min(state.watermark for state in self._ports)

    def preferred_ports(self) -> frozenset[int]:
        """The inputs that hold the others back."""
        if not any(state.waiting for state in self._ports):
            return frozenset()
        return frozenset(port for port, state in enumerate(self._ports) if not state.waiting and not state.has_ended)

    def statistics(self) -> dict[str, int]:
        """What waits."""
        return {"waiting": sum(state.waiting for state in self._ports)}

    def snapshot(self) -> OperatorState:
        """The rows that wait. A merge runs in one task."""
        tables, facts = {}, []
        for port, state in enumerate(self._ports):
            facts.append(
                {
                    "watermark": state.watermark,
                    "marks": [(place - state.gone, time) for place, time in state.watermarks],
                    "has_ended": state.has_ended,
                    "last": state.last,
                }
            )
            if state.batches:
                tables[f"port_{port}"] = pa.Table.from_batches([batch for batch, _values in state.batches])
        return OperatorState(shared=pack(tables, ports=facts))

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Take them in."""
        for state in states:
            if not state.shared:
                continue
            blob = unpack(state.shared)
            for port, (mine, facts) in enumerate(zip(self._ports, blob.facts["ports"], strict=True)):
                mine.watermark, mine.has_ended = facts["watermark"], facts["has_ended"]
                mine.watermarks = deque((place, time) for place, time in facts["marks"])
                mine.last = facts["last"]
                for batch in blob.tables[f"port_{port}"].to_batches() if f"port_{port}" in blob.tables else []:
                    mine.batches.append((batch, self._values(batch)))
                    mine.came += batch.num_rows

    # -- order ------------------------------------------------------------------------------------------------

    def _values(self, batch: Batch) -> Any:
        column = combined(batch.column(self._by))
        if column.null_count or not is_dense_number(column.type):
            raise InvalidError(
                [problem(self._by, str(column.type), "must be a number or a time, and never null, to merge by it")]
            )
        values = numbers(column).values
        if values.dtype.kind == "f" and np.isnan(values).any():
            raise InvalidError([problem(self._by, "NaN", "has no place in an order: filter such rows out before")])
        return values

    def _emit(self, out: Output) -> None:
        """Put out the rows up to what all inputs have come to."""
        held = [state.last for state in self._ports if not state.has_ended]
        if any(last is None for last in held):
            return
        bound = min(held) if held else None
        parts: list[Batch] = []
        values: list[Any] = []
        ports: list[int] = []
        for port, state in enumerate(self._ports):
            for batch, keys in _taken(state, bound):
                parts.append(self._shaped(batch))
                values.append(keys)
                ports.append(port)
        if parts:
            self._put_out(parts, values, ports, out)
        for state in self._ports:
            state.advance()

    def _put_out(self, parts: list[Batch], values: list[Any], ports: list[int], out: Output) -> None:
        """Rows in pieces. Event time moves on between them: no row meets a watermark that is older than its piece."""
        most = self._context.max_rows * len(self._ports)
        if self._keep_apart and sum(map(len, values)) <= most:  # one piece, so nobody asks for the order of its rows
            for part, port in zip(parts, ports, strict=True):
                out.emit(part)
                self._ports[port].gone += part.num_rows
            return
        order = _order_of(values)
        woven = None if self._keep_apart else _woven(parts, order)
        numbers = np.repeat(np.arange(len(parts)), [len(each) for each in values])
        numbers = numbers if order is None else numbers[order]
        begins = [0] * len(parts)
        for start in range(0, len(numbers), most):
            if start:
                _settle(out)
            if woven is not None:
                emit_chunks(out, woven.slice(start, most), self._context.max_rows)
            counts = np.bincount(numbers[start : start + most], minlength=len(parts)).tolist()
            for number, count in enumerate(counts):
                if count and woven is None:
                    out.emit(parts[number].slice(begins[number], count))
                begins[number] += count
                self._ports[ports[number]].gone += count
            for state in self._ports:
                state.advance()

    def _shaped(self, batch: Batch) -> Batch:
        """A batch with the columns of all inputs."""
        if self._schema is None or batch.schema.names == self._schema.names:
            return batch
        known = set(batch.schema.names)
        hidden = [field for field in batch.schema if field.name not in self._schema.names]
        fields = [*self._schema, *hidden]
        arrays = [
            same_type(combined(batch.column(field.name)), field.type)
            if field.name in known
            else self._nulls_of(field.type, batch.num_rows)
            for field in fields
        ]
        return pa.RecordBatch.from_arrays(arrays, names=[field.name for field in fields])

    def _nulls_of(self, kind: Any, rows: int) -> Any:
        """A column that an input does not have: a piece of one that is made once."""
        made = self._nulls.get(kind)
        if made is None or len(made) < rows:
            made = self._nulls[kind] = pa.nulls(max(rows, self._context.max_rows), kind)
        return made.slice(0, rows)


def _order_of(values: list[Any]) -> Integers | None:
    """The order of rows of parts that are sorted each; None when they are in order one behind the other."""
    if all(one[-1] <= other[0] for one, other in itertools.pairwise(values)):
        return None
    return np.argsort(np.concatenate(values), kind="stable")


def _woven(parts: list[Batch], order: Integers | None) -> Batch:
    """Parts as one batch in order."""
    merged = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
    return merged if order is None else merged.take(pa.array(order))


def _settle(out: Output) -> None:
    """Tell the steps behind how far event time has come; only a task's own output can."""
    if isinstance(out, SettlingOutput):
        out.settle()


def _taken(state: _Port, bound: Any) -> Iterable[tuple[Batch, Integers]]:
    """Rows of an input up to a bound, in their order."""
    while state.batches:
        batch, values = state.batches[0]
        count = len(values) if bound is None else int(np.searchsorted(values, bound, "right"))
        if not count:
            return
        state.batches.popleft()
        if count < len(values):
            state.batches.appendleft((batch.slice(count), values[count:]))
            yield batch.slice(0, count), values[:count]
            return
        yield batch, values
