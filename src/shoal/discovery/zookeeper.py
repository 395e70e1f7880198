"""A coordination tree on ZooKeeper, through kazoo.

kazoo runs its own threads. Its callbacks do one thing: hand what they got to the event loop (`call_soon_threadsafe`).
Everything else here happens on the loop. kazoo's watches fire once; a watch here reads again, and arms again, after
each of them and after each connect.

    store = ZookeeperStore(ZookeeperSettings("10.0.0.1:2181,10.0.0.2:2181", auth=auth_from(os.environ)))
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import EventType, KazooState, KeeperState

from shoal.core.errors import DeniedError, InvalidError, PreconditionError, ShoalError, UnavailableError, problem
from shoal.core.tasks import Signal, TaskScope
from shoal.discovery.errors import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError, SessionLostError
from shoal.discovery.store import (
    ROOT,
    NodeStat,
    NodeValue,
    SessionState,
    Watch,
    check_data,
    check_delete,
    check_path,
    join,
)
from shoal.discovery.watching import Followers

log = logging.getLogger(__name__)
#: kazoo would log every attempt to connect, for as long as no server answers. The store logs changes of its state.
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.ERROR)

AUTH_VARIABLE = "ZK_AUTH"

#: How many watched nodes are read at a time after a connect.
_READS = 64
#: How long to wait before a node is read again whose read failed, and before a client is replaced that ended by itself.
_PAUSE = 1.0

_DATA, _CHILDREN = "data", "children"
_STATES = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}


_WORDS = {
    SessionState.CONNECTED: "connected",
    SessionState.SUSPENDED: "the connection is lost; the session goes on until its timeout",
    SessionState.LOST: "the session is over",
}


@dataclass(frozen=True, slots=True)
class ZookeeperSettings:
    """How a store talks to ZooKeeper."""

    #: Servers as `host:port`, with commas between them. A path after the last one is the root of the tree; the first
    #: node that is written makes it.
    hosts: str
    #: After this time without a connection the servers end the session. They may choose another time.
    session_timeout: timedelta = timedelta(seconds=10)
    #: How long `open` waits for a connection, and a call for its answer.
    call_timeout: timedelta = timedelta(seconds=10)
    #: `user:password` of the digest scheme, or empty. Never shown.
    auth: str = field(default="", repr=False)


def auth_from(environment: Mapping[str, str]) -> str:
    """The digest credentials in `ZK_AUTH`, or an empty string. Raises `InvalidError`, which never shows them."""
    auth = environment.get(AUTH_VARIABLE, "")
    if auth and not all(auth.partition(":")):
        raise InvalidError([problem(AUTH_VARIABLE, None, "must be user:password")])
    return auth


class ZookeeperStore:
    """One client of ZooKeeper. Implements `CoordinationStore`."""

    def __init__(self, settings: ZookeeperSettings) -> None:
        self._settings = settings
        self._client: Any = None
        self._state = SessionState.LOST
        self._session_id = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scope = TaskScope("ZooKeeper session")
        self._connected = asyncio.Event()
        self._calls: set[asyncio.Future[Any]] = set()
        self._states: Followers[SessionState] = Followers()
        self._data: Followers[NodeValue | None] = Followers(lambda path: self._unfollow(_DATA, path))
        self._children: Followers[tuple[str, ...] | None] = Followers(lambda path: self._unfollow(_CHILDREN, path))
        #: For each followed thing the one function that kazoo gets: it keeps a set of them, which so stays small.
        self._fired: dict[tuple[str, str], Callable[[Any], None]] = {}
        self._dirty: dict[tuple[str, str], None] = {}
        self._dirty_set = Signal()

    # ------------------------------------------------------------------------------------------------
    # The session

    @property
    def state(self) -> SessionState:
        """The state of the session."""
        return self._state

    @property
    def session_id(self) -> str:
        """The id of the session in hexadecimal digits, or an empty string."""
        return self._session_id

    async def open(self) -> None:
        """Connect and begin a session. Raises `UnavailableError` when no server answers in time."""
        self._loop = asyncio.get_running_loop()
        self._scope = TaskScope("ZooKeeper session")
        self._scope.start(self._follow_changes(), name="watches")
        self._start_client()
        try:
            async with asyncio.timeout(self._settings.call_timeout.total_seconds()):
                await self._connected.wait()
        except TimeoutError:
            await self.close()
            raise UnavailableError(f"no ZooKeeper answers at {self._settings.hosts}") from None

    async def close(self) -> None:
        """End the session and every watch."""
        client, self._client = self._client, None
        if client is None:
            return
        await self._scope.close()
        self._end_calls()
        await _stop(client)
        self._become(SessionState.LOST, "")
        self._data.close()
        self._children.close()
        self._states.close()

    def _start_client(self) -> None:
        seconds = self._settings.session_timeout.total_seconds()
        client = KazooClient(
            hosts=self._settings.hosts,
            timeout=seconds,
            auth_data=self._auth(),
            # A session that can be saved is saved: the pauses between two attempts stay well below its timeout.
            logger=_kazoo_log,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": min(1.0, seconds / 8)},
        )
        loop = self._loop

        def listen(_state: str) -> None:
            """Runs in a thread of kazoo."""
            known = client.client_id
            final = client.client_state in {KeeperState.CLOSED, KeeperState.AUTH_FAILED}
            _hand_over(loop, lambda: self._state_changed(client, _state, known, final=final))

        client.add_listener(listen)
        self._client = client
        client.start_async()

    def _auth(self) -> list[tuple[str, str]] | None:
        return [("digest", self._settings.auth)] if self._settings.auth else None

    def _state_changed(self, client: Any, kazoo_state: str, known: tuple[int, bytes] | None, *, final: bool) -> None:
        if client is not self._client:
            return
        state = _STATES[kazoo_state]
        session_id = _hex(known[0]) if known else self._session_id  # kazoo tells it only while it is connected
        self._become(state, "" if state is SessionState.LOST else session_id)
        if state is SessionState.LOST and final:
            self._scope.start(self._replace(client), name="replace client")

    async def _replace(self, client: Any) -> None:
        """Start a new client after one that ended by itself. kazoo does so on some errors, for good."""
        await _stop(client)
        await asyncio.sleep(_PAUSE)
        self._start_client()

    def _become(self, state: SessionState, session_id: str) -> None:
        self._session_id = session_id
        if state is self._state:
            return
        self._state = state
        if self._client is not None:  # else it is closed
            level = logging.INFO if state is SessionState.CONNECTED else logging.WARNING
            log.log(level, "ZooKeeper at %s: %s", self._settings.hosts, _WORDS[state])
        if state is SessionState.CONNECTED:
            self._connected.set()
            self._dirty.update(dict.fromkeys(self._fired))
            self._dirty_set.set()
        else:
            self._connected.clear()
            self._end_calls()
        for follower in self._states.of("state"):
            follower.deliver(state)

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
        made: str = await self._below_root(
            path,
            lambda client: client.create_async(path, data, ephemeral=ephemeral, sequence=sequential, makepath=makepath),
        )
        return made

    async def ensure_path(self, path: str) -> None:
        """Create what a path lacks."""
        check_path(path)
        await self._below_root(path, lambda client: client.ensure_path_async(path))

    async def get(self, path: str) -> NodeValue:
        """Read a node."""
        check_path(path)
        data, stat = await self._call(path, lambda client: client.get_async(path))
        return NodeValue(data, _stat(stat))

    async def exists(self, path: str) -> NodeStat | None:
        """The facts about a node, or None."""
        check_path(path)
        stat = await self._call(path, lambda client: client.exists_async(path))
        return _stat(stat) if stat is not None else None

    async def children(self, path: str) -> tuple[str, ...]:
        """The sorted names of the children."""
        check_path(path)
        return tuple(sorted(await self._call(path, lambda client: client.get_children_async(path))))

    async def set(self, path: str, data: bytes, *, version: int = -1) -> NodeStat:
        """Replace the data of a node."""
        check_data(check_path(path), data)
        return _stat(await self._call(path, lambda client: client.set_async(path, data, version), version=version))

    async def take_over(self, path: str, data: bytes, *, version: int) -> None:
        """Replace a node by an ephemeral one of this session."""
        check_data(check_path(path), data)

        def start(client: Any) -> Any:
            transaction = client.transaction()
            transaction.delete(path, version)
            transaction.create(path, data, ephemeral=True)
            return transaction.commit_async()

        for result in await self._call(path, start):
            # The others of a transaction say only that one of them failed.
            if isinstance(result, Exception) and not isinstance(result, zk.RolledBackError | zk.RuntimeInconsistency):
                raise _error(result, path, version, self._session_id)

    async def delete(self, path: str, *, version: int = -1, recursive: bool = False) -> None:
        """Delete a node."""
        check_delete(path, version=version, recursive=recursive)
        while True:
            try:
                await self._call(path, lambda client: client.delete_async(path, version), version=version)
            except NotEmptyError:
                if not recursive:
                    raise
                with contextlib.suppress(NoNodeError):
                    await self._delete_below(path)
            else:
                return

    async def _delete_below(self, path: str) -> None:
        for name in await self.children(path):
            with contextlib.suppress(NoNodeError):
                await self.delete(join(path, name), recursive=True)

    async def _below_root(self, path: str, start: Callable[[Any], Any]) -> Any:
        """A call that creates nodes, and the root of the tree if that is a path that is not there."""
        try:
            return await self._call(path, start)
        except NoNodeError:
            hosts, slash, root = self._settings.hosts.partition("/")
            if not slash or await self.exists(ROOT) is not None:
                raise
        try:
            await asyncio.to_thread(self._make_root, hosts, slash + root)
        except (zk.KazooException, KazooTimeoutError, OSError) as error:
            raise _error(error, slash + root, -1, self._session_id) from error
        return await self._call(path, start)

    def _make_root(self, hosts: str, root: str) -> None:
        """Runs in a thread, with a client that sees the whole ensemble."""
        client = KazooClient(hosts=hosts, auth_data=self._auth(), logger=_kazoo_log)
        try:
            client.start(timeout=self._settings.call_timeout.total_seconds())
            client.ensure_path(root)
        finally:
            client.stop()
            client.close()

    async def _call(self, path: str, start: Callable[[Any], Any], *, version: int = -1) -> Any:
        """Start a call of kazoo, wait for its result, and raise what it raised as one of our errors."""
        if self._state is SessionState.LOST:
            raise SessionLostError(self._session_id)
        if self._state is SessionState.SUSPENDED:
            raise UnavailableError("the connection to ZooKeeper is lost", session_id=self._session_id)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._calls.add(answer)

        def finished(result: Any) -> None:
            """Runs in a thread of kazoo."""
            _hand_over(loop, lambda: _settle(answer, result))

        try:
            start(self._client).rawlink(finished)
            async with asyncio.timeout(self._settings.call_timeout.total_seconds()):
                return await answer
        except TimeoutError:
            raise UnavailableError(f"ZooKeeper did not answer in time; node {path!r} may have changed") from None
        except (zk.KazooException, OSError) as error:
            raise _error(error, path, version, self._session_id) from error
        finally:
            self._calls.discard(answer)

    def _end_calls(self) -> None:
        """Answer the calls that wait: kazoo may have lost them with the connection."""
        for answer in self._calls:
            _fail(answer, zk.ConnectionLoss())

    # ------------------------------------------------------------------------------------------------
    # Watches

    def watch_data(self, path: str, changed: Callable[[NodeValue | None], None]) -> Watch:
        """Follow the value of a node."""
        follower = self._data.add(check_path(path), changed)
        self._follow(_DATA, path)
        return follower

    def watch_children(self, path: str, changed: Callable[[tuple[str, ...] | None], None]) -> Watch:
        """Follow the names below a node."""
        follower = self._children.add(check_path(path), changed)
        self._follow(_CHILDREN, path)
        return follower

    def on_state(self, changed: Callable[[SessionState], None]) -> Watch:
        """Follow the state of the session."""
        return self._states.add("state", changed)

    def _follow(self, kind: str, path: str) -> None:
        key = (kind, path)

        def fired(event: Any) -> None:
            """Runs in a thread of kazoo. What kazoo says of its own state is heard elsewhere."""
            if event.type != EventType.NONE:
                _hand_over(self._loop, lambda: self._touched(key))

        self._fired.setdefault(key, fired)
        self._touched(key)

    def _unfollow(self, kind: str, path: str) -> None:
        self._fired.pop((kind, path), None)
        self._dirty.pop((kind, path), None)

    def _touched(self, key: tuple[str, str]) -> None:
        if key in self._fired:
            self._dirty[key] = None
            self._dirty_set.set()

    async def _follow_changes(self) -> None:
        """Read what changed, and deliver it."""
        while True:
            await self._dirty_set.wait()
            while self._dirty:
                await self._connected.wait()
                batch = list(self._dirty)[:_READS]
                for key in batch:
                    self._dirty.pop(key, None)
                read = await asyncio.gather(*(self._refresh(*key) for key in batch))
                if not all(read) and self._state is SessionState.CONNECTED:
                    await asyncio.sleep(_PAUSE)

    async def _refresh(self, kind: str, path: str) -> bool:
        """Read one thing, arm its watch and deliver it. False when it must be read again."""
        fired = self._fired.get((kind, path))
        if fired is None:
            return True
        try:
            if kind == _DATA:
                value = await self._read(path, fired, lambda client: client.get_async(path, fired))
                for data in self._data.of(path):
                    data.deliver(value and NodeValue(value[0], _stat(value[1])))
            else:
                names = await self._read(path, fired, lambda client: client.get_children_async(path, fired))
                for children in self._children.of(path):
                    children.deliver(None if names is None else tuple(sorted(names)))
        except UnavailableError:
            self._touched((kind, path))
            return False
        except ShoalError as error:
            log.warning("node %r cannot be watched: %s", path, error.message)
        return True

    async def _read(self, path: str, fired: Callable[[Any], None], read: Callable[[Any], Any]) -> Any:
        """What `read` gives, or None when there is no node; then its creation fires the watch."""
        while True:
            with contextlib.suppress(NoNodeError):
                return await self._call(path, read)
            if await self._call(path, lambda client: client.exists_async(path, fired)) is None:
                return None


async def _stop(client: Any) -> None:
    def stop() -> None:
        client.stop()
        client.close()

    try:
        await asyncio.to_thread(stop)
    except (zk.KazooException, OSError) as error:
        log.warning("the ZooKeeper client did not stop in time; its session will expire: %r", error)


def _hand_over(loop: asyncio.AbstractEventLoop | None, work: Callable[[], None]) -> None:
    """Run something on the loop. A closed loop needs nothing."""
    if loop is not None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(work)


def _settle(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():
        return
    if result.successful():
        answer.set_result(result.get_nowait())
    else:
        _fail(answer, result.exception)


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)


def _hex(number: int) -> str:
    return f"{number & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def _stat(stat: Any) -> NodeStat:
    owner = _hex(stat.ephemeralOwner) if stat.ephemeralOwner else ""
    return NodeStat(version=stat.version, owner=owner, created=stat.czxid, modified=stat.mzxid)


#: Errors that say the same of a node.
_OF_NODE: dict[type[Exception], Callable[[str], ShoalError]] = {
    zk.NoNodeError: NoNodeError,
    zk.NodeExistsError: NodeExistsError,
    zk.NotEmptyError: NotEmptyError,
    zk.NoChildrenForEphemeralsError: lambda path: PreconditionError(
        "an ephemeral node cannot have children", path=path
    ),
    zk.NoAuthError: lambda path: DeniedError(
        f"ZooKeeper does not allow this on node {path!r}", hint=f"set {AUTH_VARIABLE} to user:password"
    ),
    zk.BadArgumentsError: lambda path: InvalidError([problem("path", path, "ZooKeeper refuses it")]),
}


def _error(error: Exception, path: str, version: int, session_id: str) -> ShoalError:
    """The error of ours that says the same."""
    if type(error) in _OF_NODE:
        return _OF_NODE[type(error)](path)
    if isinstance(error, zk.BadVersionError):
        return BadVersionError(path, expected=version)
    if isinstance(error, zk.SessionExpiredError | zk.ConnectionClosedError):
        return SessionLostError(session_id)
    return UnavailableError(f"ZooKeeper cannot be reached: {type(error).__name__}", path=path)
