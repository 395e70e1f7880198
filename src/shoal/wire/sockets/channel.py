"""The transport over sockets: gRPC. Its twin without sockets is `local.py`; both pass one conformance suite.

`GrpcTransport` is made by the composition roots in `shoal.cli`; everything else receives a `Transport`. A channel is
one kept connection to one address, with a deadline on every call. What gRPC raises becomes the `ShoalError` that the
server raised (`status.py`). gRPC's own retries are off: callers retry with their own policies and know which calls may
be repeated. When the files of our certificate were replaced, the next call goes over a new connection that shows the
new one, and the old connection closes when the last call on it has ended. Servers are in `server.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.clock import Clock, SystemClock
from shoal.core.errors import InternalError, InvalidError, ShoalError, UnavailableError
from shoal.core.tasks import task_scope
from shoal.model.identity import Identity, Peer
from shoal.wire.addresses import parse_address
from shoal.wire.grpcio import aio, grpc
from shoal.wire.serving import RpcObserver, checked_metadata, close_stream, pack, unpack
from shoal.wire.sockets.server import GrpcServer, serve
from shoal.wire.status import Code, Status, explain
from shoal.wire.transport import (
    DEFAULT_TIMEOUT,
    MAX_MESSAGE_BYTES,
    CheckCaller,
    Diagnosis,
    Method,
    Request,
    Response,
    Service,
)
from shoal.wire.trust.authorization import RULES, Policy, Rule
from shoal.wire.trust.security import INSECURE, Protection, Security, protect

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    # A restarted peer is found within a second; an attempt without any answer fails after three.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 3000),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    # Only while calls are under way: foreign servers close connections that are pinged too often.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    # Each channel is its own connection, and goes where it is told: no shared state, no proxy, no TXT records.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
)

# What gRPC says of a server whose certificate is good, but not for the name that was asked for.
_NOT_THE_PEER = "Hostname Verification Check failed"

# What gRPC makes of a write that fails, whatever the reason. No server says so: ours add their trailers.
_OWN_ERROR = "Internal error from Core"

# A write fails because the call is over, so its status is here or about to be. Only a call that gRPC itself has broken
# has none.
_STATUS_LAG = 5.0

# Messages pass as bytes: they are packed and read here.
_Unary = aio.UnaryUnaryMultiCallable[bytes, bytes]
_ServerStream = aio.UnaryStreamMultiCallable[bytes, bytes]
_BothStream = aio.StreamStreamMultiCallable[bytes, bytes]


class GrpcTransport:
    """Makes gRPC channels and servers that share one identity.

    Args:
        security: how connections are protected. Files that are no good raise `InvalidError` here.
        observer: told of every call that a server of this transport answers.
        clock: for the dates in certificates.
        rules: who may call what, where callers are known.
    """

    def __init__(
        self,
        *,
        security: Security = INSECURE,
        observer: RpcObserver | None = None,
        clock: Clock | None = None,
        rules: Mapping[str, Rule] = RULES,
    ) -> None:
        self._security = security
        self._clock: Clock = clock or SystemClock()
        self._protection = protect(security, clock=self._clock)
        self._observer = observer
        self._rules = rules

    @property
    def identity(self) -> Identity | None:
        """Who we are by our certificate; None without one."""
        return self._protection.identity

    def credentials_version(self) -> int:
        """Grows when the files of our certificate were replaced."""
        return self._protection.version()

    def connect(self, address: str, *, peer: Peer | None = None) -> GrpcChannel:
        """A channel to host:port. Does not connect yet. Raises `InvalidError` when that is no address."""
        return GrpcChannel(address, self._protection, peer)

    async def diagnose(self, address: str, *, peer: Peer | None = None) -> Diagnosis | None:
        """Why there is no connection to host:port; None when there is one."""
        from shoal.wire.sockets.diagnosis import diagnose

        return await asyncio.to_thread(diagnose, address, self._security, peer, now=self._clock.wall())

    async def serve(
        self, address: str, services: Sequence[Service], *, check_caller: CheckCaller | None = None
    ) -> GrpcServer:
        """Serve at host:port (port 0: any free one). Raises `UnavailableError` when the port is taken."""
        identity = self._protection.identity
        # Without identities there is nobody to refuse: an insecure server lets everyone do everything.
        policy = Policy(identity.cluster, self._rules) if identity is not None else None
        return await serve(
            address,
            services,
            protection=self._protection,
            policy=policy,
            observer=self._observer,
            check_caller=check_caller,
        )


@dataclass(slots=True, eq=False)
class _Connection:
    """What gRPC calls a channel, made with the credentials of one version."""

    channel: aio.Channel
    version: int
    calls: int = 0


class GrpcChannel:
    """A connection to one address."""

    def __init__(self, address: str, protection: Protection, peer: Peer | None) -> None:
        self._target = str(parse_address(address))
        self._address = address
        self._protection = protection
        self._peer = peer
        self._connection: _Connection | None = None
        #: Those with older credentials that still carry calls.
        self._retired: set[_Connection] = set()
        self._closed = False

    @property
    def address(self) -> str:
        """Where it leads."""
        return self._address

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        metadata: Mapping[str, str] | None = None,
    ) -> Response:
        """A unary call."""
        headers = checked_metadata(metadata)
        data = pack(request, method)
        async with self._carry() as channel:
            make: _Unary = channel.unary_unary(method.path)
            under_way = make(data, timeout=timeout, metadata=headers)
            try:
                answer = await under_way
            except aio.AioRpcError as error:
                raise self._translate(error, method, timeout) from None
            except asyncio.CancelledError:
                self._raise_if_closed()
                raise
        return self._read(method, answer)

    async def stream(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Response]:
        """A call whose answer is a stream."""
        headers = checked_metadata(metadata)
        data = pack(request, method)
        async with self._carry() as channel:
            make: _ServerStream = channel.unary_stream(method.path)
            under_way = make(data, timeout=timeout, metadata=headers)
            try:
                async for answer in under_way:
                    yield self._read(method, answer)
            except aio.AioRpcError as error:
                raise self._translate(error, method, timeout) from None
            except asyncio.CancelledError:
                self._raise_if_closed()
                raise
            finally:
                under_way.cancel()

    async def converse(
        self,
        method: Method[Request, Response],
        requests: AsyncIterator[Request],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Response]:
        """A call that streams both ways."""
        headers = checked_metadata(metadata)
        failures: list[BaseException] = []
        async with self._carry() as channel, task_scope("wire.converse") as scope:
            make: _BothStream = channel.stream_stream(method.path)
            under_way = make(metadata=headers)
            ending = _Ending(under_way)
            scope.start(_send(under_way, method, requests, failures), name=method.path)
            try:
                async for answer in under_way:
                    yield self._read(method, answer)
            except aio.AioRpcError as error:
                status = await ending.status(_status_of(error))
                if status.code is not Code.OK:
                    raise self._explain(status, method, None) from None
            except asyncio.CancelledError:
                if failures and not _was_cancelled():
                    raise failures[0] from None
                self._raise_if_closed()
                raise
            finally:
                under_way.cancel()

    async def close(self) -> None:
        """Let go. Calls under way end with `UnavailableError`."""
        self._closed = True
        connections = [*self._retired, *([self._connection] if self._connection is not None else [])]
        for connection in connections:
            await connection.channel.close()

    @contextlib.asynccontextmanager
    async def _carry(self) -> AsyncIterator[aio.Channel]:
        """The connection for one call, which is not closed before that call has ended."""
        connection, old = self._open()
        connection.calls += 1
        try:
            if old is not None:
                await old.channel.close()
            yield connection.channel
        finally:
            connection.calls -= 1
            if not connection.calls and connection in self._retired:
                self._retired.discard(connection)
                await connection.channel.close()

    def _open(self) -> tuple[_Connection, _Connection | None]:
        """The connection to use now, and an unused one with older credentials, to be closed."""
        if self._closed:
            raise UnavailableError(f"the channel to {self._address} is closed", address=self._address)
        old, version = self._connection, self._protection.version()
        if old is not None and old.version == version:
            return old, None
        fresh = _Connection(self._protection.open_channel(self._target, self._peer, _OPTIONS), version)
        self._connection = fresh
        if old is not None and old.calls:
            self._retired.add(old)
            old = None
        return fresh, old

    def _read(self, method: Method[Any, Response], data: Any) -> Response:
        try:
            return unpack(method.response, data, method)  # type: ignore[no-any-return]
        except InvalidError as error:
            raise InternalError(
                f"{method.path}: the answer of {self._address} cannot be read", address=self._address
            ) from error

    def _translate(self, error: aio.AioRpcError, method: Method[Any, Any], timeout: float | None) -> ShoalError:
        return self._explain(_status_of(error), method, timeout)

    def _explain(self, status: Status, method: Method[Any, Any], timeout: float | None) -> ShoalError:
        if status.code is Code.UNAVAILABLE:
            self._protection.doubt()
            if self._peer is not None and _NOT_THE_PEER in status.message:
                message = f"the server there has no certificate of {self._peer} of this cluster"
                status = Status(status.code, message, status.trailers)
        return explain(status, address=self._address, method=method.path, timeout=timeout)

    def _raise_if_closed(self) -> None:
        # Closing a channel cancels its calls; only the caller's own cancellation may look like one.
        if self._closed and not _was_cancelled():
            raise UnavailableError(f"the channel to {self._address} was closed", address=self._address) from None


def _was_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Ending:
    """How a conversation ended, by the status that its server sent.

    gRPC keeps one status of a call. A write that fails because the call is over puts an error of gRPC's own there, over
    what the server said or just before that comes in (grpc/grpc issue 36066). So each status is read as soon as it is
    set, and that error decides nothing.
    """

    def __init__(self, under_way: aio.StreamStreamCall[bytes, bytes]) -> None:
        self._said: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        under_way.add_done_callback(self._note)

    async def status(self, seen: Status) -> Status:
        """The status that counts, for a reader that has seen this one."""
        if not _is_own_error(seen):
            return seen
        try:
            async with asyncio.timeout(_STATUS_LAG):
                return await self._said
        except TimeoutError:
            return Status(Code.UNAVAILABLE, "the call broke off while a request was being sent, and no status came")

    def _note(self, under_way: Any) -> None:
        # Called once for each status that is set, before anything else can run that sets another.
        reading = _read_status(under_way)
        try:
            reading.send(None)
        except StopIteration as read:
            status: Status = read.value
            if not self._said.done() and not _is_own_error(status):
                self._said.set_result(status)
        finally:
            reading.close()


def _is_own_error(status: Status) -> bool:
    return status.code is Code.INTERNAL and status.message == _OWN_ERROR and not status.trailers


async def _read_status(under_way: Any) -> Status:
    """The status of a call that has one. Never waits then."""
    return _status(await under_way.code(), await under_way.details(), await under_way.trailing_metadata())


def _status_of(error: aio.AioRpcError) -> Status:
    return _status(error.code(), error.details(), error.trailing_metadata())


def _status(code: grpc.StatusCode, details: str | None, trailing: Iterable[tuple[str, str | bytes]]) -> Status:
    trailers = {name: value for name, value in trailing if isinstance(value, bytes)}
    return Status(Code(code.value[0]), details or "", trailers)


async def _send(
    under_way: aio.StreamStreamCall[bytes, bytes],
    method: Method[Any, Any],
    requests: AsyncIterator[Any],
    failures: list[BaseException],
) -> None:
    """Send every request, then say that there are no more. Stops when the call is over: its reader learns why."""
    try:
        async for request in requests:
            if not await _went_out(under_way.write(pack(request, method))):
                return
        await _went_out(under_way.done_writing())
    except Exception as error:  # noqa: BLE001 - raised by the reader of the answers
        failures.append(error)
        under_way.cancel()
    finally:
        await close_stream(requests)


async def _went_out(step: Awaitable[None]) -> bool:
    """Whether gRPC took what was sent; if not, the call is over."""
    try:
        await step
    except (aio.AioRpcError, aio.InternalError, asyncio.InvalidStateError):
        return False
    return True
