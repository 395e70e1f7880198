"""The agent by roles: start order, states of replicas, AgentService."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping
from typing import Any
from unittest.mock import Mock

import pytest

from shoal.core.errors import DeadlineError, InvalidError, UnavailableError
from shoal.discovery.client import ServingAgentClient
from shoal.discovery.replicas.records import ModelState, ServerType
from shoal.serving.agents.roles import RoleAgent
from shoal.serving.config.deployment import Role
from shoal.serving.models.chosen import ChosenVersions
from shoal.serving.models.configs import model_names, parse_config
from shoal.serving.processes.graph import OnExit
from shoal.testing.model_server import FakeModelServer
from tests.unit.serving.conftest import Stage, shown_versions, until


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Model servers are asked all the time."""
    monkeypatch.setattr("shoal.discovery.replicas.updater.INTERVAL", 0.02)


class Roles:
    """An agent with one fake model server per role. Each loads the models of its file when the agent has started it."""

    def __init__(
        self,
        stage: Stage,
        pod: str = "",
        *,
        on_exit: OnExit = OnExit.RESTART,
        env: Mapping[str, str] | None = None,
        **changes: object,
    ) -> None:
        self.stage = stage
        self.pod = pod or "pod-1"
        given = {
            "bzid": stage.bzid, "base_name": "m", "base_path": "/none", "deploy_type": "mixed", "agent_version": 1,
            "num_ps": 2, "layout_pattern": None, **changes,
        }  # fmt: skip
        self.parts = stage.parts(stage.settings(**given), self.pod, on_exit=on_exit, env=env)
        self.agent = RoleAgent(self.parts)
        self.servers: dict[str, FakeModelServer] = {}

    async def serve_models(self) -> None:
        for server in self.parts.deployment.servers:
            fake = self.servers[server.name] = FakeModelServer("model_config_list {}")
            transport = self.stage.network.transport(f"{self.pod}-{server.name}")
            await fake.start(transport, f"127.0.0.1:{server.ports.grpc}")

    def load(self, name: str) -> None:
        path = self.stage.folder / self.pod / f"{name}_model_config.pbtxt"
        self.servers[name].models.apply(parse_config(path.read_text()))

    def versions_in_file(self, name: str) -> dict[str, list[int]]:
        """What the configuration file of a model server asks for."""
        config = parse_config((self.parts.data_dir / f"{name}_model_config.pbtxt").read_text())
        return {
            each.name: list(each.model_version_policy.specific.versions) for each in config.model_config_list.config
        }

    def started(self, name: str) -> bool:
        return bool(self.stage.machines[self.pod].alive(name))

    def command(self, name: str) -> tuple[str, ...]:
        """How a process was started."""
        machine = self.stage.machines[self.pod]
        return machine.started_with[machine.alive(name)[0].run_id].spec.command

    async def stop(self) -> None:
        await self.agent.stop()
        for server in self.servers.values():
            await server.stop()


@contextlib.asynccontextmanager
async def roles(stage: Stage, pod: str = "", **changes: Any):
    made = Roles(stage, pod, **changes)
    await made.serve_models()
    try:
        yield made
    finally:
        await made.stop()


async def answered(stage: Stage, agent: RoleAgent, server_type: ServerType, expected: dict[str, list[str]]) -> None:
    client = ServingAgentClient(stage.network.transport("caller").connect(agent.address))
    found: dict[str, list[str]] | None = None
    async with asyncio.timeout(20):
        while found != expected:
            with contextlib.suppress(UnavailableError):  # it does not know the tree yet
                found = await client.heart_beat(server_type)
            await asyncio.sleep(0.005)
    await client.close()


async def test_entry_starts_when_every_parameter_server_is_available(stage):
    async with roles(stage) as made:
        starting = asyncio.ensure_future(made.agent.start())
        await until(lambda: made.started("ps") and made.agent.address)
        assert not made.started("entry")
        made.load("ps")
        await starting
        assert made.started("entry")
        made.load("entry")
        ports = {server.role: server.ports for server in made.parts.deployment.servers}
        ps, entry = (f"10.0.0.1:{ports[role].grpc}" for role in (Role.PS, Role.ENTRY))
        await answered(stage, made.agent, ServerType.PS, {"ps:0": [ps], "ps:1": [ps]})
        await answered(stage, made.agent, ServerType.ENTRY, {"entry:0": [entry]})
        (name,) = await stage.store.children(f"/{stage.bzid}/service/m/ps:0")
        value = await stage.store.get(f"/{stage.bzid}/service/m/ps:0/{name}")
        assert json.loads(value.data) == {
            "address": ps,
            "address_ipv6": f"[::]:{ports[Role.PS].grpc}",
            "stat": 30,
            "model_name": None,
            "server_type": None,
            "task": -1,
            "replica": -1,
            "archon_address": f"10.0.0.1:{ports[Role.PS].archon}",
            "archon_address_ipv6": f"[::]:{ports[Role.PS].archon}",
        }
    assert await stage.store.children(f"/{stage.bzid}/service/m/ps:0") == ()


