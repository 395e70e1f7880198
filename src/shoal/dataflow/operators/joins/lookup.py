"""Joins with a second input that is looked up: a table, by its newest row of each key, or a small stream, by all rows.

A left row is joined when it comes, with what is there then. When the second input has an end, left rows wait for it:
the task reads it first, and what of the left comes all the same is kept. Only inner and left joins can be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import CHANGE, Batch, Schema
from shoal.dataflow.language.keys import Integers, combined, key_groups
from shoal.dataflow.language.logical import JoinKind
from shoal.dataflow.operators.base import Context, OperatorState, Output, StepOperator
from shoal.dataflow.operators.batches import event_times, has_time, same_type
from shoal.dataflow.operators.joins.base import RIGHT
from shoal.dataflow.operators.joins.buffer import RowBuffer
from shoal.dataflow.operators.joins.columns import JoinedColumns, described, keys_of
from shoal.dataflow.operators.joins.matching import pairs, slot_ranges
from shoal.dataflow.operators.keys.columns import with_room
from shoal.dataflow.operators.keys.index import KeyIndex
from shoal.dataflow.operators.keys.tables import check_fingerprint, fingerprint
from shoal.dataflow.state.blobs import pack, unpack
from shoal.dataflow.state.dirty import DirtyCells, GoneKeys
from shoal.dataflow.state.tables import Table, TableState, stack

_ONLY_RIGHT = frozenset({RIGHT})
_ANY: frozenset[int] = frozenset()
_WAITS = "__join_waits"


class LookupJoin(StepOperator):
    """What both have in common. `waits` when the second input has an end."""

    def __init__(
        self,
        *,
        kind: JoinKind,
        left: Schema,
        right: Schema,
        left_keys: tuple[str, ...],
        right_keys: tuple[str, ...],
        suffix: str = "_right",
        waits: bool = False,
    ) -> None:
        if kind not in (JoinKind.INNER, JoinKind.LEFT):
            raise InvalidError([problem("kind", kind.value, "must be inner or left for a join that looks up")])
        self.columns = JoinedColumns(left, right, left_keys, right_keys, suffix)
        self.index = KeyIndex(right_keys)
        self._fingerprint = fingerprint(left_keys, described(kind, left, right, right_keys))
        self._keeps_left = kind is JoinKind.LEFT
        self._is_waiting = waits
        self._waiting: list[Batch] = []
        #: How many of them are in a snapshot already, and the columns that they had.
        self._snapshotted = 0
        self._waiting_schema: Schema | None = None

    def open(self, context: Context) -> None:
        """Remember the sizes."""
        self.context = context

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Learn from the right, join the left."""
        if not batch.num_rows:
            return
        if port == RIGHT:
            self.learn(batch)
        elif self._is_waiting:
            self._waiting.append(batch)
            self._waiting_schema = batch.schema
        else:
            self.join(batch, out)

    def on_port_end(self, port: int, out: Output) -> None:
        """The second input is complete."""
        if port == RIGHT:
            self._is_waiting = False
            waiting, self._waiting, self._snapshotted = self._waiting, [], 0
            for batch in waiting:
                self.join(batch, out)

    def on_end(self, out: Output) -> None:
        """Whatever still waits."""
        self.on_port_end(RIGHT, out)

    def preferred_ports(self) -> frozenset[int]:
        """The second input first, as long as it is waited for."""
        return _ONLY_RIGHT if self._is_waiting else _ANY

    def output_watermark(self, time: int) -> int:
        """What waits is not late when it goes out."""
        times = [int(event_times(batch).min()) for batch in self._waiting if has_time(batch.schema)]
        return min([time, *times])

    def learn(self, batch: Batch) -> None:
        """Take rows of the second input in."""
        raise NotImplementedError

    def join(self, batch: Batch, out: Output) -> None:
        """Emit the results of left rows."""
        raise NotImplementedError

    def emit(self, left: Batch, right: Batch | None, out: Output) -> None:
        """Rows side by side."""
        for start in range(0, left.num_rows, self.context.max_rows):
            some = [None if side is None else side.slice(start, self.context.max_rows) for side in (left, right)]
            out.emit(self.columns.assemble(*some, times=_left_times(some[0])))

    def emit_alone(self, rows: Batch, out: Output) -> None:
        """Left rows without a partner."""
        if self._keeps_left and rows.num_rows:
            self.emit(rows, None, out)

    def found_slots(self, batch: Batch) -> Integers:
        """The slots of left rows, -1 where the key is not known or null."""
        kinds = [self.columns.right.field(name).type for name in self.columns.right_keys]
        columns = [combined(column) for column in keys_of(batch, self.columns.left_keys)]
        slots = self.index.find([same_type(c, kind) for c, kind in zip(columns, kinds, strict=True)], batch.num_rows)
        for column in columns:
            if column.null_count:
                slots[column.is_null().to_numpy(zero_copy_only=False)] = -1
        return slots

    def waiting_rows(self, *, is_whole: bool = True) -> Table | None:
        """Left rows that wait, for a snapshot: all, or those that are in none yet. None when there never were any."""
        batches = self._waiting if is_whole else self._waiting[self._snapshotted :]
        self._snapshotted = len(self._waiting)
        if self._waiting_schema is None:
            return None
        return stack([self._waiting_schema.empty_table(), *(pa.Table.from_batches([batch]) for batch in batches)])

    def take_waiting(self, table: Table) -> None:
        """Left rows of a snapshot."""
        self._waiting.extend(table.to_batches())
        self._snapshotted = len(self._waiting)
        self._waiting_schema = table.schema

    def facts(self) -> dict[str, Any]:
        """What a snapshot says besides rows."""
        has_waiting = bool(self._waiting)
        return {
            "is_waiting": self._is_waiting,
            "has_waiting": has_waiting,
            "subtask": self.context.subtask,
            **self._fingerprint,
        }

    def take_facts(self, facts: dict[str, Any]) -> None:
        """The inverse."""
        check_fingerprint(facts, self._fingerprint)
        self._is_waiting = self._is_waiting and facts["is_waiting"]


