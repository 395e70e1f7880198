"""Finds the leader among several control planes: which address to ask next, and what failures on the way mean.

Called by `shoal.client` and `shoal.agent.contact.control_client`.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from shoal.core.errors import DeadlineError, InvalidError, NotLeaderError, ShoalError, UnavailableError, problem
from shoal.wire.addresses import parse_address

T = TypeVar("T")
W = TypeVar("W", bound="Way")

MAX_HOPS = 3
"""How often one call follows from a control plane to the one that it names as the leader."""


def named_leader(refusal: NotLeaderError) -> str:
    """The address of the leader that a control plane names; empty when it names none that can be dialed."""
    with contextlib.suppress(InvalidError):
        return str(parse_address(refusal.facts.get("leader", "")))
    return ""


class ControlAddresses:
    """The configured addresses of control planes and the one in use, which may be none of them: the leader's."""

    def __init__(self, addresses: Iterable[str], *, field: str) -> None:
        self.configured = tuple(addresses)
        if not self.configured:
            raise InvalidError([problem(field, None, "must have at least one address")])
        self.current = self.configured[0]
        self._index = 0

    @property
    def has_others(self) -> bool:
        """Whether there is another address to try."""
        return len(self.configured) > 1 or self.current not in self.configured

    def in_order(self) -> list[str]:
        """All addresses, the one in use first."""
        return [self.current, *(each for each in self.configured if each != self.current)]

    def use(self, address: str) -> None:
        """Ask this one first from now on."""
        self.current = address
        if address in self.configured:
            self._index = self.configured.index(address)

    def use_next(self) -> None:
        """Ask the next configured one from now on."""
        self.use(self.configured[(self._index + 1) % len(self.configured)])

    def follow(self, refusal: NotLeaderError) -> bool:
        """Use the leader that a control plane names. False when it names none, or the one in use."""
        leader = named_leader(refusal)
        if not leader or leader == self.current:
            return False
        self.use(leader)
        return True


class Way(Protocol):
    """A connection to one of several control planes, for a few calls."""

    @property
    def addresses(self) -> Sequence[str]:
        """Those that can be tried, the one in use first."""
        ...

    async def use_next(self) -> None:
        """Move on to the next address."""
        ...

    async def close(self) -> None:
        """Close it."""
        ...


async def ask_in_turn(connect: Callable[[], W], ask: Callable[[W], Awaitable[T]]) -> T:
    """Ask over a connection of its own; a control plane that cannot answer is followed by the next, each once."""
    way = connect()
    try:
        for _ in way.addresses[1:]:
            try:
                return await ask(way)
            except ShoalError as error:
                if not error.retryable and not isinstance(error, NotLeaderError):
                    raise
            await way.use_next()
        return await ask(way)
    finally:
        await way.close()


class Route:
    """The addresses to try in one round: those of the list, and first the leader that a follower names."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._waiting = deque(addresses)
        self._tried: set[str] = set()
        self._hops = 0
        self._leader = ""
        self._failed: dict[str, UnavailableError | DeadlineError] = {}
        #: What the last one said that does not lead.
        self.refusal: NotLeaderError | None = None

    def __iter__(self) -> Iterator[str]:
        while self._waiting:
            address = self._waiting.popleft()
            if address not in self._tried:
                self._tried.add(address)
                yield address

    @property
    def has_more(self) -> bool:
        """Whether another address can be asked, or a follower has answered."""
        return self.refusal is not None or any(each not in self._tried for each in self._waiting)

    @property
    def failures(self) -> list[UnavailableError | DeadlineError]:
        """What went wrong at each address."""
        return list(self._failed.values())

    @property
    def failure_of_leader(self) -> UnavailableError | DeadlineError | None:
        """What went wrong at the address that was named as the leader's."""
        return self._failed.get(self._leader)

    def fail(self, address: str, error: UnavailableError | DeadlineError) -> None:
        """An address did not do it."""
        self._failed[address] = error

    def follow(self, refusal: NotLeaderError) -> None:
        """Try the leader next that was named, if that is an address, and not for ever."""
        self.refusal = refusal
        leader = named_leader(refusal)
        if not leader or self._hops >= MAX_HOPS:
            return
        self._hops += 1
        self._leader = leader
        self._waiting.appendleft(leader)


def in_doubt(error: UnavailableError | DeadlineError, look: str) -> UnavailableError | DeadlineError:
    """The same error, which says that the change may have been stored if nobody answered in time."""
    if not isinstance(error, DeadlineError):
        return error
    return DeadlineError(
        f"{error.message}; whether the change was stored is not known",
        hint=f"it may have been stored: look with `{look}` before you ask again",
        **error.facts,
    )


def was_said(error: ShoalError) -> bool:
    """Whether a control plane itself raised it, rather than the way there."""
    return "address" not in error.facts
