"""Owns a tree: one change at a time, watchers are woken, sessions that are not heard of expire.

Called by `session.py`. The clock is an argument: under a loop in virtual time everything is deterministic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from shoal.core.clock import Clock
from shoal.core.tasks import Signal, TaskScope
from shoal.discovery.embedded.tree import Changes, Session, Tree
from shoal.discovery.store import parent_of
from shoal.discovery.watching import Followers

T = TypeVar("T")

#: What can be followed: the data of a node, the names below it, the end of a session.
DATA, CHILDREN, SESSION = "data", "children", "session"


class TreeOwner:
    """A tree and its sessions."""

    def __init__(self, clock: Clock) -> None:
        self.tree = Tree()
        #: Functions by (what, path or session id). They get the order number of the change.
        self.followers: Followers[int] = Followers()
        self._clock = clock
        self._lock = asyncio.Lock()
        self._deadlines: dict[str, float] = {}
        self._deadline_set = Signal()
        self._scope = TaskScope("coordination tree")
        self._expiry: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop expiring sessions."""
        await self._scope.close()

    # ------------------------------------------------------------------------------------------------
    # Sessions

    async def open_session(self, timeout: timedelta) -> str:
        """Begin a session. It lives until it is ended, or until a deadline that `expect` set has passed."""

        def decide() -> tuple[str, Changes]:
            session_id = f"{self.tree.order + 1:016x}"
            return session_id, self.tree.open_session(Session(session_id, timeout))

        return await self.change(decide)

    async def end_session(self, session_id: str) -> None:
        """End a session, and remove its ephemeral nodes."""
        self._deadlines.pop(session_id, None)
        await self.change(lambda: (None, self.tree.end_session(session_id)))

    def expect(self, session_id: str) -> None:
        """The session expires unless it is heard of within its timeout from now."""
        session = self.tree.sessions.get(session_id)
        if session is None:
            return
        self._deadlines[session_id] = self._clock.monotonic() + session.timeout.total_seconds()
        self._deadline_set.set()
        if self._expiry is None:
            self._expiry = self._scope.start(self._expire(), name="expiry")

    def keep(self, session_id: str) -> None:
        """The session is connected in this process and needs no deadline."""
        self._deadlines.pop(session_id, None)

    async def _expire(self) -> None:
        while True:
            if not self._deadlines:
                await self._deadline_set.wait()
                continue
            now = self._clock.monotonic()
            session_id = min(self._deadlines, key=self._deadlines.__getitem__)
            if self._deadlines[session_id] > now:
                await self._deadline_set.wait(self._deadlines[session_id] - now)
                continue
            await self.end_session(session_id)

    # ------------------------------------------------------------------------------------------------
    # Changes

    async def change(self, decide: Callable[[], tuple[T, Changes]]) -> T:
        """Decide on the tree as it is, apply the changes, and wake those who follow them."""
        async with self._lock:
            result, changes = decide()
            if changes.order != self.tree.order:
                self._apply(changes)
        return result

    def _apply(self, changes: Changes) -> None:
        before = self.tree.nodes.keys()
        touched: dict[tuple[str, str], None] = {}
        for node in changes.put:
            touched[DATA, node.path] = None
            if node.path not in before:
                touched[CHILDREN, node.path] = None
                touched[CHILDREN, parent_of(node.path)] = None
        for path in changes.removed:
            touched[DATA, path] = None
            touched[CHILDREN, path] = None
            touched[CHILDREN, parent_of(path)] = None
        for session_id in changes.ended:
            touched[SESSION, session_id] = None
        self.tree.apply(changes)
        for key in touched:
            for follower in self.followers.of(key):
                follower.deliver(changes.order)
