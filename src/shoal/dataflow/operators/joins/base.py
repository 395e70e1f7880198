"""What joins with waiting rows on both sides share: keys, buffers, state, and results in chunks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from shoal.dataflow.language.elements import START_OF_TIME, Batch, Schema
from shoal.dataflow.language.keys import Integers, combined
from shoal.dataflow.language.logical import LATE, LATE_RIGHT, JoinKind
from shoal.dataflow.operators.base import Context, OperatorState, Output, StepOperator
from shoal.dataflow.operators.batches import same_type
from shoal.dataflow.operators.joins.buffer import Flags, RowBuffer, Segment
from shoal.dataflow.operators.joins.columns import JoinedColumns, described, keys_of
from shoal.dataflow.operators.joins.matching import pairs
from shoal.dataflow.operators.keys.index import KeyIndex
from shoal.dataflow.operators.keys.liveness import Liveness
from shoal.dataflow.operators.keys.tables import check_fingerprint, fingerprint
from shoal.dataflow.state.backends import open_backend
from shoal.dataflow.state.blobs import pack, unpack
from shoal.dataflow.state.row_store import RowStore
from shoal.dataflow.state.tables import Table

LEFT, RIGHT = 0, 1
_SIDES = ("left", "right")
_LATE = (LATE, LATE_RIGHT)


class KeyedJoin(StepOperator):
    """A join by equal keys. The schemas are those of both inputs, hidden columns included or not."""

    def __init__(
        self,
        *,
        kind: JoinKind,
        left: Schema,
        right: Schema,
        left_keys: tuple[str, ...],
        right_keys: tuple[str, ...],
        suffix: str = "_right",
        state: str = "memory",
    ) -> None:
        self.columns = JoinedColumns(left, right, left_keys, right_keys, suffix)
        self.keeps = (kind in (JoinKind.LEFT, JoinKind.OUTER), kind in (JoinKind.RIGHT, JoinKind.OUTER))
        self.is_stored = state == "rocks"
        make_store = self._open_store if self.is_stored else None
        self.buffers = (RowBuffer(make_store), RowBuffer(make_store))
        self._store: RowStore | None = None
        self.index = KeyIndex(left_keys)
        self.watermark = START_OF_TIME
        self.late = [0, 0]
        self._keys = (left_keys, right_keys)
        self._types = [left.field(name).type for name in left_keys]
        self.fingerprint = fingerprint(left_keys, described(kind, left, right, right_keys))
        self._liveness = Liveness()

    def open(self, context: Context) -> None:
        """Remember the clock and the sizes."""
        self.context = context

    def _open_store(self) -> RowStore:
        """Where rows lie that are too many for memory."""
        if self._store is None:
            self._store = RowStore(open_backend("rocks", self.context.scratch))
        return self._store

    def close(self) -> None:
        """Remove what lies on disk."""
        if self._store is not None:
            self._store.close()

    def statistics(self) -> dict[str, int]:
        """What waits, and what was late."""
        left, right = self.buffers
        return {**self.late_rows(), "left_rows": len(left), "right_rows": len(right), "keys": len(self.index)}

    def late_rows(self) -> dict[str, int]:
        """How many rows were late, by side output."""
        return dict(zip(_LATE, self.late, strict=True))

    def slots_of(self, batch: Batch, port: int) -> Integers:
        """The slots of the rows of one side. Key columns of the right side have the types of the left one's."""
        columns = [
            same_type(combined(column), kind)
            for column, kind in zip(keys_of(batch, self._keys[port]), self._types, strict=True)
        ]
        return self.index.slots_of(columns, batch.num_rows)

    def without_null_keys(self, batch: Batch, port: int, out: Output, *, change: str = "") -> Batch:
        """Null keys match nothing: rows with one go out alone, or not at all."""
        valid: Any = None
        for column in keys_of(batch, self._keys[port]):
            if column.null_count:
                there = column.is_valid().to_numpy(zero_copy_only=False)
                valid = there if valid is None else valid & there
        if valid is None:
            return batch
        if self.keeps[port]:
            self.emit_alone(batch.filter(pa.array(~valid)), port, out, change=change)
        return batch.filter(pa.array(valid))

    def emit_alone(self, rows: Batch, port: int, out: Output, *, change: str = "") -> None:
        """Rows without a partner."""
        for start in range(0, rows.num_rows, self.context.max_rows):
            some = rows.slice(start, self.context.max_rows)
            left, right = (some, None) if port == LEFT else (None, some)
            out.emit(self.columns.assemble(left, right, change=change))

    def emit_some(self, segment: Segment, flags: Flags, port: int, out: Output, *, change: str = "") -> None:
        """Rows of a segment without a partner."""
        for rows in segment.batches(flags, self.context.max_rows):
            self.emit_alone(rows, port, out, change=change)

    def emit_pairs(
        self,
        rows: Batch,
        port: int,
        partners: Segment,
        ranges: tuple[Integers, Integers],
        out: Output,
        *,
        change: str = "",
    ) -> None:
        """Rows of one side with the rows of their ranges of the other."""
        for places, others in pairs(*ranges, self.context.max_rows):
            mine = rows.take(pa.array(places))
            theirs = partners.rows.take(pa.array(others))
            left, right = (mine, theirs) if port == LEFT else (theirs, mine)
            out.emit(self.columns.assemble(left, right, change=change))

    def put_aside(self, rows: Batch, port: int, out: Output) -> None:
        """Rows of one side that are late: each side has an output of its own, for it has columns of its own."""
        if rows.num_rows:
            self.late[port] += rows.num_rows
            out.emit_side(_LATE[port], rows)

    def forget_keys(self) -> None:
        """Free keys that have no rows left."""
        count = len(self.index)
        if not self._liveness.is_due(count):
            return
        live = self._liveness.begin(count)
        for buffer in self.buffers:
            buffer.live_slots(live)
        if self._liveness.decide(live):
            moved = self.index.compact(live)
            for buffer in self.buffers:
                buffer.renumber(moved)

    def snapshot(self) -> OperatorState:
        """Waiting rows that changed, by key group."""
        found = {name: buffer.changes(self.groups_of) for name, buffer in zip(_SIDES, self.buffers, strict=True)}
        return OperatorState(
            shared=pack({}, watermark=self.watermark, **self.fingerprint),
            tables={name: table for name, (table, _whole) in found.items() if table is not None},
            is_whole=all(is_whole for _table, is_whole in found.values()),
        )

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Take waiting rows in."""
        watermarks = []
        for state in states:
            if state.shared:
                facts = unpack(state.shared).facts
                check_fingerprint(facts, self.fingerprint)
                watermarks.append(facts["watermark"])
            for port, name in enumerate(_SIDES):
                if name in state.tables:
                    self._take_in(state.tables[name].rows, port)
        self.watermark = min(watermarks, default=START_OF_TIME)

    def _take_in(self, rows: Table, port: int) -> None:
        self.buffers[port].restore(rows, lambda batch: self.slots_of(batch, port))

    def groups_of(self, slots: Integers) -> Integers:
        """The key groups of slots."""
        return self.index.groups(slots, self.context.key_groups.total)
