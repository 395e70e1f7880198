"""The transport over sockets: gRPC. Its twin without sockets is `local.py`; both pass one conformance suite.

`GrpcTransport` is made by the composition roots in `shoal.cli`; everything else receives a `Transport`. A channel is
one kept connection to one address, with a deadline on every call. What gRPC raises becomes the `ShoalError` that the
server raised (`status.py`). gRPC's own retries are off: callers retry with their own policies and know which calls
may be repeated. Servers are in `server.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from shoal.core.errors import InternalError, InvalidError, ShoalError, UnavailableError
from shoal.core.tasks import task_scope
from shoal.wire.addresses import parse_address
from shoal.wire.grpcio import aio
from shoal.wire.security import INSECURE, Security, open_channel
from shoal.wire.server import GrpcServer, serve
from shoal.wire.serving import RpcObserver, checked_metadata, close_stream, pack, unpack
from shoal.wire.status import Code, Status, explain
from shoal.wire.transport import DEFAULT_TIMEOUT, MAX_MESSAGE_BYTES, Method, Request, Response, Service

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    # A restarted peer is found within a second; an attempt that gets no answer at all is given up after three.
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

# Messages pass as bytes: they are packed and read here.
_Unary = aio.UnaryUnaryMultiCallable[bytes, bytes]
_ServerStream = aio.UnaryStreamMultiCallable[bytes, bytes]
_BothStream = aio.StreamStreamMultiCallable[bytes, bytes]


class GrpcTransport:
    """Makes gRPC channels and servers that share one identity.

    Args:
        security: how connections are protected.
        observer: told of every call that a server of this transport answers.
    """

    def __init__(self, *, security: Security = INSECURE, observer: RpcObserver | None = None) -> None:
        self._security = security
        self._observer = observer

    def connect(self, address: str) -> GrpcChannel:
        """A channel to host:port. Does not connect yet. Raises `InvalidError` when that is no address."""
        return GrpcChannel(address, self._security)

    async def serve(self, address: str, services: Sequence[Service]) -> GrpcServer:
        """Serve at host:port (port 0: any free one). Raises `UnavailableError` when the port is taken."""
        return await serve(address, services, security=self._security, observer=self._observer)


class GrpcChannel:
    """A connection to one address."""

    def __init__(self, address: str, security: Security) -> None:
        self._target = str(parse_address(address))
        self._address = address
        self._security = security
        self._channel: aio.Channel | None = None
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
        make: _Unary = self._open().unary_unary(method.path)
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
        make: _ServerStream = self._open().unary_stream(method.path)
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
        make: _BothStream = self._open().stream_stream(method.path)
        under_way = make(metadata=headers)
        failures: list[BaseException] = []

        async def send_requests() -> None:
            try:
                async for request in requests:
                    await under_way.write(pack(request, method))
                await under_way.done_writing()
            except (aio.AioRpcError, asyncio.InvalidStateError):
                pass  # the call is over; whoever reads it learns why
            except Exception as error:  # noqa: BLE001 - handed to whoever reads the answers
                failures.append(error)
                under_way.cancel()
            finally:
                await close_stream(requests)

        async with task_scope("wire.converse") as scope:
            scope.start(send_requests(), name=method.path)
            try:
                async for answer in under_way:
                    yield self._read(method, answer)
            except aio.AioRpcError as error:
                raise self._translate(error, method, None) from None
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
        if self._channel is not None:
            await self._channel.close()

    def _open(self) -> aio.Channel:
        if self._closed:
            raise UnavailableError(f"the channel to {self._address} is closed", address=self._address)
        if self._channel is None:
            self._channel = open_channel(self._security, self._target, _OPTIONS)
        return self._channel

    def _read(self, method: Method[Any, Response], data: Any) -> Response:
        try:
            return unpack(method.response, data, method)  # type: ignore[no-any-return]
        except InvalidError as error:
            raise InternalError(
                f"{method.path}: the answer of {self._address} cannot be read", address=self._address
            ) from error

    def _translate(self, error: aio.AioRpcError, method: Method[Any, Any], timeout: float | None) -> ShoalError:
        number = error.code().value[0]
        trailers = {name: value for name, value in error.trailing_metadata() if isinstance(value, bytes)}
        status = Status(Code(number), error.details() or "", trailers)
        return explain(status, address=self._address, method=method.path, timeout=timeout)

    def _raise_if_closed(self) -> None:
        # Closing a channel cancels its calls; only the caller's own cancellation may look like one.
        if self._closed and not _was_cancelled():
            raise UnavailableError(f"the channel to {self._address} was closed", address=self._address) from None


def _was_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
