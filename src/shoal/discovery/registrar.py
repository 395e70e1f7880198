"""Keeps registrations true: "these nodes exist while I live".

A `Registrar` owns ephemeral nodes of one store. It creates them, restores them after a session is lost, and puts back
what others removed or changed. It acts on differences only: a node that is as desired is left alone, so that nothing
flaps. It learns what a node holds from its watch alone: after a write it knows nothing of the node until the watch has
delivered again. Called by everything that announces itself in the tree.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from shoal.core.errors import ShoalError
from shoal.core.tasks import Signal, TaskScope
from shoal.discovery.errors import BadVersionError, NodeExistsError, NoNodeError
from shoal.discovery.store import CoordinationStore, NodeValue, SessionState, Watch, check_data, check_path

log = logging.getLogger(__name__)

#: How long to wait before what failed is tried again, in seconds: at first, and at most.
FIRST_PAUSE, LAST_PAUSE = 0.2, 5.0
#: How many nodes are changed at a time.
_AT_ONCE = 32


@dataclass(slots=True)
class _Registration:
    """One node: what it should hold, and what the watch delivered last."""

    data: bytes
    watch: Watch
    seen: NodeValue | None = None
    #: Whether `seen` is what the node holds, as far as we know: the watch has delivered it, and we wrote nothing since.
    known: bool = False
    #: Whether the node was ours. Until then, a node of another session is taken for one of our own previous life.
    was_ours: bool = False
    warned: bool = False
    rank: int = 0


class Registrar:
    """A set of ephemeral nodes that should exist.

    `register` and `withdraw` say what should be and return at once; `settled` waits until it is. A node of another
    session in the same place is replaced when it is there first, as after a restart of this process. If another session
    replaces ours later, two processes claim one place: this one says so in its log and waits until the node is gone.
    """

    def __init__(self, store: CoordinationStore) -> None:
        self._store = store
        self._wanted: dict[str, _Registration] = {}
        self._leaving: set[str] = set()
        #: The sessions of this store. A node of an earlier one is ours to replace.
        self._sessions: deque[str] = deque(maxlen=16)
        self._changes = 0
        self._wake = Signal()
        self._settled = asyncio.Event()
        self._scope = TaskScope("registrar")
        self._state_watch: Watch | None = None

    def start(self) -> None:
        """Begin to act. The store may be opened before or afterwards."""
        self._state_watch = self._store.on_state(lambda _state: self._changed())
        self._scope.start(self._run(), name="registrations")
        self._changed()

    async def failed(self) -> None:
        """Wait until it cannot go on. Raises the reason, which is no error of the tree: those are tried again."""
        await self._scope.failed()

    async def close(self) -> None:
        """Withdraw everything, if the tree can be reached, and stop."""
        for path in self.paths:
            self.withdraw(path)
        await self._scope.close()
        if self._state_watch is not None:
            self._state_watch.close()
        if self._store.state is SessionState.CONNECTED:
            await self._reconcile()

    def register(self, path: str, data: bytes = b"", *, rank: int = 0) -> None:
        """This node should exist, with this data. Called again for a path, it replaces the data.

        A node is written when those of lower ranks are in place, in every session.
        """
        check_data(check_path(path), data)
        registration = self._wanted.get(path)
        if registration is None:
            watch = self._store.watch_data(path, lambda value: self._saw(path, value))
            self._wanted[path] = _Registration(data, watch, rank=rank)
        else:
            registration.data, registration.rank = data, rank
        self._leaving.discard(path)
        self._changed()

    def withdraw(self, path: str) -> None:
        """This node should no longer exist."""
        registration = self._wanted.pop(path, None)
        if registration is not None:
            registration.watch.close()
            self._leaving.add(path)
            self._changed()

    @property
    def paths(self) -> tuple[str, ...]:
        """What should exist, sorted."""
        return tuple(sorted(self._wanted))

    async def settled(self) -> None:
        """Wait until every node is as it should be."""
        await self._settled.wait()

    # ------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._changes += 1
        self._settled.clear()
        self._wake.set()

    def _saw(self, path: str, value: NodeValue | None) -> None:
        registration = self._wanted.get(path)
        if registration is not None:
            registration.seen, registration.known = value, True
            self._changed()

    async def _run(self) -> None:
        pause: float | None = None
        while True:
            await self._wake.wait(pause)
            if self._store.state is not SessionState.CONNECTED:
                pause = None  # the next state wakes us
            elif await self._reconcile():
                pause = None
            else:
                pause = FIRST_PAUSE if pause is None else min(pause * 2, LAST_PAUSE)

    async def _reconcile(self) -> bool:
        """Make every node as it should be. False when something failed and must be tried again."""
        changes = self._changes
        if self._store.session_id not in self._sessions:
            self._sessions.append(self._store.session_id)
        wanted, leaving = dict(self._wanted), sorted(self._leaving)
        results = await self._do([partial(self._remove, path) for path in leaving])
        for rank in sorted({each.rank for each in wanted.values()}):
            ranked = {path: each for path, each in wanted.items() if each.rank == rank}
            results += await self._do([partial(self._put, path, each) for path, each in ranked.items()])
            if not all(self._is_ours(each) or each.warned for each in ranked.values()):
                results.append(False)
                break
        errors = [each for each in results if isinstance(each, BaseException)]
        for error in errors:
            if not isinstance(error, ShoalError):
                raise error
        if errors:
            count = len(wanted) + len(leaving)
            log.warning("%d of %d registrations are not in place yet: %s", len(errors), count, errors[0])
        elif all(results) and changes == self._changes:
            self._settled.set()
        return not errors

    async def _do(self, work: Sequence[Callable[[], Awaitable[bool]]]) -> list[bool | BaseException]:
        """Begin all of this, some at a time, and return what became of it."""
        results: list[bool | BaseException] = []
        for start in range(0, len(work), _AT_ONCE):
            part = work[start : start + _AT_ONCE]
            results += await asyncio.gather(*(begin() for begin in part), return_exceptions=True)
        return results

    def _is_ours(self, registration: _Registration) -> bool:
        seen = registration.seen
        return registration.known and seen is not None and seen.stat.owner == self._store.session_id

    async def _put(self, path: str, registration: _Registration) -> bool:
        """Make one node as it should be. False when it is not known to be: the watch shows it later, and wakes us."""
        if not registration.known:
            return False
        seen = registration.seen
        if seen is not None and self._is_ours(registration):
            registration.was_ours = True
            if seen.data == registration.data:
                return True
        elif seen is not None and registration.was_ours and seen.stat.owner not in self._sessions:
            if not registration.warned:
                log.warning("node %r was taken over by session %s; waiting for its end", path, seen.stat.owner)
                registration.warned = True
            return False
        await self._write(path, registration)
        return False

    async def _write(self, path: str, registration: _Registration) -> None:
        """Create the node, take it over, or replace its data.

        What the watch delivers from here on may be what came of it. It delivers something: either the node is changed
        now, or somebody else changed it before.
        """
        seen, ours, registration.known = registration.seen, self._is_ours(registration), False
        outdated = (NodeExistsError,) if seen is None else (NoNodeError, BadVersionError)
        try:
            if seen is None:
                await self._store.create(path, registration.data, ephemeral=True, makepath=True)
            elif ours:
                await self._store.set(path, registration.data)
            else:
                await self._store.take_over(path, registration.data, version=seen.stat.version)
        except outdated:
            return
        except ShoalError:
            registration.known = True  # nothing may have changed, so that the watch stays silent
            raise
        registration.was_ours, registration.warned = True, False

    async def _remove(self, path: str) -> bool:
        """Remove a node that is ours."""
        with contextlib.suppress(NoNodeError):
            value = await self._store.get(path)
            if value.stat.owner in self._sessions:
                await self._store.delete(path, version=value.stat.version)
        self._leaving.discard(path)
        return True
