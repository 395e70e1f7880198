"""The seam of keyed state: values by key group, namespace and key, all of them bytes.

`shoal.dataflow.state.handles` puts value, list, map, reducing and aggregating state on top of it. Backends: `memory`
and `rocks`; one conformance suite, `shoal.testing.suites.state`. Calls take many keys at once, from one thread. Times
are microseconds of processing time, and passed by the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from shoal.dataflow.state.tables import TableState

#: A key group and a key.
StateKey: TypeAlias = tuple[int, bytes]


class StateBackend(Protocol):
    """Where state is kept."""

    def get_many(self, namespace: str, keys: Sequence[StateKey], *, now: int = 0) -> list[bytes | None]:
        """The value of each key; None where there is none, or where it has outlived its time."""
        ...

    def put_many(self, namespace: str, entries: Iterable[tuple[StateKey, bytes]], *, expires_at: int = 0) -> None:
        """Set values. From `expires_at` on they are gone; 0 for never."""
        ...

    def delete_many(self, namespace: str, keys: Iterable[StateKey]) -> None:
        """Forget keys. Those that are not there do not matter."""
        ...

    def scan(self, namespace: str, group: int, prefix: bytes = b"", *, now: int = 0) -> Iterator[tuple[bytes, bytes]]:
        """The keys of a group that begin so, in their order, with their values. Nothing is changed meanwhile."""
        ...

    def expire(self, now: int) -> int:
        """Free what has outlived its time. Returns how many values that were."""
        ...

    def next_expiry(self) -> int | None:
        """When `expire` will have something to free; None when never."""
        ...

    def groups(self) -> frozenset[int]:
        """The key groups that have values."""
        ...

    def changes(self) -> tuple[TableState, bool]:
        """The values that changed since the last call, and whether these are all that there are, as at first."""
        ...

    def restore(self, table: TableState) -> None:
        """Restore what `changes` returned, of any backend, merged. That is no change."""
        ...

    def close(self) -> None:
        """Let go of files."""
        ...
