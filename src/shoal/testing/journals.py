"""A journal of a coordination tree in memory, which fails on command."""

from __future__ import annotations

from shoal.core.errors import UnavailableError
from shoal.discovery.embedded.tree import Changes, Node, Session


class MemoryJournal:
    """Implements `shoal.discovery.embedded.owner.Journal`. What it holds outlives the owners of the tree."""

    def __init__(self) -> None:
        self._order = 0
        self._nodes: dict[str, Node] = {}
        self._sessions: dict[str, Session] = {}
        self._failures: list[bool] = []

    def fail_next(self, *, stored: bool) -> None:
        """The next append raises an error; whether the changes are stored all the same is `stored`."""
        self._failures.append(stored)

    async def load(self) -> Changes:
        """Everything that is stored."""
        return Changes(self._order, put=tuple(self._nodes.values()), opened=tuple(self._sessions.values()))

    async def append(self, changes: Changes) -> None:
        """Store changes."""
        stored = self._failures.pop(0) if self._failures else None
        if stored is not False:
            self._order = changes.order
            self._sessions |= {each.session_id: each for each in changes.opened}
            self._nodes |= {each.path: each for each in changes.put}
            for path in changes.removed:
                del self._nodes[path]
            for session_id in changes.ended:
                del self._sessions[session_id]
        if stored is not None:
            raise UnavailableError("the journal cannot be written, as told")
