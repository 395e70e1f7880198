"""Calls the control plane for the agent, over a list of addresses.

One address is in use at a time. A control plane that does not lead names the leader, which is called at once. A caller
that gets no answer moves on to the next configured address (`use_next`). Registrations and heartbeats go through
`shoal.agent.contact.link`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from shoal.core.errors import NotLeaderError, UnavailableError
from shoal.model.identity import CONTROL_PLANE
from shoal.wire.methods import AgentControl, Artifacts, Credentials
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.pb.shoal.v1 import artifacts_pb2 as artifacts
from shoal.wire.pb.shoal.v1 import enrollment_pb2 as enrollment
from shoal.wire.routes import MAX_HOPS, ControlAddresses
from shoal.wire.transport import DEFAULT_TIMEOUT, Channel, Diagnosis, Method, Transport

log = logging.getLogger(__name__)

T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class ControlClient:
    """Calls a control plane, at one of some addresses.

    Args:
        transport: how addresses are reached.
        addresses: where control planes are; at least one.
    """

    def __init__(self, transport: Transport, addresses: Sequence[str]) -> None:
        self._transport = transport
        self._addresses = ControlAddresses(addresses, field="control")
        self._channel: Channel | None = None

    @property
    def address(self) -> str:
        """The address in use."""
        return self._addresses.current

    @property
    def has_others(self) -> bool:
        """Whether there is another address to try."""
        return self._addresses.has_others

    @property
    def credentials_version(self) -> int:
        """Changes when the agent's certificate was replaced."""
        return self._transport.credentials_version()

    @property
    def addresses(self) -> Sequence[str]:
        """All addresses, the one in use first."""
        return self._addresses.in_order()

    async def use_next(self) -> None:
        """Move on to the next address. With only one, connect to it again."""
        self._addresses.use_next()
        await self.close()

    async def close(self) -> None:
        """Close the connection; the next call opens another."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def connected(self) -> Channel:
        """The connection to the address in use."""
        if self._channel is None:
            self._channel = self._transport.connect(self.address, peer=CONTROL_PLANE)
        return self._channel

    async def diagnose(self, address: str) -> Diagnosis | None:
        """Why a control plane cannot be reached, as far as the transport can tell."""
        return await self._transport.diagnose(address, peer=CONTROL_PLANE)

    async def at_leader(
        self, ask: Callable[[], Awaitable[T]], *, leave: Callable[[], Awaitable[None]] | None = None
    ) -> T:
        """Call, and follow to the leader that a control plane names. `leave` closes the connection to the others."""
        for _ in range(MAX_HOPS):
            try:
                return await ask()
            except NotLeaderError as refused:
                former = self.address
                if not self._addresses.follow(refused):
                    raise
                log.info("the control plane at %s does not lead; going to %s", former, self.address)
                await (leave or self.close)()
        return await ask()

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, *, timeout: float = DEFAULT_TIMEOUT
    ) -> ResponseT:
        """One call, at the address in use."""
        return await self.connected().call(method, request, timeout=timeout)

    async def get_workload(self, workload_id: str) -> pb.WorkloadView:
        """The control plane's view of a workload, with its owner."""
        request = pb.GetWorkloadRequest(workload_id=workload_id)
        return (await self.call(AgentControl.GET_WORKLOAD, request)).workload

    async def renew_certificate(self, csr: bytes) -> enrollment.RenewCertificateResponse:
        """Ask for a new certificate for this agent's own identity."""
        request = enrollment.RenewCertificateRequest(csr=csr)
        return await self.at_leader(lambda: self.call(Credentials.RENEW_CERTIFICATE, request))

    async def issue_workload_certificate(
        self, workload_id: str, csr: bytes
    ) -> enrollment.IssueWorkloadCertificateResponse:
        """Ask for a certificate for a workload of this node."""
        request = enrollment.IssueWorkloadCertificateRequest(workload_id=workload_id, csr=csr)
        return await self.at_leader(lambda: self.call(Credentials.ISSUE_WORKLOAD_CERTIFICATE, request))

    async def download_artifact(self, digest: str) -> AsyncIterator[artifacts.DownloadArtifactResponse]:
        """A blob that a workload of this node names: its size, then its content in parts."""
        request = artifacts.DownloadArtifactRequest(sha256=digest)
        for _ in range(MAX_HOPS):
            try:
                async for answer in self.connected().stream(Artifacts.DOWNLOAD, request):
                    yield answer
            except NotLeaderError as refused:  # it says so before anything else
                if not self._addresses.follow(refused):
                    raise
                await self.close()
            else:
                return
        raise UnavailableError("no control plane leads")
