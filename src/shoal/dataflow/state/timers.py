"""Timers of keys: moments at which a process function wants to be called. Each is there once, however often set."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from shoal.dataflow.state.base import StateKey
from shoal.dataflow.state.tables import TableState

_SCHEMA = pa.schema({"time": pa.int64(), "key": pa.large_binary()})


class Timers:
    """Timers of one kind of time."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, bytes]] = []
        self._set: set[tuple[int, int, bytes]] = set()
        #: Those that were set, called or deleted since the last snapshot; None before the first one.
        self._changed: set[tuple[int, int, bytes]] | None = None

    def __len__(self) -> int:
        return len(self._set)

    def set(self, time: int, key: StateKey) -> None:
        """Ask to be called."""
        timer = (time, *key)
        if timer not in self._set:
            self._set.add(timer)
            self._note(timer)
            heapq.heappush(self._heap, timer)

    def delete(self, time: int, key: StateKey) -> None:
        """Ask no more."""
        timer = (time, *key)
        if timer in self._set:
            self._set.discard(timer)
            self._note(timer)
        if len(self._heap) > 2 * len(self._set) + 64:
            self._heap = sorted(self._set)  # what was deleted would else lie there until its time comes

    def next_time(self) -> int | None:
        """When the first one is due."""
        while self._heap and self._heap[0] not in self._set:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, time: int) -> Iterator[tuple[int, StateKey]]:
        """Those that are due, in their order; also those that are set meanwhile."""
        while (first := self.next_time()) is not None and first <= time:
            moment, group, key = heapq.heappop(self._heap)
            self._set.discard((moment, group, key))
            self._note((moment, group, key))
            yield moment, (group, key)

    def changes(self) -> tuple[TableState, bool]:
        """Those that changed since the last call, and whether these are all that there are, as at first."""
        changed, self._changed = self._changed, set()
        if changed is None:
            return _table(self._set, ()), True
        return _table(changed & self._set, changed - self._set), False

    def restore(self, table: TableState) -> None:
        """Restore what `changes` returned, merged. That is no change."""
        times, keys = (column.to_pylist() for column in table.rows.columns)
        for time, group, key in zip(times, table.groups.tolist(), keys, strict=True):
            self.set(time, (group, key))
        self._changed = set()

    def _note(self, timer: tuple[int, int, bytes]) -> None:
        if self._changed is not None:
            self._changed.add(timer)


def _table(timers: Iterable[tuple[int, int, bytes]], gone: Iterable[tuple[int, int, bytes]]) -> TableState:
    tables = []
    for listed in (list(timers), list(gone)):
        columns = [[time for time, _group, _key in listed], [key for _time, _group, key in listed]]
        groups = np.array([group for _time, group, _key in listed], np.int64)
        tables.append((pa.table(columns, schema=_SCHEMA), groups))
    return TableState(*tables[0], tuple(_SCHEMA.names), *tables[1])
