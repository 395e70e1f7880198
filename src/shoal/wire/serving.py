"""What happens between a transport and a handler, on the serving side, equal for every transport.

Requests come in as bytes and are parsed here; answers go out as bytes. Where callers have identities, the rules are
enforced here: which role may call (`authorization.py`), before a request is parsed; what a request may say, after; and
which fields of an answer the caller may see (`disclosure.py`). An error that a handler raises becomes a `Status`: a
`ShoalError` as itself, any other as INTERNAL, logged once with its traceback. Each call is reported to an
`RpcObserver` with the code it ended with.

A stream ends when a certificate at one of its ends expires or is revoked, with the status that a new call would get:
nothing more is read from it or sent through it, and its handler is cancelled.

Called by `server.py` and `local.py`; calls the handlers of a `Service`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from google.protobuf.message import DecodeError, EncodeError, Message

from shoal.core import tracing
from shoal.core.errors import ExhaustedError, InternalError, InvalidError, ShoalError, UnsupportedError, problem
from shoal.wire.status import OK, Code, Status, status_of
from shoal.wire.transport import MAX_MESSAGE_BYTES, Call, Cardinality, Method, Service, Standing
from shoal.wire.trust.authorization import Policy
from shoal.wire.trust.disclosure import disclose

log = logging.getLogger(__name__)

Send = Callable[[bytes], Awaitable[None]]

CHECK_EVERY = 3.0
"""Seconds between two checks of a silent stream: its caller's certificate may have been revoked."""

_MOMENT = 0.01


class RpcObserver(Protocol):
    """Counts and times what a server answers."""

    def observe(self, method: str, code: str, seconds: float) -> None:
        """One call to the method of this path ended with this code after so long."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of a server."""

    method: Method[Any, Any]
    #: What serves it; None answers UNIMPLEMENTED.
    function: Callable[[Any, Call], Any] | None
    #: Who may call it; None lets everyone do everything, as an insecure transport has to.
    policy: Policy | None


def endpoints_of(services: Sequence[Service], policy: Policy | None) -> dict[str, Endpoint]:
    """Every method of the services, by path."""
    return {
        method.path: Endpoint(method, getattr(service.handlers, method.attribute, None), policy)
        for service in services
        for method in service.methods
    }


def unknown_method(path: str) -> Status:
    """What a call to a method that no service has is answered with."""
    return status_of(UnsupportedError(f"{path} is not served here", method=path))


def refuse(endpoint: Endpoint, error: ShoalError, observer: RpcObserver | None) -> Status:
    """What a call is answered with whose caller cannot even be made out."""
    with _watched(endpoint.method, observer) as outcome:
        raise error
    return outcome.status


async def answer(endpoint: Endpoint, data: bytes, call: Call, observer: RpcObserver | None) -> bytes | Status:
    """Serve a unary call: the answer, or the status that says why there is none. Raises only `CancelledError`."""
    result = b""
    with _traced(endpoint, call) as trace, _watched(endpoint.method, observer, trace) as outcome:
        _admit(endpoint, call)
        function = _function(endpoint)
        request = unpack(endpoint.method.request, data, endpoint.method)
        _check_request(endpoint, call, request)
        result = pack(_visible(endpoint, call, await function(request, call)), endpoint.method)
    return result if outcome.status is OK else outcome.status


async def converse(
    endpoint: Endpoint, requests: AsyncIterator[bytes], send: Send, call: Call, observer: RpcObserver | None
) -> Status:
    """Serve a call that streams its answer, and perhaps its requests. Raises only `CancelledError`.

    It ends when the call is good no more, also while nothing is said.
    """
    method = endpoint.method
    check = call.standing or _always
    with _traced(endpoint, call) as trace, _watched(endpoint.method, observer, trace) as outcome:
        _admit(endpoint, call)
        function = _function(endpoint)
        if method.cardinality is Cardinality.BOTH_STREAM:
            given: Any = _Requests(requests, method, check)
        else:
            given = unpack(method.request, await _only(requests, method), method)
            _check_request(endpoint, call, given)
        responses = function(given, call)
        async with _while_good(call.standing):
            try:
                async for response in responses:
                    check()
                    await send(pack(_visible(endpoint, call, response), method))
            finally:
                await close_stream(responses)
    return outcome.status


def _always() -> float:
    return math.inf


@contextlib.asynccontextmanager
async def _while_good(standing: Standing | None) -> AsyncIterator[None]:
    """Cancel the block when a call is good no more, and raise why."""
    if standing is None:
        yield
        return
    loop = asyncio.get_running_loop()
    over: ShoalError | None = None
    timer: asyncio.Handle | None = None

    def look() -> None:
        nonlocal over, timer
        try:
            # No sooner than in a moment: a date and a timer do not agree to the microsecond.
            timer = loop.call_later(max(_MOMENT, min(standing(), CHECK_EVERY)), look)
        except ShoalError as error:
            over = error
            deadline.reschedule(loop.time())

    timer = loop.call_soon(look)
    try:
        async with asyncio.timeout(None) as deadline:
            try:
                yield
            finally:
                timer.cancel()
    except TimeoutError:
        if over is None:
            raise
        raise over from None


