"""The seam between programs and the network: calls, channels, servers.

Product code knows RPCs as `Method` values (`shoal.wire.methods`), calls them through a `Channel` and serves them from
plain objects with one coroutine per RPC. Two transports stand behind the seam and pass one conformance suite
(`shoal.testing.suites.TransportSuite`): gRPC over sockets (`channel.py`, `server.py`) and direct calls within one
event loop (`local.py`), on which whole fleets run in virtual time.

Errors are the same on both sides: a handler raises a `ShoalError`, the caller catches that type with its facts.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from shoal.model.identity import Caller, Identity, Peer

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

DEFAULT_TIMEOUT = 10.0
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

Standing = Callable[[], float]
"""How many seconds the certificates of a stream are valid. Raises the error that a new call would get if one is not."""

CheckCaller = Callable[[Caller], None]
"""Raises `UnauthenticatedError` for a caller whose certificate was revoked."""


class Cardinality(enum.Enum):
    """Which sides of a call are streams."""

    UNARY = "unary"
    SERVER_STREAM = "server stream"
    BOTH_STREAM = "both stream"


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """One RPC."""

    service: str
    name: str
    request: type[Request]
    response: type[Response]
    cardinality: Cardinality = Cardinality.UNARY

    @property
    def path(self) -> str:
        """As it stands in the HTTP/2 request."""
        return f"/{self.service}/{self.name}"

    @property
    def attribute(self) -> str:
        """The name of the coroutine that serves it: RegisterNode is served by register_node."""
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in self.name).lstrip("_")


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler may know of a call besides its request."""

    method: str
    peer: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: Seconds the caller is still willing to wait; None without a limit.
    time_left: float | None = None
    #: Who calls, proven by its certificate. None on an insecure transport, where nobody is known.
    identity: Identity | None = None
    #: Of a stream, whether the certificates at both ends are still valid. None where callers have no identity.
    standing: Standing | None = field(default=None, repr=False, compare=False)


class Prepared:
    """An answer that is sent often: it is serialized once. A handler returns it in place of the message."""

    def __init__(self, message: Message) -> None:
        self.DESCRIPTOR = message.DESCRIPTOR
        self._data = message.SerializeToString()

    def SerializeToString(self) -> bytes:  # noqa: N802  the name of the method of a message
        """The bytes of the message."""
        return self._data


@dataclass(frozen=True, slots=True)
class Service:
    """Methods, and the object that serves them.

    For each method the object may have a callable named `method.attribute`, called with the request and a `Call`:

        async def register_node(self, request, call) -> RegisterNodeResponse            unary
        def read_logs(self, request, call) -> AsyncIterator[LogChunk]                   server stream
        def control_stream(self, requests, call) -> AsyncIterator[ControlMessage]       both stream

    A method without one answers UNIMPLEMENTED.
    """

    methods: Sequence[Method[Any, Any]]
    handlers: object


class Channel(Protocol):
    """A connection to one address, made when first used and kept; safe to share."""

    @property
    def address(self) -> str:
        """Where it leads."""
        ...

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        metadata: Mapping[str, str] | None = None,
    ) -> Response:
        """A unary call. Raises the `ShoalError` the server raised, `UnavailableError` or `DeadlineError`."""
        ...

    def stream(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Response]:
        """A call whose answer is a stream. Closing the iterator ends the call on both sides."""
        ...

    def converse(
        self,
        method: Method[Request, Response],
        requests: AsyncIterator[Request],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Response]:
        """A call that streams both ways."""
        ...

    async def close(self) -> None:
        """Let go. Calls under way end with `UnavailableError`."""
        ...


class Server(Protocol):
    """Something that serves."""

    @property
    def address(self) -> str:
        """host:port that others may dial; the port is the real one also when 0 was asked for."""
        ...

    def set_serving(self, serving: bool) -> None:
        """What the standard health service answers."""
        ...

    async def stop(self, grace: float = 1.0) -> None:
        """Take no new calls, give those under way `grace` seconds, then end them."""
        ...


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why there is no connection."""

    #: The end of a sentence about the control plane.
    reason: str
    hint: str


class Transport(Protocol):
    """Makes channels and servers."""

    @property
    def identity(self) -> Identity | None:
        """Who we are by our certificate; None without one."""
        ...

    def credentials_version(self) -> int:
        """Grows when our certificate was replaced: what lasts should then be begun anew, with the new one."""
        ...

    def connect(self, address: str, *, peer: Peer | None = None) -> Channel:
        """A channel to host:port. Does not connect yet.

        With `peer` it leads to nobody else, wherever the address does: calls fail with `UnavailableError` when another
        answers. Without, any certificate for that host will do. An insecure transport cannot tell.
        """
        ...

    async def diagnose(self, address: str, *, peer: Peer | None = None) -> Diagnosis | None:
        """Why there is no connection to host:port; None when there is one, or when nothing more is known."""
        ...

    async def serve(
        self, address: str, services: Sequence[Service], *, check_caller: CheckCaller | None = None
    ) -> Server:
        """Serve at host:port (port 0: any free one). Raises `UnavailableError` when the port is taken.

        `check_caller` is asked for each call, for each message of a stream, and every few seconds while a stream lasts.
        """
        ...
