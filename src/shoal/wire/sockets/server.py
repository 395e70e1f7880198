"""Servers over gRPC: generic handlers made from `Service` values, with health and reflection always on.

Requests and answers pass through as bytes and are parsed in `serving.py`, so a message that cannot be parsed is an
INVALID_ARGUMENT of that call and harms no other. Made by `GrpcTransport.serve` (`channel.py`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from shoal.core.errors import UnauthenticatedError, UnavailableError
from shoal.model.identity import Caller
from shoal.wire.addresses import Address, parse_address
from shoal.wire.grpcio import aio, grpc
from shoal.wire.health import NAME as HEALTH
from shoal.wire.health import Health
from shoal.wire.reflection import Reflection
from shoal.wire.serving import Endpoint, RpcObserver, answer, converse, endpoints_of, refuse
from shoal.wire.status import OK, Status
from shoal.wire.transport import MAX_MESSAGE_BYTES, Call, Cardinality, CheckCaller, Service, Standing
from shoal.wire.trust.authorization import Policy
from shoal.wire.trust.security import Protection

_CODES = {code.value[0]: code for code in grpc.StatusCode}

# Enough for the streams of a whole fleet and ten thousand calls at once; more are refused with RESOURCE_EXHAUSTED.
_MAX_CALLS = 20_000

# When a caller goes away, gRPC first ends its requests, as if all had been said, and refuses what is still sent; only
# a moment later it cancels the call. Given that moment, a handler sees its cancellation and neither of the two.
_CANCELLATION_LAG = 0.02

_OPTIONS: tuple[tuple[str, int], ...] = (
    # A second server on the same port must fail, not share its connections.
    ("grpc.so_reuseport", 0),
    # What has come in and waits for its handler to begin. gRPC's own bounds are lower than ten thousand, and a call
    # beyond them is broken off without a reason.
    ("grpc.server.max_pending_requests", _MAX_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", _MAX_CALLS),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Answers are measured before they are sent; gRPC's own check would break the call without a reason.
    ("grpc.max_send_message_length", -1),
    # An agent that has nothing to say keeps its connection: pings are welcome as often as every second, and our own
    # find out within 40 s that a peer is gone without a word.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
)


class GrpcServer:
    """A running server."""

    def __init__(self, server: aio.Server, address: Address, health: Health) -> None:
        self._server = server
        self._address = address
        self._health = health

    @property
    def address(self) -> str:
        """host:port that others on this machine may dial."""
        return str(self._address)

    def set_serving(self, serving: bool) -> None:
        """What the health service answers."""
        self._health.set_serving(serving)

    async def stop(self, grace: float = 1.0) -> None:
        """Take no new calls, give those under way `grace` seconds, then end them. Safe to call twice."""
        self._health.set_serving(False)
        await self._server.stop(grace or None)


async def serve(
    address: str,
    services: Sequence[Service],
    *,
    protection: Protection,
    policy: Policy | None,
    observer: RpcObserver | None,
    check_caller: CheckCaller | None = None,
) -> GrpcServer:
    """Serve at host:port. Raises `UnavailableError` when that address cannot be had."""
    wanted = parse_address(address, listening=True)
    names = [method.service for service in services for method in service.methods]
    health = Health(names)
    reflection = Reflection([*names, HEALTH])
    endpoints = endpoints_of([*services, health.service(), reflection.service()], policy)
    options = (*protection.server_options, *_OPTIONS)  # of two values for one option, the first counts
    server = aio.server(options=options, maximum_concurrent_rpcs=_MAX_CALLS)
    server.add_generic_rpc_handlers((_Handlers(endpoints, _Callers(protection, check_caller), observer),))
    bound = Address(wanted.host or "0.0.0.0", wanted.port)  # noqa: S104 - an empty host asks for every address
    try:
        port = protection.add_port(server, str(bound))
    except RuntimeError as error:
        raise _cannot_listen(bound) from error
    await server.start()
    return GrpcServer(server, bound.with_port(port).dialable(), health)


def _cannot_listen(address: Address) -> UnavailableError:
    """The reason, which gRPC does not give; the operating system does when it is asked the same."""
    reason = "the address cannot be had"
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address.host, address.port))
            probe.listen(1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    return UnavailableError(
        f"cannot listen on {address}: {reason}",
        hint="stop the program that listens there, or choose another address",
        address=address,
    )


class _Handlers(grpc.GenericRpcHandler):
    """Finds the handler of a call by its path."""

    def __init__(self, endpoints: dict[str, Endpoint], callers: _Callers, observer: RpcObserver | None) -> None:
        self._handlers = {path: _handler(endpoint, callers, observer) for path, endpoint in endpoints.items()}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """The handler, or None for an unknown method, which gRPC answers with UNIMPLEMENTED."""
        return self._handlers.get(handler_call_details.method)


class _Callers:
    """Identifies callers, and checks that their certificates are still valid."""

    def __init__(self, protection: Protection, check_caller: CheckCaller | None) -> None:
        self._protection = protection
        self._check_caller = check_caller

    def call(self, endpoint: Endpoint, context: aio.ServicerContext[bytes, bytes]) -> Call:
        """The call as its handler sees it. Raises `UnauthenticatedError` for a caller that is refused."""
        given = context.invocation_metadata() or ()
        metadata = {name: value for name, value in given if isinstance(value, str)}
        left = context.time_remaining()
        caller = self._protection.caller(context)
        standing: Standing | None = None
        if caller is not None:
            standing = partial(self._seconds_left, caller)
            standing()
        return Call(
            endpoint.method.path,
            context.peer(),
            metadata,
            None if left is None else float(left),
            caller.identity if caller is not None else None,
            # A unary call ends before anything changes; a stream may last.
            None if endpoint.method.cardinality is Cardinality.UNARY else standing,
        )

    def _seconds_left(self, caller: Caller) -> float:
        if self._check_caller is not None:
            self._check_caller(caller)
        return self._protection.seconds_left(caller)


def _handler(
    endpoint: Endpoint, callers: _Callers, observer: RpcObserver | None
) -> grpc.RpcMethodHandler[bytes, bytes]:
    behaviors: dict[Cardinality, tuple[Callable[..., Awaitable[Any]], Callable[..., Any]]] = {
        Cardinality.UNARY: (_unary, grpc.unary_unary_rpc_method_handler),
        Cardinality.SERVER_STREAM: (_server_stream, grpc.unary_stream_rpc_method_handler),
        Cardinality.BOTH_STREAM: (_both_stream, grpc.stream_stream_rpc_method_handler),
    }
    behavior, make = behaviors[endpoint.method.cardinality]

    async def handle(given: Any, context: aio.ServicerContext[bytes, bytes]) -> Any:
        try:
            call = callers.call(endpoint, context)
        except (UnauthenticatedError, UnavailableError) as error:
            await _abort(context, refuse(endpoint, error, observer))
            return None
        return await behavior(endpoint, observer, call, given, context)

    made: grpc.RpcMethodHandler[bytes, bytes] = make(handle)
    return made


async def _unary(
    endpoint: Endpoint,
    observer: RpcObserver | None,
    call: Call,
    data: bytes,
    context: aio.ServicerContext[bytes, bytes],
) -> bytes:
    result = await answer(endpoint, data, call, observer)
    if isinstance(result, Status):
        await _abort(context, result)
        return b""
    return result


async def _server_stream(
    endpoint: Endpoint,
    observer: RpcObserver | None,
    call: Call,
    data: bytes,
    context: aio.ServicerContext[bytes, bytes],
) -> None:
    await _stream(endpoint, observer, call, _one(data), context)


async def _both_stream(
    endpoint: Endpoint,
    observer: RpcObserver | None,
    call: Call,
    requests: AsyncIterator[bytes],
    context: aio.ServicerContext[bytes, bytes],
) -> None:
    await _stream(endpoint, observer, call, _until_the_end(requests), context)


async def _stream(
    endpoint: Endpoint,
    observer: RpcObserver | None,
    call: Call,
    requests: AsyncIterator[bytes],
    context: aio.ServicerContext[bytes, bytes],
) -> None:
    async def send(data: bytes) -> None:
        try:
            await context.write(data)
        except aio.BaseError:
            await asyncio.sleep(_CANCELLATION_LAG)
            raise UnavailableError("the caller has gone away") from None

    status = await converse(endpoint, requests, send, call, observer)
    if status is not OK:
        await _abort(context, status)


async def _until_the_end(requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for data in requests:
        yield data
    await asyncio.sleep(_CANCELLATION_LAG)


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _abort(context: aio.ServicerContext[bytes, bytes], status: Status) -> None:
    await context.abort(_CODES[int(status.code)], status.message, tuple(status.trailers.items()))
