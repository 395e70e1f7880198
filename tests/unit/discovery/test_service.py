"""`AgentService` over a view: who may ask, what is refused, and that an answer is made once for each change."""

from __future__ import annotations

import pytest

from shoal.core.errors import InvalidError
from shoal.discovery.client import ServingAgentClient
from shoal.discovery.mirror.records import AgentResource
from shoal.discovery.replicas.records import ServerType
from shoal.discovery.service import ServingAgentHandlers
from shoal.model.identity import Identity, Role, workload_identity
from shoal.wire.local import LocalNetwork
from shoal.wire.methods import ServingAgent
from shoal.wire.pb.monolith.serving import agent_service_pb2 as pb

CALLERS = [
    Identity(Role.OPERATOR, "blue", "ada"),
    Identity(Role.AGENT, "blue", "n1"),
    workload_identity("blue", job="clicks", node="n1"),
]


class View:
    """A view that counts how often it is asked."""

    def __init__(self) -> None:
        self.is_loaded = True
        self.version = 0
        self.asked = 0

    def tasks(self, server_type: ServerType) -> dict[str, list[str]]:
        self.asked += 1
        return {f"{server_type}:{self.version}": ["h:1"]}

    def replicas(self, _server_type: ServerType, task: int, model_name: str) -> list[str]:
        return [f"{model_name or 'none'}:{task}"]


async def serve(view, *, caller=None, **more):
    network = LocalNetwork()
    identity = Identity(Role.CONTROL, "blue", "c1") if caller is not None else None
    handlers = ServingAgentHandlers(view, **more)
    await network.transport("agent", identity=identity).serve("agent:1", [handlers.service()])
    return network.transport("client", identity=caller).connect("agent:1")


async def test_an_answer_is_made_once_for_each_change():
    view = View()
    client = ServingAgentClient(await serve(view))
    for _ in range(3):
        assert await client.heart_beat(ServerType.PS) == {"ps:0": ["h:1"]}
    assert view.asked == 1
    assert await client.heart_beat(ServerType.ENTRY) == {"entry:0": ["h:1"]}
    view.version = 1
    assert await client.heart_beat(ServerType.PS) == {"ps:1": ["h:1"]}
    assert view.asked == 3


@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.role)
async def test_every_role_of_the_cluster_may_ask(caller):
    client = ServingAgentClient(await serve(View(), caller=caller))
    assert await client.heart_beat(ServerType.DENSE) == {"dense:0": ["h:1"]}
    assert await client.get_replicas(ServerType.PS, 3, model_name="m") == ["m:3"]
    assert await client.get_resource() == AgentResource("", 0, 0, 0, 0.0, 0.0, 0.0)


async def test_a_server_type_that_does_not_exist_is_refused():
    channel = await serve(View())
    with pytest.raises(InvalidError, match="server_type"):
        await channel.call(ServingAgent.HEART_BEAT, pb.HeartBeatRequest(server_type=7))


@pytest.mark.parametrize(("replica_id", "sent"), [(5, 5), (213158916079, -1), (None, -1)])
async def test_a_replica_id_that_does_not_fit_is_unknown(replica_id, sent):
    resource = AgentResource("10.0.0.5:7", 2, replica_id, 2**40, cpu=-1.0)
    client = ServingAgentClient(await serve(View(), resource=lambda: resource))
    found = await client.get_resource()
    assert (found.address, found.shard_id, found.replica_id, found.memory) == ("10.0.0.5:7", 2, sent, 2**40)
    assert (found.cpu, found.network, found.work_load) == (-1.0, -1.0, -1.0)
