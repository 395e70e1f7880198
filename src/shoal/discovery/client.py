"""The Python client of `monolith.serving.agent_service.AgentService`.

    client = ServingAgentClient(GrpcTransport().connect("127.0.0.1:7080"))
    addresses = await client.heart_beat(ServerType.PS)          # {"ps:0": ["10.0.0.5:8500"]}

It works against Monolith's agents and ours. Where there is no serving agent, a control plane answers from its tree:

    client = ServingAgentClient(LeaderChannel(transport, ["10.0.0.1:8085"]), bzid="gip")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from shoal.core.errors import DeadlineError, InvalidError, NotLeaderError, UnavailableError, problem
from shoal.discovery.mirror.records import AgentResource
from shoal.discovery.names import NODE_RULE, is_node_name
from shoal.discovery.replicas.records import ServerType
from shoal.discovery.service import MAX_INT32, SERVER_TYPES
from shoal.model.identity import CONTROL_PLANE
from shoal.wire.methods import (
    SERVING_BASE_NAME_HEADER,
    SERVING_BZID_HEADER,
    SERVING_VERSION_HEADER,
    ServingAgent,
)
from shoal.wire.pb.monolith.serving import agent_service_pb2 as pb
from shoal.wire.routes import ControlAddresses, Route
from shoal.wire.transport import DEFAULT_TIMEOUT, Channel, Method, Transport

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

#: Seconds, as Monolith's model servers wait.
TIMEOUT = 5.0

_NUMBERS = {server_type: number for number, server_type in SERVER_TYPES.items()}


class UnaryChannel(Protocol):
    """The part of `shoal.wire.transport.Channel` that is needed here."""

    async def call(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        metadata: Mapping[str, str] | None = None,
    ) -> ResponseT:
        """A unary call."""
        ...

    async def close(self) -> None:
        """Close it."""
        ...


class LeaderChannel:
    """Leads to the control plane that leads, among several. Reads only: a call may be made twice."""

    def __init__(self, transport: Transport, addresses: Sequence[str]) -> None:
        self._transport = transport
        self._addresses = ControlAddresses(addresses, field="addresses")
        self._channels: dict[str, Channel] = {}

    async def call(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        metadata: Mapping[str, str] | None = None,
    ) -> ResponseT:
        """Make a call at the leader. Raises what it says, or `UnavailableError` when there is none now."""
        route = Route(self._addresses.in_order())
        for address in route:
            if address not in self._channels:
                self._channels[address] = self._transport.connect(address, peer=CONTROL_PLANE)
            try:
                answer = await self._channels[address].call(method, request, timeout=timeout, metadata=metadata)
            except NotLeaderError as refusal:
                route.follow(refusal)
            except (UnavailableError, DeadlineError) as failure:
                route.fail(address, failure)
            else:
                self._addresses.use(address)
                return answer
        raise next(iter(route.failures), None) or UnavailableError("no control plane leads now", hint="try again")

    async def close(self) -> None:
        """Close every connection."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()


class ServingAgentClient:
    """Asks one agent, or a control plane. Raises the errors of `shoal.core.errors`; `UnavailableError` while it loads.

    Args:
        channel: where to ask.
        timeout: seconds for a call.
        bzid: for a control plane, which has several namespaces: the one that is meant.
        agent_version: for a control plane: answer as an agent of this version.
        base_name: for a control plane and version 1: the model.
    """

    def __init__(
        self,
        channel: UnaryChannel,
        *,
        timeout: float = TIMEOUT,
        bzid: str = "",
        agent_version: int | None = None,
        base_name: str = "",
    ) -> None:
        self._channel = channel
        self._timeout = timeout
        headers = {
            SERVING_BZID_HEADER: bzid,
            SERVING_VERSION_HEADER: "" if agent_version is None else str(agent_version),
            SERVING_BASE_NAME_HEADER: base_name,
        }
        self._headers = {name: value for name, value in headers.items() if value}

    async def heart_beat(self, server_type: ServerType) -> dict[str, list[str]]:
        """The addresses of every task of a type, by name."""
        request = pb.HeartBeatRequest(server_type=_NUMBERS[server_type])
        answer = await self._call(ServingAgent.HEART_BEAT, request)
        return {name: list(found.address) for name, found in sorted(answer.addresses.items())}

    async def get_replicas(self, server_type: ServerType, task: int, *, model_name: str = "") -> list[str]:
        """The addresses of one task. Agents of version 1 know one model, and need no name."""
        if not 0 <= task <= MAX_INT32:
            raise InvalidError([problem("task", task, f"must be from 0 to {MAX_INT32:,}")])
        if model_name and not is_node_name(model_name):
            raise InvalidError([problem("model_name", model_name, NODE_RULE)])
        request = pb.GetReplicasRequest(server_type=_NUMBERS[server_type], task=task, model_name=model_name)
        answer = await self._call(ServingAgent.GET_REPLICAS, request)
        return list(answer.address_list.address)

    async def get_resource(self) -> AgentResource:
        """What the agent has free. Agents of version 1 and control planes do not know."""
        answer = await self._call(ServingAgent.GET_RESOURCE, pb.GetResourceRequest())
        return AgentResource(
            answer.address,
            answer.shard_id,
            answer.replica_id,
            answer.memory,
            cpu=answer.cpu,
            network=answer.network,
            work_load=answer.work_load,
        )

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def _call(self, method: Method[RequestT, ResponseT], request: RequestT) -> ResponseT:
        return await self._channel.call(method, request, timeout=self._timeout, metadata=self._headers)
