"""The control plane answers as `AgentService`, from its tree, for clients that have no serving agent beside them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shoal.core.errors import InvalidError, NotFoundError, UnavailableError
from shoal.discovery import directory
from shoal.discovery.client import LeaderChannel, ServingAgentClient
from shoal.discovery.directory import AddressDirectory
from shoal.discovery.models.catalog import Catalog
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.remote import RemoteStore
from shoal.discovery.replicas.records import ServerType
from shoal.model.identity import Role
from shoal.testing.control import CONTROL_ADDRESS, ControlKit
from shoal.wire.methods import ServingAgent, methods_of
from shoal.wire.trust.authorization import RULES
from tests.peers.monolith import ForeignAgent

pytestmark = pytest.mark.looptime

PS, ENTRY = ServerType.PS, ServerType.ENTRY


@pytest.fixture
async def kit(tmp_path):
    async with ControlKit(tmp_path) as kit:
        yield kit


@pytest.fixture
async def store(kit):
    store = RemoteStore(kit.network.transport("peer"), [CONTROL_ADDRESS])
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def ask(kit):
    made: list[ServingAgentClient] = []

    def make(**scope: Any) -> ServingAgentClient:
        channel = LeaderChannel(kit.network.transport("caller"), [CONTROL_ADDRESS])
        made.append(ServingAgentClient(channel, **scope))
        return made[-1]

    yield make
    for each in made:
        await each.close()


REPLICA = b'{"address": "%s", "address_ipv6": "[::]:1", "stat": 30}'


async def serve_v1(store: RemoteStore, bzid: str, model: str, task: str, address: bytes) -> None:
    await store.create(f"/{bzid}/service/{model}/{task}/0", REPLICA % address, ephemeral=True, makepath=True)


async def test_version_3_answers_from_the_service_map(store, ask):
    peer = ForeignAgent(store, "gip")
    await Catalog(store, ModelPaths("gip")).declare("m", {"entry": "/d/entry", "ps_0": "/d/ps_0", "ps_1": "/d/ps_1"})
    client = ask()  # one namespace, and models are declared in it
    assert await client.heart_beat(PS) == {"m:entry": [], "m:ps_0": [], "m:ps_1": []}
    await peer.store.create("/gip/container_service/a;b;c:pod", b'{"grpc": "10.0.0.5:8500"}', makepath=True)
    await peer.store.create("/gip/binding/m/ps_0:a;b;c:pod", b"", makepath=True)
    await asyncio.sleep(0.1)
    assert await client.heart_beat(PS) == {"m:entry": [], "m:ps_0": ["10.0.0.5:8500"], "m:ps_1": []}
    assert await client.get_replicas(PS, 0, model_name="m") == ["10.0.0.5:8500"]
    assert await client.get_replicas(PS, 7, model_name="m:ps_0") == ["10.0.0.5:8500"]
    assert (await client.get_resource()).memory == 0


async def test_version_2_answers_from_the_schedulers_tree(store, ask):
    await store.create("/gip/portal/m", b"{}", makepath=True)
    await serve_v1(store, "gip", "m", "ps:1", b"10.0.0.5:8500")
    await serve_v1(store, "gip", "other", "entry:0", b"10.0.0.6:8500")
    assert await ask().heart_beat(PS) == {"m:ps:1": ["10.0.0.5:8500"]}
    assert await ask().heart_beat(ENTRY) == {"other:entry:0": ["10.0.0.6:8500"]}
    assert await ask(bzid="gip", agent_version=2).get_replicas(PS, 1, model_name="m") == ["10.0.0.5:8500"]


async def test_version_1_answers_for_one_model(store, ask):
    await serve_v1(store, "gip", "m", "ps:1", b"10.0.0.5:8500")
    assert await ask().heart_beat(PS) == {"ps:1": ["10.0.0.5:8500"]}
    await serve_v1(store, "gip", "m2", "ps:0", b"10.0.0.6:8500")
    with pytest.raises(InvalidError, match="x-shoal-base-name: is required: there are several, m, m2"):
        await ask().heart_beat(PS)
    assert await ask(base_name="m2").heart_beat(PS) == {"ps:0": ["10.0.0.6:8500"]}
    assert await ask().get_replicas(PS, 0, model_name="m2") == ["10.0.0.6:8500"]
    with pytest.raises(NotFoundError, match="m3"):
        await ask(base_name="m3").heart_beat(PS)
    # The answer of another version, when it is asked for.
    assert await ask(agent_version=2).heart_beat(PS) == {"m:ps:1": ["10.0.0.5:8500"], "m2:ps:0": ["10.0.0.6:8500"]}


async def test_a_machine_with_ipv6_alone_answers_ipv6_addresses(store, ask, monkeypatch):
    value = b'{"address": "10.0.0.1:1", "address_ipv6": "[fd00::1]:1", "stat": 30}'
    for path in ("/one/service/m/ps:0/0", "/two/service/m/ps:0/0"):
        await store.create(path, value, makepath=True)
    assert await ask(bzid="one", base_name="m").heart_beat(PS) == {"ps:0": ["10.0.0.1:1"]}
    monkeypatch.setattr("shoal.discovery.hosts.local_address", lambda: "fd00::7")
    assert await ask(bzid="two", base_name="m").heart_beat(PS) == {"ps:0": ["[fd00::1]:1"]}


async def test_the_namespace_is_named_where_there_are_several(store, ask):
    with pytest.raises(NotFoundError):
        await ask().heart_beat(PS)
    await serve_v1(store, "one", "m", "ps:0", b"10.0.0.5:8500")
    await store.create("/service/portal/w-1", b"{}", makepath=True)  # a service of that name is no namespace
    assert await ask().heart_beat(PS) == {"ps:0": ["10.0.0.5:8500"]}
    await Catalog(store, ModelPaths("two")).declare("m", {"entry": "/d"})
    with pytest.raises(InvalidError, match="x-shoal-bzid: is required: there are several, one, two"):
        await ask().heart_beat(PS)
    assert await ask(bzid="two").heart_beat(PS) == {"m:entry": []}
    for bad, error in (("three", NotFoundError), ("a/b", InvalidError), ("..", InvalidError)):
        with pytest.raises(error):
            await ask(bzid=bad).heart_beat(PS)
    with pytest.raises(InvalidError, match="x-shoal-agent-version: must be 1, 2 or 3"):
        await ask(bzid="one", agent_version=4).heart_beat(PS)


async def test_a_restart_answers_nothing_until_the_tree_is_there(kit, store, ask):
    await serve_v1(store, "gip", "m", "ps:0", b"10.0.0.5:8500")
    client = ask(bzid="gip")
    assert await client.heart_beat(PS) == {"ps:0": ["10.0.0.5:8500"]}
    await kit.stop_control()
    with pytest.raises(UnavailableError):
        await client.heart_beat(PS)
    await kit.start_control()
    assert await client.heart_beat(PS) == {"ps:0": ["10.0.0.5:8500"]}


async def test_a_view_that_does_not_load_answers_unavailable(kit, store, ask, monkeypatch):
    await serve_v1(store, "gip", "m", "ps:0", b"10.0.0.5:8500")
    kit.plane.leadership.addresses._watches.pause()
    with pytest.raises(UnavailableError, match="not loaded yet"):
        await ask().heart_beat(PS)
    kit.plane.leadership.addresses._watches.resume()
    await asyncio.sleep(0.1)
    assert await ask().heart_beat(PS) == {"ps:0": ["10.0.0.5:8500"]}


async def test_views_are_bounded(kit, store, ask, monkeypatch):
    monkeypatch.setattr(directory, "MAX_VIEWS", 3)
    for number in range(5):
        await serve_v1(store, f"b{number}", "m", "ps:0", b"10.0.0.%d:1" % number)
    addresses: AddressDirectory = kit.plane.leadership.addresses
    for _ in range(2):
        for number in range(5):
            assert await ask(bzid=f"b{number}").heart_beat(PS) == {"ps:0": [f"10.0.0.{number}:1"]}
    assert [scope.bzid for scope in addresses._kept] == ["b2", "b3", "b4"]
    followed = kit.plane.leadership.tree.followers.count()
    await ask(bzid="b0").heart_beat(PS)
    await asyncio.sleep(0.1)
    assert kit.plane.leadership.tree.followers.count() == followed


def test_every_role_may_ask():
    for method in methods_of(ServingAgent):
        assert RULES[method.path].roles == set(Role)
