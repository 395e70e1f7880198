"""A coordination tree that a control plane serves (`shoal.v1.Coordination`).

One stream is the connection; when it breaks, the store connects again and goes on with its session, at whichever of
its addresses leads. The session lives for its timeout without a connection, also while control planes restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta

from shoal.core.errors import InvalidError, NotLeaderError, ShoalError, UnavailableError, problem
from shoal.core.retry import Backoff
from shoal.core.tasks import TaskScope, first_of
from shoal.discovery.embedded import messages
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
from shoal.discovery.watching import Followers
from shoal.model.identity import CONTROL_PLANE
from shoal.wire.methods import Coordination
from shoal.wire.pb.shoal.v1 import coordination_pb2 as pb
from shoal.wire.serving import close_stream
from shoal.wire.transport import Transport

log = logging.getLogger(__name__)

SESSION_TIMEOUT = timedelta(seconds=10)
CALL_TIMEOUT = timedelta(seconds=10)

_MOMENT = 0.001
_DELAYS = Backoff(first=0.05, cap=1.0)
#: How many requests may wait to be sent. A call that finds no room fails.
_REQUESTS = 10_000


class RemoteStore:
    """One client of a served tree. Implements `CoordinationStore`.

    Args:
        transport: how to connect, and who we are.
        addresses: control planes of one cluster. One that does not lead names the one that does.
        session_timeout: how long the session lives without a connection.
        call_timeout: how long `open` waits for a connection, and a call for its answer.
    """

    def __init__(
        self,
        transport: Transport,
        addresses: Sequence[str],
        *,
        session_timeout: timedelta = SESSION_TIMEOUT,
        call_timeout: timedelta = CALL_TIMEOUT,
    ) -> None:
        if not addresses:
            raise InvalidError([problem("addresses", None, "must name a control plane")])
        self._transport = transport
        self._addresses = tuple(addresses)
        self._timeout = session_timeout
        self._call_timeout = call_timeout.total_seconds()
        self._state = SessionState.LOST
        self._session_id = ""
        self._scope: TaskScope | None = None
        self._closing = False
        self._ended = asyncio.Event()
        self._opening: asyncio.Future[None] | None = None
        #: Why the last attempt to connect failed.
        self._failure: ShoalError | None = None
        #: Requests to send: what to follow or not, and then calls in their order.
        self._follows: dict[tuple[str, bool], bool] = {}
        self._requests: deque[pb.CoordinationRequest] = deque()
        self._to_send = asyncio.Event()
        self._calls: dict[int, asyncio.Future[pb.TreeAnswer]] = {}
        self._ids = itertools.count(1)
        self._heard_at = 0.0
        self._states: Followers[SessionState] = Followers()
        self._data: Followers[NodeValue | None] = Followers(lambda path: self._unfollow(path, children=False))
        self._children: Followers[tuple[str, ...] | None] = Followers(lambda path: self._unfollow(path, children=True))
        self._followed: dict[tuple[str, bool], None] = {}

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
        """Connect and begin a session. Raises what refused it, or `UnavailableError` when nobody leads in time."""
        self._scope = TaskScope("coordination session")
        self._closing = False
        self._ended.clear()
        self._opening = asyncio.get_running_loop().create_future()
        self._scope.start(self._stay_connected(), name="connection")
        try:
            async with asyncio.timeout(self._call_timeout):
                await self._opening
        except TimeoutError:
            await self.close()
            why = f": {self._failure.message}" if self._failure is not None else ""
            hint = self._failure.hint if self._failure is not None else ""
            where = ", ".join(self._addresses)
            raise UnavailableError(f"no control plane that leads answers at {where}{why}", hint=hint) from None
        except ShoalError:
            await self.close()
            raise

    async def close(self) -> None:
        """End the session and every watch. Without a connection the session expires."""
        if self._scope is None:
            return
        self._closing = True
        if self._state is SessionState.CONNECTED:
            self._send(pb.CoordinationRequest(close=True))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._call_timeout):
                    await self._ended.wait()
        scope, self._scope = self._scope, None
        await scope.close()
        self._session_id = ""
        self._become(SessionState.LOST)
        self._data.close()
        self._children.close()
        self._states.close()

    async def _stay_connected(self) -> None:
        """Connect, again and again. A control plane that does not lead says where to go."""
        addresses = itertools.cycle(self._addresses)
        address, failures = next(addresses), 0
        while not self._closing:
            failures += 1
            try:
                await self._connect(address)
            except NotLeaderError as error:
                address = error.facts.get("leader") or next(addresses)
            except ShoalError as error:
                log.debug("no connection to %s: %s", address, error)
                self._failure = error
                address = next(addresses)
                if not error.retryable and self._opening is not None and not self._opening.done():
                    self._opening.set_exception(error)
            except Exception:
                log.exception("the connection to %s failed; it is made again", address)
            if self._state is SessionState.CONNECTED:
                failures = 1
                self._become(SessionState.SUSPENDED)
            if not self._closing:
                await asyncio.sleep(_DELAYS.plain_delay(failures))
        self._ended.set()

    async def _connect(self, address: str) -> None:
        """Use one connection until it breaks, or until the session is over."""
        timeout_ms = self._timeout // timedelta(milliseconds=1)
        opening = pb.OpenSession(session_id=self._session_id, timeout_ms=timeout_ms)
        self._requests.clear()
        self._follows = dict.fromkeys(self._followed, True)
        channel = self._transport.connect(address, peer=CONTROL_PLANE)
        try:
            answers = channel.converse(Coordination.SESSION, self._sent(opening))
            try:
                await self._converse(answers)
            finally:
                await close_stream(answers)
        finally:
            await channel.close()

    async def _converse(self, answers: AsyncIterator[pb.CoordinationResponse]) -> None:
        try:
            async with asyncio.timeout(max(self._timeout.total_seconds() * 2 / 3, 1.0)):
                first = await anext(answers, pb.CoordinationResponse())
        except TimeoutError:
            raise UnavailableError("the control plane does not answer") from None
        if not first.HasField("opened"):
            raise UnavailableError("the control plane ended the stream")
        if self._session_id and first.opened.session_id != self._session_id:
            self._become(SessionState.LOST)
        self._session_id = first.opened.session_id
        self._become(SessionState.CONNECTED)
        if self._opening is not None and not self._opening.done():
            self._opening.set_result(None)
        await first_of(self._take(answers), self._heartbeat(first.opened.timeout_ms / 1000))

    async def _sent(self, opening: pb.OpenSession) -> AsyncIterator[pb.CoordinationRequest]:
        """What is sent in one connection."""
        yield pb.CoordinationRequest(open=opening)
        while True:
            if self._follows:
                path, children = key = next(iter(self._follows))
                stop = not self._follows.pop(key)
                yield pb.CoordinationRequest(follow=pb.FollowNode(path=path, children=children, stop=stop))
            elif self._requests:
                yield self._requests.popleft()
            else:
                self._to_send.clear()
                await self._to_send.wait()

    async def _take(self, answers: AsyncIterator[pb.CoordinationResponse]) -> None:
        async for answer in answers:
            self._heard_at = asyncio.get_running_loop().time()
            match answer.WhichOneof("message"):
                case "answer":
                    waiting = self._calls.get(answer.answer.id)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(answer.answer)
                case "followed":
                    self._deliver(answer.followed)
                case "ended":
                    self._session_id = ""
                    self._become(SessionState.LOST)
                    return

    async def _heartbeat(self, timeout: float) -> None:
        """Say that we live, and raise when the other side was silent for two thirds of the timeout.

        The rest is left to go on with the session elsewhere.
        """
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        while True:
            left = self._heard_at + timeout * 2 / 3 - loop.time()
            if left <= 0:
                raise UnavailableError("the control plane does not answer")
            # At least a moment: a clock that rounds may stop short of the limit, and never get there.
            await asyncio.sleep(max(min(left, timeout / 3), _MOMENT))
            self._send(pb.CoordinationRequest(ping=True))

    def _become(self, state: SessionState) -> None:
        if state is self._state:
            return
        self._state = state
        if state is not SessionState.CONNECTED:
            for waiting in self._calls.values():
                if not waiting.done():
                    waiting.set_exception(UnavailableError("the connection to the control plane is lost"))
        for follower in self._states.of("state"):
            follower.deliver(state)

    def _send(self, request: pb.CoordinationRequest) -> None:
        if len(self._requests) >= _REQUESTS:
            raise UnavailableError("too many requests wait for the control plane")
        self._requests.append(request)
        self._to_send.set()

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
        wanted = pb.CreateNode(path=path, data=data, ephemeral=ephemeral, sequential=sequential, makepath=makepath)
        return (await self._call(pb.TreeCall(create=wanted))).path

    async def ensure_path(self, path: str) -> None:
        """Create what a path lacks."""
        await self._call(pb.TreeCall(ensure_path=check_path(path)))

    async def get(self, path: str) -> NodeValue:
        """Read a node."""
        return messages.value_from_proto((await self._call(pb.TreeCall(get=check_path(path)))).node)

    async def exists(self, path: str) -> NodeStat | None:
        """The facts about a node, or None."""
        answer = await self._call(pb.TreeCall(exists=check_path(path)))
        return messages.stat_from_proto(answer.node) if answer.HasField("node") else None

    async def children(self, path: str) -> tuple[str, ...]:
        """The sorted names of the children."""
        return tuple((await self._call(pb.TreeCall(children=check_path(path)))).children)

    async def set(self, path: str, data: bytes, *, version: int = -1) -> NodeStat:
        """Replace the data of a node."""
        check_data(check_path(path), data)
        wanted = pb.SetNode(path=path, data=data, version=version)
        return messages.stat_from_proto((await self._call(pb.TreeCall(set=wanted))).node)

    async def take_over(self, path: str, data: bytes, *, version: int) -> None:
        """Replace a node by an ephemeral one of this session."""
        check_data(check_path(path), data)
        await self._call(pb.TreeCall(take_over=pb.SetNode(path=path, data=data, version=version)))

    async def delete(self, path: str, *, version: int = -1, recursive: bool = False) -> None:
        """Delete a node."""
        check_delete(path, version=version, recursive=recursive)
        await self._call(pb.TreeCall(delete=pb.DeleteNode(path=path, version=version, recursive=recursive)))

    async def _call(self, call: pb.TreeCall) -> pb.TreeAnswer:
        if self._state is SessionState.LOST:
            raise SessionLostError(self._session_id)
        if self._state is SessionState.SUSPENDED:
            raise UnavailableError("the connection to the control plane is lost", session_id=self._session_id)
        call.id = next(self._ids)
        waiting: asyncio.Future[pb.TreeAnswer] = asyncio.get_running_loop().create_future()
        self._calls[call.id] = waiting
        try:
            self._send(pb.CoordinationRequest(call=call))
            async with asyncio.timeout(self._call_timeout):
                answer = await waiting
        except TimeoutError:
            raise UnavailableError("the control plane did not answer in time; the tree may have changed") from None
        finally:
            del self._calls[call.id]
        if answer.HasField("error"):
            raise messages.error_from_proto(answer)
        return answer

    # ------------------------------------------------------------------------------------------------
    # Watches

    def watch_data(self, path: str, changed: Callable[[NodeValue | None], None]) -> Watch:
        """Follow the value of a node."""
        follower = self._data.add(check_path(path), changed)
        self._follow(path, children=False)
        return follower

    def watch_children(self, path: str, changed: Callable[[tuple[str, ...] | None], None]) -> Watch:
        """Follow the names below a node."""
        follower = self._children.add(check_path(path), changed)
        self._follow(path, children=True)
        return follower

    def on_state(self, changed: Callable[[SessionState], None]) -> Watch:
        """Follow the state of the session."""
        return self._states.add("state", changed)

    def _follow(self, path: str, *, children: bool) -> None:
        """Ask for the value as it is now, and for every later one."""
        self._followed[path, children] = None
        self._follows[path, children] = True
        self._to_send.set()

    def _unfollow(self, path: str, *, children: bool) -> None:
        self._followed.pop((path, children), None)
        self._follows[path, children] = False
        self._to_send.set()

    def _deliver(self, followed: pb.NodeFollowed) -> None:
        if followed.children:
            names = tuple(followed.names) if followed.exists else None
            for children in self._children.of(followed.path):
                children.deliver(names)
        else:
            value = messages.value_from_proto(followed.node) if followed.exists else None
            for data in self._data.of(followed.path):
                data.deliver(value)
