"""Serving agents as workloads that the control plane places: certificates, grants, the tree, ports, and every death."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from shoal.cli.local.fleet import LocalFleet
from shoal.core.errors import ShoalError
from shoal.discovery.client import LeaderChannel, ServingAgentClient
from shoal.discovery.models.catalog import Catalog
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.remote import RemoteStore
from shoal.discovery.replicas.records import ServerType
from shoal.wire.sockets.channel import GrpcTransport
from tests.e2e.fleet.drill import is_alive, processes_of, until, until_status
from tests.e2e.serving.placed import ENTRY, PS, Sampler, group, model_servers

pytestmark = pytest.mark.e2e


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


@pytest.mark.timeout(300)
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
        assert len(model_servers(fleet.base_dir)) == 2
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
        before = model_servers(fleet.base_dir)
        for pid in serving_agents(fleet, ENTRY):
            os.kill(pid, signal.SIGKILL)

        async def replaced():
            now = model_servers(fleet.base_dir)
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
            return not model_servers(fleet.base_dir) and not processes_of(fleet, ENTRY)

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
        assert len(model_servers(fleet.base_dir)) == 1
        for pid in serving_agents(fleet, ENTRY):
            os.kill(pid, signal.SIGSTOP)
        await control.delete_group("serving")

        async def nothing_left():
            return not model_servers(fleet.base_dir) and not processes_of(fleet, ENTRY)

        await until(nothing_left, what="no process is left")
        with contextlib.suppress(ShoalError):
            await control.get_workload(ENTRY)


@pytest.fixture
async def quick_fleet(tmp_path):
    fleet = LocalFleet(
        tmp_path / "fleet", agents=2, slots=8, cpu="4", memory="4096MB", stop_workloads_on_exit=False,
        lease=timedelta(seconds=8), heartbeat_interval=timedelta(seconds=1),
    )  # fmt: skip
    try:
        await fleet.start()
        yield fleet
    finally:
        for name in fleet.names:
            fleet.signal(name, signal.SIGCONT)
        await fleet.kill()


# That it moves when its node is drained or cut off is shown in test_moved, too; here its node also dies.
# Its own waits are longer than a test may usually take: they say what did not happen, and leave no process behind.
@pytest.mark.long
@pytest.mark.timeout(700)
async def test_an_at_most_one_agent_moves_from_node_to_node(quick_fleet, tmp_path):
    fleet = quick_fleet
    store = RemoteStore(GrpcTransport(security=fleet.security()), [fleet.control_address])
    await store.open()
    catalog = Catalog(store, ModelPaths("gip"))
    (tmp_path / "entry" / "1").mkdir(parents=True)
    await catalog.declare("m", {"entry": str(tmp_path / "entry")})
    await catalog.publish("m:*", "prod")
    assert (
        await asyncio.to_thread(shoal, fleet, "grant", "create", "/gip", "--to", "workload:serving")
    ).returncode == 0
    container = f"unknown;None;None:{ENTRY}"
    sampler = Sampler(fleet.base_dir, store, f"/gip/container_service/{container}")

    async def serves_on(node: str) -> str:
        """Wait until the agent runs on a node, and is registered and bound there. Returns its address."""

        async def holds() -> str:
            view = await control.get_workload(ENTRY)
            if view.assigned_node_id != node or view.run is None or "grpc" not in view.run.ports:
                return ""
            address = f"127.0.0.1:{view.run.ports['grpc']}"
            service = json.loads((await store.get(f"/gip/container_service/{container}")).data)
            bound = await store.children("/gip/binding/m")
            return address if service["grpc"] == address and bound == (f"entry:{container}",) else ""

        return await until(holds, what=f"{ENTRY} serves on {node}", patience=150)

    async with fleet.client() as control:
        solo = group(ENTRY, flags=("--session-timeout", "2s"), at_most_one=True)
        await control.apply_group(solo)
        await until_status(control, ENTRY, "Running", patience=150)
        first = (await control.get_workload(ENTRY)).assigned_node_id
        second = next(name for name in fleet.names if name != first)
        addresses = [await serves_on(first)]

        # Its node is drained: it withdraws, ends, and is started on the other one.
        await control.drain_node(first)
        addresses.append(await serves_on(second))
        assert not model_servers(fleet.base_dir / first)
        await control.uncordon_node(first)

        # Its node loses contact, while it runs on: it is killed at its deadline, before it runs on the other one.
        (before,) = model_servers(fleet.base_dir)
        fleet.signal(second, signal.SIGSTOP)
        addresses.append(await serves_on(first))
        assert not is_alive(before)
        fleet.signal(second, signal.SIGCONT)

        async def is_ready():
            return (await control.get_node(second)).status == "Ready"

        await until(is_ready, what=f"{second} is Ready again", patience=60)

        # Its node dies.
        await fleet.kill_machine(first)
        addresses.append(await serves_on(second))

        await sampler.close()
        assert sampler.most == 1
        assert len(model_servers(fleet.base_dir)) == 1
        assert sampler.addresses == addresses, "each registration in its turn, with nothing in between"
        await control.delete_group("serving")

        async def nothing_left():
            return not model_servers(fleet.base_dir) and await store.children("/gip/container_service") == ()

        await until(nothing_left, what="nothing is left of it")
    await store.close()
