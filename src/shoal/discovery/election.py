"""Leader election in a coordination tree, as kazoo's `Election` recipe does it.

Each candidate has one ephemeral sequential node below the path; the lowest number leads. The names and the data are
those of kazoo (`<a token>__lock__<10 digits>`, the identifier as data), so that its candidates and ours take part
in the same election.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable

from shoal.core.entropy import Entropy
from shoal.core.errors import ShoalError
from shoal.core.tasks import Signal, TaskScope
from shoal.discovery.errors import NoNodeError
from shoal.discovery.store import CoordinationStore, SessionState, Watch, check_path, join, name_of

log = logging.getLogger(__name__)

_MARK = "__lock__"
_CANDIDATE = re.compile(rf"{_MARK}(\d{{10}})$")
_PAUSE = 1.0


def candidates_in_order(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of candidates, the leader first. Other names are left out."""
    numbered = [(match.group(1), name) for name in names if (match := _CANDIDATE.search(name))]
    return tuple(name for _, name in sorted(numbered))


class Election:
    """One candidate.

    `leads` is true while this candidate has the lowest number and its session is known to live. It turns false as soon
    as the connection is lost: the session may be over before this client can learn it.
    """

    def __init__(
        self,
        store: CoordinationStore,
        path: str,
        identifier: str,
        *,
        entropy: Entropy,
        changed: Callable[[bool], None] | None = None,
    ) -> None:
        self._store = store
        self._path = check_path(path)
        self._identifier = identifier
        # A node whose creation was not answered is found by its name, which begins with this.
        self._prefix = entropy.token(32)
        self._changed = changed
        self._names: tuple[str, ...] = ()
        self._node = ""
        self._leads = False
        self._wake = Signal()
        self._scope = TaskScope("election")
        self._watches: list[Watch] = []

    @property
    def leads(self) -> bool:
        """Whether this candidate leads."""
        return self._leads

    def start(self) -> None:
        """Take part."""
        self._watches.append(self._store.on_state(self._state_changed))
        self._watches.append(self._store.watch_children(self._path, self._saw))
        self._scope.start(self._run(), name="candidate")
        self._wake.set()

    async def close(self) -> None:
        """Take part no longer. A leader resigns."""
        await self._scope.close()
        for watch in self._watches:
            watch.close()
        self._become(leads=False)
        if self._node and self._store.state is SessionState.CONNECTED:
            with contextlib.suppress(ShoalError):
                await self._store.delete(join(self._path, self._node))
        self._node = ""

    async def candidates(self) -> tuple[str, ...]:
        """The identifiers of all candidates, the leader first."""
        found: list[str] = []
        for name in candidates_in_order(await self._store.children(self._path)):
            with contextlib.suppress(NoNodeError):
                found.append((await self._store.get(join(self._path, name))).data.decode(errors="replace"))
        return tuple(found)

    # ------------------------------------------------------------------------------------------------

    def _state_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._node = ""
        if state is not SessionState.CONNECTED:
            self._become(leads=False)
        self._wake.set()

    def _saw(self, names: tuple[str, ...] | None) -> None:
        self._names = names or ()
        self._decide()
        self._wake.set()

    def _decide(self) -> None:
        order = candidates_in_order(self._names)
        connected = self._store.state is SessionState.CONNECTED
        self._become(leads=connected and bool(self._node) and order[:1] == (self._node,))

    def _become(self, *, leads: bool) -> None:
        if leads is not self._leads:
            self._leads = leads
            if self._changed is not None:
                self._changed(leads)

    async def _run(self) -> None:
        pause: float | None = None
        while True:
            await self._wake.wait(pause)
            pause = None
            if self._store.state is not SessionState.CONNECTED:
                continue
            try:
                await self._take_part()
            except ShoalError as error:
                log.warning("candidate %r is not in the election yet: %s", self._identifier, error.message)
                pause = _PAUSE

    async def _take_part(self) -> None:
        """Have exactly one node of this session, and see who leads."""
        await self._store.ensure_path(self._path)
        names = await self._store.children(self._path)
        mine = ""
        for name in names:
            if name.startswith(self._prefix):
                stat = await self._store.exists(join(self._path, name))
                if stat is not None and stat.owner == self._store.session_id and not mine:
                    mine = name
                elif stat is not None:
                    with contextlib.suppress(NoNodeError):
                        await self._store.delete(join(self._path, name))
        if not mine:
            path = join(self._path, f"{self._prefix}{_MARK}")
            created = await self._store.create(path, self._identifier.encode(), ephemeral=True, sequential=True)
            mine, names = name_of(created), await self._store.children(self._path)
        self._node, self._names = mine, names
        self._decide()
