"""Calls the control plane for the agent, over a list of addresses.

One address is in use at a time. A control plane that does not lead names the leader, which is called at once. A caller
that gets no answer moves on to the next configured address (`use_next`).

Registrations and heartbeats go through a stream, through which the control plane also calls this agent. A control plane
without such streams gets unary calls. After the agent's certificate was replaced, a new stream is opened. Called by
`shoal.agent.contact.registration`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from shoal.agent.contact.stream import ControlStream
from shoal.core.errors import NotLeaderError, UnavailableError, UnsupportedError
from shoal.model.identity import CONTROL_PLANE
from shoal.wire.methods import AgentControl, Artifacts, Credentials
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.pb.shoal.v1 import artifacts_pb2 as artifacts
from shoal.wire.pb.shoal.v1 import enrollment_pb2 as enrollment
from shoal.wire.routes import MAX_HOPS, ControlAddresses
from shoal.wire.serving import RpcObserver
from shoal.wire.transport import DEFAULT_TIMEOUT, Channel, Method, Service, Transport

log = logging.getLogger(__name__)

T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class ControlClient:
    """The agent's side of `persys.control.v1.AgentControl`.

    Args:
        transport: how addresses are reached.
        addresses: where control planes are; at least one.
        services: what serves the calls that come through a stream. Without any no stream is opened.
        stream_only: never fall back to unary calls, for an agent that can be called in no other way.
        observer: told of every call that is served through a stream.
    """

    def __init__(
        self,
        transport: Transport,
        addresses: Sequence[str],
        *,
        services: Sequence[Service] = (),
        stream_only: bool = False,
        observer: RpcObserver | None = None,
    ) -> None:
        self._transport = transport
        self._addresses = ControlAddresses(addresses, field="control")
        self._services = services
        self._stream_only = stream_only
        self._observer = observer
        self._channel: Channel | None = None
        self._stream: ControlStream | None = None
        #: Of the credentials that it was opened with.
        self._stream_version = 0
        #: Whether the control plane at this address has no streams.
        self._unary = not services
        #: Called when the stream broke while nothing was being said.
        self.on_stream_broken: Callable[[], None] = _ignore

    @property
    def address(self) -> str:
        """The address in use."""
        return self._addresses.current

    @property
    def has_others(self) -> bool:
        """Whether there is another address to try."""
        return self._addresses.has_others

    @property
    def has_stream(self) -> bool:
        """Whether a stream is open, as far as is known."""
        return self._stream is not None and not self._stream.is_over

    async def use_next(self) -> None:
        """Move on to the next address. With only one, connect to it again."""
        self._addresses.use_next()
        await self.close()

    async def close(self) -> None:
        """Close the connection; the next call opens another."""
        stream, self._stream = self._stream, None
        channel, self._channel = self._channel, None
        self._unary = not self._services
        if stream is not None:
            await stream.close()
        if channel is not None:
            await channel.close()

    async def register_node(
        self, request: pb.RegisterNodeRequest, *, timeout: float = DEFAULT_TIMEOUT
    ) -> pb.RegisterNodeResponse:
        """Register this node."""
        return await self._at_leader(
            lambda: self._say(
                lambda stream: stream.register(request, timeout=timeout),
                lambda: self._call(AgentControl.REGISTER_NODE, request, timeout),
            )
        )

    async def heartbeat(
        self, request: pb.HeartbeatRequest, *, timeout: float = DEFAULT_TIMEOUT
    ) -> pb.HeartbeatResponse:
        """Send a heartbeat."""
        return await self._at_leader(
            lambda: self._say(
                lambda stream: stream.heartbeat(request, timeout=timeout),
                lambda: self._call(AgentControl.HEARTBEAT, request, timeout),
            )
        )

    async def get_workload(self, workload_id: str) -> pb.WorkloadView:
        """The control plane's view of a workload, with its owner."""
        request = pb.GetWorkloadRequest(workload_id=workload_id)
        return (await self._call(AgentControl.GET_WORKLOAD, request, DEFAULT_TIMEOUT)).workload

    # -----------------------------------------------------------------------------------------------------
    # Transport

    async def _at_leader(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call, and follow to the leader that a control plane names."""
        for _ in range(MAX_HOPS):
            try:
                return await ask()
            except NotLeaderError as refused:
                former = self.address
                if not self._addresses.follow(refused):
                    raise
                log.info("the control plane at %s does not lead; going to %s", former, self.address)
                await self.close()
        return await ask()

    async def _say(
        self, through_stream: Callable[[ControlStream], Awaitable[T]], by_call: Callable[[], Awaitable[T]]
    ) -> T:
        """Say something through the stream, opened if need be; where there are no streams, by a call."""
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
            log.info("the control plane at %s has no streams: it is called instead", self.address)
            self._unary = True
        if self._stream_only:
            raise UnavailableError(
                f"the control plane at {self.address} takes no streams, and this agent can be called in no other way",
                hint="upgrade the control plane, or start the agent without --no-listen",
            )
        return await by_call()

    def _opened(self) -> tuple[ControlStream, ControlStream | None]:
        """The stream to speak through, and the one whose place it takes, if that is still open."""
        version = self._transport.credentials_version()
        stream = self._stream
        if stream is not None and not stream.is_over and self._stream_version == version:
            return stream, None
        former = stream if stream is not None and not stream.is_over else None
        if former is not None:
            former.retire()
        self._stream_version = version
        self._stream = ControlStream(
            self._connected(), self._services, on_end=self.on_stream_broken, observer=self._observer
        )
        return self._stream, former

    def _connected(self) -> Channel:
        if self._channel is None:
            self._channel = self._transport.connect(self.address, peer=CONTROL_PLANE)
        return self._channel

    async def renew_certificate(self, csr: bytes) -> enrollment.RenewCertificateResponse:
        """Ask for a new certificate for this agent's own identity."""
        request = enrollment.RenewCertificateRequest(csr=csr)
        return await self._at_leader(lambda: self._call(Credentials.RENEW_CERTIFICATE, request, DEFAULT_TIMEOUT))

    async def issue_workload_certificate(
        self, workload_id: str, csr: bytes
    ) -> enrollment.IssueWorkloadCertificateResponse:
        """Ask for a certificate for a workload of this node."""
        request = enrollment.IssueWorkloadCertificateRequest(workload_id=workload_id, csr=csr)
        return await self._at_leader(
            lambda: self._call(Credentials.ISSUE_WORKLOAD_CERTIFICATE, request, DEFAULT_TIMEOUT)
        )

    async def download_artifact(self, digest: str) -> AsyncIterator[artifacts.DownloadArtifactResponse]:
        """A blob that a workload of this node names: its size, then its content in parts."""
        request = artifacts.DownloadArtifactRequest(sha256=digest)
        for _ in range(MAX_HOPS):
            try:
                async for answer in self._connected().stream(Artifacts.DOWNLOAD, request):
                    yield answer
            except NotLeaderError as refused:  # it says so before anything else
                if not self._addresses.follow(refused):
                    raise
                await self.close()
            else:
                return
        raise UnavailableError("no control plane leads")

    async def _call(self, method: Method[RequestT, ResponseT], request: RequestT, timeout: float) -> ResponseT:
        return await self._connected().call(method, request, timeout=timeout)


def _ignore() -> None:
    return None
