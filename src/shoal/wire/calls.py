"""Lets the control plane call an agent through the stream that the agent opened.

Each call travels as `call` and `call_reply` messages of a ControlStream, many at once, told apart by their ids. Small
messages go before pieces of streams, and a stream sends only what its reader has room for. So a reader of logs does not
delay commands.

    control plane                                              agent
    StreamCalls (a `Channel`)  ── call, piece, cancel, credit ──▶  CallServer ──▶ handlers of the agent's services
                               ◀─────── call_reply, credit ──────

Used by `shoal.control.agents.streams` and `shoal.agent.contact.stream`, which own the streams.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import (
    ExhaustedError,
    InternalError,
    InvalidError,
    ShoalError,
    UnavailableError,
    UnsupportedError,
    problem,
)
from shoal.core.tasks import TaskScope, running
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.pb.shoal.v1 import run_pb2 as run
from shoal.wire.serving import Endpoint, RpcObserver, answer, checked_metadata, converse, pack, unpack
from shoal.wire.status import ERROR_TRAILER, INVALID_TRAILER, OK, Code, Status, explain, status_of
from shoal.wire.transport import (
    DEFAULT_TIMEOUT,
    MAX_MESSAGE_BYTES,
    Call,
    Cardinality,
    Method,
    Request,
    Response,
    Service,
)

#: Pieces of one stream that may be on their way or wait for their reader.
CREDIT = 8
#: Calls of one control plane that one agent serves at the same time.
MAX_CALLS = 256
_MAX_CREDIT = 1024
_SMALL_MESSAGES = 64
_PIECES = 4
#: Of the messages that are sent in one.
_BATCH_BYTES = 256 * 1024


# ---------------------------------------------------------------------------------------------------------
# Statuses


def status_to_proto(status: Status) -> pb.CallStatus:
    """A status as a message carries it."""
    message = pb.CallStatus(code=int(status.code), message=status.message)
    if ERROR_TRAILER in status.trailers:
        message.detail.CopyFrom(run.ErrorDetail.FromString(status.trailers[ERROR_TRAILER]))
    if INVALID_TRAILER in status.trailers:
        message.invalid.CopyFrom(run.InvalidRequest.FromString(status.trailers[INVALID_TRAILER]))
    return message


def status_from_proto(message: pb.CallStatus) -> Status:
    """The inverse. A code that nobody knows is UNKNOWN."""
    trailers = {}
    if message.HasField("detail"):
        trailers[ERROR_TRAILER] = message.detail.SerializeToString(deterministic=True)
    if message.HasField("invalid"):
        trailers[INVALID_TRAILER] = message.invalid.SerializeToString(deterministic=True)
    known = message.code in {int(code) for code in Code}
    return Status(Code(message.code) if known else Code.UNKNOWN, message.message, trailers)


def refusal(error: BaseException, message_id: int) -> pb.ControlMessage:
    """What a message is answered with that was refused."""
    return pb.ControlMessage(in_reply_to=message_id, error=status_to_proto(status_of(error)))


# ---------------------------------------------------------------------------------------------------------
# Sending


class Outbox:
    """Messages on their way out of one end of a stream: small ones first, and never many.

    Attributes:
        batches: send the small messages that wait together in one, because the other end takes that.
    """

    def __init__(self) -> None:
        self.batches = False
        self._lanes: tuple[deque[pb.ControlMessage], ...] = (deque(), deque())
        self._room = (asyncio.Event(), asyncio.Event())
        self._ready = asyncio.Event()
        self._closed = False

    async def put(self, message: pb.ControlMessage, *, piece: bool = False) -> None:
        """Send a message when there is room; a piece of a long answer goes after everything else.

        Raises `ExhaustedError` when it is larger than the wire carries and `UnavailableError` when the stream is over.
        """
        size = message.ByteSize()
        if size > MAX_MESSAGE_BYTES:
            raise ExhaustedError(
                f"a message of {size:,} bytes is larger than the limit of {MAX_MESSAGE_BYTES:,}",
                limit=MAX_MESSAGE_BYTES,
            )
        lane, room = self._lanes[piece], self._room[piece]
        while len(lane) >= (_PIECES if piece else _SMALL_MESSAGES) and not self._closed:
            room.clear()
            await room.wait()
        if self._closed:
            raise UnavailableError("the stream is over")
        lane.append(message)
        self._ready.set()

    def push(self, message: pb.ControlMessage) -> None:
        """Send a tiny message without waiting for room. There are never many of these: each is about a call."""
        if not self._closed:
            self._lanes[0].append(message)
            self._ready.set()

    async def next(self) -> pb.ControlMessage | None:
        """The next message to send, or None when everything was sent and no more will come."""
        while True:
            for lane, room in zip(self._lanes, self._room, strict=True):
                if lane:
                    room.set()
                    message = lane.popleft()
                    return _batch(message, lane) if self.batches and lane is self._lanes[0] and lane else message
            if self._closed:
                return None
            self._ready.clear()
            await self._ready.wait()

    async def messages(self) -> AsyncIterator[pb.ControlMessage]:
        """Everything that is sent, to the end."""
        while (message := await self.next()) is not None:
            yield message

    def close(self) -> None:
        """Take no more. What is in it can still be read."""
        self._closed = True
        for event in (self._ready, *self._room):
            event.set()


def _batch(first: pb.ControlMessage, waiting: deque[pb.ControlMessage]) -> pb.ControlMessage:
    """A message and those that wait behind it, as many as fit, in one."""
    together = [first]
    size = first.ByteSize()
    while waiting and (size := size + waiting[0].ByteSize()) <= _BATCH_BYTES:
        together.append(waiting.popleft())
    return first if len(together) == 1 else pb.ControlMessage(batch=together)


def messages_in(message: pb.ControlMessage) -> Sequence[pb.ControlMessage]:
    """The messages that came in one: itself, or those of its batch."""
    return message.batch or (message,)


@dataclass(slots=True, eq=False)
class Credit:
    """How many pieces may be sent before the reader says that it has room for more."""

    left: int
    granted: asyncio.Event = field(default_factory=asyncio.Event)

    def grant(self, pieces: int) -> None:
        """The reader has room for more."""
        self.left = min(_MAX_CREDIT, self.left + max(0, pieces))
        self.granted.set()

    async def spend(self) -> None:
        """Wait until another piece may be sent."""
        while self.left <= 0:
            self.granted.clear()
            await self.granted.wait()
        self.left -= 1


# ---------------------------------------------------------------------------------------------------------
# The end that calls


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A call that waits for its answer."""

    call_id: int
    method: Method[Any, Any]
    pieces: deque[bytes] = field(default_factory=deque)
    #: Pieces that were read since the other end was last told.
    taken: int = 0
    #: How it ended; None while it goes on.
    status: Status | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    #: It was ended at this end alone.
    goes_on_there: bool = False
    #: How many pieces of a streamed request the other end has room for.
    room: Credit = field(default_factory=lambda: Credit(CREDIT))

    def end(self, status: Status) -> None:
        """Nothing more comes."""
        self.status = self.status or status
        self.news.set()

    def take(self, reply: pb.CallReply) -> None:
        """A reply has come."""
        unary = self.method.cardinality is Cardinality.UNARY
        if reply.credit:
            self.room.grant(reply.credit)
        elif reply.status.code:
            self.end(status_from_proto(reply.status))
        elif reply.more and unary:
            self.cut_off(InternalError("a second answer would follow where one is all there is"))
        elif not reply.more and not unary:
            self.end(OK)
        elif len(self.pieces) >= CREDIT:
            self.cut_off(ExhaustedError("more pieces of an answer came than there was room for"))
        else:
            self.pieces.append(reply.response)
            self.news.set()
            if unary:
                self.end(OK)

    def cut_off(self, error: ShoalError) -> None:
        """End it at this end."""
        self.goes_on_there = True
        self.end(status_of(error))


