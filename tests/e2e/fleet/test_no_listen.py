"""Agents that listen nowhere, as real processes: everything goes through the streams that they open."""

import asyncio
import contextlib
import time
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.cli.local.fleet import LocalFleet
from shoal.core.errors import UnavailableError
from tests.e2e.fleet.drill import insist, is_alive, life, process, processes_of, until, until_gone, until_status

pytestmark = pytest.mark.e2e

#: Long enough for a killed process to be back within it on a busy machine.
LEASE = timedelta(seconds=20)
HEARTBEAT = timedelta(seconds=2)


@pytest.fixture
async def fleet(tmp_path):
    fleet = LocalFleet(
        tmp_path,
        agents=2,
        slots=8,
        cpu="4",
        memory="4096MB",
        lease=LEASE,
        heartbeat_interval=HEARTBEAT,
        stop_workloads_on_exit=False,
        agent_args=["--no-listen"],
    )
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.kill()


@pytest.fixture
async def control(fleet):
    async with fleet.client() as client:
        yield client


async def has_status(control, node, status):
    return (await control.get_node(node)).status == status


def listening_ports(pid):
    """The TCP ports that a process listens on, from what the kernel says."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(entry.readlink().name.removeprefix("socket:[").removesuffix("]"))
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


async def test_a_whole_life_without_a_port(fleet, control):
    for name in fleet.names:
        assert (await control.get_node(name)).grpc_endpoint == ""
        assert listening_ports(fleet._running(name).process.pid) == set()
    await life(fleet, control, "web")


async def test_logs_are_followed_while_commands_pass(fleet, control):
    command = ["sh", "-c", "i=0; while true; do i=$((i+1)); echo line $i; sleep 0.05; done"]
    await control.apply(process("web", revision="v1", command=command))
    await until_status(control, "web", "Running")
    data, is_ordered = b"", False
    async with asyncio.timeout(60), contextlib.aclosing(control.logs("web", follow=True)) as pieces:
        async for piece in pieces:
            data += piece.data
            if data.count(b"\n") >= 5 and not is_ordered:
                is_ordered = True
                await control.apply(process("other"))
                await until_status(control, "other", "Running")
            if data.count(b"\n") > 20:
                break
    assert data.startswith(b"line 1\nline 2\nline 3\n")
    await control.apply(process("web", revision="v2"))
    await until_status(control, "web", "Running", revision="v2")
    await control.delete("web")
    await until_gone(control, "web")
    assert processes_of(fleet, "web") == []


async def test_an_agent_killed_is_suspect_at_once_and_comes_back_to_what_it_left(fleet, control):
    await control.apply(process("web"))
    node = (await until_status(control, "web", "Running")).assigned_node_id
    (pid,) = processes_of(fleet, "web")
    began = time.monotonic()
    await fleet.kill_agent(node)
    await until(lambda: has_status(control, node, "Suspect"), what="the node is Suspect")
    # Long before its heartbeats are missed: half a lease, or one and a half intervals.
    if time.monotonic() - began < LEASE.total_seconds() / 2:
        assert (await control.get_node(node)).status_reason == "its stream broke"
    with pytest.raises(UnavailableError):
        [piece async for piece in control.logs("web")]
    assert is_alive(pid)
    await fleet.start_agent(node)
    await until(lambda: has_status(control, node, "Ready"), what="the node is Ready")
    await until_status(control, "web", "Running")
    assert processes_of(fleet, "web") == [pid]
    await control.apply(process("web", revision="v2", command=["sleep", "77"]))
    await until_status(control, "web", "Running", revision="v2")
    assert not is_alive(pid)


async def test_a_control_plane_killed_is_found_again_and_everything_went_on(fleet, control):
    await control.apply(process("web"))
    node = (await until_status(control, "web", "Running")).assigned_node_id
    (pid,) = processes_of(fleet, "web")
    await fleet.kill_control()
    assert is_alive(pid)
    await fleet.start_control()
    await insist(lambda: control.apply(process("after")))
    await until_status(control, "after", "Running")
    await until_status(control, "web", "Running")
    await until(lambda: has_status(control, node, "Ready"), what="the node is Ready")
    assert processes_of(fleet, "web") == [pid]
    events = await control.list_events(limit=500)
    assert sum(event.kind == "NodeRegistered" for event in events.events) == 2
    await insist(lambda: control.delete("web"))
    await until_gone(control, "web")
    assert not is_alive(pid)
