"""Stores for tests of the control plane in virtual time: the real SQLite store in memory, without threads.

Waiting for a thread would let the virtual clock run. A `KeptStore` survives the control plane that uses it, so a test
can restart that, and it fails on request in every way that a real store can (`Fault`). With a `Seat`, several control
planes share one store: each has a `SharedStore` of its own, which can fail alone, and the virtual clock decides who
leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from shoal.control.store.base import Batch, EventPage, EventQuery, Leader, Settled, Snapshot, Store
from shoal.control.store.database import SLOW_PATIENCE
from shoal.control.store.errors import DamagedStoreError, LeadershipLostError, StoreError, StoreOutcome
from shoal.control.store.lane import PATIENCE
from shoal.core.clock import Clock
from shoal.core.errors import ConflictError, InternalError, ShoalError
from shoal.core.tasks import TaskScope
from shoal.discovery.embedded.tree import Changes
from shoal.model.events import Event
from shoal.model.trust import JoinToken, SecretRecord

T = TypeVar("T")


class Fault(enum.Enum):
    """How a call fails. A fault that only writes can have does not touch reads."""

    REFUSED = "refused"
    """Too many changes wait already: it was never begun."""
    NOT_APPLIED = "not applied"
    FULL = "full"
    LEADERSHIP_LOST = "leadership lost"
    UNKNOWN_NOT_APPLIED = "unknown, not applied"
    UNKNOWN_APPLIED = "unknown, applied"
    CONFLICT = "conflict"
    """Another writer was faster."""
    UNSTORABLE = "unstorable"
    """A bug: a value that the database does not take."""
    DAMAGED = "damaged"
    HANGS = "hangs"
    """It does not answer until the fault ends, and is carried out then, also when its caller has stopped waiting."""
    HANGS_THEN_FAILS = "hangs, then fails"
    """It does not answer until the fault ends, and is never carried out."""


_OF_WRITES = frozenset(
    {
        Fault.FULL,
        Fault.LEADERSHIP_LOST,
        Fault.UNKNOWN_NOT_APPLIED,
        Fault.UNKNOWN_APPLIED,
        Fault.CONFLICT,
        Fault.UNSTORABLE,
    }
)
_HANGS = frozenset({Fault.HANGS, Fault.HANGS_THEN_FAILS})
_WRITES = frozenset({"commit", "acquire_leadership", "resign"})
_CALLS = _WRITES | {"open", "load", "events", "tokens", "secrets", "coordination", "leader", "ping"}
_SLOW = frozenset({"open", "load"})


def error_of(fault: Fault) -> ShoalError:
    """What a store raises that fails so."""
    match fault:
        case Fault.FULL:
            return StoreError("the disk is full; nothing was stored", outcome=StoreOutcome.FULL)
        case Fault.LEADERSHIP_LOST:
            return LeadershipLostError("")
        case Fault.CONFLICT:
            return ConflictError("another writer was faster")
        case Fault.DAMAGED:
            return DamagedStoreError("the store is damaged")
        case Fault.UNSTORABLE:
            return InternalError("a value of the batch cannot be stored")
        case Fault.UNKNOWN_NOT_APPLIED | Fault.UNKNOWN_APPLIED:
            return StoreError("the connection broke during the commit", outcome=StoreOutcome.UNKNOWN)
        case _:
            return StoreError("the store is away")


class Failing:
    """A fault that is under way. Ended by `end`, or by its last call."""

    def __init__(self, fault: Fault, calls: frozenset[str], times: float) -> None:
        self.fault = fault
        #: How many calls it has met.
        self.met = 0
        self._calls = calls
        self._times = times
        self._over = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether it meets no more calls."""
        return self._over.is_set() or self.met >= self._times

    def meets(self, name: str) -> bool:
        """Whether this call fails; counted."""
        if self.is_over or name not in self._calls or (self.fault in _OF_WRITES and name not in _WRITES):
            return False
        self.met += 1
        return True

    def end(self) -> None:
        """Everything works again; what hangs goes on."""
        self._over.set()

    async def wait_over(self) -> None:
        """Wait until it was ended."""
        await self._over.wait()