class StreamCalls:
    """A `Channel` to the agent at the other end of a stream. The owner of the stream passes its replies in."""

    def __init__(self, outbox: Outbox, *, address: str) -> None:
        self._outbox = outbox
        self._address = address
        self._under_way: dict[int, _UnderWay] = {}
        self._last_id = 0
        self._broken = ""

    @property
    def address(self) -> str:
        """Where it leads, in words: there is no address."""
        return self._address

    def rename(self, address: str) -> None:
        """It is known now where it leads."""
        self._address = address

    def take(self, message: pb.ControlMessage) -> None:
        """Take a `call_reply` or `error`. A reply to a call that has ended is dropped."""
        under_way = self._under_way.get(message.in_reply_to)
        if under_way is None:
            return
        if message.HasField("error"):
            error = status_from_proto(message.error)
            under_way.end(Status(Code.UNKNOWN, error.message) if error.code is Code.OK else error)
        else:
            under_way.take(message.call_reply)

    def break_off(self, why: str) -> None:
        """The stream is over: so are the calls."""
        self._broken = self._broken or why
        for under_way in self._under_way.values():
            under_way.end(Status(Code.UNAVAILABLE, why))

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        metadata: Mapping[str, str] | None = None,
    ) -> Response:
        """A unary call."""
        under_way = self._begin(method)
        try:
            async with asyncio.timeout(timeout):
                await self._send(under_way, request, metadata, timeout)
                while under_way.status is None:
                    under_way.news.clear()
                    await under_way.news.wait()
        except TimeoutError:
            raise self._explain(Status(Code.DEADLINE_EXCEEDED), method, timeout) from None
        finally:
            self._finish(under_way)
        if under_way.status.code is not Code.OK:
            raise self._explain(under_way.status, method, timeout)
        return self._read(method, under_way.pieces.popleft())

    async def stream(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Response]:
        """A call whose answer is a stream."""
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        under_way = self._begin(method)
        try:
            async with asyncio.timeout_at(deadline):
                await self._send(under_way, request, metadata, timeout)
            while (piece := await self._next_piece(under_way, deadline)) is not None:
                yield self._read(method, piece)
        except TimeoutError:
            raise self._explain(Status(Code.DEADLINE_EXCEEDED), method, timeout) from None
        finally:
            self._finish(under_way)
        self._check_end(under_way, timeout)

    async def converse(
        self,
        method: Method[Request, Response],
        requests: AsyncIterator[Request],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Response]:
        """A call that streams both ways."""
        under_way = self._begin(method)
        try:
            await self._send(under_way, None, metadata, None)
            async with running(self._feed(under_way, requests), name=f"requests of {method.name}"):
                while (piece := await self._next_piece(under_way, None)) is not None:
                    yield self._read(method, piece)
        finally:
            self._finish(under_way)
        self._check_end(under_way, None)

    async def _feed(self, under_way: _UnderWay, requests: AsyncIterator[Any]) -> None:
        """Send the pieces of a streamed request. An error of their source ends the call."""
        try:
            async for request in requests:
                await under_way.room.spend()
                piece = pb.CallRequest(request=pack(request, under_way.method), piece=True)
                await self._outbox.put(pb.ControlMessage(in_reply_to=under_way.call_id, call=piece), piece=True)
            end = pb.CallRequest(end=True)
            # In the lane of the pieces: it must not overtake them.
            await self._outbox.put(pb.ControlMessage(in_reply_to=under_way.call_id, call=end), piece=True)
        except ShoalError as error:
            under_way.cut_off(error)

    async def _next_piece(self, under_way: _UnderWay, deadline: float | None) -> bytes | None:
        """The next piece of a streamed answer, None after the last. Raises TimeoutError."""
        while not under_way.pieces:
            if under_way.status is not None:
                return None
            under_way.news.clear()
            async with asyncio.timeout_at(deadline):
                await under_way.news.wait()
        under_way.taken += 1
        if 2 * under_way.taken >= CREDIT and under_way.status is None:
            more = pb.CallRequest(credit=under_way.taken)
            self._outbox.push(pb.ControlMessage(in_reply_to=under_way.call_id, call=more))
            under_way.taken = 0
        return under_way.pieces.popleft()

    def _check_end(self, under_way: _UnderWay, timeout: float | None) -> None:
        if under_way.status is not None and under_way.status.code is not Code.OK:
            raise self._explain(under_way.status, under_way.method, timeout)

    async def close(self) -> None:
        """End the calls under way; the stream goes on."""
        self.break_off("the channel was closed")

    def _begin(self, method: Method[Any, Any]) -> _UnderWay:
        if self._broken:
            raise self._explain(Status(Code.UNAVAILABLE, self._broken), method, None)
        if len(self._under_way) >= MAX_CALLS:
            raise ExhaustedError(f"{MAX_CALLS} calls to {self._address} are under way already", limit=MAX_CALLS)
        self._last_id += 1
        under_way = self._under_way[self._last_id] = _UnderWay(self._last_id, method)
        return under_way

    async def _send(
        self, under_way: _UnderWay, request: Any, metadata: Mapping[str, str] | None, timeout: float | None
    ) -> None:
        method = under_way.method
        call = pb.CallRequest(
            method=method.name,
            request=b"" if request is None else pack(request, method),
            metadata=dict(checked_metadata(metadata)),
            timeout_ms=round(timeout * 1000) if timeout is not None else 0,
            credit=0 if method.cardinality is Cardinality.UNARY else CREDIT,
        )
        await self._outbox.put(pb.ControlMessage(message_id=under_way.call_id, call=call))

    def _finish(self, under_way: _UnderWay) -> None:
        """Forget a call, and tell the other end if it still goes on there."""
        del self._under_way[under_way.call_id]
        if under_way.status is None or under_way.goes_on_there:
            cancel = pb.CallRequest(cancel=True)
            self._outbox.push(pb.ControlMessage(in_reply_to=under_way.call_id, call=cancel))

    def _explain(self, status: Status, method: Method[Any, Any], timeout: float | None) -> ShoalError:
        return explain(status, address=self._address, method=method.path, timeout=timeout)

    def _read(self, method: Method[Any, Response], data: bytes) -> Response:
        try:
            return unpack(method.response, data, method)  # type: ignore[no-any-return]
        except InvalidError as error:
            raise InternalError(
                f"{method.path}: the answer of {self._address} cannot be read", address=self._address
            ) from error


