"""Serving agents on a real ZooKeeper: lost sessions, and a fleet that mixes agents of two makes."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from shoal.core.entropy import SystemEntropy
from shoal.discovery.client import ServingAgentClient
from shoal.discovery.replicas.records import ServerType
from shoal.discovery.store import SessionState
from shoal.discovery.zookeeper import ZookeeperSettings, ZookeeperStore
from tests.integration.discovery.test_zookeeper import expire
from tests.services.zookeeper import ZookeeperServer
from tests.unit.serving.conftest import Stage, until

pytestmark = pytest.mark.integration

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
    async with asyncio.timeout(30):
        while await client.heart_beat(ServerType.PS) != expected:
            await asyncio.sleep(0.02)


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
