"""The Python client of `monolith.serving.agent_service.AgentService`.

    client = ServingAgentClient(GrpcTransport().connect("127.0.0.1:7080"))
    addresses = await client.heart_beat(ServerType.PS)          # {"ps:0": ["10.0.0.5:8500"]}

It works against Monolith's agents and ours.
"""

from __future__ import annotations

from shoal.discovery.mirror.records import AgentResource
from shoal.discovery.replicas.records import ServerType
from shoal.discovery.service import SERVER_TYPES
from shoal.wire.methods import ServingAgent
from shoal.wire.pb.monolith.serving import agent_service_pb2 as pb
from shoal.wire.transport import Channel

#: Seconds, as Monolith's model servers wait.
TIMEOUT = 5.0

_NUMBERS = {server_type: number for number, server_type in SERVER_TYPES.items()}


class ServingAgentClient:
    """Asks one agent. Raises the errors of `shoal.core.errors`; `UnavailableError` while the agent is loading."""

    def __init__(self, channel: Channel, *, timeout: float = TIMEOUT) -> None:
        self._channel = channel
        self._timeout = timeout

    async def heart_beat(self, server_type: ServerType) -> dict[str, list[str]]:
        """The addresses of every task of a type, by name."""
        request = pb.HeartBeatRequest(server_type=_NUMBERS[server_type])
        answer = await self._channel.call(ServingAgent.HEART_BEAT, request, timeout=self._timeout)
        return {name: list(found.address) for name, found in sorted(answer.addresses.items())}

    async def get_replicas(self, server_type: ServerType, task: int, *, model_name: str = "") -> list[str]:
        """The addresses of one task. Agents of version 1 know one model, and need no name."""
        request = pb.GetReplicasRequest(server_type=_NUMBERS[server_type], task=task, model_name=model_name)
        answer = await self._channel.call(ServingAgent.GET_REPLICAS, request, timeout=self._timeout)
        return list(answer.address_list.address)

    async def get_resource(self) -> AgentResource:
        """What the agent has free. Agents of version 1 do not know."""
        answer = await self._channel.call(ServingAgent.GET_RESOURCE, pb.GetResourceRequest(), timeout=self._timeout)
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
