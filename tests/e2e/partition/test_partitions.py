"""One life of a fleet whose parts are cut off from each other, killed and stopped, while clients ask for changes."""

import asyncio
import signal
import time

import pytest

from shoal.testing.evidence import find_faults
from tests.e2e.fleet.drill import until
from tests.e2e.partition.stage import LEASE
from tests.e2e.partition.witness import Clients, Processes

pytestmark = pytest.mark.e2e

#: From the end of all faults until exactly what was requested runs.
BOUND = 30.0


# It ends by itself before it is ended from outside, which would leave its network behind.
@pytest.mark.timeout(300)
async def test_promises_are_kept_while_the_network_is_cut_and_processes_die(stage):
    async with asyncio.timeout(200):
        await live(stage)


async def live(stage):
    clients = Clients(stage, plain=["a", "b", "c"], only_once=["only"], seed=1)
    try:
        with Processes(stage.control_address) as processes:
            await asyncio.gather(*(clients.insist(name) for name in ("a", "b", "c", "only")))
            await until_running(processes, "only")
            clients.begin()
            await leader_loses_the_database_and_keeps_an_agent(stage, processes)
            await leader_is_killed_while_an_agent_is_stopped(stage)
            await database_hangs_and_is_killed(stage)
            await one_direction_is_lost(stage)
            await clients.rest()
            evidence = await clients.converge(processes, healed_at=time.monotonic(), bound=BOUND)
    finally:
        await clients.close()
    faults = find_faults(evidence, bound=BOUND)
    faults += [f"two copies: {path.read_text()}" for path in stage.folder.glob("*.overlap")]
    assert faults == [], "\n".join([*faults, *(stage.log_of(name) for name in (*stage.planes, *stage.agents))])
    assert len([write for write in evidence.writes if write.answer.value == "acknowledged"]) > 10


async def until_running(processes, name):
    async def runs():
        return processes.alive(name)

    (run,) = await until(runs, what=f"{name} runs")
    return run.node_id


async def leader_loses_the_database_and_keeps_an_agent(stage, processes):
    """The agent that has the only copy hears the old leader alone; the new one gives the copy to the other agent."""
    old, term = await stage.leader()
    holder = await until_running(processes, "only")
    other = next(name for name in stage.agents if name != holder)
    stage.network.cut(old, "db")
    for plane in stage.planes:
        if plane != old:
            stage.network.cut(holder, plane)
    new, _ = await stage.leader(after=term)
    assert new != old

    async def has_moved():
        return [run.node_id for run in processes.alive("only")] == [other]

    await until(has_moved, what="the only copy has moved")
    stage.network.heal()


async def leader_is_killed_while_an_agent_is_stopped(stage):
    leader, term = await stage.leader()
    stage.signal("n1", signal.SIGSTOP)
    await stage.kill(leader)
    follower = next(name for name in stage.planes if name != leader)
    await stage.leader(after=term)
    stage.signal("n1", signal.SIGCONT)
    await asyncio.gather(stage.start_plane(leader), restart_agent(stage, "n2"))
    stage.signal(follower, signal.SIGSTOP)
    await asyncio.sleep(1)
    stage.signal(follower, signal.SIGCONT)


async def restart_agent(stage, name):
    await stage.kill(name)
    await stage.start_agent(name)


async def database_hangs_and_is_killed(stage):
    stage.database.stop()
    await asyncio.sleep(2)
    stage.database.go_on()
    await asyncio.sleep(1)
    stage.database.kill()
    await asyncio.sleep(1)
    await stage.database.start()


async def one_direction_is_lost(stage):
    leader, _ = await stage.leader()
    stage.network.drop("n1", leader)
    stage.network.drop("db", next(name for name in stage.planes if name != leader))
    await asyncio.sleep(LEASE)
    stage.network.heal()
