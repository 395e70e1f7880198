"""A store for tests of the control plane in virtual time: the real SQLite store in memory, without threads.

Waiting for a thread would let the virtual clock run. It survives the control plane that uses it, so a test can restart
that, and it can be told to be away.
"""

from __future__ import annotations

from shoal.control.store.base import Batch, EventPage, EventQuery, Leader, Snapshot, Store
from shoal.core.errors import UnavailableError
from shoal.model.events import Event
from shoal.model.trust import JoinToken, SecretRecord


class KeptStore:
    """Passes everything on to a store that it keeps open."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._opened = False
        #: Everything raises `UnavailableError` while this is set.
        self.away = False
        #: The next commit happens, and nobody is told.
        self.lose_next_answer = False

    async def open(self) -> None:
        """Open the store it keeps, the first time."""
        self._check()
        if not self._opened:
            await self._inner.open()
            self._opened = True

    async def load(self) -> Snapshot:
        """Everything that is stored."""
        self._check()
        return await self._inner.load()

    async def commit(self, batch: Batch) -> tuple[Event, ...]:
        """Apply a batch."""
        self._check()
        events = await self._inner.commit(batch)
        if self.lose_next_answer:
            self.lose_next_answer = False
            raise UnavailableError("the connection broke during the commit", outcome="unknown")
        return events

    async def events(self, query: EventQuery) -> EventPage:
        """Read events."""
        self._check()
        return await self._inner.events(query)

    async def tokens(self) -> tuple[JoinToken, ...]:
        """Every join token."""
        self._check()
        return await self._inner.tokens()

    async def secrets(self) -> tuple[SecretRecord, ...]:
        """Every secret."""
        self._check()
        return await self._inner.secrets()

    async def campaign(self, holder: str, address: str, *, seconds: float) -> Leader:
        """Campaign."""
        self._check()
        return await self._inner.campaign(holder, address, seconds=seconds)

    async def leader(self) -> Leader:
        """Who leads."""
        self._check()
        return await self._inner.leader()

    async def resign(self, holder: str) -> None:
        """Stop leading."""
        self._check()
        await self._inner.resign(holder)

    async def ping(self) -> None:
        """Say whether it is there."""
        self._check()
        await self._inner.ping()

    async def close(self) -> None:
        """Keep it open: it outlives its users. `dispose` ends it."""

    async def dispose(self) -> None:
        """Close the store it keeps."""
        await self._inner.close()

    def _check(self) -> None:
        if self.away:
            raise UnavailableError("the store is away")