async def test_entry_also_waits_for_dense(stage):
    async with roles(stage, dense_alone=True) as made:
        starting = asyncio.ensure_future(made.agent.start())
        await until(lambda: made.started("dense"))
        made.load("ps")
        await until(lambda: made.agent._missing() == ["dense:0"])
        assert not made.started("entry")
        made.load("dense")
        await starting
        assert made.started("entry")


async def test_entry_does_not_wait_for_ever(stage):
    async with roles(stage, max_waiting_sec=1) as made:
        with pytest.raises(DeadlineError, match=r"no available replica of ps:0, ps:1 after 1 s"):
            await made.agent.start()
        assert not made.started("entry")


async def test_entry_is_not_waited_for_when_everything_has_to_end(stage):
    async with roles(stage, on_exit=OnExit.STOP_ALL) as made:
        starting = asyncio.ensure_future(made.agent.start())
        await until(lambda: made.started("ps"))
        stage.machines["pod-1"].kill(stage.machines["pod-1"].alive("ps")[0].run_id)
        with pytest.raises(UnavailableError, match="ps ended"):
            await starting


async def test_a_location_has_its_own_parameter_servers(stage):
    async with roles(stage, dc_aware=True) as made:
        starting = asyncio.ensure_future(made.agent.start())
        elsewhere = b'{"address": "10.9.9.9:1", "stat": 30}'
        for task in ("ps:0", "ps:1"):
            await stage.store.create(f"/{stage.bzid}/service/m/hl:default/{task}/7", elsewhere, makepath=True)
        await until(lambda: len(made.agent._watcher.table) >= 5)
        assert not made.started("entry")
        made.load("ps")
        await starting
        assert await stage.store.children(f"/{stage.bzid}/service/m/lf:default") == ("entry:0", "ps:0", "ps:1")


async def test_one_broken_model_changes_no_other_state(stage):
    async with roles(stage, deploy_type="ps", num_ps=3) as made:
        made.servers["ps"].models.break_model("ps_0")
        await made.agent.start()
        made.load("ps")
        await answered(
            stage, made.agent, ServerType.PS, {"ps:0": [], **{f"ps:{n}": [made_address(made)] for n in (1, 2)}}
        )


def made_address(made: Roles) -> str:
    return f"10.0.0.1:{made.parts.deployment.servers[0].ports.grpc}"


async def test_several_dense_services_on_one_machine_have_replicas_of_their_own(stage):
    async with roles(stage, deploy_type="dense", dense_alone=True, dense_service_num=3) as made:
        await made.agent.start()
        for name in ("dense", "dense1", "dense2"):
            made.load(name)
        addresses = [f"10.0.0.1:{server.ports.grpc}" for server in made.parts.deployment.servers]
        await answered(stage, made.agent, ServerType.DENSE, {"dense:0": addresses})


async def test_one_lost_call_withdraws_no_address(stage):
    async with roles(stage, deploy_type="ps", num_ps=1) as made:
        await made.agent.start()
        made.load("ps")
        await answered(stage, made.agent, ServerType.PS, {"ps:0": [made_address(made)]})
        (name,) = await stage.store.children(f"/{stage.bzid}/service/m/ps:0")
        states: list[int] = []
        stage.store.watch_data(
            f"/{stage.bzid}/service/m/ps:0/{name}", lambda value: states.append(json.loads(value.data)["stat"])
        )
        fake = made.servers["ps"]
        fake.fail_calls(UnavailableError("overloaded"))
        asked = len(fake.calls)
        await until(lambda: len(fake.calls) > asked)
        fake.fail_calls(None)
        asked = len(fake.calls)
        await until(lambda: len(fake.calls) > asked + 1)
        assert states == [30]
        fake.fail_calls(UnavailableError("gone"))
        await until(lambda: states == [30, 0])
        fake.fail_calls(None)
        await until(lambda: states == [30, 0, 30])


async def test_the_address_of_a_model_server_that_ended_is_withdrawn_until_the_next_one_answers(stage, monkeypatch):
    monkeypatch.setattr("shoal.discovery.replicas.updater.MISSED_CALLS", 10**9)
    async with roles(stage, deploy_type="ps", num_ps=1) as made:
        await made.agent.start()
        made.load("ps")
        (task,) = made.agent.states
        await until(lambda: made.agent.states[task] is ModelState.AVAILABLE)
        made.servers["ps"].fail_calls(UnavailableError("it starts"))
        machine = stage.machines["pod-1"]
        machine.kill(machine.alive("ps")[0].run_id)
        await until(lambda: made.started("ps") and made.agent.states[task] is ModelState.UNKNOWN)
        made.servers["ps"].fail_calls(None)
        await until(lambda: made.agent.states[task] is ModelState.AVAILABLE)


