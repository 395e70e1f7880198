"""A dataflow job on agents whose processes are killed, or stand still and wake, at each named point; exact each time.

On the local log the task hosts are on one machine. On Kafka each agent is a machine of its own, so rows go by Flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.cli.local.fleet import LocalFleet
from shoal.core import faults
from tests.e2e.jobs.armed import arm
from tests.e2e.jobs.world import LONG, World
from tests.services.kafka import kafka_broker

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

__all__ = ["kafka_broker"]

COORDINATOR = ("dataflow.start.", "dataflow.recover.", "dataflow.manifest.", "dataflow.publish.", "dataflow.record.")
POINTS = [name for name in faults.POINTS if name.startswith(("dataflow.", "taskhost."))]
#: What is reached once in each life; the others with each checkpoint.
ONCE = ("dataflow.start.", "dataflow.recover.", "taskhost.")
SEEDS = (1, 2)
BROKERS = ("local", "kafka")


@pytest.fixture(params=BROKERS)
async def world(request, tmp_path):
    """A fleet of three agents, and a job that does not run yet."""
    broker = request.getfixturevalue("kafka_broker").address if request.param == "kafka" else ""
    fleet = LocalFleet(
        tmp_path / "fleet",
        agents=0,
        slots=2,
        cpu="4",
        memory="4096MB",
        lease=timedelta(seconds=120),  # so long that nothing passes because a lease has ended
        heartbeat_interval=timedelta(milliseconds=500),
        stop_workloads_on_exit=False,
    )
    try:
        await fleet.start()
        for name in ("m1", "m2", "m3"):
            fleet._agent_args = ("--host-id", name) if broker else ()
            await fleet.start_agent(name)
        await fleet.wait_ready()
        async with fleet.client() as client:
            yield World(fleet, client, tmp_path, broker=broker)
    finally:
        await fleet.kill()


def plan_faults(point: str, action: str, chance: random.Random) -> dict[str, list[str]]:
    """Which process comes to a point, and in which of its lives: the first, or the one after another one was killed."""
    part = "coordinator" if point.startswith(COORDINATOR) else f"host-{chance.choice((0, 1))}"
    fault = f"{point}={action}"
    if not point.startswith(ONCE):
        return {part: [f"{fault}@{chance.randint(1, 5)}"]}
    if chance.random() < 0.5:
        return {part: [fault]}
    if part == "coordinator":
        return {part: [f"dataflow.publish.after=kill@{chance.randint(1, 5)}", fault]}
    other = "host-1" if part == "host-0" else "host-0"
    return {other: [f"dataflow.commit.before=kill@{chance.randint(1, 5)}"], part: ["", fault]}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("point", POINTS)
async def test_a_process_is_killed(world, point, seed):
    planned = plan_faults(point, "kill", random.Random(f"{point} {seed}"))
    world.feed(400)
    env = arm(world.folder / "faults", world.job_id, planned)
    await world.submit(env=env)
    async with world.under_load():
        await world.wait_recovered(sum(len([each for each in lives if each]) for lives in planned.values()))
        await world.wait_state("Running")
        await world.wait_output(await world.wait_output())
    await world.check()
    assert not list((world.folder / "faults").glob(f"{world.job_id}-*")), "every fault was taken"


@pytest.mark.parametrize("point", POINTS)
async def test_a_process_stands_still_with_its_agent_and_changes_nothing_when_it_wakes(world, point):
    planned = plan_faults(point, "stop", random.Random(point))
    (part,) = (part for part, lives in planned.items() if "stop" in lives[-1])
    world.feed(400)
    agents = {name: world.fleet.pid_of(name) for name in world.fleet.names}
    env = arm(world.folder / "faults", world.job_id, planned, agents)
    # A lock on a file of one machine would be held by a coordinator that stands still.
    await world.submit(env=env, checkpoints=f"file://{world.folder}/checkpoints")
    async with world.under_load():
        node, pid = await stopped(world, part)
        epoch = await world.epoch()
        try:
            await world.wait_recovered(epoch)
            assert (await world.workload(part)).assigned_node_id != node
            count = await world.wait_output(await world.wait_output())
            os.kill(pid, signal.SIGCONT)
            await world.wait_output(count + 50)
        finally:
            world.fleet.signal(node, signal.SIGCONT)
        await world.wait_state("Running")
    await world.check()


async def test_a_coordinator_that_is_started_again_although_it_was_replaced_claims_nothing(world):
    """As by its agent, which stood still meanwhile and is the last one to hear of it."""
    world.feed(400)
    await world.submit(checkpoints=f"file://{world.folder}/checkpoints")
    async with world.under_load():
        await world.wait_output()
        view, epoch = await world.workload("coordinator"), await world.epoch()
        start = again(view.run.pid)
        try:
            world.fleet.signal(view.assigned_node_id, signal.SIGSTOP)
            os.kill(view.run.pid, signal.SIGKILL)
            epoch = (await world.wait_recovered(epoch)).epoch
            async with asyncio.timeout(LONG):
                assert await (await start()).wait() == 3
        finally:
            world.fleet.signal(view.assigned_node_id, signal.SIGCONT)
        await world.wait_output(await world.wait_output() + 50)
        assert await world.epoch() == epoch
    await world.check()


def again(pid: int) -> Callable[[], Awaitable[asyncio.subprocess.Process]]:
    """What starts a process like this one, also when this one is gone."""
    of = Path(f"/proc/{pid}")
    command = (of / "cmdline").read_bytes().split(b"\0")[:-1]
    environ = dict(each.split(b"=", 1) for each in (of / "environ").read_bytes().split(b"\0") if each)
    folder = (of / "cwd").readlink()
    return lambda: asyncio.create_subprocess_exec(*command, env=environ, cwd=folder)


async def stopped(world: World, part: str) -> tuple[str, int]:
    """Wait until a process of the job stands still. Its node, and its process id."""
    async with asyncio.timeout(LONG):
        while (found := await asyncio.to_thread(find_stopped, f"{world.job_id}-{part}")) is None:
            await asyncio.sleep(0.1)
    return found


def find_stopped(workload_id: str) -> tuple[str, int] | None:
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end while it is looked at
            state = (each / "stat").read_text().rpartition(")")[2].split()[0]
            if state == "T":
                pairs = (pair.partition(b"=") for pair in (each / "environ").read_bytes().split(b"\0"))
                environ = {name.decode(): value.decode() for name, _, value in pairs}
                if environ.get("SHOAL_WORKLOAD_ID") == workload_id:
                    return environ["SHOAL_NODE_ID"], int(each.name)
    return None