# ---------------------------------------------------------------------------------------------------------
# The end that serves


@dataclass(slots=True, eq=False)
class _Served:
    """A call that is being served."""

    #: How many pieces of its answer the caller has room for.
    room: Credit
    task: asyncio.Task[None] | None = None
    #: Pieces of a streamed request that wait for the handler; None is their end.
    requests: deque[bytes | None] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, piece: bytes | None) -> bool:
        """A piece of the request has come; whether there was room for it."""
        has_room = len(self.requests) <= CREDIT
        if has_room:
            self.requests.append(piece)
            self.arrived.set()
        return has_room


class CallServer:
    """Serves the calls that come through one stream, side by side."""

    def __init__(
        self, services: Sequence[Service], outbox: Outbox, *, peer: str, observer: RpcObserver | None = None
    ) -> None:
        # Nobody else is at the other end than the control plane, which the channel has verified: there is no rule to
        # ask, for it may call everything.
        self._endpoints = {
            method.name: Endpoint(method, getattr(service.handlers, method.attribute, None), None)
            for service in services
            for method in service.methods
        }
        self._outbox = outbox
        self._peer = peer
        self._observer = observer
        self._scope = TaskScope("stream calls")
        self._served: dict[int, _Served] = {}

    async def take(self, message: pb.ControlMessage) -> None:
        """A `call` has come: begin it, end it, or let it go on."""
        call, call_id = message.call, message.message_id
        if message.in_reply_to:
            served = self._served.get(message.in_reply_to)
            if served is not None:
                self._go_on(served, call)
            return
        if call_id == 0 or call_id in self._served:
            rule = "must be there, and differ from those of the calls under way"
            await self._outbox.put(refusal(InvalidError([problem("message_id", call_id, rule)]), call_id))
            return
        error = self._trouble_with(call)
        if error is not None:
            await self._reply(call_id, pb.CallReply(status=status_to_proto(status_of(error))))
            return
        served = self._served[call_id] = _Served(Credit(min(_MAX_CREDIT, max(0, call.credit))))
        served.task = self._scope.start(self._serve(call_id, served, call), name=call.method)
        served.task.add_done_callback(lambda _task: self._served.pop(call_id, None))

    def _go_on(self, served: _Served, call: pb.CallRequest) -> None:
        """A message about a call under way."""
        has_room = True
        if call.piece or call.end:
            has_room = served.take(None if call.end else call.request)
        else:
            served.room.grant(call.credit)
        if (call.cancel or not has_room) and served.task is not None:
            served.task.cancel()

    async def close(self) -> None:
        """End every call."""
        await self._scope.close()

    def _trouble_with(self, call: pb.CallRequest) -> ShoalError | None:
        endpoint = self._endpoints.get(call.method)
        if endpoint is None:
            return UnsupportedError(f"{call.method[:64]!r} cannot be called through a stream", method=call.method[:64])
        if len(self._served) >= MAX_CALLS:
            return ExhaustedError(f"{MAX_CALLS} calls are under way already", limit=MAX_CALLS)
        return None

    async def _serve(self, call_id: int, served: _Served, request: pb.CallRequest) -> None:
        endpoint = self._endpoints[request.method]
        left = request.timeout_ms / 1000 if request.timeout_ms > 0 else None
        call = Call(endpoint.method.path, self._peer, dict(request.metadata), left)
        try:
            if endpoint.method.cardinality is Cardinality.UNARY:
                result = await answer(endpoint, request.request, call, self._observer)
                if isinstance(result, Status):
                    await self._reply(call_id, pb.CallReply(status=status_to_proto(result)))
                else:
                    await self._reply(call_id, pb.CallReply(response=result))
            else:
                await self._stream(call_id, served, request.request, call)
        except UnavailableError:
            pass  # the stream is over; the caller knows

    async def _stream(self, call_id: int, served: _Served, request: bytes, call: Call) -> None:
        async def send(data: bytes) -> None:
            await served.room.spend()
            reply = pb.CallReply(response=data, more=True)
            await self._outbox.put(pb.ControlMessage(in_reply_to=call_id, call_reply=reply), piece=True)

        endpoint = self._endpoints[call.method.rpartition("/")[2]]
        is_both = endpoint.method.cardinality is Cardinality.BOTH_STREAM
        requests = self._requests(call_id, served) if is_both else _one(request)
        status = await converse(endpoint, requests, send, call, self._observer)
        # In the lane of the pieces: it must not overtake them.
        last = pb.CallReply(status=None if status is OK else status_to_proto(status))
        await self._outbox.put(pb.ControlMessage(in_reply_to=call_id, call_reply=last), piece=True)

    async def _requests(self, call_id: int, served: _Served) -> AsyncIterator[bytes]:
        """The pieces of a streamed request, as they come."""
        taken = 0
        while True:
            while not served.requests:
                served.arrived.clear()
                await served.arrived.wait()
            piece = served.requests.popleft()
            if piece is None:
                return
            taken += 1
            if 2 * taken >= CREDIT:
                self._outbox.push(pb.ControlMessage(in_reply_to=call_id, call_reply=pb.CallReply(credit=taken)))
                taken = 0
            yield piece

    async def _reply(self, call_id: int, reply: pb.CallReply) -> None:
        message = pb.ControlMessage(in_reply_to=call_id, call_reply=reply)
        try:
            await self._outbox.put(message)
        except ExhaustedError as error:
            reply = pb.CallReply(status=status_to_proto(status_of(error)))
            await self._outbox.put(pb.ControlMessage(in_reply_to=call_id, call_reply=reply))


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data