@pytest.mark.parametrize("services", [1, 3])
async def test_dense_services_without_an_id_of_their_machine_are_refused(stage, services):
    async with roles(
        stage, deploy_type="dense", dense_alone=True, dense_service_num=services, env={"MY_POD_NAME": ""}
    ) as made:
        with pytest.raises(InvalidError, match="replica_id: is required"):
            await made.agent.start()
        assert not made.started("dense")
    assert await stage.store.exists(f"/{stage.bzid}/service") is None


async def test_dense_model_servers_can_be_told_apart(stage):
    async with roles(
        stage, deploy_type="dense", dense_alone=True, dense_service_num=2, env={"REPLICA_ID": "9"}
    ) as made:
        await made.agent.start()
        own = made.parts.deployment.replica_id
        told = [
            (request.spec.env["REPLICA_ID"], request.spec.env["DENSE_SERVICE_IDX"])
            for request in stage.machines["pod-1"].started_with.values()
        ]
        assert told == [(str(2 * own), "0"), (str(2 * own + 1), "1")]
        await made.agent._registrar.settled()
        assert set(await stage.store.children(f"/{stage.bzid}/service/m/dense:0")) == {replica for replica, _ in told}


async def test_an_agent_with_ipv6_alone_answers_the_ipv6_addresses_of_peers(stage, monkeypatch):
    monkeypatch.setattr("shoal.discovery.hosts.local_address", lambda: "fd00::5")
    both = b'{"address": "10.9.9.9:1", "address_ipv6": "[fd00::9]:1", "stat": 30}'
    await stage.store.create(f"/{stage.bzid}/service/m/ps:0/7", both, makepath=True)
    for host, expected in (("10.0.0.1", "10.9.9.9:1"), ("", "[fd00::9]:1")):
        async with roles(stage, deploy_type="ps", num_ps=1, env={"MY_HOST_IP": host}) as made:
            await made.agent.start()
            await answered(stage, made.agent, ServerType.PS, {"ps:0": [expected]})


async def test_the_proxy_follows_entry(stage):
    async with roles(stage, deploy_type="entry", num_ps=1, proxy_binary=sys.executable) as made:
        starting = asyncio.ensure_future(made.agent.start())
        await until(lambda: made.agent.address)
        assert not made.started("entry")
        assert not made.started("proxy")
        await stage.store.create(
            f"/{stage.bzid}/service/m/ps:0/3", b'{"address": "10.9.9.9:1", "stat": 30}', makepath=True
        )
        await starting
        assert made.started("entry")
        assert made.started("proxy")


async def test_models_and_files_of_each_role(stage):
    async with roles(stage, dense_alone=True, enable_batching=True) as made:
        starting = asyncio.ensure_future(made.agent.start())
        await until(lambda: made.started("dense"))
        folder = stage.folder / "pod-1"
        found = {
            name: model_names(parse_config((folder / f"{name}_model_config.pbtxt").read_text()))
            for name in ("ps", "dense", "entry")
        }
        assert found == {"ps": ("ps_0", "ps_1"), "dense": ("dense_0",), "entry": ("entry",)}
        written = folder / "platform_config.pbtxt"
        assert "max_batch_size" in written.read_text()
        # Parameter servers of a stock build cannot batch: their inputs differ in length.
        assert f"--platform_config_file={written}" in made.command("dense")
        assert not [word for word in made.command("ps") if "platform" in word or "batch" in word]
        starting.cancel()
        await asyncio.wait({starting})


async def test_a_platform_file_that_is_named_is_for_every_model_server(stage, tmp_path):
    named = tmp_path / "platform.pbtxt"
    async with roles(stage, dense_alone=True, allow_growth=False, platform_config_file=str(named)) as made:
        starting = asyncio.ensure_future(made.agent.start())
        await until(lambda: made.started("dense"))
        assert "gpu_options {" in named.read_text()
        assert "allow_growth: true" not in named.read_text()
        for name in ("ps", "dense"):
            assert f"--platform_config_file={named}" in made.command(name)
        starting.cancel()
        await asyncio.wait({starting})


