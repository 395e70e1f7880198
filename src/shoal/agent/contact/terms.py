"""Remembers the highest term of a leader, on disk, and refuses commands of earlier terms.

A leader that was stopped may wake after another one was elected. The store refuses its writes, and an agent that has
heard of the newer term refuses its commands, also after a restart of the agent. Terms come from
`shoal.agent.contact.registration` (answers to heartbeats) and `shoal.agent.service` (commands); listeners are
told of a newer term.
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
        self._listeners: list[Callable[[int, str], None]] = []

    @property
    def highest(self) -> int:
        """The highest term that was heard of; 0 before there was one."""
        return self._highest

    def on_newer(self, listener: Callable[[int, str], None]) -> None:
        """Call `listener` with each newer term and the address that named it."""
        self._listeners.append(listener)

    async def hear(self, term: int, *, of: str) -> None:
        """A control plane at the address `of` names its term. Raises `StaleTermError` for an earlier one.

        A control plane of the published contract has no terms: that is 0. A new term is on disk when this returns. If
        it cannot be stored, this raises, and the term counts all the same.
        """
        if term <= 0:
            return
        if term < self._highest:
            raise StaleTermError(offered=term, highest=self._highest)
        if term > self._highest:
            log.info("term %d of the control plane has begun", term)
            self._highest = term
            for listener in self._listeners:
                listener(term, of)
        if self._remembered < self._highest:
            highest = self._highest
            await self._remember(highest)
            self._remembered = max(self._remembered, highest)
