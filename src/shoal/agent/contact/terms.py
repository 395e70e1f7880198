"""Which leadership of the control plane this agent has heard of last, and that no order of an earlier one is taken.

A control plane that led and was stopped may wake and go on where it was; the store takes nothing from it any more, and
neither does an agent that has heard of its successor. Remembered on disk, so that a restarted agent is no easier to
fool. Heard by `shoal.agent.contact.registration` (answers to beats), which is told of what comes from elsewhere
(`on_newer`), and by `shoal.agent.service` (orders).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from shoal.core.errors import StaleTermError

log = logging.getLogger(__name__)

Remember = Callable[[int], Awaitable[None]]


class Terms:
    """The highest term so far."""

    def __init__(self, highest: int, remember: Remember) -> None:
        self._highest = highest
        self._remembered = highest
        self._remember = remember
        #: Called with a term that is newer than any before, and who spoke for it.
        self.on_newer: Callable[[int, str], None] = _ignore

    @property
    def highest(self) -> int:
        """The highest term that was heard of; 0 before there was one."""
        return self._highest

    async def hear(self, term: int, *, of: str) -> None:
        """Somebody speaks for a term; `of` is its address. Raises `StaleTermError` when it is over.

        A control plane of the published contract has none, which is 0 here. A new term is on disk when this returns;
        raises what the disk says when that cannot be, and the term counts all the same.
        """
        if term <= 0:
            return
        if term < self._highest:
            raise StaleTermError(offered=term, highest=self._highest)
        if term > self._highest:
            log.info("term %d of the control plane has begun", term)
            self._highest = term
            self.on_newer(term, of)
        if self._remembered < self._highest:
            highest = self._highest
            await self._remember(highest)
            self._remembered = max(self._remembered, highest)


def _ignore(_term: int, _of: str) -> None:
    return None
