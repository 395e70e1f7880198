"""A workload fills the disk of its node, on real processes: it can be stopped and deleted, and the others go on."""

import os
import signal

import pytest

from shoal.cli.local.fleet import LocalFleet
from shoal.model.workloads import DesiredState
from shoal.testing.machines import kill_machine
from tests.e2e.fleet.conftest import HEARTBEAT
from tests.e2e.fleet.drill import is_alive, process, processes_of, until, until_gone, until_status
from tests.services.disks import small_disk

pytestmark = pytest.mark.e2e

#: Fills the disk, and takes every block again that is given back. It holds the file open, so only its end frees it.
GREEDY = """
exec 3>>big 2>/dev/null
head -c 60M /dev/zero >&3
while :; do head -c 65536 /dev/zero >&3 || sleep 0.01; done
"""
NODE = "node-1"


@pytest.fixture
async def fleet(tmp_path, lease):
    """A control plane on a large disk, and an agent on a small one."""
    fleet = LocalFleet(
        tmp_path,
        agents=1,
        slots=8,
        cpu="4",
        memory="4096MB",
        lease=lease,
        heartbeat_interval=HEARTBEAT,
        stop_workloads_on_exit=False,
        secure=False,
    )
    data = fleet.directory_of(NODE) / "data"
    with small_disk(data, megabytes=64):
        try:
            await fleet.start()
            yield fleet
        finally:
            await fleet.kill()
            kill_machine(data)


async def has_condition(control, kind):
    return kind in [each.type for each in (await control.get_node(NODE)).conditions]


async def fill_by_workload(control):
    await control.apply(process("steady"))
    await until_status(control, "steady", "Running")
    await control.apply(process("greedy", command=["sh", "-c", GREEDY]))
    await until(lambda: has_condition(control, "DiskPressure"), what="the node reports its disk")


async def is_elsewhere(fleet, pid):
    pids = processes_of(fleet, "steady")
    return len(pids) == 1 and pids != [pid]


async def rejections_of(control, name):
    return [each.code for each in (await control.get_workload(name)).rejections]


@pytest.mark.parametrize("how", ["stop", pytest.param("delete", marks=pytest.mark.long)])
async def test_a_workload_that_fills_its_disk_can_be_ended(fleet, control, how):
    await fill_by_workload(control)
    (pid,) = processes_of(fleet, "steady")
    # Another workload that dies is started again, on the same full disk.
    os.kill(pid, signal.SIGKILL)
    await until(lambda: is_elsewhere(fleet, pid), what="it was restarted")
    # New work stays away, and says why.
    await control.apply(process("late"))
    await until(lambda: rejections_of(control, "late"), what="it was refused a place")
    assert await rejections_of(control, "late") == ["disk_pressure"]
    if how == "stop":
        await control.set_desired_state("greedy", DesiredState.STOPPED)
        await until_status(control, "greedy", "Stopped")
        assert processes_of(fleet, "greedy") == []
        assert await has_condition(control, "DiskPressure")
    await control.delete("greedy")
    await until_gone(control, "greedy")
    assert processes_of(fleet, "greedy") == []
    await until_status(control, "late", "Running")
    assert not await has_condition(control, "DiskPressure")


async def test_an_agent_starts_on_a_full_disk_and_deletes(fleet, control):
    await fill_by_workload(control)
    (greedy, *_) = processes_of(fleet, "greedy")
    steady = processes_of(fleet, "steady")
    await fleet.kill_agent(NODE)
    await fleet.start_agent(NODE)
    await control.delete("greedy")
    await until_gone(control, "greedy")
    assert not is_alive(greedy)
    assert processes_of(fleet, "steady") == steady
