"""What goes wrong on a `LocalNetwork`, by script: lost and late messages, refusals, partitions.

A call is a `Conversation`: bytes in both directions and in the end a status. `ScriptedFaults` decides whether and when
its messages pass. Called by `local.py`; scripted by tests.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator
from dataclasses import dataclass

from shoal.core.errors import ShoalError, UnavailableError
from shoal.wire.addresses import Address, parse_address
from shoal.wire.status import Code, Status, status_of

#: Messages that wait between a writer and a reader before the writer has to wait too.
BUFFERED_MESSAGES = 16
#: How long a silent connection is believed in, as over gRPC.
KEEPALIVE_SECONDS = 30.0


class Outage(enum.Enum):
    """What two ends that are cut off from each other notice."""

    SILENT = "silent"  # nothing arrives and nothing is refused: calls wait for their deadline
    REFUSED = "refused"  # calls fail at once


@dataclass(slots=True)
class Faults:
    """What is scripted for one address."""

    error: Status | None = None
    seconds: float = 0.0
    lost_requests: int = 0
    lost_replies: int = 0


class ScriptedFaults:
    """What is wrong between servers and their callers now. Everything is well until a script says otherwise."""

    def __init__(self) -> None:
        #: Every call under way.
        self.calls: set[Conversation] = set()
        self._faults: dict[str, Faults] = {}
        self._outages: dict[frozenset[str], Outage] = {}
        self._changed = asyncio.Event()

    def fail(self, address: str, error: ShoalError | None) -> None:
        """Answer every call to `address` with `error`, without a handler, until told None."""
        self._at(address).error = None if error is None else status_of(error)

    def delay(self, address: str, seconds: float) -> None:
        """Let every call to `address` take so much longer to arrive; 0 ends it."""
        self._at(address).seconds = seconds

    def drop_requests(self, address: str, count: int = 1) -> None:
        """Lose the next calls to `address` before the handler: their callers get `UnavailableError`."""
        self._at(address).lost_requests = count

    def drop_replies(self, address: str, count: int = 1) -> None:
        """Lose the next answers from `address`: the handler ran, and its caller gets `UnavailableError`."""
        self._at(address).lost_replies = count

    def partition(self, one: str, other: str, *, outage: Outage = Outage.SILENT) -> None:
        """Cut two ends off from each other, in both directions, calls under way included.

        An end is the name of a transport or the address of a server. Silent calls wait for their deadline and go on if
        the network heals before; those without one end when the connection has been silent for too long.
        """
        pair = frozenset({one, other})
        self._outages[pair] = outage
        for call in [each for each in self.calls if pair in each.links]:
            if outage is Outage.REFUSED:
                call.break_off("the connection was cut")
            else:
                asyncio.get_running_loop().call_later(KEEPALIVE_SECONDS, self._give_up, call)

    def heal(self, one: str | None = None, other: str | None = None) -> None:
        """Join two ends again; without names, all of them."""
        if one is None or other is None:
            self._outages.clear()
        else:
            self._outages.pop(frozenset({one, other}), None)
        self._changed.set()
        self._changed = asyncio.Event()

    def faults(self, address: str) -> Faults:
        """What is scripted for an address."""
        return self._faults.get(address) or Faults()

    async def cross(self, links: frozenset[frozenset[str]]) -> None:
        """Wait until a message can pass. Raises `UnavailableError` when it is refused, or was silent too long."""
        if self._outage(links) is None:
            return
        try:
            async with asyncio.timeout(KEEPALIVE_SECONDS):
                while outage := self._outage(links):
                    if outage is Outage.REFUSED:
                        raise UnavailableError("the connection was cut")
                    await self._changed.wait()
        except TimeoutError:
            raise UnavailableError("the connection was silent for too long") from None

    def _outage(self, links: frozenset[frozenset[str]]) -> Outage | None:
        return next((outage for pair, outage in self._outages.items() if pair in links), None)

    def _give_up(self, call: Conversation) -> None:
        if self._outage(call.links) is not None:
            call.break_off("the connection was silent for too long")

    def _at(self, address: str) -> Faults:
        return self._faults.setdefault(canonical(address), Faults())


def canonical(address: str) -> str:
    """The one way to write an address on a `LocalNetwork`."""
    parsed = parse_address(address, listening=True).dialable()
    return str(Address("127.0.0.1", parsed.port) if parsed.host == "localhost" else parsed)


class Conversation:
    """One call: bytes in both directions, and in the end a status."""

    def __init__(self, links: frozenset[frozenset[str]]) -> None:
        self.links = links
        self.requests: asyncio.Queue[bytes | None] = asyncio.Queue(BUFFERED_MESSAGES)
        self.replies: asyncio.Queue[bytes | None] = asyncio.Queue(BUFFERED_MESSAGES)
        self.status: Status | None = None
        self.task: asyncio.Task[None] | None = None
        #: Ended by a fault or by one side alone: there is no connection left for a reply to come by.
        self.broken = False

    async def finish(self, status: Status) -> None:
        """The server is done: the caller reads what is left, then the status."""
        await self.replies.put(None)
        self.status = self.status or status

    def break_off(self, why: str) -> None:
        """End it now, for both sides. What was not read yet is lost."""
        if self.status is None:
            self.broken = True
            self.status = Status(Code.UNAVAILABLE, why)
            while not self.replies.empty():
                self.replies.get_nowait()
            self.replies.put_nowait(None)
        self.abandon()

    def abandon(self) -> None:
        """The caller no longer waits for the answer: the handler is cancelled if it still runs."""
        if self.task is not None and not self.task.done() and self.task is not asyncio.current_task():
            self.task.cancel()

    async def read_requests(self) -> AsyncIterator[bytes]:
        """What the caller sends, to its end."""
        while (data := await self.requests.get()) is not None:
            yield data
