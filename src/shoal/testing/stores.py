"""A store for tests of the control plane in virtual time: the real SQLite store in memory, without threads.

Waiting for a thread would let the virtual clock run. It survives the control plane that uses it, so a test can restart
that, and it can be told to be away. With a `Seat`, several control planes share one: each has a `SharedStore` of its
own, which can be away alone, and who leads is decided by the virtual clock.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from shoal.control.store.base import Batch, EventPage, EventQuery, Leader, Settled, Snapshot, Store
from shoal.core.clock import Clock
from shoal.core.errors import NotLeaderError, UnavailableError
from shoal.model.events import Event
from shoal.model.trust import JoinToken, SecretRecord


class KeptStore:
    """Passes everything on to a store that it keeps open."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._opened = False
        #: Everything raises `UnavailableError` while this is set.
        self.away = False
        #: Every commit waits while this is not set.
        self.answers = asyncio.Event()
        self.answers.set()
        #: The next commit happens, and nobody is told.
        self.lose_next_answer = False

    async def open(self) -> None:
        """Open the store it keeps, the first time."""
        self._check()
        if not self._opened:
            await self._inner.open()
            self._opened = True

    async def load(self, *, again: bool = False) -> Snapshot:
        """Everything that is stored."""
        self._check()
        return await self._inner.load(again=again)

    async def commit(self, batch: Batch, *, term: int = 0, settled: Settled | None = None) -> tuple[Event, ...]:
        """Apply a batch."""
        await self.answers.wait()
        self._check()
        if not self.lose_next_answer:
            return await self._inner.commit(batch, term=term, settled=settled)
        self.lose_next_answer = False
        await self._inner.commit(batch, term=term)
        lost = UnavailableError("the connection broke during the commit", outcome="unknown")
        if settled is not None:
            settled(lost)
        raise lost

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

    async def acquire_leadership(self, holder: str, address: str, *, seconds: float) -> Leader:
        """Campaign."""
        self._check()
        return await self._inner.acquire_leadership(holder, address, seconds=seconds)

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


@dataclass(slots=True)
class Seat:
    """Who leads, for all who share a store."""

    term: int = 0
    holder: str = ""
    address: str = ""
    until: float = 0.0


class SharedStore(KeptStore):
    """One control plane's way to a store that others use, too."""

    def __init__(self, inner: KeptStore, seat: Seat, clock: Clock) -> None:
        super().__init__(inner)
        self._seat = seat
        self._clock = clock
        self._held_term: tuple[str, int] | None = None

    async def commit(self, batch: Batch, *, term: int = 0, settled: Settled | None = None) -> tuple[Event, ...]:
        """Apply a batch, unless the term that was won here, or that it was decided under, is over."""
        await self.ping()
        if term and self._held_term is not None and term != self._held_term[1]:
            raise NotLeaderError("")
        return await super().commit(batch, settled=settled)

    async def acquire_leadership(self, holder: str, address: str, *, seconds: float) -> Leader:
        """Renew, or take over what has ended; else say who leads."""
        self._check()
        seat, now = self._seat, self._clock.monotonic()
        if seat.holder not in ("", holder) and now < seat.until:
            return await self.leader()
        if self._held_term != (seat.holder, seat.term) or seat.holder != holder:
            seat.term += 1
        seat.holder, seat.address, seat.until = holder, address, now + seconds
        self._held_term = (holder, seat.term)
        return Leader(seat.term, holder, address, seconds)

    async def leader(self) -> Leader:
        """Who leads."""
        self._check()
        seat, left = self._seat, self._seat.until - self._clock.monotonic()
        return Leader(seat.term, seat.holder, seat.address, left) if left > 0 else Leader(seat.term, "", "", 0.0)

    async def resign(self, holder: str) -> None:
        """Stop leading."""
        self._check()
        if self._seat.holder == holder:
            self._seat.holder, self._seat.until = "", 0.0

    async def ping(self) -> None:
        """Say whether it is there, and the term still on."""
        self._check()
        if self._held_term is not None and self._held_term != (self._seat.holder, self._seat.term):
            raise NotLeaderError(self._seat.address)
