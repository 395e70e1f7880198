"""A control plane whose disk is full: it goes on, starts, answers reads and keeps nodes alive; then there is room."""

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from datetime import timedelta

import pytest

from shoal.cli.local.fleet import LocalFleet
from shoal.core.errors import UnavailableError
from tests.e2e.fleet.drill import insist, process, processes_of, until, until_status
from tests.services.disks import fill, small_disk

pytestmark = pytest.mark.e2e

LEASE = 12.0  # a control plane that was killed is back well within it, on a busy machine, too
HEARTBEAT = 0.5
AGENTS = 2


@pytest.fixture
async def world(tmp_path):
    """A fleet whose control plane keeps its data on a small disk."""
    with small_disk(tmp_path / "control" / "data", megabytes=8) as disk:
        fleet = LocalFleet(
            tmp_path,
            agents=AGENTS,
            cpu="4",
            memory="4096MB",
            lease=timedelta(seconds=LEASE),
            heartbeat_interval=timedelta(seconds=HEARTBEAT),
            stop_workloads_on_exit=False,
            secure=False,
        )
        try:
            await fleet.start()
            yield fleet, disk
        finally:
            await fleet.kill()


async def get(fleet, path):
    def ask():
        try:
            with urllib.request.urlopen(f"http://{fleet.http_address}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(ask)


async def readiness(fleet):
    return (await get(fleet, "/readyz"))[0]


async def is_full(fleet):
    code, text = await get(fleet, "/health")
    return code == 503 and "disk is full" in json.loads(text)["reason"]


async def heartbeats(fleet):
    _code, text = await get(fleet, "/metrics")
    lines = [line for line in text.splitlines() if line.startswith("shoal_control_heartbeats_received_total")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def leases_pass(fleet, count):
    """Wait until so many heartbeats were processed as agents send in that many leases."""
    wanted = await heartbeats(fleet) + count * AGENTS * LEASE / HEARTBEAT * 0.9

    async def processed():
        return await heartbeats(fleet) >= wanted

    await until(processed, what="heartbeats go on", patience=20 * count * LEASE)


async def restarts(control, name):
    return (await control.get_workload(name)).run.restarts


async def states(control):
    return {node.node_id: node.status for node in await control.list_nodes()}


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "end",
    [
        pytest.param(LocalFleet.kill_control, id="killed"),
        pytest.param(LocalFleet.stop_control, id="stopped", marks=pytest.mark.long),
    ],
)
async def test_a_full_disk_stops_nothing_and_nothing_is_lost(world, end):
    fleet, disk = world
    async with fleet.client() as control:
        await control.apply(process("only", at_most_one=True))
        await control.apply(process("web", process={"restart": {"policy": "always", "delay": "100ms"}}))
        await until_status(control, "only", "Running")
        await until_status(control, "web", "Running")
        only, (web,) = processes_of(fleet, "only"), processes_of(fleet, "web")
        plane = fleet.pid_of("control")

        fill(disk / "filler")
        await until(lambda: is_full(fleet), what="/health tells of the full disk")
        assert await readiness(fleet) == 503
        with pytest.raises(UnavailableError, match="disk is full"):
            await control.apply(process("more"))
        os.kill(web, signal.SIGKILL)  # a change in the next heartbeat, which cannot be stored
        await leases_pass(fleet, 1)
        assert fleet.pid_of("control") == plane
        assert processes_of(fleet, "only") == only
        assert await states(control) == {"node-1": "Ready", "node-2": "Ready"}

        await end(fleet)
        fill(disk / "filler")  # also what it gave back when it closed its files
        await fleet.start_control()
        await until(lambda: is_full(fleet), what="it says that the disk is full after a start")
        await leases_pass(fleet, 1)
        assert await readiness(fleet) == 503
        assert {each.workload_id for each in await insist(control.list_workloads)} == {"only", "web"}
        assert processes_of(fleet, "only") == only

        (disk / "filler").unlink()

        async def is_ready():
            return await readiness(fleet) == 200

        await until(is_ready, what="it is ready with room on the disk")
        await insist(lambda: control.apply(process("more")))
        await until_status(control, "more", "Running")

        async def restarted():
            return await restarts(control, "web") >= 1

        await until(restarted, what="the change that waited is known")
        await fleet.kill_control()
        await fleet.start_control()
        assert await insist(lambda: restarts(control, "web")) >= 1
        assert processes_of(fleet, "only") == only
        assert len(processes_of(fleet, "web")) == 1
        await until_status(control, "only", "Running")
