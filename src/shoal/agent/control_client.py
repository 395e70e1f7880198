"""Every call that an agent makes to the control plane, over a list of addresses.

One address is in use at a time; whoever finds it silent moves on to the next (`use_next`). Called by
`shoal.agent.registration`; applying, deleting and retrying are for workloads that an agent is asked to start from its
own side, as the published contract allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import Message

from shoal.core.errors import InvalidError, problem
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.transport import DEFAULT_TIMEOUT, Channel, Method, Transport

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class ControlClient:
    """The agent's side of `persys.control.v1.AgentControl`."""

    def __init__(self, transport: Transport, addresses: Sequence[str]) -> None:
        if not addresses:
            raise InvalidError([problem("control", None, "must name at least one address")])
        self._transport = transport
        self._addresses = tuple(addresses)
        self._index = 0
        self._channel: Channel | None = None

    @property
    def address(self) -> str:
        """The address in use."""
        return self._addresses[self._index]

    async def use_next(self) -> None:
        """Move on to the next address. With only one, the same is dialled anew."""
        self._index = (self._index + 1) % len(self._addresses)
        await self.close()

    async def close(self) -> None:
        """Let go of the connection; the next call makes another."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def register_node(
        self, request: pb.RegisterNodeRequest, *, timeout: float = DEFAULT_TIMEOUT
    ) -> pb.RegisterNodeResponse:
        """Say what this node is."""
        return await self._call(AgentControl.REGISTER_NODE, request, timeout)

    async def heartbeat(
        self, request: pb.HeartbeatRequest, *, timeout: float = DEFAULT_TIMEOUT
    ) -> pb.HeartbeatResponse:
        """Say that this node lives, and everything that runs on it."""
        return await self._call(AgentControl.HEARTBEAT, request, timeout)

    async def apply_workload(self, request: pb.ApplyWorkloadRequest) -> pb.ApplyWorkloadResponse:
        """Wish for a workload."""
        return await self._call(AgentControl.APPLY_WORKLOAD, request, DEFAULT_TIMEOUT)

    async def delete_workload(self, workload_id: str) -> pb.DeleteWorkloadResponse:
        """Wish a workload away."""
        request = pb.DeleteWorkloadRequest(workload_id=workload_id)
        return await self._call(AgentControl.DELETE_WORKLOAD, request, DEFAULT_TIMEOUT)

    async def retry_workload(self, workload_id: str) -> pb.RetryWorkloadResponse:
        """Wish that a failed workload is tried again."""
        request = pb.RetryWorkloadRequest(workload_id=workload_id)
        return await self._call(AgentControl.RETRY_WORKLOAD, request, DEFAULT_TIMEOUT)

    async def get_workload(self, workload_id: str) -> pb.WorkloadView:
        """What the control plane knows of a workload; first of all, whose it is."""
        request = pb.GetWorkloadRequest(workload_id=workload_id)
        return (await self._call(AgentControl.GET_WORKLOAD, request, DEFAULT_TIMEOUT)).workload

    async def _call(self, method: Method[RequestT, ResponseT], request: RequestT, timeout: float) -> ResponseT:
        if self._channel is None:
            self._channel = self._transport.connect(self.address)
        return await self._channel.call(method, request, timeout=timeout)
