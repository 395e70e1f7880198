"""Registers a node and sends its heartbeats through a stream, through which the control plane also calls the agent.

A control plane without such streams gets unary calls. After the agent's certificate was replaced, a new stream is
opened. Made by `shoal.agent.contact.registration`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from shoal.agent.contact.control_client import ControlClient
from shoal.agent.contact.stream import ControlStream
from shoal.core.errors import UnavailableError, UnsupportedError
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.serving import RpcObserver
from shoal.wire.transport import DEFAULT_TIMEOUT, Service

log = logging.getLogger(__name__)

T = TypeVar("T")


class ControlLink:
    """What a node says to the control plane all the time.

    Args:
        client: the connection; it may be used for other calls.
        services: what serves the calls that come through the stream. Without any no stream is opened.
        stream_only: never fall back to unary calls, for an agent that can be called in no other way.
        observer: told of every call that is served through the stream.
        on_broken: called when the stream broke while nothing was being said.
    """

    def __init__(
        self,
        client: ControlClient,
        services: Sequence[Service] = (),
        *,
        stream_only: bool = False,
        observer: RpcObserver | None = None,
        on_broken: Callable[[], None] | None = None,
    ) -> None:
        self._client = client
        self._services = services
        self._stream_only = stream_only
        self._observer = observer
        self._on_broken = on_broken or _ignore
        self._stream: ControlStream | None = None
        #: Of the credentials that it was opened with.
        self._stream_version = 0
        #: Whether the control plane at this address has no streams.
        self._unary = not services

    async def use_next(self) -> None:
        """Move on to the next address. With only one, connect to it again."""
        await self._close_stream()
        await self._client.use_next()

    async def close(self) -> None:
        """Close the stream and the connection; the next call opens another."""
        await self._close_stream()
        await self._client.close()

    async def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        self._unary = not self._services
        if stream is not None:
            await stream.close()

    async def register_node(
        self, request: pb.RegisterNodeRequest, *, timeout: float = DEFAULT_TIMEOUT
    ) -> pb.RegisterNodeResponse:
        """Register this node."""
        return await self._at_leader(
            lambda stream: stream.register(request, timeout=timeout),
            lambda: self._client.call(AgentControl.REGISTER_NODE, request, timeout=timeout),
        )

    async def heartbeat(
        self, request: pb.HeartbeatRequest, *, timeout: float = DEFAULT_TIMEOUT
    ) -> pb.HeartbeatResponse:
        """Send a heartbeat."""
        return await self._at_leader(
            lambda stream: stream.heartbeat(request, timeout=timeout),
            lambda: self._client.call(AgentControl.HEARTBEAT, request, timeout=timeout),
        )

    async def _at_leader(
        self, through_stream: Callable[[ControlStream], Awaitable[T]], by_call: Callable[[], Awaitable[T]]
    ) -> T:
        return await self._client.at_leader(lambda: self._say(through_stream, by_call), leave=self.close)

    async def _say(
        self, through_stream: Callable[[ControlStream], Awaitable[T]], by_call: Callable[[], Awaitable[T]]
    ) -> T:
        """Say something through the stream, opened if need be; where there are no streams, by a call."""
        address = self._client.address
        if not self._unary:
            stream, former = self._opened()
            try:
                return await through_stream(stream)
            except UnsupportedError:
                if not stream.is_unknown:
                    raise
            finally:
                # Closed only after the new one was used: a node without a stream is Suspect.
                if former is not None:
                    await former.close()
            log.info("the control plane at %s has no streams: it is called instead", address)
            self._unary = True
        if self._stream_only:
            raise UnavailableError(
                f"the control plane at {address} takes no streams, and this agent can be called in no other way",
                hint="upgrade the control plane, or start the agent without --no-listen",
            )
        return await by_call()

    def _opened(self) -> tuple[ControlStream, ControlStream | None]:
        """The stream to speak through, and the one whose place it takes, if that is still open."""
        version = self._client.credentials_version
        stream = self._stream
        if stream is not None and not stream.is_over and self._stream_version == version:
            return stream, None
        former = stream if stream is not None and not stream.is_over else None
        if former is not None:
            former.retire()
        self._stream_version = version
        self._stream = ControlStream(
            self._client.connected(), self._services, on_end=self._on_broken, observer=self._observer
        )
        return self._stream, former


def _ignore() -> None:
    return None