@contextlib.contextmanager
def one_message(method: Method[Any, Any], observer: RpcObserver | None) -> Iterator[RpcOutcome]:
    """Around what serves one message of a stream that stands for a call: it is counted, timed and traced as that is.

    What the block raises becomes the status of the outcome. The trace is the message's own: a stream lives longer than
    anything that is done for one message.
    """
    trace = tracing.span(method.path, parent={}, rpc__system="grpc")
    with trace as span, _watched(method, observer, span) as outcome:
        yield outcome


@dataclass(slots=True)
class RpcOutcome:
    """How a call ended."""

    status: Status = OK


def _traced(endpoint: Endpoint, call: Call) -> contextlib.AbstractContextManager[tracing.Span]:
    return tracing.span(endpoint.method.path, parent=call.metadata, rpc__system="grpc")


@contextlib.contextmanager
def _watched(
    method: Method[Any, Any], observer: RpcObserver | None, trace: tracing.Span | None = None
) -> Iterator[RpcOutcome]:
    """Turn what the block raises into a status, and report how the call ended."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    outcome = RpcOutcome()
    cancelled = False
    try:
        yield outcome
    except asyncio.CancelledError as error:
        if _was_cancelled():
            cancelled = True
            raise
        # Something inside the handler was cancelled, not the call: the caller must not wait for ever.
        outcome.status = _unexpected(method, error)
    except InternalError as error:
        outcome.status = _unexpected(method, error)
    except ShoalError as error:
        outcome.status = status_of(error)
        if outcome.status.code is Code.INTERNAL:
            _unexpected(method, error)
    except Exception as error:  # noqa: BLE001 - a handler's bug is answered and logged; the server goes on
        outcome.status = _unexpected(method, error)
    finally:
        code = Code.CANCELLED if cancelled else outcome.status.code
        if trace is not None:
            trace.set("rpc.response.status_code", code.name)
        if observer is not None:
            observer.observe(method.path, code.name, loop.time() - started)


def _unexpected(method: Method[Any, Any], error: BaseException) -> Status:
    log.error("%s failed", method.path, exc_info=error)
    return status_of(InternalError("internal error"))


def _was_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _admit(endpoint: Endpoint, call: Call) -> None:
    if endpoint.policy is not None:
        endpoint.policy.admit(endpoint.method, call.identity)


def _check_request(endpoint: Endpoint, call: Call, request: Any) -> None:
    if endpoint.policy is not None and call.identity is not None:
        endpoint.policy.check_request(endpoint.method, call.identity, request)


def _visible(endpoint: Endpoint, call: Call, answer: Message) -> Message:
    """The part of an answer that the caller may see."""
    if endpoint.policy is None or call.identity is None:
        return answer
    return disclose(answer, call.identity)


def _function(endpoint: Endpoint) -> Callable[[Any, Call], Any]:
    if endpoint.function is None:
        raise UnsupportedError(f"{endpoint.method.path} is not served here", method=endpoint.method.path)
    return endpoint.function


async def _only(requests: AsyncIterator[bytes], method: Method[Any, Any]) -> bytes:
    async for data in requests:
        return data
    raise InvalidError([problem("request", None, f"{method.path} needs one")])


class _Requests:
    """The requests of a call that streams them.

    Not a generator: a message that cannot be parsed raises from `__anext__`, and a handler that catches it can go on
    to the next one.
    """

    def __init__(self, requests: AsyncIterator[bytes], method: Method[Any, Any], check: Standing) -> None:
        self._requests = requests
        self._method = method
        self._check = check

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        data = await anext(self._requests)
        self._check()
        return unpack(self._method.request, data, self._method)


async def close_stream(stream: AsyncIterator[Any]) -> None:
    """End a stream early if it is one that can be told so."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()


# ---------------------------------------------------------------------------------------------------------
# Messages as bytes, for both sides of a call


def pack(message: Message, method: Method[Any, Any]) -> bytes:
    """Serialize a message. Raises `ExhaustedError` when it is larger than the wire carries."""
    try:
        data = message.SerializeToString()
    except EncodeError:
        data = None
    if data is None or len(data) > MAX_MESSAGE_BYTES:
        size = "more than 2 GiB" if data is None else f"{len(data):,} bytes"
        raise ExhaustedError(
            f"{method.path}: a message of {size} is larger than the limit of {MAX_MESSAGE_BYTES:,}",
            method=method.path,
            limit=MAX_MESSAGE_BYTES,
        )
    return data


def unpack(cls: type[Any], data: bytes, method: Method[Any, Any]) -> Any:
    """Parse a message. Raises `InvalidError` when the bytes are none of that type."""
    try:
        return cls.FromString(data)
    except DecodeError:
        kind = cls.DESCRIPTOR.full_name
        raise InvalidError(
            [problem("request", None, f"must be a {kind} message; these {len(data):,} bytes are none")],
            what=method.path,
        ) from None


def checked_metadata(metadata: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Headers as they travel: names in lower case, values in printable ASCII. Raises `InvalidError`."""
    pairs = []
    for name, value in (metadata or {}).items():
        lower = name.lower()
        well_named = bool(lower) and all(c.isascii() and (c.isalnum() or c in "-_.") for c in lower)
        if not well_named or lower.startswith(("grpc-", ":")) or lower.endswith("-bin"):
            raise InvalidError([problem("metadata", name, "must be a header name of letters, digits, dots and dashes")])
        if not all(" " <= c <= "~" for c in value):
            raise InvalidError([problem(f"metadata.{lower}", value, "must be printable ASCII")])
        pairs.append((lower, value))
    return tuple(pairs)