async def test_metrics_show_only_what_is_served(stage):
    async with roles(stage) as made:
        starting = asyncio.ensure_future(made.agent.start())
        await until(lambda: made.started("ps"))
        made.load("ps")
        await until(lambda: made.started("entry"))
        made.load("entry")
        await starting
        everything = {"entry": 1, "ps_0": 1, "ps_1": 1}
        await until(lambda: shown_versions(made.parts) == everything)
        # The model server says that it has none of them.
        path = stage.folder / "pod-1/ps_model_config.pbtxt"
        made.servers["ps"].models.apply(parse_config("model_config_list {}"))
        await until(lambda: shown_versions(made.parts) == {"entry": 1})
        made.servers["ps"].models.apply(parse_config(path.read_text()))
        await until(lambda: shown_versions(made.parts) == everything)
        # Its process ends, and is started again.
        (run,) = stage.machines["pod-1"].alive("entry")
        stage.machines["pod-1"].kill(run.run_id)
        await until(lambda: shown_versions(made.parts) == {"ps_0": 1, "ps_1": 1})
        await until(lambda: shown_versions(made.parts) == everything)
        # It does not answer, several times in a row.
        await made.servers["ps"].stop()
        await until(lambda: shown_versions(made.parts) == {"entry": 1})


async def test_latest_once_stays_after_a_restart_of_the_agent(stage):
    base = stage.folder / "exports"
    (base / "ps_0" / "9").mkdir(parents=True)
    settings = {"deploy_type": "ps", "base_path": str(base), "num_ps": 1}
    for policy, expected in (("latest_once", [9]), ("latest_once", [9]), ("latest", []), ("latest_once", [10])):
        async with roles(stage, version_policy=policy, **settings) as made:
            await made.agent.start()
            made.load("ps")
            config = made.servers["ps"].models.config_of("ps_0")
            assert list(config.model_version_policy.specific.versions) == expected
        (base / "ps_0" / "10").mkdir(exist_ok=True)


async def test_latest_once_finds_a_version_that_comes_later(stage, monkeypatch):
    monkeypatch.setattr("shoal.serving.agents.roles.VERSION_SECONDS", 0.05)
    base = stage.folder / "exports"
    (base / "ps_0" / "9").mkdir(parents=True)
    async with roles(stage, deploy_type="ps", base_path=str(base), version_policy="latest_once") as made:
        await made.agent.start()
        made.load("ps")
        assert made.servers["ps"].models.names() == ("ps_0",)
        (base / "ps_0" / "10").mkdir()
        (base / "ps_1" / "3").mkdir(parents=True)
        models = made.servers["ps"].models
        await until(lambda: models.names() == ("ps_0", "ps_1"))
        policies = [list(models.config_of(name).model_version_policy.specific.versions) for name in models.names()]
        assert policies == [[9], [3]]


async def test_a_directory_that_cannot_be_read_for_a_while_ends_no_agent(stage, monkeypatch, caplog):
    monkeypatch.setattr("shoal.serving.agents.roles.VERSION_SECONDS", 0.05)
    base = stage.folder / "exports"
    (base / "ps_0" / "9").mkdir(parents=True)
    async with roles(stage, deploy_type="ps", base_path=str(base), version_policy="latest_once") as made:
        await made.agent.start()
        made.load("ps")
        with pytest.MonkeyPatch.context() as away:
            looks = Mock(side_effect=UnavailableError("the file system is away"))
            away.setattr(ChosenVersions, "choose", looks)
            await until(lambda: looks.call_count > 1)
        (base / "ps_1" / "3").mkdir(parents=True)
        await until(lambda: made.servers["ps"].models.names() == ("ps_0", "ps_1"))
        assert caplog.text.count("the file system is away") == 1


async def test_a_model_server_that_starts_again_is_told_of_versions_that_are_there(stage, monkeypatch):
    """Files of old versions are removed while a model server has them loaded."""
    base = stage.folder / "exports"
    for name in ("ps_0", "ps_1"):
        (base / name / "9").mkdir(parents=True)
    async with roles(stage, deploy_type="ps", base_path=str(base), version_policy="latest_once") as made:
        await made.agent.start()
        assert made.versions_in_file("ps") == {"ps_0": [9], "ps_1": [9]}
        for name in ("ps_0", "ps_1"):
            (base / name / "10").mkdir()
        (base / "ps_1" / "9").rmdir()
        machine = stage.machines["pod-1"]
        machine.kill(machine.alive("ps")[0].run_id)
        await until(lambda: made.parts.runner.restarts == {"ps": 1})
        await until(lambda: made.started("ps"))
        assert made.versions_in_file("ps") == {"ps_0": [9], "ps_1": [10]}
        # Without an answer of the file system it gets what the one before had.
        monkeypatch.setattr(ChosenVersions, "choose", Mock(side_effect=UnavailableError("the file system is away")))
        machine.kill(machine.alive("ps")[0].run_id)
        await until(lambda: made.parts.runner.restarts == {"ps": 2})
        await until(lambda: made.started("ps"))
        assert made.versions_in_file("ps") == {"ps_0": [9], "ps_1": [10]}
