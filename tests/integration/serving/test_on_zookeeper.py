"""Serving agents on a real ZooKeeper: lost sessions, and a fleet that mixes agents of two makes."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta

import pytest

from shoal.core.entropy import SystemEntropy
from shoal.core.errors import UnavailableError
from shoal.discovery.client import ServingAgentClient
from shoal.discovery.replicas.records import ServerType
from shoal.discovery.store import SessionState
from shoal.discovery.zookeeper import ZookeeperSettings, ZookeeperStore
from tests.integration.discovery.test_zookeeper import expire
from tests.peers.monolith import ForeignAgent
from tests.services.zookeeper import ZookeeperServer
from tests.unit.serving import test_layout_agent as by_layouts
from tests.unit.serving import test_role_agent as by_roles
from tests.unit.serving.conftest import Stage, until

pytestmark = pytest.mark.integration

#: What agents do on the embedded tree, here on ZooKeeper.
CASES = [
    by_layouts.test_a_published_model_is_served_bound_and_answered,
    by_layouts.test_one_bad_entry_does_not_keep_the_others,
    by_layouts.test_peers_see_each_other,
    by_roles.test_a_location_has_its_own_parameter_servers,
    by_roles.test_entry_starts_when_every_parameter_server_is_available,
    by_roles.test_several_dense_services_on_one_machine_have_replicas_of_their_own,
]

quick = by_roles.quick

ME = "p.s.m;lf;default:pod-1"


@pytest.fixture
async def stage(tmp_path, zookeeper):
    settings = ZookeeperSettings(zookeeper, session_timeout=timedelta(seconds=4))
    made = Stage(tmp_path, make_store=lambda: ZookeeperStore(settings), bzid=f"s{SystemEntropy().token(8)}")
    await made.store.open()
    yield made
    await made.store.close()
    await made.tree.close()


async def owner(stage: Stage, path: str) -> str:
    """The session of a node; empty when it is not there."""
    found = await stage.store.exists(f"/{stage.bzid}/{path}")
    return found.owner if found is not None else ""


async def answers(client: ServingAgentClient, expected: dict[str, list[str]]) -> None:
    found: dict[str, list[str]] | None = None
    async with asyncio.timeout(30):
        while found != expected:
            with contextlib.suppress(UnavailableError):  # it does not know the tree yet
                found = await client.heart_beat(ServerType.PS)
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.removeprefix("test_"))
async def test_as_on_the_embedded_tree(stage, case):
    await case(stage)


async def test_an_agent_by_roles_and_a_foreign_one_serve_one_model(stage, zookeeper):
    other = stage._make_store()
    await other.open()
    peer = ForeignAgent(other, stage.bzid)
    await peer.replica("m/lf:default/ps:0/5", "10.9.9.9")
    await peer.replica("m/hl:default/ps:0/6", "10.8.8.8")
    async with by_roles.roles(stage, deploy_type="ps", num_ps=2, dc_aware=True) as made:
        await made.agent.start()
        made.load("ps")
        (ports,) = (server.ports for server in made.parts.deployment.servers)
        ours, theirs = f"10.0.0.1:{ports.grpc}", "10.9.9.9:44059"
        client = ServingAgentClient(stage.network.transport("caller").connect(made.agent.address))
        await answers(client, {"ps:0": [theirs, ours], "ps:1": [ours]})
        # What it reads of us is what it would write itself.
        path = f"/{stage.bzid}/service/m/lf:default/ps:1/{made.parts.deployment.replica_id}"
        assert (await other.get(path)).data.decode() == (
            f'{{"address": "{ours}", "address_ipv6": "[::]:{ports.grpc}", "stat": 30, "model_name": null, '
            f'"server_type": null, "task": -1, "replica": -1, "archon_address": "10.0.0.1:{ports.archon}", '
            f'"archon_address_ipv6": "[::]:{ports.archon}"}}'
        )
        await peer.replica("m/lf:default/ps:0/5", "10.9.9.9", stat=40)
        await answers(client, {"ps:0": [ours], "ps:1": [ours]})
        await peer.replica("m/lf:default/ps:0/5", "10.9.9.9")
        await answers(client, {"ps:0": [theirs, ours], "ps:1": [ours]})
        # Our session ends: what we had is there again, and of theirs nothing changes.
        before = (await other.exists(path)).owner
        await asyncio.to_thread(expire, zookeeper, made.parts.store._client.client_id)
        async with asyncio.timeout(30):
            while (found := await other.exists(path)) is None or found.owner == before:
                await asyncio.sleep(0.02)
        await answers(client, {"ps:0": [theirs, ours], "ps:1": [ours]})
        await other.close()
        await answers(client, {"ps:0": [ours], "ps:1": [ours]})
        await client.close()


async def test_everything_is_registered_again_in_a_new_session(stage, zookeeper):
    await stage.declare("m", "entry", "ps_0")
    async with stage.layout_agent() as (agent, _):
        await stage.catalog.publish("m:*", "prod")
        await until(lambda: agent.bound == {"m:entry", "m:ps_0"})
        await agent._registrar.settled()
        paths = [f"container_service/{ME}", f"binding/m/entry:{ME}", f"binding/m/ps_0:{ME}"]
        before = await owner(stage, paths[0])
        assert before
        await asyncio.to_thread(expire, zookeeper, agent._parts.store._client.client_id)
        async with asyncio.timeout(30):
            while {await owner(stage, path) for path in paths} & {"", before}:
                await asyncio.sleep(0.02)
        after = {await owner(stage, path) for path in paths}
        assert len(after) == 1
        # Nothing is written again afterwards: every node stays as it was created.
        seen = [(await stage.store.get(f"/{stage.bzid}/{path}")).stat for path in paths]
        agent._look.set()
        await until(lambda: not agent._look._event.is_set())
        assert [(await stage.store.get(f"/{stage.bzid}/{path}")).stat for path in paths] == seen
    assert [await owner(stage, path) for path in paths] == ["", "", ""]


async def test_a_server_that_is_killed_and_comes_back(tmp_path):
    server = await asyncio.to_thread(ZookeeperServer.create)
    settings = ZookeeperSettings(server.hosts, session_timeout=timedelta(seconds=10))
    stage = Stage(tmp_path, make_store=lambda: ZookeeperStore(settings))
    try:
        await stage.store.open()
        await stage.declare("m", "entry", "ps_0")
        async with stage.layout_agent() as (agent, _):
            await stage.catalog.publish("m:entry", "prod")
            await until(lambda: agent.bound == {"m:entry"})
            await agent._registrar.settled()
            client = ServingAgentClient(stage.network.transport("caller").connect(agent.address))
            ours = [f"10.0.0.1:{agent._server.ports.grpc}"]
            await answers(client, {"m:entry": ours, "m:ps_0": []})
            await asyncio.to_thread(server.kill)
            await until(lambda: agent._parts.store.state is not SessionState.CONNECTED)
            # What is known is answered meanwhile.
            assert await client.heart_beat(ServerType.PS) == {"m:entry": ours, "m:ps_0": []}
            await asyncio.to_thread(server.start)
            await until(lambda: stage.store.state is SessionState.CONNECTED, seconds=30)
            await stage.catalog.publish("m:ps_0", "prod")
            await until(lambda: agent.bound == {"m:entry", "m:ps_0"}, seconds=30)
            await answers(client, {"m:entry": ours, "m:ps_0": ours})
            await client.close()
    finally:
        await stage.store.close()
        await stage.tree.close()
        await asyncio.to_thread(server.destroy)


async def test_a_peer_of_the_other_make_is_seen_and_sees_us(stage):
    await stage.declare("m", "entry", "ps_0")
    theirs = "their.psm;None;None:their-pod"
    info = (
        b'{"grpc": "192.0.2.2:58703", "http": "192.0.2.2:53887", "archon": "192.0.2.2:33421", '
        b'"agent": "192.0.2.2:50811", "idc": "lf", "debug_info": "{}"}'
    )
    async with stage.layout_agent(layout_filters=("entry",)) as (agent, _):
        await stage.catalog.publish("m:*", "prod")
        await until(lambda: agent.bound == {"m:entry"})
        ours = f"10.0.0.1:{agent._server.ports.grpc}"
        client = ServingAgentClient(stage.network.transport("caller").connect(agent.address))
        await answers(client, {"m:entry": [ours], "m:ps_0": []})
        peer = stage._make_store()
        await peer.open()
        await peer.create(f"/{stage.bzid}/binding/m/ps_0:{theirs}", b"", ephemeral=True, makepath=True)
        await peer.create(f"/{stage.bzid}/container_service/{theirs}", info, ephemeral=True, makepath=True)
        await answers(client, {"m:entry": [ours], "m:ps_0": ["192.0.2.2:58703"]})
        # What they read to find us.
        assert await peer.children(f"/{stage.bzid}/binding/m") == (f"entry:{ME}", f"ps_0:{theirs}")
        assert (await peer.get(f"/{stage.bzid}/binding/m/entry:{ME}")).data == b""
        await peer.close()
        await answers(client, {"m:entry": [ours], "m:ps_0": []})
        await client.close()