class TableJoin(LookupJoin):
    """The newest row of each key. With `op` among its columns, rows that take back remove the key."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._pieces: list[Batch] = []
        self._rows = 0
        self._live = 0
        self._dirty, self._gone = DirtyCells(), GoneKeys()
        self._places = np.full(0, -1, np.int64)

    def statistics(self) -> dict[str, int]:
        """How large the table is."""
        return {"keys": self._live, "rows": self._rows}

    def learn(self, batch: Batch) -> None:
        """The last row of each key in the batch counts."""
        slots = self.index.slots(batch)
        last = np.empty(len(self.index), np.int64)
        last[slots] = np.arange(len(slots))
        touched = np.unique(slots)
        rows = last[touched]
        gone = np.zeros(len(rows), np.bool_)
        if CHANGE in batch.schema.names:
            changes = batch.column(CHANGE).to_pylist()
            gone = np.array([(changes[row] or "").startswith("-") for row in rows.tolist()], np.bool_)
        if len(self._places) < len(self.index):
            known = len(self._places)
            self._places = with_room(self._places, len(self.index))
            self._places[known:] = -1
        self._places[touched] = np.where(gone, -1, self._rows + rows)
        self._note(touched, gone)
        self._pieces.append(batch)
        self._rows += batch.num_rows
        self._live = int((self._places[: len(self.index)] >= 0).sum())
        if self._rows > 2 * self._live + 65_536:
            self._tidy()

    def join(self, batch: Batch, out: Output) -> None:
        """Each row with the newest of its key."""
        slots = self.found_slots(batch)
        places = np.full(len(slots), -1)
        known = slots >= 0
        places[known] = self._places[slots[known]]
        found = places >= 0
        if found.all():
            self.emit(batch, self._table().take(pa.array(places)), out)
            return
        if found.any():
            self.emit(batch.filter(pa.array(found)), self._table().take(pa.array(places[found])), out)
        self.emit_alone(batch.filter(pa.array(~found)), out)

    def snapshot(self) -> OperatorState:
        """What changed of the table and came to wait, by key group."""
        total, tables = self.context.key_groups.total, {}
        is_whole = self._dirty.is_mostly(self._live)
        changed, gone = self._dirty.take(), self._gone.take()
        if self._pieces:
            places = self._places[: len(self.index)] if is_whole else self._places[changed]
            rows = pa.Table.from_batches([self._table().take(pa.array(places[places >= 0]))])
            groups = key_groups(rows, self.columns.right_keys, total)
            removed = (None, groups[:0]) if is_whole else gone
            tables["table"] = TableState(rows, groups, self.columns.right_keys, *removed)
        waiting = self.waiting_rows(is_whole=is_whole)
        if waiting is not None:
            groups = key_groups(waiting, self.columns.left_keys, total)
            rows = waiting.append_column(_WAITS, pa.array(np.zeros(len(waiting), np.int64)))
            # All of them go at once, when the second input has ended.
            tables["waiting"] = TableState(rows, groups, floor=(_WAITS, 0 if self._waiting else 1))
        return OperatorState(shared=pack({}, **self.facts()), tables=tables, is_whole=is_whole)

    def _note(self, slots: Integers, gone: Any) -> None:
        """These keys changed, some of them are gone."""
        if self._dirty.is_tracking:
            self._dirty.mark(slots, len(self.index))
            if gone.any():
                keys = pa.table(self.index.take(slots[gone]), names=list(self.columns.right_keys))
                self._gone.add(keys, self.index.groups(slots[gone], self.context.key_groups.total))

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Take the table in, and what waits."""
        for state in states:
            facts = dict(unpack(state.shared).facts) if state.shared else {}
            if facts:
                self.take_facts(facts)
            tables = {name: table.rows for name, table in state.tables.items()}
            for batch in tables["table"].combine_chunks().to_batches() if "table" in tables else []:
                self.learn(batch)
            if "waiting" in tables and facts.get("has_waiting"):
                self.take_waiting(tables["waiting"].drop_columns([_WAITS]))
        self._dirty.begin()

    def _table(self) -> Batch:
        if len(self._pieces) > 1:
            self._pieces = [pa.concat_batches(self._pieces)]
        return self._pieces[0]

    def _tidy(self) -> None:
        """Keep only rows that are some key's newest."""
        live = self._places[: len(self.index)] >= 0
        rows = self._places[: len(self.index)][live]
        self._pieces = [self._table().take(pa.array(rows))]
        self._rows = len(rows)
        self._dirty.renumber(self.index.compact(live))
        self._places = np.arange(len(rows))