class KeptStore:
    """Passes everything on to a store that it keeps open, unless a test makes it fail."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._opened = False
        self._faults: list[Failing] = []
        self._scope = TaskScope("store")

    def fail(self, fault: Fault, *calls: str, times: float = math.inf) -> Failing:
        """Let calls fail from now on: those that are named, or all; `times` of them, or until it is ended."""
        unknown = set(calls) - _CALLS
        if unknown:
            raise ValueError(f"a store has no {', '.join(sorted(unknown))}")
        failing = Failing(fault, frozenset(calls) or _CALLS, times)
        self._faults.append(failing)
        return failing

    @property
    def is_failing(self) -> bool:
        """Whether a fault is under way."""
        return any(not each.is_over for each in self._faults)

    def heal(self) -> None:
        """End every fault."""
        faults, self._faults = self._faults, []
        for each in faults:
            each.end()

    async def open(self) -> None:
        """Open the store it keeps, the first time."""
        await self._do("open", self._open)

    async def load(self, *, again: bool = False) -> Snapshot:
        """Everything that is stored."""
        return await self._do("load", lambda: self._inner.load(again=again))

    async def commit(self, batch: Batch, *, term: int = 0, settled: Settled | None = None) -> tuple[Event, ...]:
        """Apply a batch."""
        failing = self._meet("commit")
        if failing is None:
            return await self._apply(batch, term, settled)
        if failing.fault in _HANGS:
            answer: asyncio.Future[tuple[Event, ...]] = asyncio.get_running_loop().create_future()
            # A caller that goes away does not take its batch back.
            self._scope.start(self._apply_later(failing, answer, batch, term, settled), name="commit")
            return await asyncio.shield(answer)
        if failing.fault is Fault.UNKNOWN_APPLIED:
            await self._apply(batch, term, None)
        error = error_of(failing.fault)
        if settled is not None and failing.fault is not Fault.REFUSED:
            settled(error)
        raise error

    async def events(self, query: EventQuery) -> EventPage:
        """Read events."""
        return await self._do("events", lambda: self._inner.events(query))

    async def tokens(self) -> tuple[JoinToken, ...]:
        """Every join token."""
        return await self._do("tokens", self._inner.tokens)

    async def secrets(self, names: Collection[str] | None = None) -> tuple[SecretRecord, ...]:
        """Every secret, or those with these names."""
        return await self._do("secrets", lambda: self._inner.secrets(names))

    async def coordination(self) -> Changes:
        """The whole coordination tree."""
        return await self._do("coordination", self._inner.coordination)

    async def acquire_leadership(self, holder: str, address: str, *, seconds: float) -> Leader:
        """Take or renew the leadership."""
        return await self._do(
            "acquire_leadership", lambda: self._inner.acquire_leadership(holder, address, seconds=seconds)
        )

    async def leader(self) -> Leader:
        """Who leads."""
        return await self._do("leader", self._inner.leader)

    async def resign(self, holder: str) -> None:
        """Stop leading."""
        await self._do("resign", lambda: self._inner.resign(holder))

    async def ping(self) -> None:
        """Say whether it is there."""
        await self._do("ping", self._inner.ping)

    async def close(self) -> None:
        """Keep it open: it outlives its users. `dispose` ends it."""

    async def dispose(self) -> None:
        """Close the store it keeps."""
        self.heal()
        await self._scope.close()
        await self._inner.close()

    async def _open(self) -> None:
        if not self._opened:
            await self._inner.open()
            self._opened = True

    def _meet(self, name: str) -> Failing | None:
        return next((each for each in self._faults if each.meets(name)), None)

    async def _do(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        """Carry out a call as the fault that meets it says."""
        failing = self._meet(name)
        if failing is None:
            return await work()
        if failing.fault in _HANGS:
            if not await _ends_within(failing, SLOW_PATIENCE if name in _SLOW else PATIENCE):
                raise StoreError("the store does not answer; nothing was changed")
            if failing.fault is Fault.HANGS:
                return await work()
        if failing.fault is Fault.UNKNOWN_APPLIED:
            await work()
        raise error_of(failing.fault)

    async def _apply(self, batch: Batch, term: int, settled: Settled | None) -> tuple[Event, ...]:
        return await self._inner.commit(batch, term=term, settled=settled)

    async def _apply_later(
        self,
        failing: Failing,
        answer: asyncio.Future[tuple[Event, ...]],
        batch: Batch,
        term: int,
        settled: Settled | None,
    ) -> None:
        """As a lane does it: the caller gets a timeout, and the batch may still be stored."""

        def fail(error: ShoalError) -> None:
            if settled is not None:
                settled(error)
            _refuse(answer, error)

        in_time = await _ends_within(failing, PATIENCE)
        if not in_time:
            fail(StoreError("the store does not answer; the change may be stored", outcome=StoreOutcome.UNKNOWN))
            await failing.wait_over()
        elif failing.fault is Fault.HANGS_THEN_FAILS:
            fail(error_of(failing.fault))
        if failing.fault is Fault.HANGS:
            try:
                events = await self._apply(batch, term, settled)
            except ShoalError as error:
                _refuse(answer, error)
            else:
                if not answer.done():
                    answer.set_result(events)


async def _ends_within(failing: Failing, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await failing.wait_over()
            return True
    return False


def _refuse(answer: asyncio.Future[tuple[Event, ...]], error: ShoalError) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # read here: its caller may have gone


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

    async def _apply(self, batch: Batch, term: int, settled: Settled | None) -> tuple[Event, ...]:
        """Apply a batch, unless the term that was won here, or that it was decided under, is over."""
        self._check_term()
        if term and self._held_term is not None and term != self._held_term[1]:
            raise LeadershipLostError("")
        return await super()._apply(batch, 0, settled)

    async def acquire_leadership(self, holder: str, address: str, *, seconds: float) -> Leader:
        """Renew, or take over what has ended; else say who leads."""
        return await self._do("acquire_leadership", lambda: self._acquire(holder, address, seconds))

    async def leader(self) -> Leader:
        """Who leads."""
        return await self._do("leader", self._read_leader)

    async def resign(self, holder: str) -> None:
        """Stop leading."""
        await self._do("resign", lambda: self._resign(holder))

    async def ping(self) -> None:
        """Say whether it is there, and the term still on."""
        await self._do("ping", self._ping)

    async def _acquire(self, holder: str, address: str, seconds: float) -> Leader:
        seat, now = self._seat, self._clock.monotonic()
        if seat.holder not in ("", holder) and now < seat.until:
            return await self._read_leader()
        if self._held_term != (seat.holder, seat.term) or seat.holder != holder:
            seat.term += 1
        seat.holder, seat.address, seat.until = holder, address, now + seconds
        self._held_term = (holder, seat.term)
        return Leader(seat.term, holder, address, seconds)

    async def _read_leader(self) -> Leader:
        seat, left = self._seat, self._seat.until - self._clock.monotonic()
        return Leader(seat.term, seat.holder, seat.address, left) if left > 0 else Leader(seat.term, "", "", 0.0)

    async def _resign(self, holder: str) -> None:
        if self._seat.holder == holder:
            self._seat.holder, self._seat.until = "", 0.0

    async def _ping(self) -> None:
        self._check_term()

    def _check_term(self) -> None:
        if self._held_term is not None and self._held_term != (self._seat.holder, self._seat.term):
            raise LeadershipLostError(self._seat.address)
