"""State in memory: a dictionary for each namespace and key group."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from shoal.dataflow.state.base import StateKey
from shoal.dataflow.state.entries import Entry, entries_of, entries_table
from shoal.dataflow.state.tables import TableState


class MemoryState:
    """The default: as quick as a dictionary, and as large as memory."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, int], dict[bytes, tuple[bytes, int]]] = {}
        #: (moment, namespace, group, key) of values that will go; some of them were replaced meanwhile.
        self._expiries: list[tuple[int, str, int, bytes]] = []
        #: (group, namespace, key) of values that changed since the last snapshot; None before the first one.
        self._changed: set[tuple[int, str, bytes]] | None = None

    def get_many(self, namespace: str, keys: Sequence[StateKey], *, now: int = 0) -> list[bytes | None]:
        """The value of each key."""
        found: list[bytes | None] = []
        for group, key in keys:
            entry = self._values.get((namespace, group), _EMPTY).get(key)
            found.append(entry[0] if entry is not None and _is_alive(entry[1], now) else None)
        return found

    def put_many(self, namespace: str, entries: Iterable[tuple[StateKey, bytes]], *, expires_at: int = 0) -> None:
        """Set values."""
        for (group, key), value in entries:
            self._put(namespace, group, key, value, expires_at)

    def delete_many(self, namespace: str, keys: Iterable[StateKey]) -> None:
        """Forget keys."""
        for group, key in keys:
            self._delete(namespace, group, key)

    def scan(self, namespace: str, group: int, prefix: bytes = b"", *, now: int = 0) -> Iterator[tuple[bytes, bytes]]:
        """The keys that begin so, in their order."""
        values = self._values.get((namespace, group), _EMPTY)
        for key in sorted(key for key in values if key.startswith(prefix)):
            value, expires_at = values[key]
            if _is_alive(expires_at, now):
                yield key, value

    def expire(self, now: int) -> int:
        """Free what has outlived its time."""
        freed = 0
        while self._expiries and self._expiries[0][0] <= now:
            _moment, namespace, group, key = heapq.heappop(self._expiries)
            entry = self._values.get((namespace, group), _EMPTY).get(key)
            if entry is not None and not _is_alive(entry[1], now):
                self._delete(namespace, group, key)
                freed += 1
        return freed

    def next_expiry(self) -> int | None:
        """When there will be something to free."""
        return self._expiries[0][0] if self._expiries else None

    def groups(self) -> frozenset[int]:
        """The key groups that have values."""
        return frozenset(group for _namespace, group in self._values)

    def changes(self) -> tuple[TableState, bool]:
        """What changed; everything at first."""
        changed, self._changed = self._changed, set()
        if changed is None:
            everything = [
                Entry(group, namespace, key, value, expires_at)
                for (namespace, group), values in self._values.items()
                for key, (value, expires_at) in values.items()
            ]
            return entries_table(everything), True
        found, gone = [], []
        for group, namespace, key in changed:
            entry = self._values.get((namespace, group), _EMPTY).get(key)
            if entry is None:
                gone.append((group, namespace, key))
            else:
                found.append(Entry(group, namespace, key, *entry))
        return entries_table(found, gone), False

    def restore(self, table: TableState) -> None:
        """Take values in."""
        for entry in entries_of(table):
            self._put(entry.namespace, entry.group, entry.key, entry.value, entry.expires_at)
        self._changed = set()

    def close(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._expiries.clear()

    def _put(self, namespace: str, group: int, key: bytes, value: bytes, expires_at: int) -> None:
        values = self._values.setdefault((namespace, group), {})
        before = values.get(key)
        values[key] = (value, expires_at)
        if self._changed is not None:
            self._changed.add((group, namespace, key))
        # One that is put again and again is remembered once for each moment, and the heap is rebuilt when most of it
        # is of values that are gone or will go later.
        if expires_at and (before is None or before[1] != expires_at):
            heapq.heappush(self._expiries, (expires_at, namespace, group, key))
            self._tidy()

    def _delete(self, namespace: str, group: int, key: bytes) -> None:
        values = self._values.get((namespace, group))
        if values is None or values.pop(key, None) is None:
            return
        if self._changed is not None:
            self._changed.add((group, namespace, key))
        if not values:
            del self._values[namespace, group]

    def _tidy(self) -> None:
        if len(self._expiries) < _MIN_TIDY or len(self._expiries) & (len(self._expiries) - 1):
            return  # looked at only when it has doubled
        self._expiries = [
            (moment, namespace, group, key)
            for moment, namespace, group, key in self._expiries
            if self._values.get((namespace, group), _EMPTY).get(key, _NOTHING)[1] == moment
        ]
        heapq.heapify(self._expiries)


_EMPTY: dict[bytes, tuple[bytes, int]] = {}
_NOTHING = (b"", -1)
_MIN_TIDY = 4_096


def _is_alive(expires_at: int, now: int) -> bool:
    return not expires_at or expires_at > now
