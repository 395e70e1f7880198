"""Serving agents as workloads that the control plane places: certificates, grants, the tree, ports, and every death."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from shoal.cli.commands.common.specs import read_specs
from shoal.cli.local.fleet import LocalFleet
from shoal.core.errors import ShoalError
from shoal.discovery.client import LeaderChannel, ServingAgentClient
from shoal.discovery.models.catalog import Catalog
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.remote import RemoteStore
from shoal.discovery.replicas.records import ServerType
from shoal.model.documents import GroupDocument, read_document, write_document
from shoal.wire.channel import GrpcTransport
from tests.e2e.fleet.drill import is_alive, processes_of, until, until_status

pytestmark = pytest.mark.e2e

ENTRY, PS = "ranker-0", "ranker-ps-0"
EXAMPLE = Path(__file__).parents[3] / "examples/serving/group.yaml"


def group(*names: str, grace: str = "10s") -> GroupDocument:
    """The members of the example, with the fake model server."""
    (located,) = read_specs([str(EXAMPLE)])
    document = write_document(located.document)
    members = {each["id"]: each for each in document["members"]}
    for each in members.values():
        process = each["process"]
        process["command"] = [sys.executable, "-m", *process["command"], "--drain", "0s"]
        model_server = f"{sys.executable} -m shoal.testing.model_server"
        process["env"] = {"MONOLITH_TFS_BINARY": model_server, "MY_HOST_IP": "127.0.0.1"}
        process["restart"] = {"delay": "100ms", "max_delay": "500ms"}
        process["stop"] = {"grace": grace}
    return read_document({**document, "members": [members[name] for name in names]})


@pytest.fixture
async def fleet(tmp_path):
    fleet = LocalFleet(tmp_path / "fleet", agents=2, slots=8, cpu="4", memory="4096MB", stop_workloads_on_exit=False)
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.kill()


@pytest.fixture
async def transport(fleet):
    return GrpcTransport(security=fleet.security())


@pytest.fixture
async def store(fleet, transport):
    store = RemoteStore(transport, [fleet.control_address])
    await store.open()
    yield store
    await store.close()


def shoal(fleet: LocalFleet, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **fleet.client_variables}
    return subprocess.run([sys.executable, "-m", "shoal", *words], env=env, capture_output=True, text=True, check=False)


def model_servers(fleet: LocalFleet) -> set[int]:
    """The model servers below the directory of this fleet, also those whose agent is gone."""
    found = set()
    for each in psutil.process_iter(["cmdline"]):
        words = " ".join(each.info["cmdline"] or ())
        if "shoal.testing.model_server" in words and str(fleet.base_dir) in words:
            found.add(each.pid)
    return found


async def test_agents_are_placed_serve_die_and_go(fleet, transport, store, tmp_path):
    catalog = Catalog(store, ModelPaths("gip"))
    exports = {}
    for name in ("entry", "ps_0"):
        exports[name] = str(tmp_path / "exports" / name)
        (Path(exports[name]) / "3").mkdir(parents=True)
    await catalog.declare("m", exports)
    await catalog.publish("m:*", "prod")
    client = ServingAgentClient(LeaderChannel(transport, [fleet.control_address]), bzid="gip")

    async def answers(expected: dict[str, list[str]]) -> None:
        async def holds():
            return await client.heart_beat(ServerType.PS) == expected

        await until(holds, what=f"HeartBeat answers {expected}")

    async with fleet.client() as control:
        await control.apply_group(group(ENTRY, PS))
        for name in (ENTRY, PS):
            await until_status(control, name, "Running")
        # They run, but nobody granted them anything: nothing is registered, and their logs say why.
        await answers({"m:entry": [], "m:ps_0": []})

        async def says_why():
            pieces = [piece.data async for piece in control.logs(ENTRY)]
            return b"shoal grant create" in b"".join(pieces)

        await until(says_why, what="the log names the grant that is missing")

        granted = await asyncio.to_thread(shoal, fleet, "grant", "create", "/gip", "--to", "workload:serving")
        assert granted.returncode == 0, granted.stderr

        async def ports(name: str) -> dict[str, int]:
            return (await control.get_workload(name)).run.ports

        async def both_serve() -> None:
            grpc = {name: f"127.0.0.1:{(await ports(name))['grpc']}" for name in (ENTRY, PS)}
            await answers({"m:entry": [grpc[ENTRY]], "m:ps_0": [grpc[PS]]})

        await both_serve()
        assert len(model_servers(fleet)) == 2
        # The agent of each machine answers on its own port, in clear, on loopback.
        own = ServingAgentClient(GrpcTransport().connect(f"127.0.0.1:{(await ports(ENTRY))['agent']}"))
        assert await own.heart_beat(ServerType.PS) == await client.heart_beat(ServerType.PS)
        await own.close()
        # The named ports are announced like those of any workload.
        found = await asyncio.to_thread(shoal, fleet, "replicas", "service/ranker", "--json")
        assert {each["workload_id"] for each in json.loads(found.stdout)["endpoints"]} == {ENTRY, PS}
        assert await store.children("/gip/container_service") == (
            f"unknown;None;None:{ENTRY}",
            f"unknown;None;None:{PS}",
        )

        # kill -9 of a serving agent: its model server ends with it, and the next run serves again.
        before = model_servers(fleet)
        for pid in serving_agents(fleet, ENTRY):
            os.kill(pid, signal.SIGKILL)

        async def replaced():
            now = model_servers(fleet)
            return len(now) == 2 and len(now & before) == 1

        await until(replaced, what="the model server of the killed agent was replaced")
        await both_serve()

        # A hung serving agent is taken out by its session, and is bound again when it goes on.
        (hung,) = serving_agents(fleet, PS)
        os.kill(hung, signal.SIGSTOP)
        try:
            ranker_at = f"127.0.0.1:{(await ports(ENTRY))['grpc']}"
            await answers({"m:entry": [ranker_at], "m:ps_0": []})
        finally:
            os.kill(hung, signal.SIGCONT)
        await both_serve()

        # The control plane is killed and comes back: nothing was lost meanwhile.
        sessions = {name: (await store.get(f"/gip/container_service/unknown;None;None:{name}")).stat.owner
                    for name in (ENTRY, PS)}  # fmt: skip
        await fleet.kill_control()
        await fleet.start_control()
        await both_serve()

        async def same_sessions():
            return sessions == {
                name: (await store.get(f"/gip/container_service/unknown;None;None:{name}")).stat.owner
                for name in sessions
            }

        await until(same_sessions, what="the agents go on with their sessions")

        # Deleted: withdrawn, and every process is gone.
        await control.delete_group("serving")
        await answers({"m:entry": [], "m:ps_0": []})

        async def nothing_left():
            return not model_servers(fleet) and not processes_of(fleet, ENTRY)

        await until(nothing_left, what="no process is left")
    await client.close()


def serving_agents(fleet: LocalFleet, workload_id: str) -> list[int]:
    """The `shoal serve` of a workload, without its keeper and its model servers."""
    found = []
    for pid in processes_of(fleet, workload_id):
        with contextlib.suppress(psutil.Error):
            words = psutil.Process(pid).cmdline()
            if is_alive(pid) and "serve" in words and "shoal" in words:
                found.append(pid)
    return found


async def test_a_serving_agent_that_hangs_is_killed_with_its_model_servers(fleet, store, tmp_path):
    catalog = Catalog(store, ModelPaths("gip"))
    (tmp_path / "entry" / "1").mkdir(parents=True)
    await catalog.declare("m", {"entry": str(tmp_path / "entry")})
    await catalog.publish("m:*", "prod")
    async with fleet.client() as control:
        await control.apply_group(group(ENTRY, grace="1s"))
        await until_status(control, ENTRY, "Running")
        assert len(model_servers(fleet)) == 1
        for pid in serving_agents(fleet, ENTRY):
            os.kill(pid, signal.SIGSTOP)
        await control.delete_group("serving")

        async def nothing_left():
            return not model_servers(fleet) and not processes_of(fleet, ENTRY)

        await until(nothing_left, what="no process is left")
        with contextlib.suppress(ShoalError):
            await control.get_workload(ENTRY)
