"""One stream from this agent to a control plane: it carries the agent's requests and the control plane's calls.

Opened by the first message that is sent through it. A stream that has ended stays ended, and its pending calls fail
with the reason; `shoal.agent.contact.control_client` then opens another. Calls are served by the same handlers
as on the agent's own port.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from shoal.core.errors import InternalError, ShoalError, UnavailableError, UnsupportedError
from shoal.core.tasks import TaskScope
from shoal.wire.calls import CallServer, Outbox, messages_in, status_from_proto
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.serving import RpcObserver
from shoal.wire.status import Code, Status, explain
from shoal.wire.transport import Channel, Service

log = logging.getLogger(__name__)

_METHOD = AgentControl.CONTROL_STREAM


class ControlStream:
    """A stream, from its opening to its end.

    Args:
        channel: the way to the control plane.
        services: what serves its calls.
        on_end: called when it ends by itself while nobody waits for an answer, who would learn of it anyway.
        observer: told of every call that is served.
    """

    def __init__(
        self,
        channel: Channel,
        services: Sequence[Service],
        *,
        on_end: Callable[[], None],
        observer: RpcObserver | None = None,
    ) -> None:
        self._channel = channel
        self._on_end = on_end
        self._outbox = Outbox()
        self._calls = CallServer(services, self._outbox, peer=channel.address, observer=observer)
        self._scope = TaskScope("control stream")
        self._waiting: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._last_id = 0
        self._error: ShoalError | None = None
        self._answered = False
        self._scope.start(self._read(), name=channel.address)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._error is not None

    @property
    def is_unknown(self) -> bool:
        """Whether the control plane there has no such streams."""
        return isinstance(self._error, UnsupportedError) and not self._answered

    async def register(self, request: pb.RegisterNodeRequest, *, timeout: float) -> pb.RegisterNodeResponse:
        """Register this node."""
        message = pb.ControlMessage(register=request)
        return await self._ask(message, "register_reply", timeout)  # type: ignore[no-any-return]

    async def heartbeat(self, request: pb.HeartbeatRequest, *, timeout: float) -> pb.HeartbeatResponse:
        """Send a heartbeat."""
        message = pb.ControlMessage(heartbeat=request)
        answer: pb.HeartbeatResponse = await self._ask(message, "heartbeat_reply", timeout)
        self._outbox.batches = answer.takes_batches
        return answer

    def retire(self) -> None:
        """Another stream replaces it: its end is not reported."""
        self._on_end = _ignore

    async def close(self) -> None:
        """End it, and the calls that came through it."""
        self._end(UnavailableError("the stream was closed"), told=False)
        await self._scope.close()
        await self._calls.close()

    async def _ask(self, message: pb.ControlMessage, wanted: str, timeout: float) -> Any:
        if self._error is not None:
            raise self._error
        self._last_id += 1
        message.message_id = self._last_id
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[message.message_id] = (wanted, answer)
        try:
            async with asyncio.timeout(timeout):
                await self._outbox.put(message)
                return await answer
        except TimeoutError:
            late = Status(Code.DEADLINE_EXCEEDED)
            raise explain(late, address=self._channel.address, method=_METHOD.path, timeout=timeout) from None
        finally:
            del self._waiting[message.message_id]
            if answer.done() and not answer.cancelled():
                answer.exception()  # it may have ended between two steps of this one, and is told above then

    async def _read(self) -> None:
        error: ShoalError = UnavailableError("the control plane has ended the stream")
        try:
            async for message in self._channel.converse(_METHOD, self._outbox.messages()):
                self._answered = True
                for each in messages_in(message):
                    if each.HasField("call"):
                        await self._calls.take(each)
                    else:
                        self._take(each)
        except ShoalError as reason:
            error = reason
        except Exception as reason:  # whatever it is, no caller may wait forever
            log.error("the stream to %s broke", self._channel.address, exc_info=reason)
            error = InternalError("the stream broke")
        self._end(error, told=True)
        await self._calls.close()

    def _take(self, message: pb.ControlMessage) -> None:
        """An answer arrived. One without a number belongs to the oldest request."""
        waiting = self._waiting.get(message.in_reply_to)
        if waiting is None and not message.in_reply_to:
            waiting = next(iter(self._waiting.values()), None)
        if waiting is None:
            return  # it comes too late
        wanted, answer = waiting
        if answer.done():
            return
        kind = message.WhichOneof("message")
        if kind == wanted:
            answer.set_result(getattr(message, wanted))
        elif kind == "error":
            status = status_from_proto(message.error)
            answer.set_exception(explain(status, address=self._channel.address, method=_METHOD.path, timeout=None))
        else:
            answer.set_exception(InternalError(f"the control plane answered with {kind!r} instead of {wanted!r}"))

    def _end(self, error: ShoalError, *, told: bool) -> None:
        if self._error is not None:
            return
        self._error = error
        self._outbox.close()
        for _wanted, answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
        if told and not self._waiting:
            self._on_end()


def _ignore() -> None:
    return None