class BroadcastJoin(LookupJoin):
    """All rows of a small second input, which every task has."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._buffer = RowBuffer()

    def statistics(self) -> dict[str, int]:
        """How much every task has."""
        return {"rows": len(self._buffer), "keys": len(self.index)}

    def learn(self, batch: Batch) -> None:
        """Keep rows."""
        self._buffer.add(batch, self.index.slots(batch), np.zeros(batch.num_rows, np.int64))

    def join(self, batch: Batch, out: Output) -> None:
        """Each row with all of its key."""
        slots = self.found_slots(batch)
        matched = np.zeros(len(slots), np.bool_)
        for segment in self._buffer.segments:
            first, end = slot_ranges(segment.slots, slots)
            matched |= end > first
            for rows, places in pairs(first, end, self.context.max_rows):
                self.emit(batch.take(pa.array(rows)), segment.rows.take(pa.array(places)), out)
        self.emit_alone(batch.filter(pa.array(~matched)), out)

    def snapshot(self) -> OperatorState:
        """All rows, and what waits; none of it belongs to a key of this task's."""
        tables: dict[str, Table] = {}
        whole = self._buffer.whole()
        if whole is not None and self.context.subtask == 0:  # every task has the same
            tables["table"] = pa.Table.from_batches([whole.rows])
        waiting = self.waiting_rows()
        if waiting is not None and len(waiting):
            tables["waiting"] = waiting
        return OperatorState(shared=pack(tables, **self.facts()))

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Take all rows in, and what waited in one task of so many."""
        for state in states:
            if not state.shared:
                continue
            blob = unpack(state.shared)
            self.take_facts(dict(blob.facts))
            for batch in blob.tables["table"].combine_chunks().to_batches() if "table" in blob.tables else []:
                self.learn(batch)
            mine = blob.facts["subtask"] % self.context.parallelism == self.context.subtask
            if "waiting" in blob.tables and mine:
                self.take_waiting(blob.tables["waiting"])


def _left_times(left: Batch | None) -> Integers | None:
    """A result has the time of its left row: the table has none of its own that would matter."""
    return event_times(left) if left is not None and has_time(left.schema) else None
