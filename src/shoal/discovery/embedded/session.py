"""A client of a tree in the same process.

It is also the double for tests: connections break and sessions expire on command (`suspend`, `resume`, `expire`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from shoal.core.errors import UnavailableError
from shoal.core.tasks import TaskScope
from shoal.discovery.embedded.owner import SESSION, TreeOwner
from shoal.discovery.embedded.tree import Changes
from shoal.discovery.embedded.watches import TreeWatches
from shoal.discovery.errors import SessionLostError
from shoal.discovery.store import (
    NodeStat,
    NodeValue,
    SessionState,
    Watch,
    check_data,
    check_delete,
    check_path,
)
from shoal.discovery.watching import Follower, Followers

SESSION_TIMEOUT = timedelta(seconds=10)


class EmbeddedTree(TreeOwner):
    """A tree in this process. Give it a clock, and ask it for stores."""

    def session(self, timeout: timedelta = SESSION_TIMEOUT) -> EmbeddedStore:
        """A store of its own session; `open` begins it."""
        return EmbeddedStore(self, timeout)


class EmbeddedStore:
    """One client. Implements `CoordinationStore`."""

    def __init__(self, owner: TreeOwner, timeout: timedelta) -> None:
        self._owner = owner
        self._timeout = timeout
        self._session_id = ""
        self._state = SessionState.LOST
        self._closed = True
        self._scope = TaskScope("coordination session")
        self._states: Followers[SessionState] = Followers()
        self._watches = TreeWatches(owner, paused=True)
        self._session_watch: Follower[int] | None = None

    # ------------------------------------------------------------------------------------------------
    # The session

    @property
    def state(self) -> SessionState:
        """The state of the session."""
        return self._state

    @property
    def session_id(self) -> str:
        """The id of the session, or an empty string."""
        return self._session_id

    async def open(self) -> None:
        """Begin a session."""
        self._closed = False
        self._scope = TaskScope("coordination session")
        await self._begin()

    async def close(self) -> None:
        """End the session and every watch. A suspended one cannot say so: it expires."""
        if self._closed:
            return
        self._closed = True
        await self._scope.close()
        self._forget_session()
        session_id, connected = self._session_id, self._state is SessionState.CONNECTED
        self._session_id = ""
        if connected:
            await self._owner.end_session(session_id)
        self._become(SessionState.LOST)
        self._watches.close()
        self._states.close()

    def suspend(self) -> None:
        """Break the connection. The session expires unless `resume` follows within its timeout."""
        if self._state is SessionState.CONNECTED:
            self._owner.expect(self._session_id)
            self._become(SessionState.SUSPENDED)

    def resume(self) -> None:
        """Restore the connection. A session that expired meanwhile is lost, and a new one begins."""
        if self._state is not SessionState.SUSPENDED:
            return
        if self._session_id in self._owner.tree.sessions:
            self._owner.keep(self._session_id)
            self._become(SessionState.CONNECTED)
        else:
            self._lost()

    async def expire(self) -> None:
        """End the session as the server does when it did not hear of it in time."""
        await self._owner.end_session(self._session_id)

    async def _begin(self) -> None:
        self._session_id = await self._owner.open_session(self._timeout)
        self._session_watch = self._owner.followers.add((SESSION, self._session_id), lambda _order: self._ended())
        self._become(SessionState.CONNECTED)

    def _ended(self) -> None:
        """The tree ended the session. A client without a connection learns it when it has one again."""
        if self._state is SessionState.CONNECTED and not self._closed:
            self._lost()

    def _lost(self) -> None:
        self._forget_session()
        self._session_id = ""
        self._become(SessionState.LOST)
        if not self._closed:
            self._scope.start(self._begin(), name="new session")

    def _forget_session(self) -> None:
        if self._session_watch is not None:
            self._session_watch.close()
            self._session_watch = None

    def _become(self, state: SessionState) -> None:
        if state is self._state:
            return
        self._state = state
        for follower in self._states.of("state"):
            follower.deliver(state)
        if state is SessionState.CONNECTED:
            self._watches.resume()
        else:
            self._watches.pause()

    def _connected(self) -> str:
        """The id of the session, if calls work."""
        if self._state is SessionState.SUSPENDED:
            raise UnavailableError("the connection to the coordination tree is lost", session_id=self._session_id)
        if self._state is SessionState.LOST:
            raise SessionLostError(self._session_id)
        return self._session_id

    # ------------------------------------------------------------------------------------------------
    # Nodes

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        makepath: bool = False,
    ) -> str:
        """Create a node and return its path."""
        check_data(check_path(path), data)
        session_id = self._connected()
        return await self._owner.change(
            lambda: self._owner.tree.create(
                path, data, session_id=session_id, ephemeral=ephemeral, sequential=sequential, makepath=makepath
            )
        )

    async def ensure_path(self, path: str) -> None:
        """Create what a path lacks."""
        check_path(path)
        session_id = self._connected()
        await self._owner.change(lambda: (None, self._owner.tree.ensure_path(path, session_id=session_id)))

    async def get(self, path: str) -> NodeValue:
        """Read a node."""
        check_path(path)
        self._connected()
        return self._owner.tree.get(path)

    async def exists(self, path: str) -> NodeStat | None:
        """The facts about a node, or None."""
        check_path(path)
        self._connected()
        value = self._owner.tree.find(path)
        return value.stat if value else None

    async def children(self, path: str) -> tuple[str, ...]:
        """The sorted names of the children."""
        check_path(path)
        self._connected()
        return self._owner.tree.children(path)

    async def set(self, path: str, data: bytes, *, version: int = -1) -> NodeStat:
        """Replace the data of a node."""
        check_data(check_path(path), data)
        session_id = self._connected()

        def decide() -> tuple[NodeStat, Changes]:
            changes = self._owner.tree.set(path, data, version=version, session_id=session_id)
            return changes.put[0].value.stat, changes

        return await self._owner.change(decide)

    async def take_over(self, path: str, data: bytes, *, version: int) -> None:
        """Replace a node by an ephemeral one of this session."""
        check_data(check_path(path), data)
        session_id = self._connected()
        await self._owner.change(
            lambda: (None, self._owner.tree.take_over(path, data, version=version, session_id=session_id))
        )

    async def delete(self, path: str, *, version: int = -1, recursive: bool = False) -> None:
        """Delete a node."""
        check_delete(path, version=version, recursive=recursive)
        session_id = self._connected()
        await self._owner.change(
            lambda: (
                None,
                self._owner.tree.delete(path, version=version, recursive=recursive, session_id=session_id),
            )
        )

    # ------------------------------------------------------------------------------------------------
    # Watches

    def watch_data(self, path: str, changed: Callable[[NodeValue | None], None]) -> Watch:
        """Follow the value of a node."""
        return self._watches.watch_data(path, changed)

    def watch_children(self, path: str, changed: Callable[[tuple[str, ...] | None], None]) -> Watch:
        """Follow the names below a node."""
        return self._watches.watch_children(path, changed)

    def on_state(self, changed: Callable[[SessionState], None]) -> Watch:
        """Follow the state of the session."""
        return self._states.add("state", changed)
