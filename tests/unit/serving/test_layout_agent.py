"""The agent by layouts: from a change of the layout to bindings that peers see."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading

import pytest

from shoal.core.errors import DeadlineError, UnavailableError
from shoal.discovery.client import ServingAgentClient
from shoal.discovery.documents import write_record
from shoal.discovery.models.records import DeployConfig
from shoal.discovery.models.service_map import ServiceMap
from shoal.discovery.replicas.records import ModelState, ServerType
from shoal.serving.agents import parts as parts_module
from shoal.serving.agents.layout import LayoutAgent
from shoal.serving.models.configs import (
    config_text,
    model_config,
    model_names,
    parse_config,
    server_config,
    versions_in,
)
from shoal.serving.resources import read_cpus
from shoal.testing.runtimes import FakeRuntime
from tests.unit.serving.conftest import shown_versions, until

ME = "p.s.m;lf;default:pod-1"


def in_file(stage, pod: str = "pod-1") -> tuple[str, ...]:
    return model_names(parse_config((stage.folder / pod / "model_config.pbtxt").read_text()))


def versions_told(models, name: str) -> list[int]:
    """The versions that a model server was told to serve, if it has the model."""
    if name not in models.models.names():
        return []
    return list(models.models.config_of(name).model_version_policy.specific.versions)


async def bound_in_tree(stage, expected: list[str], model: str = "m") -> None:
    async with asyncio.timeout(20):
        while await stage.bindings(model) != expected:
            await asyncio.sleep(0.005)


async def test_a_published_model_is_served_bound_and_answered(stage):
    await stage.declare("m", "entry", "ps_0", "ps_1")
    async with stage.layout_agent() as (agent, models):
        await stage.catalog.publish("m:entry", "prod")
        await stage.catalog.publish("m:ps_0", "prod")
        await bound_in_tree(stage, [f"entry:{ME}", f"ps_0:{ME}"])
        assert models.models.names() == in_file(stage) == ("m:entry", "m:ps_0")
        client = ServingAgentClient(stage.network.transport("caller").connect(agent.address))
        address = f"10.0.0.1:{agent._server.ports.grpc}"
        expected = {"m:entry": [address], "m:ps_0": [address], "m:ps_1": []}
        async with asyncio.timeout(20):
            while await client.heart_beat(ServerType.PS) != expected:
                await asyncio.sleep(0.005)
        assert await client.get_replicas(ServerType.PS, 0, model_name="m") == [address]
        resource = await client.get_resource()
        assert resource.address == f"10.0.0.1:{agent.address.rpartition(':')[2]}"
        assert resource.memory > 0
        assert 0 <= resource.cpu <= read_cpus()
        assert (resource.network, resource.work_load) == (-1.0, -1.0)
        await client.close()

        await stage.catalog.unpublish("m:ps_0", "prod")
        await bound_in_tree(stage, [f"entry:{ME}"])
        await until(lambda: models.models.names() == ("m:entry",))
        assert in_file(stage) == ("m:entry",)
    assert await stage.bindings("m") == []


async def test_the_container_tells_where_it_is(stage):
    async with stage.layout_agent(layout_filters=("entry; True", "ps_{i}; i % 2 == 0")) as (agent, _):
        await until(lambda: agent._registrar.paths)
        await agent._registrar.settled()
        (name,) = await stage.store.children(f"/{stage.bzid}/container_service")
        assert name == ME
        value = await stage.store.get(f"/{stage.bzid}/container_service/{name}")
        ports = agent._server.ports
        told = json.loads(value.data)
        assert list(told) == ["grpc", "http", "archon", "agent", "idc", "debug_info"]
        assert told["grpc"] == f"10.0.0.1:{ports.grpc}"
        assert told["agent"] == f"10.0.0.1:{agent.address.rpartition(':')[2]}"
        assert told["idc"] == "lf"
        assert json.loads(told["debug_info"]) == {
            "layout_path": f"/{stage.bzid}/layouts/prod",
            "layout_filters": ["entry;True", r"ps_(?P<i>\d+);i % 2 == 0"],
        }
        assert value.stat.owner


async def test_filters_choose(stage):
    await stage.declare("m", "entry", "ps_0", "ps_1", "ps_2", "ps_3")
    async with stage.layout_agent(layout_filters=("ps_{i}; i % 2 == 1",)) as (agent, models):
        await stage.catalog.publish("m:*", "prod")
        await until(lambda: agent.bound == {"m:ps_1", "m:ps_3"})
        assert models.models.names() == ("m:ps_1", "m:ps_3")


async def test_one_bad_entry_does_not_keep_the_others(stage):
    await stage.declare("m", "entry", "ps_0")
    await stage.store.create(f"/{stage.bzid}/saved_models/bad/entry", b"{nonsense", makepath=True)
    await stage.store.create(
        f"/{stage.bzid}/saved_models/odd/entry", b'{"model_base_path": "/x", "version_policy": "best"}', makepath=True
    )
    await stage.store.create(f"/{stage.bzid}/saved_models/half/entry", b'{"model_base_path": "\\ud800"}', makepath=True)
    async with stage.layout_agent(layout_filters=("entry", "ps_{i}; 1 // i == 1")) as (agent, models):
        for name in ("nothing", "a:b:c", "bad:entry", "half:entry", "odd:entry", "missing:entry", "m:ps_0", "m:entry"):
            await stage.store.create(f"/{stage.bzid}/layouts/prod/{name}", makepath=True)
        await until(lambda: agent.bound == {"m:entry"} and len(agent.plan.problems) == 7)
        assert models.models.names() == ("m:entry",)
        said = " ".join(str(each) for each in agent.plan.problems)
        for part in (
            "nothing",
            "a:b:c",
            "bad/entry",
            "half/entry.model_base_path",
            "odd:entry.version_policy",
            "missing/entry",
            "divide by zero",
        ):
            assert part in said


async def test_a_model_that_cannot_be_loaded_does_not_keep_the_others(stage):
    await stage.declare("m", "entry", "ps_0")
    async with stage.layout_agent() as (agent, models):
        models.models.break_model("m:ps_0", "damaged")
        await stage.catalog.publish("m:*", "prod")
        await until(lambda: agent.bound == {"m:entry"} and models.models.names() == ("m:entry", "m:ps_0"))
        models.models.repair_model("m:ps_0")
        models.models.poll()
        await until(lambda: agent.bound == {"m:entry", "m:ps_0"})


async def test_a_model_that_loads_slowly_does_not_keep_the_others(stage, monkeypatch):
    monkeypatch.setattr("shoal.serving.agents.layout.LOOK_SECONDS", 20.0)  # both are in the first configuration
    await stage.declare("m", "entry", "ps_0", "ps_1")
    await stage.catalog.publish("m:ps_0", "prod")
    await stage.catalog.publish("m:entry", "prod")
    async with stage.layout_agent() as (agent, models):
        models.models.hold("m:ps_0")
        await until(lambda: models.models.names() == ("m:entry", "m:ps_0"))
        await until(lambda: agent.bound == {"m:entry"})
        # The model server takes the next configuration when it has loaded this one; of several, the last.
        await stage.catalog.publish("m:ps_1", "prod")
        await until(lambda: "m:ps_1" in agent.plan.models)
        await stage.catalog.unpublish("m:entry", "prod")
        await until(lambda: model_names(agent.wanted_config) == ("m:ps_0", "m:ps_1") and not agent.bound)
        models.models.release("m:ps_0")
        await until(lambda: agent.bound == {"m:ps_0", "m:ps_1"})
        taken = [model_names(each) for each in models.models.applied if model_names(each)]
        assert taken == [("m:entry", "m:ps_0"), ("m:ps_0", "m:ps_1")]


async def test_no_model_is_unloaded_before_its_binding_is_withdrawn(stage, monkeypatch):
    """Also when the model server takes the configuration before at that very moment."""
    await stage.declare("m", "entry", "ps_0")
    await stage.catalog.publish("m:entry", "prod")
    async with stage.layout_agent() as (agent, models):
        await until(lambda: agent.bound == {"m:entry"})
        models.models.hold("m:ps_0")
        await stage.catalog.publish("m:ps_0", "prod")
        await until(lambda: models.models.names() == ("m:entry", "m:ps_0"))
        withdrawn = asyncio.Event()
        monkeypatch.setattr(agent, "_wait_registered", withdrawn.wait)
        await stage.catalog.unpublish("m:entry", "prod")
        await until(lambda: not agent.bound)
        # The reload before ends, and the model server is told anew.
        told = len(models.models.applied)
        models.models.release("m:ps_0")
        agent._plan_changed.set()
        await until(lambda: len(models.models.applied) > told)
        assert model_names(models.models.applied[-1]) == ("m:entry", "m:ps_0")
        withdrawn.set()
        await until(lambda: models.models.names() == ("m:ps_0",))


async def test_no_model_is_loaded_before_its_peers_can_be_answered(stage, monkeypatch):
    """A model server asks when it loads the first one, and decides from that answer how its peers are called."""
    await stage.declare("m", "entry", "ps_0")
    await stage.catalog.publish("m:entry", "prod")
    known, awaited = asyncio.Event(), asyncio.Event()

    async def wait_loaded(_self: ServiceMap) -> None:
        awaited.set()
        await known.wait()

    monkeypatch.setattr(ServiceMap, "is_loaded", property(lambda _self: known.is_set()))
    monkeypatch.setattr(ServiceMap, "wait_loaded", wait_loaded)
    async with stage.layout_agent() as (agent, models):
        client = ServingAgentClient(stage.network.transport("caller").connect(agent.address))
        await until(lambda: agent._models == {"m"} and awaited.is_set())
        with pytest.raises(UnavailableError):
            await client.heart_beat(ServerType.PS)
        assert models.models.names() == ()
        assert not agent.plan.models
        known.set()
        await until(lambda: models.models.names() == ("m:entry",))
        assert (await client.heart_beat(ServerType.PS)).keys() == {"m:entry", "m:ps_0"}
        await client.close()


async def test_a_model_without_a_version_does_not_keep_the_others(stage, monkeypatch):
    monkeypatch.setattr("shoal.serving.agents.layout.VERSION_SECONDS", 0.05)
    await stage.declare("m", "entry", "ps_0")
    empty = stage.folder / "exports/m/entry"  # its policy is `latest`
    (empty / "1").rmdir()
    await stage.catalog.publish("m:entry", "prod")
    async with stage.layout_agent() as (agent, models):
        await until(lambda: agent.plan.waiting == ("m:entry",))
        await stage.catalog.publish("m:ps_0", "prod")
        await until(lambda: agent.bound == {"m:ps_0"})
        assert models.models.names() == in_file(stage) == ("m:ps_0",)
        (empty / "3").mkdir()
        await until(lambda: agent.bound == {"m:entry", "m:ps_0"})
        # A directory that had versions once is left to the model server.
        (empty / "3").rmdir()
        await stage.declare("n", "entry")
        await stage.catalog.publish("n:entry", "prod")
        await until(lambda: agent.bound == {"m:ps_0", "n:entry"})
        assert "m:entry" in models.models.names()


async def test_a_directory_that_hangs_does_not_keep_the_others(stage, monkeypatch):
    monkeypatch.setattr("shoal.serving.agents.layout.VERSION_SECONDS", 0.05)
    monkeypatch.setattr("shoal.serving.agents.layout.LOOK_SECONDS", 0.05)
    paths = await stage.declare("m", "entry", "ps_0", "ps_1")
    hung = threading.Event()

    def find(path: str) -> frozenset[int]:
        if path in (paths["entry"], paths["ps_0"]):
            hung.wait(20)
        return versions_in(path)

    await stage.catalog.publish("m:*", "prod")
    async with stage.layout_agent(find_versions=find) as (agent, _):
        await until(lambda: agent.bound == {"m:ps_1"})
        assert agent.plan.waiting == ("m:entry", "m:ps_0")
        hung.set()
        await until(lambda: agent.bound == {"m:entry", "m:ps_0", "m:ps_1"})


async def test_an_adopted_model_server_keeps_models_whose_directories_cannot_be_read(stage, monkeypatch):
    paths = await stage.declare("m", "entry", "other")
    await stage.store.set("/gip/saved_models/m/other", write_record(DeployConfig(paths["other"], "latest")))
    await stage.catalog.publish("m:*", "prod")
    monkeypatch.setattr(LayoutAgent, "_is_running", lambda _self: True)

    def find(path: str) -> frozenset[int]:
        raise UnavailableError(f"{path}: the file system is away")

    served = config_text(server_config([model_config("m:entry", paths["entry"])]))
    async with stage.layout_agent(find_versions=find, config=served) as (agent, models):
        await until(lambda: agent.bound == {"m:entry"})
        assert agent.plan.waiting == ("m:other",)
        assert ("m:entry", 1, ModelState.UNLOADING) not in models.models.transitions


async def test_every_start_of_the_model_server_is_without_models(stage):
    await stage.declare("m", "entry")
    await stage.catalog.publish("m:entry", "prod")
    at_start: list[tuple[str, ...]] = []
    machine_start = FakeRuntime.start

    async def start(self, request):
        at_start.append(in_file(stage))
        return await machine_start(self, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeRuntime, "start", start)
        async with stage.layout_agent() as (agent, _):
            await until(lambda: agent.bound == {"m:entry"} and in_file(stage) == ("m:entry",))
            machine = stage.machines["pod-1"]
            machine.kill(machine.alive("unified")[0].run_id)
            await until(lambda: len(at_start) == 2 and in_file(stage) == ("m:entry",) and agent.bound)
            assert at_start == [(), ()]


async def test_declaring_a_model_again_takes_effect(stage):
    await stage.declare("m", "entry")
    async with stage.layout_agent() as (agent, models):
        await stage.catalog.publish("m:entry", "prod")
        await until(lambda: agent.bound)
        other = stage.folder / "elsewhere"
        (other / "7").mkdir(parents=True)
        await stage.catalog.declare("m", {"entry": str(other)}, overwrite=True)
        await until(lambda: models.models.config_of("m:entry").base_path == str(other))


async def test_a_model_may_be_published_before_it_is_declared(stage):
    async with stage.layout_agent() as (agent, _):
        await stage.store.create(f"/{stage.bzid}/layouts/prod/m:entry", makepath=True)
        await until(lambda: agent.plan.problems)
        await stage.declare("m", "entry")
        await until(lambda: agent.bound == {"m:entry"})


async def test_latest_once_stays_at_the_version_that_was_there(stage):
    (path,) = (await stage.declare("m", "ps_0")).values()
    (stage.folder / "exports/m/ps_0/9").mkdir()
    (stage.folder / "exports/m/ps_0/10").mkdir()
    async with stage.layout_agent() as (agent, models):
        await stage.catalog.publish("m:ps_0", "prod")
        await until(lambda: agent.bound == {"m:ps_0"})
        (stage.folder / "exports/m/ps_0/11").mkdir()
        await stage.declare("n", "ps_0")
        await stage.catalog.publish("n:ps_0", "prod")
        await until(lambda: agent.bound == {"m:ps_0", "n:ps_0"})
        config = models.models.config_of("m:ps_0")
        assert config.base_path == path
        assert list(config.model_version_policy.specific.versions) == [10]


async def test_latest_once_stays_after_a_restart_of_the_agent(stage):
    await stage.declare("m", "ps_0")
    await stage.catalog.publish("m:ps_0", "prod")
    async with stage.layout_agent() as (agent, _):
        await until(lambda: agent.bound == {"m:ps_0"})
    (stage.folder / "exports/m/ps_0/2").mkdir()
    async with stage.layout_agent() as (agent, models):
        await until(lambda: agent.bound == {"m:ps_0"})
        assert list(models.models.config_of("m:ps_0").model_version_policy.specific.versions) == [1]
        # It leaves the layout and comes back: the newest is chosen.
        await stage.catalog.unpublish("m:ps_0", "prod")
        await until(lambda: not agent.bound)
        await stage.catalog.publish("m:ps_0", "prod")
        # The model server may still serve the version of before when it is bound.
        await until(lambda: versions_told(models, "m:ps_0") == [2])
        await until(lambda: agent.bound == {"m:ps_0"})


async def test_a_model_server_that_starts_again_is_told_of_versions_that_are_there(stage, monkeypatch):
    """Files of old versions are removed while a model server has them loaded."""
    monkeypatch.setattr("shoal.serving.agents.layout.VERSION_SECONDS", 0.05)
    await stage.declare("m", "entry", "ps_0")
    await stage.catalog.publish("m:*", "prod")
    exports = stage.folder / "exports/m"
    async with stage.layout_agent() as (agent, models):
        await until(lambda: agent.bound == {"m:entry", "m:ps_0"})
        (exports / "ps_0/2").mkdir()
        for name in ("ps_0", "entry"):
            (exports / name / "1").rmdir()
        machine = stage.machines["pod-1"]
        machine.kill(machine.alive("unified")[0].run_id)
        await until(lambda: versions_told(models, "m:ps_0") == [2] and agent.plan.waiting == ("m:entry",))
        await until(lambda: agent.bound == {"m:ps_0"})
        (exports / "entry/2").mkdir()
        await until(lambda: agent.bound == {"m:entry", "m:ps_0"})


async def test_metrics_show_only_what_is_served(stage):
    await stage.declare("m", "entry", "ps_0")
    await stage.catalog.publish("m:*", "prod")
    async with stage.layout_agent() as (agent, _):
        parts = agent._parts
        await until(lambda: shown_versions(parts) == {"m:entry": 1, "m:ps_0": 1})
        await stage.catalog.unpublish("m:ps_0", "prod")
        await until(lambda: shown_versions(parts) == {"m:entry": 1})
        machine = stage.machines["pod-1"]
        (run,) = machine.alive("unified")
        machine.kill(run.run_id)
        await until(lambda: not shown_versions(parts))
        await until(lambda: shown_versions(parts) == {"m:entry": 1})


async def test_a_new_session_brings_everything_back(stage):
    await stage.declare("m", "entry")
    async with stage.layout_agent() as (agent, _):
        await stage.catalog.publish("m:entry", "prod")
        await bound_in_tree(stage, [f"entry:{ME}"])
        before = (await stage.store.get(f"/{stage.bzid}/binding/m/entry:{ME}")).stat.owner
        await stage.tree.end_session(before)

        async def owner() -> str:
            found = await stage.store.exists(f"/{stage.bzid}/binding/m/entry:{ME}")
            return found.owner if found is not None else before

        async with asyncio.timeout(20):
            while await owner() == before:
                await asyncio.sleep(0.005)
        assert await stage.store.exists(f"/{stage.bzid}/container_service/{ME}")
        assert agent.bound == {"m:entry"}


async def test_a_model_server_that_ends_is_unbound_at_once_and_bound_when_it_is_back(stage):
    await stage.declare("m", "entry")
    async with stage.layout_agent() as (agent, _):
        await stage.catalog.publish("m:entry", "prod")
        await bound_in_tree(stage, [f"entry:{ME}"])
        machine = stage.machines["pod-1"]
        (run,) = machine.alive("unified")
        machine.kill(run.run_id)
        await until(lambda: not agent.bound)
        await until(lambda: agent.bound == {"m:entry"})
        assert [each.run_id for each in machine.alive("unified")] != [run.run_id]
        await bound_in_tree(stage, [f"entry:{ME}"])


async def test_one_lost_call_changes_no_binding(stage):
    await stage.declare("m", "entry")
    async with stage.layout_agent() as (agent, models):
        await stage.catalog.publish("m:entry", "prod")
        await until(lambda: agent.bound)
        models.fail_calls(UnavailableError("overloaded"))
        agent._look.set()
        await until(lambda: agent._bindings.missed.get("m:entry"))
        assert agent.bound == {"m:entry"}
        models.fail_calls(None)
        agent._look.set()
        await until(lambda: not agent._bindings.missed)
        assert agent.bound == {"m:entry"}


async def test_a_model_server_that_does_not_answer_is_unbound(stage):
    await stage.declare("m", "entry")
    async with stage.layout_agent() as (agent, models):
        await stage.catalog.publish("m:entry", "prod")
        await bound_in_tree(stage, [f"entry:{ME}"])
        models.fail_calls(UnavailableError("gone"))
        async with asyncio.timeout(20):
            while await stage.bindings("m"):
                agent._look.set()  # it is asked again at once
                await asyncio.sleep(0.005)
        models.fail_calls(None)
        await bound_in_tree(stage, [f"entry:{ME}"])


async def test_a_mistake_in_the_program_that_keeps_registrations_away_ends_the_agent(stage, monkeypatch):
    async with stage.layout_agent() as (agent, _):
        await until(agent._registrar._settled.is_set)

        async def create(*_args: object, **_more: object) -> str:
            raise TypeError("a mistake")

        monkeypatch.setattr(agent._parts.store, "create", create)
        await stage.declare("m", "entry")
        await stage.catalog.publish("m:entry", "prod")
        with pytest.raises(TypeError, match="a mistake"):
            async with asyncio.timeout(20):
                await agent.failed()


async def test_a_model_server_that_never_listens_ends_the_start(stage):
    async def never(_port: int) -> bool:
        return False

    parts = stage.parts(stage.settings(max_waiting_sec=1), "pod-1")
    parts.runner._listens = never
    agent = LayoutAgent(parts)
    with pytest.raises(DeadlineError, match="unified does not listen"):
        await agent.start()
    await agent.stop()
    assert stage.machines["pod-1"].alive("unified") == []
    assert await stage.store.exists(f"/{stage.bzid}/container_service") is None


async def test_peers_see_each_other(stage):
    await stage.declare("m", "entry", "ps_0")
    async with (
        stage.layout_agent("pod-1", layout_filters=("entry",)) as (one, _),
        stage.layout_agent("pod-2", layout_filters=("ps_{i}",)) as (two, _),
    ):
        await stage.catalog.publish("m:*", "prod")
        client = ServingAgentClient(stage.network.transport("caller").connect(one.address))
        expected = {
            "m:entry": [f"10.0.0.1:{one._server.ports.grpc}"],
            "m:ps_0": [f"10.0.0.1:{two._server.ports.grpc}"],
        }
        async with asyncio.timeout(20):
            while await client.heart_beat(ServerType.PS) != expected:
                await asyncio.sleep(0.005)
        await client.close()


@pytest.mark.parametrize("pattern", [None, "/other/place"])
async def test_another_layout(stage, pattern):
    await stage.declare("m", "entry")
    async with stage.layout_agent(layout_pattern=pattern) as (agent, _):
        await stage.store.create(f"{pattern or f'/{stage.bzid}/layouts/default'}/m:entry", makepath=True)
        await until(lambda: agent.bound == {"m:entry"})


class Away:
    """A tree that can be reached at the third attempt."""

    def __init__(self, store) -> None:
        self._store = store
        self.attempts = 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def open(self) -> None:
        self.attempts += 1
        if self.attempts < 3:
            raise UnavailableError("no ZooKeeper answers")
        await self._store.open()


@pytest.mark.parametrize("patient", [True, False])
async def test_who_has_adopted_model_servers_waits_for_the_tree(stage, monkeypatch, patient):
    monkeypatch.setattr(parts_module, "RETRY_SECONDS", 0.01)
    parts = stage.parts(stage.settings(), "pod-1")
    away = Away(parts.store)
    parts = dataclasses.replace(parts, store=away)
    if patient:
        await parts.open_tree(patient=True)
        assert away.attempts == 3
        await away.close()
    else:
        with pytest.raises(UnavailableError):
            await parts.open_tree(patient=False)
        assert away.attempts == 1
