"""The way of one call over several control planes: whom to ask next, and what the failures on the way amount to.

Used by `shoal.client`.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator

from shoal.core.errors import DeadlineError, InvalidError, NotLeaderError, ShoalError, UnavailableError
from shoal.wire.addresses import parse_address

MAX_HOPS = 3
"""How often one round of addresses follows the word of a control plane about who leads."""


class Route:
    """The addresses to try in one round: those of the list, and before the next of them whoever is said to lead."""

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
        """Whether another one can be asked: an address that is left, or whoever has said that it does not lead."""
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
        leader = refusal.facts.get("leader", "")
        if not leader or self._hops >= MAX_HOPS:
            return
        self._hops += 1
        with contextlib.suppress(InvalidError):
            self._leader = str(parse_address(leader))
            self._waiting.appendleft(self._leader)


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
