"""Timers of keys: moments at which a process function wants to be called. Each is there once, however often set."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import pyarrow as pa

from shoal.dataflow.state.base import StateKey
from shoal.dataflow.state.blobs import Table

_SCHEMA = pa.schema({"time": pa.int64(), "key": pa.large_binary()})


class Timers:
    """Timers of one kind of time."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, bytes]] = []
        self._set: set[tuple[int, int, bytes]] = set()

    def __len__(self) -> int:
        return len(self._set)

    def set(self, time: int, key: StateKey) -> None:
        """Ask to be called."""
        timer = (time, *key)
        if timer not in self._set:
            self._set.add(timer)
            heapq.heappush(self._heap, timer)

    def delete(self, time: int, key: StateKey) -> None:
        """Ask no more."""
        self._set.discard((time, *key))
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
            yield moment, (group, key)

    def by_group(self) -> dict[int, Table]:
        """All of them, for a snapshot."""
        found: dict[int, list[tuple[int, bytes]]] = {}
        for moment, group, key in sorted(self._set):
            found.setdefault(group, []).append((moment, key))
        return {
            group: pa.table([[time for time, _key in timers], [key for _time, key in timers]], schema=_SCHEMA)
            for group, timers in found.items()
        }

    def take_in(self, group: int, table: Table) -> None:
        """The inverse, for one group."""
        for time, key in zip(*(column.to_pylist() for column in table.columns), strict=True):
            self.set(time, (group, key))
