"""Serves a tree: each stream is the connection of one session (`shoal.v1.Coordination`).

Calls of a stream are handled one after the other. What is followed is sent as it is when it is sent, so a slow client
gets the last value of each burst, and no queue grows. Called by the control plane that leads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TypeVar

from shoal.core.errors import DeniedError, ExhaustedError, InvalidError, ShoalError, UnavailableError, problem
from shoal.core.tasks import running
from shoal.discovery.embedded import messages
from shoal.discovery.embedded.owner import CHILDREN, DATA, SESSION, TreeOwner
from shoal.discovery.embedded.rules import holder_of, reason_against_change
from shoal.discovery.embedded.tree import Changes
from shoal.discovery.grants import check_grant_node
from shoal.discovery.store import check_data, check_delete, check_path
from shoal.discovery.watching import Follower
from shoal.wire.pb.shoal.v1 import coordination_pb2 as pb
from shoal.wire.transport import Call

T = TypeVar("T")

#: The timeouts that a session can have.
SHORTEST, LONGEST = timedelta(seconds=1), timedelta(minutes=5)
#: How many answers may wait to be sent before the next call is read.
_ANSWERS = 64
MAX_FOLLOWED = 50_000


class CoordinationService:
    """The handler of the one RPC, for one tree."""

    def __init__(self, owner: TreeOwner) -> None:
        self._owner = owner
        self._connections: dict[str, _Connection] = {}

    def close(self) -> None:
        """End every stream. Sessions go on, here or at the next control plane that leads."""
        for connection in list(self._connections.values()):
            connection.end(UnavailableError("this control plane no longer serves the tree", hint="connect again"))

    async def session(
        self, requests: AsyncIterator[pb.CoordinationRequest], call: Call
    ) -> AsyncIterator[pb.CoordinationResponse]:
        """Serve one session for as long as its stream lasts."""
        first = await anext(requests, pb.CoordinationRequest())
        if first.WhichOneof("message") != "open":
            raise InvalidError([problem("open", None, "must be the first message")])
        connection = _Connection(self._owner, call, await self._open(first.open, holder_of(call.identity)))
        previous = self._connections.get(connection.session_id)
        if previous is not None:
            previous.end(UnavailableError("the session goes on in another stream"))
        self._connections[connection.session_id] = connection
        try:
            yield pb.CoordinationResponse(opened=connection.opened())
            async with running(connection.read(requests), name="coordination requests"):
                async for message in connection.messages():
                    yield message
        finally:
            connection.close()
            if self._connections.get(connection.session_id) is connection:
                del self._connections[connection.session_id]

    async def _open(self, wanted: pb.OpenSession, holder: str) -> str:
        """The session that was asked for, if it lives and is the caller's, otherwise a new one."""
        known = self._owner.tree.sessions.get(wanted.session_id)
        if known is not None:
            if known.holder != holder:
                raise DeniedError(f"session {wanted.session_id!r} belongs to another caller")
            session_id = wanted.session_id
        else:
            # Bounded before it becomes a duration, which cannot hold every number that a message can.
            least, most = (limit // timedelta(milliseconds=1) for limit in (SHORTEST, LONGEST))
            timeout = timedelta(milliseconds=min(max(wanted.timeout_ms, least), most))
            session_id = await self._owner.open_session(timeout, holder)
        self._owner.expect(session_id)
        return session_id


class _Connection:
    """The stream of one session."""

    def __init__(self, owner: TreeOwner, call: Call, session_id: str) -> None:
        self.session_id = session_id
        self._owner = owner
        self._call = call
        self._answers: deque[pb.CoordinationResponse] = deque()
        self._dirty: dict[tuple[str, str], None] = {}
        self._followers: dict[tuple[str, str], Follower[int]] = {}
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._error: ShoalError | None = None
        self._client_ended = False
        self._session_over = session_id not in owner.tree.sessions
        self._session = owner.followers.add((SESSION, session_id), lambda _number: self._ended())

    def opened(self) -> pb.SessionOpened:
        """The first answer."""
        session = self._owner.tree.sessions.get(self.session_id)
        timeout = session.timeout if session is not None else SHORTEST
        return pb.SessionOpened(session_id=self.session_id, timeout_ms=timeout // timedelta(milliseconds=1))

    def end(self, error: ShoalError) -> None:
        """End the stream with an error."""
        self._error = self._error or error
        self._ready.set()

    def close(self) -> None:
        """Follow nothing any longer."""
        self._session.close()
        for follower in self._followers.values():
            follower.close()
        self._followers.clear()

    def _ended(self) -> None:
        self._session_over = True
        self._ready.set()

    # ------------------------------------------------------------------------------------------------
    # Out

    async def messages(self) -> AsyncIterator[pb.CoordinationResponse]:
        """Everything that the client is told, until the session or the stream is over."""
        while True:
            if self._answers:
                self._room.set()
                yield self._answers.popleft()
            elif self._error is not None:
                raise self._error
            elif self._client_ended:
                return
            elif self._session_over:
                yield pb.CoordinationResponse(ended=True)
                return
            elif self._dirty:
                key = next(iter(self._dirty))
                del self._dirty[key]
                yield pb.CoordinationResponse(followed=self._followed(*key))
            else:
                self._ready.clear()
                await self._ready.wait()

    def _followed(self, kind: str, path: str) -> pb.NodeFollowed:
        if kind == DATA:
            value = self._owner.tree.find(path)
            node = messages.node_to_proto(value) if value is not None else None
            return pb.NodeFollowed(path=path, exists=value is not None, node=node)
        names = self._owner.tree.find_children(path)
        return pb.NodeFollowed(path=path, children=True, exists=names is not None, names=names or ())

    async def _say(self, message: pb.CoordinationResponse) -> None:
        while len(self._answers) >= _ANSWERS:
            self._room.clear()
            await self._room.wait()
        self._answers.append(message)
        self._ready.set()

    # ------------------------------------------------------------------------------------------------
    # In

    async def read(self, requests: AsyncIterator[pb.CoordinationRequest]) -> None:
        """Handle what the client sends, in order."""
        try:
            async for request in requests:
                self._owner.expect(self.session_id)
                await self._handle(request)
            self._client_ended = True
            self._ready.set()
        except ShoalError as error:
            self.end(error)

    async def _handle(self, request: pb.CoordinationRequest) -> None:
        match request.WhichOneof("message"):
            case "ping":
                await self._say(pb.CoordinationResponse(pong=True))
            case "call":
                await self._say(pb.CoordinationResponse(answer=await self._answer(request.call)))
            case "follow":
                self._follow(request.follow)
            case "close":
                await self._owner.end_session(self.session_id)
            case _:
                raise InvalidError([problem("message", None, "must be ping, call, follow or close")])

    async def _answer(self, call: pb.TreeCall) -> pb.TreeAnswer:
        try:
            self._owner.tree.check_session(self.session_id)
            answer = await self._do(call)
        except ShoalError as error:
            return messages.refusal(call.id, error)
        answer.id = call.id
        return answer

    async def _do(self, call: pb.TreeCall) -> pb.TreeAnswer:
        tree = self._owner.tree
        match call.WhichOneof("call"):
            case "create":
                return await self._create(call.create)
            case "ensure_path":
                return await self._ensure_path(call.ensure_path)
            case "get":
                return pb.TreeAnswer(node=messages.node_to_proto(tree.get(check_path(call.get))))
            case "exists":
                value = tree.find(check_path(call.exists))
                return pb.TreeAnswer(node=messages.stat_to_proto(value.stat) if value is not None else None)
            case "children":
                return pb.TreeAnswer(children=tree.children(check_path(call.children)))
            case "set":
                return await self._set(call.set)
            case "take_over":
                return await self._take_over(call.take_over)
            case "delete":
                return await self._delete(call.delete)
        raise InvalidError([problem("call", None, "must be one that this control plane knows")])

    async def _create(self, wanted: pb.CreateNode) -> pb.TreeAnswer:
        check_grant_node(check_path(wanted.path), check_data(wanted.path, wanted.data))

        def decide() -> tuple[str, Changes]:
            self._may_change(wanted.path)
            return self._owner.tree.create(
                wanted.path,
                wanted.data,
                session_id=self.session_id,
                ephemeral=wanted.ephemeral,
                sequential=wanted.sequential,
                makepath=wanted.makepath,
            )

        return pb.TreeAnswer(path=await self._owner.change(decide))

    async def _ensure_path(self, path: str) -> pb.TreeAnswer:
        check_grant_node(check_path(path), b"")

        def decide() -> tuple[None, Changes]:
            self._may_change(path)
            return None, self._owner.tree.ensure_path(path, session_id=self.session_id)

        await self._owner.change(decide)
        return pb.TreeAnswer()

    async def _set(self, wanted: pb.SetNode) -> pb.TreeAnswer:
        check_grant_node(check_path(wanted.path), check_data(wanted.path, wanted.data))

        def decide() -> tuple[pb.TreeNode, Changes]:
            self._may_change(wanted.path)
            changes = self._owner.tree.set(wanted.path, wanted.data, version=wanted.version, session_id=self.session_id)
            return messages.stat_to_proto(changes.put[0].value.stat), changes

        return pb.TreeAnswer(node=await self._owner.change(decide))

    async def _take_over(self, wanted: pb.SetNode) -> pb.TreeAnswer:
        check_grant_node(check_path(wanted.path), check_data(wanted.path, wanted.data))

        def decide() -> tuple[None, Changes]:
            self._may_change(wanted.path)
            return None, self._owner.tree.take_over(
                wanted.path, wanted.data, version=wanted.version, session_id=self.session_id
            )

        await self._owner.change(decide)
        return pb.TreeAnswer()

    async def _delete(self, wanted: pb.DeleteNode) -> pb.TreeAnswer:
        check_delete(wanted.path, version=wanted.version, recursive=wanted.recursive)

        def decide() -> tuple[None, Changes]:
            self._may_change(wanted.path, recursive=wanted.recursive)
            return None, self._owner.tree.delete(
                wanted.path, version=wanted.version, recursive=wanted.recursive, session_id=self.session_id
            )

        await self._owner.change(decide)
        return pb.TreeAnswer()

    def _may_change(self, path: str, *, recursive: bool = False) -> None:
        reason = reason_against_change(self._owner.tree, self._call.identity, path, recursive=recursive)
        if reason is not None:
            raise DeniedError(reason, path=path)

    def _follow(self, wanted: pb.FollowNode) -> None:
        key = (CHILDREN if wanted.children else DATA, check_path(wanted.path))
        if wanted.stop:
            follower = self._followers.pop(key, None)
            if follower is not None:
                follower.close()
            self._dirty.pop(key, None)
            return
        if key not in self._followers:
            if len(self._followers) >= MAX_FOLLOWED:
                raise ExhaustedError(f"a session follows at most {MAX_FOLLOWED} nodes")
            self._followers[key] = self._owner.followers.add(key, lambda _number: self._touched(key))
        self._touched(key)

    def _touched(self, key: tuple[str, str]) -> None:
        self._dirty[key] = None
        self._ready.set()
