"""Serving agents that hang, lose their connection or a process, and a frozen ZooKeeper: real processes throughout.

After each of them: no registration is lost, no address is stale after the session, and nothing flaps afterwards.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from shoal.core.errors import ShoalError
from shoal.discovery.replicas.records import ServerType
from shoal.discovery.store import NodeStat
from shoal.discovery.zookeeper import ZookeeperSettings, ZookeeperStore
from shoal.serving.models.client import ModelServerClient
from shoal.wire.sockets.channel import GrpcTransport
from tests.services.relay import Relay
from tests.services.zookeeper import ZookeeperServer

pytestmark = pytest.mark.e2e

SESSION = ("--session-timeout", "4s")


@pytest.fixture
async def server():
    server = await asyncio.to_thread(ZookeeperServer.create)
    yield server
    await asyncio.to_thread(server.destroy)


@pytest.fixture
async def store(server):
    store = ZookeeperStore(ZookeeperSettings(server.hosts))
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def base(tmp_path):
    for name in ("entry", "ps_0", "dense_0"):
        (tmp_path / "exports" / name / "1").mkdir(parents=True)
    return tmp_path / "exports"


def conf(base: Path, hosts: str, deploy_type: str, *more: str) -> str:
    lines = (f"deploy_type {deploy_type}", "bzid gip", "base_name m", f"base_path {base}", f"zk_servers {hosts}", *more)
    return "\n".join((*lines, "update_model_status_interval 1", ""))


async def stats_of(store: ZookeeperStore, path: str) -> dict[str, NodeStat]:
    return {name: (await store.get(f"{path}/{name}")).stat for name in await store.children(path)}


async def stays(store: ZookeeperStore, path: str) -> None:
    """Nothing is written there for more than a session: a loop that registers again and again would show."""
    before = await stats_of(store, path)
    await asyncio.sleep(5)
    assert await stats_of(store, path) == before


async def test_an_agent_that_hangs_and_one_without_a_connection(serve, server, store, base):
    relay = Relay(server.hosts)
    await relay.open()
    hung = serve("hung", conf(base, server.hosts, "ps"))
    cut = serve("cut", conf(base, relay.address, "ps"))
    peer = serve("peer", conf(base, server.hosts, "entry"))
    ready = {each: await each.start(*SESSION) for each in (hung, cut)}
    at = {each: f"127.0.0.1:{found['servers']['ps']}" for each, found in ready.items()}
    await peer.start(*SESSION)
    # By the number of the replica, which is the hash of the name.
    names = await store.children("/gip/service/m/ps:0")
    assert len(names) == 2
    await peer.answers_any_order({"ps:0": at.values()})

    os.kill(hung.process.pid, signal.SIGSTOP)
    try:
        await relay.cut()
        await peer.answers({})  # a task without replicas
        assert len(hung.model_servers()) == len(cut.model_servers()) == 1
    finally:
        os.kill(hung.process.pid, signal.SIGCONT)
        relay.restore()
    await peer.answers_any_order({"ps:0": at.values()})
    assert await store.children("/gip/service/m/ps:0") == names
    await stays(store, "/gip/service/m/ps:0")
    for each in (peer, hung, cut):
        assert await each.stop() == 0, each.log()
    await relay.close()


@pytest.mark.long
async def test_a_zookeeper_that_freezes_for_longer_than_a_session(serve, server, store, base):
    served = serve("frozen", conf(base, server.hosts, "mixed"))
    ready = await served.start(*SESSION)
    at = [f"127.0.0.1:{ready['servers']['ps']}"]
    await served.answers({"ps:0": at})
    await asyncio.to_thread(server.freeze)
    try:
        for _ in range(30):  # 6 s: the connection is lost, and the session over if the server had counted
            assert await served.client.heart_beat(ServerType.PS) == {"ps:0": at}
            await asyncio.sleep(0.2)
    finally:
        await asyncio.to_thread(server.thaw)
    await served.answers({"ps:0": at})
    async with asyncio.timeout(60):
        while await _count(store, "/gip/service/m/ps:0") != 1:
            await asyncio.sleep(0.05)
    await stays(store, "/gip/service/m/ps:0")
    assert await served.stop() == 0, served.log()


@pytest.mark.long
async def test_the_next_agent_waits_for_a_zookeeper_that_is_away(serve, server, store, base):
    served = serve("alone", conf(base, server.hosts, "mixed"))
    ready = await served.start(*SESSION)
    at = [f"127.0.0.1:{ready['servers']['ps']}"]
    await served.answers({"ps:0": at})
    left = served.model_servers()
    await served.killed()
    await asyncio.to_thread(server.kill)
    starting = asyncio.create_task(served.start(*SESSION))
    async with asyncio.timeout(60):
        while "the tree cannot be reached" not in served.log():
            await asyncio.sleep(0.05)
    assert served.model_servers() == left
    await asyncio.to_thread(server.start)
    assert (await starting)["servers"] == ready["servers"]
    await served.answers({"ps:0": at})
    assert served.model_servers() == left
    assert await served.stop() == 0, served.log()


async def _count(store: ZookeeperStore, path: str) -> int:
    try:
        return len(await store.children(path))
    except ShoalError:
        return -1


async def test_several_dense_services_on_one_machine(serve, server, store, base):
    dense = serve("dense", conf(base, server.hosts, "dense", "dense_alone true", "dense_service_num 3"))
    ready = await dense.start(*SESSION)
    assert ready["servers"].keys() == {"dense", "dense1", "dense2"}
    at = {f"127.0.0.1:{port}" for port in ready["servers"].values()}
    assert len(at) == 3
    await dense.answers_any_order({"dense:0": at}, ServerType.DENSE)
    path = "/gip/service/m/dense:0"
    names = await store.children(path)
    assert len(names) == 3
    # One of them is killed: the others stay as they are, and it comes back at its own address.
    victim = dense.model_servers()[0]
    before = await stats_of(store, path)
    victim.kill()
    async with asyncio.timeout(60):
        while victim in dense.model_servers() or len(dense.model_servers()) < 3:
            await asyncio.sleep(0.05)
    for each in at:  # it serves again; one that does not yet is no longer adopted
        client = ModelServerClient(GrpcTransport().connect(each))
        async with asyncio.timeout(60):
            while not (await client.status("dense_0")).is_available:
                await asyncio.sleep(0.05)
        await client.close()
    await dense.answers_any_order({"dense:0": at}, ServerType.DENSE)
    after = await stats_of(store, path)
    assert after.keys() == before.keys()
    assert sum(after[name].created == before[name].created for name in names) == 3
    # The agent is killed: all three are adopted, each under its own number.
    left = {each.pid for each in dense.model_servers()}
    await dense.killed()
    assert (await dense.start(*SESSION))["servers"] == ready["servers"]
    await dense.answers_any_order({"dense:0": at}, ServerType.DENSE)
    assert {each.pid for each in dense.model_servers()} == left
    assert await store.children(path) == names
    assert await dense.stop() == 0, dense.log()
    assert await store.children(path) == ()
