"""Serves the streams that agents and clients open: each message is handled as its unary call would be.

The control plane calls an agent through the agent's own stream. A stream that registers a node, or brings a heartbeat
of its session, belongs to that node; the node's previous stream is ended. When the stream of a node breaks, the node is
Suspect at once, and Ready with its next heartbeat. A message that is refused or cannot be read is answered with an
`error`, and the stream goes on. Each message is counted and traced as its unary call would be.

Made for each leadership. Used by `shoal.control.api.service` (messages) and `shoal.control.agents.calls` (calls).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from shoal.control.state.fleet import Fleet
from shoal.core.errors import (
    ExhaustedError,
    InternalError,
    InvalidError,
    SessionSupersededError,
    ShoalError,
    UnavailableError,
    problem,
)
from shoal.core.ids import NodeId, SessionId
from shoal.core.tasks import TaskScope, task_scope
from shoal.model.nodes import Feature, NodeRecord
from shoal.wire.calls import Outbox, StreamCalls, messages_in, refusal, status_to_proto
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.serving import RpcObserver, one_message
from shoal.wire.status import OK
from shoal.wire.transport import Call, Channel, Method
from shoal.wire.trust.authorization import Policy

log = logging.getLogger(__name__)

#: Messages of one stream that were read and wait for those before them to be answered.
MAX_WAITING = 4

#: What may come in, and the unary call that it stands for.
_METHODS: Mapping[str, Method[Any, Any]] = {
    "register": AgentControl.REGISTER_NODE,
    "heartbeat": AgentControl.HEARTBEAT,
    "apply": AgentControl.APPLY_WORKLOAD,
    "delete": AgentControl.DELETE_WORKLOAD,
}


class Handlers(Protocol):
    """The handlers of the messages in a stream, and of its end."""

    def register_node(self, request: pb.RegisterNodeRequest, call: Call, /) -> Awaitable[pb.RegisterNodeResponse]:
        """Take a node in."""
        ...

    def heartbeat(self, request: pb.HeartbeatRequest, call: Call, /) -> Awaitable[pb.HeartbeatResponse]:
        """Take in a heartbeat."""
        ...

    def apply_workload(self, request: pb.ApplyWorkloadRequest, call: Call, /) -> Awaitable[pb.ApplyWorkloadResponse]:
        """Make a request durable."""
        ...

    def delete_workload(self, request: pb.DeleteWorkloadRequest, call: Call, /) -> Awaitable[pb.DeleteWorkloadResponse]:
        """Request a deletion."""
        ...

    def stream_broke(self, node_id: NodeId, /) -> Awaitable[None]:
        """The stream of a node has ended: there is no contact with it until its next heartbeat."""
        ...


@dataclass(slots=True, eq=False)
class _Stream:
    """One open stream."""

    call: Call
    outbox: Outbox
    calls: StreamCalls
    waiting: asyncio.Queue[pb.ControlMessage | ShoalError | None] = field(
        default_factory=lambda: asyncio.Queue(MAX_WAITING)
    )
    #: Whose it is; nobody's as long as it has no word of a node.
    node_id: NodeId | None = None
    session: SessionId = SessionId("")
    sequence: int = 0
    #: What the other end is told in the end.
    error: ShoalError | None = None
    _calls_of: dict[str, Call] = field(default_factory=dict)

    def call_of(self, method: Method[Any, Any]) -> Call:
        """The call that a message stands for: the same for each of its kind."""
        call = self._calls_of.get(method.path)
        if call is None:
            call = self._calls_of[method.path] = dataclasses.replace(self.call, method=method.path)
        return call

    def end(self, error: ShoalError | None) -> None:
        """Say no more than what is on its way out."""
        self.error = self.error or error
        self.calls.break_off(error.message if error is not None else "its stream was closed")
        self.outbox.close()


class Streams:
    """Every open stream, and whose it is."""

    def __init__(self, fleet: Fleet, *, scope: TaskScope, observer: RpcObserver | None = None) -> None:
        self._fleet = fleet
        self._observer = observer
        self._scope = scope
        self._open: set[_Stream] = set()
        self._by_node: dict[NodeId, _Stream] = {}
        self._closed = False
        #: Whether agents can open any here: not where nothing is decided.
        self.opened = False

    def open(self) -> None:
        """Take streams from now on."""
        self.opened = True

    def __len__(self) -> int:
        return len(self._open)

    def channel(self, node: NodeRecord) -> Channel | None:
        """The way to an agent through the stream that it has opened in its present session, if it has."""
        stream = self._by_node.get(node.node_id)
        return stream.calls if stream is not None and stream.session == node.session else None

    def forget(self, node_id: NodeId) -> None:
        """A node was removed: if its agent still speaks, it has to register first."""
        stream = self._by_node.pop(node_id, None)
        if stream is not None:
            stream.node_id = None

    def close(self) -> None:
        """End every stream. That says nothing about the nodes at their other ends."""
        self._closed = True
        for stream in list(self._open):
            stream.end(UnavailableError("this control plane has stopped leading or is stopping"))

    # -----------------------------------------------------------------------------------------------------
    # Serving

    async def serve(
        self, requests: AsyncIterator[pb.ControlMessage], call: Call, handlers: Handlers
    ) -> AsyncIterator[pb.ControlMessage]:
        """Serve one stream from its beginning to its end."""
        if self._closed:
            raise UnavailableError("this control plane has stopped leading or is stopping")
        outbox = Outbox()
        stream = _Stream(call, outbox, StreamCalls(outbox, address=call.peer))
        self._open.add(stream)
        try:
            async with task_scope("control stream") as scope:
                scope.start(self._read(stream, requests), name="read")
                scope.start(self._answer(stream, handlers), name="answer")
                while (message := await outbox.next()) is not None:
                    yield message
            if stream.error is not None:
                raise stream.error
        finally:
            self._ended(stream, handlers)

    async def _read(self, stream: _Stream, requests: AsyncIterator[pb.ControlMessage]) -> None:
        """Take in what comes: replies at once, everything else in its turn."""
        try:
            while True:
                try:
                    message = await anext(requests)
                except InvalidError as error:
                    await stream.waiting.put(error)
                    continue
                for each in messages_in(message):
                    kind = each.WhichOneof("message")
                    if kind == "call_reply" or (kind == "error" and each.in_reply_to):
                        stream.calls.take(each)
                    else:
                        await stream.waiting.put(each)
        except StopAsyncIteration:
            await stream.waiting.put(None)
        except ShoalError as error:
            stream.end(error)
        except Exception as error:  # whatever it is, the other end must not wait for ever
            log.error("a stream from %s cannot be read", stream.call.peer, exc_info=error)
            stream.end(InternalError("the stream cannot be read"))

    async def _answer(self, stream: _Stream, handlers: Handlers) -> None:
        """Answer one message after another, so a sender without ids gets its replies in order."""
        while (given := await stream.waiting.get()) is not None:
            reply = refusal(given, 0) if isinstance(given, ShoalError) else await self._reply(stream, given, handlers)
            try:
                await stream.outbox.put(reply)
            except ExhaustedError as error:
                stream.outbox.push(refusal(error, reply.in_reply_to))
            except UnavailableError:
                return
        stream.end(None)

    async def _reply(self, stream: _Stream, message: pb.ControlMessage, handlers: Handlers) -> pb.ControlMessage:
        kind = message.WhichOneof("message") or ""
        method = _METHODS.get(kind)
        if method is None:
            rule = f"must be one of {', '.join(_METHODS)}"
            return refusal(InvalidError([problem("message", kind or None, rule)]), message.message_id)
        reply = pb.ControlMessage()
        with one_message(method, self._observer) as outcome:
            reply = await self._handle(stream, kind, method, getattr(message, kind), handlers)
        if outcome.status is not OK:
            reply = pb.ControlMessage(error=status_to_proto(outcome.status))
        reply.in_reply_to = message.message_id
        return reply

    async def _handle(
        self, stream: _Stream, kind: str, method: Method[Any, Any], request: Any, handlers: Handlers
    ) -> pb.ControlMessage:
        call = stream.call_of(method)
        _authorize(method, call, request)
        if kind == "heartbeat":
            # Before the heartbeat is processed: a command may follow from it, and needs a channel.
            self._belongs(stream, NodeId(request.node_id), request.session, request.sequence)
        handle = getattr(handlers, method.attribute)
        answer = await handle(request, call)
        if kind == "register" and answer.accepted:
            self._belongs(stream, NodeId(request.node_id), answer.session, 0, registered=True)
        return pb.ControlMessage(**{f"{kind}_reply": answer})

    # -----------------------------------------------------------------------------------------------------
    # Whose they are

    def _belongs(
        self, stream: _Stream, node_id: NodeId, session: SessionId, sequence: int, *, registered: bool = False
    ) -> None:
        """A stream has brought a registration, or a heartbeat of the session that holds the node: it is that node's."""
        node = self._fleet.nodes.get(node_id)
        if node is None or node.session != session or not node.spec.has(Feature.STREAM):
            return
        current = self._by_node.get(node_id)
        if stream.node_id not in (None, node_id) or stream.error is not None:
            return
        if current is not None and current is not stream:
            newer = (session, sequence) > (current.session, current.sequence)
            if not registered and not newer:
                return  # it lay in a broken stream's buffers while its sender has opened another
            current.end(SessionSupersededError(node_id))
        stream.node_id, stream.session, stream.sequence = node_id, session, sequence
        stream.calls.rename(f"node {node_id!r}")
        stream.outbox.batches = node.spec.has(Feature.BATCHES)
        self._by_node[node_id] = stream

    def _ended(self, stream: _Stream, handlers: Handlers) -> None:
        stream.end(None)
        self._open.discard(stream)
        node_id = stream.node_id
        if node_id is None or self._by_node.get(node_id) is not stream:
            return
        del self._by_node[node_id]
        node = self._fleet.nodes.get(node_id)
        if not self._closed and node is not None and node.session == stream.session:
            self._scope.start(self._report_end(node_id, handlers), name=f"stream/{node_id}")

    async def _report_end(self, node_id: NodeId, handlers: Handlers) -> None:
        try:
            await handlers.stream_broke(node_id)
        except ShoalError as error:
            log.warning("the stream of node %s broke, and that could not be stored: %s", node_id, error)


def _authorize(method: Method[Any, Any], call: Call, request: Any) -> None:
    """As the unary call would be. Without identities there is nobody to refuse."""
    if call.identity is None:
        return
    if call.standing is not None:
        call.standing()  # it may have waited for those before it
    policy = Policy(call.identity.cluster)
    policy.admit(method, call.identity)
    policy.check_request(method, call.identity, request)
