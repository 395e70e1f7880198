"""Owns a tree: one change at a time, stored before it is true, watchers are woken, sessions expire.

With a journal the tree survives this process: `restore` reads it, and every session has its whole timeout from then, so
that clients that come back in time lose nothing. Called by `session.py` and `serving.py`. The clock is an argument:
under a loop in virtual time everything is deterministic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Protocol, TypeVar, cast

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.core.tasks import Signal, TaskScope
from shoal.discovery.embedded.tree import Changes, Session, Tree
from shoal.discovery.store import parent_of
from shoal.discovery.watching import Followers

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How soon the end of a session is tried again that could not be stored.
_RETRY_SECONDS = 1.0
_MOMENT = 0.001

#: What can be followed: the data of a node, the names below it, the end of a session.
DATA, CHILDREN, SESSION = "data", "children", "session"


class Journal(Protocol):
    """Where a tree is stored."""

    async def load(self) -> Changes:
        """Everything that is stored."""
        ...

    async def append(self, changes: Changes) -> None:
        """Store changes, all or none; durable when it returns. After an error the tree is read again."""
        ...


class TreeOwner:
    """A tree and its sessions."""

    def __init__(self, clock: Clock, journal: Journal | None = None) -> None:
        self.tree = Tree()
        self._journal = journal
        #: A change may have been stored or not: the tree is read before the next one.
        self._doubtful = False
        #: Functions by (what, path or session id). They get a number that is new each time.
        self.followers: Followers[int] = Followers()
        self._wakes = 0
        self._clock = clock
        self._lock = asyncio.Lock()
        self._deadlines: dict[str, float] = {}
        self._deadline_set = Signal()
        self._scope = TaskScope("coordination tree")
        self._expiry: asyncio.Task[None] | None = None

    async def restore(self) -> None:
        """Read what is stored. Every session in it expires unless it is heard of within its timeout from now."""
        async with self._lock:
            await self._load()

    async def close(self) -> None:
        """Stop. The tree stays as it is, and sessions no longer expire."""
        await self._scope.close()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._scope.is_closing

    # ------------------------------------------------------------------------------------------------
    # Sessions

    async def open_session(self, timeout: timedelta, holder: str = "") -> str:
        """Begin a session. It lives until it is ended, or until a deadline that `expect` set has passed."""

        def decide() -> tuple[str, Changes]:
            session_id = f"{self.tree.order + 1:016x}"
            return session_id, self.tree.open_session(Session(session_id, timeout, holder))

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
                # At least a moment: a clock that rounds may stop short of the deadline, and never get there.
                await self._deadline_set.wait(max(self._deadlines[session_id] - now, _MOMENT))
                continue
            try:
                await self.end_session(session_id)
            except ShoalError as error:
                log.warning("session %s could not be ended yet: %s", session_id, error.message)
                self._deadlines[session_id] = now + _RETRY_SECONDS

    # ------------------------------------------------------------------------------------------------
    # Changes

    async def change(self, decide: Callable[[], tuple[T, Changes]]) -> T:
        """Decide on the tree as it is, store the changes, make them true, and wake those who follow them.

        Cancelling the caller does not undo a change that is being stored.
        """
        if self._journal is None:
            async with self._lock:
                return await self._change(decide)
        work = self._scope.start(self._outcome(decide), name="change")
        result, error = await asyncio.shield(work)
        if error is not None:
            raise error
        return cast("T", result)

    async def _outcome(self, decide: Callable[[], tuple[T, Changes]]) -> tuple[T | None, ShoalError | None]:
        try:
            async with self._lock:
                if self._doubtful:
                    await self._load()
                return await self._change(decide), None
        except ShoalError as error:
            return None, error

    async def _change(self, decide: Callable[[], tuple[T, Changes]]) -> T:
        result, changes = decide()
        if changes.order != self.tree.order:
            if self._journal is not None:
                self._doubtful = True
                await self._journal.append(changes)
                self._doubtful = False
            self._apply(changes)
        return result

    async def _load(self) -> None:
        """Replace the tree by what is stored, and wake those who follow what differs."""
        assert self._journal is not None  # noqa: S101 there is nothing to load without one
        fresh = Tree.of(await self._journal.load())
        stale, self.tree, self._doubtful = self.tree, fresh, False
        touched: dict[tuple[str, str], None] = {}
        for path in stale.nodes.keys() | fresh.nodes.keys():
            if stale.find(path) != fresh.find(path):
                touched[DATA, path] = None
            if stale.find_children(path) != fresh.find_children(path):
                touched[CHILDREN, path] = None
        for session_id in stale.sessions.keys() - fresh.sessions.keys():
            touched[SESSION, session_id] = None
            self._deadlines.pop(session_id, None)
        for session_id in fresh.sessions.keys() - stale.sessions.keys():
            self.expect(session_id)
        self._wake(touched)

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
        self._wake(touched)

    def _wake(self, touched: Iterable[tuple[str, str]]) -> None:
        self._wakes += 1
        for key in touched:
            for follower in self.followers.of(key):
                follower.deliver(self._wakes)
