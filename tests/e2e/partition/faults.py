"""What can happen to a fleet, each for a while and then healed; which one, to whom and for how long, by chance."""

from __future__ import annotations

import asyncio
import signal


async def leader_and_database(stage, chance):
    leader, _ = await stage.leader()
    stage.network.cut(leader, "db")
    await _last(chance)


async def leader_and_agents(stage, chance):
    leader, _ = await stage.leader()
    for agent in stage.agents:
        stage.network.cut(leader, agent)
    await _last(chance)


async def one_agent_with_a_leader_without_database(stage, chance):
    """Two halves: the old leader with one agent, and everybody else with the database."""
    leader, _ = await stage.leader()
    kept = chance.choice(stage.agents)
    stage.network.cut(leader, "db")
    for plane in stage.planes:
        if plane != leader:
            stage.network.cut(kept, plane)
    for agent in stage.agents:
        if agent != kept:
            stage.network.cut(agent, leader)
    # Long enough for a new leader to give away what the kept agent has.
    await _last(chance, shortest=13.0, longest=20.0)


async def agent_and_everybody(stage, chance):
    agent = chance.choice(stage.agents)
    for plane in stage.planes:
        stage.network.cut(agent, plane)
    await _last(chance)


async def follower_and_database(stage, chance):
    leader, _ = await stage.leader()
    stage.network.cut(chance.choice([name for name in stage.planes if name != leader]), "db")
    await _last(chance)


async def one_way(stage, chance):
    sender, receiver = chance.sample(["db", *stage.planes, *stage.agents], 2)
    stage.network.drop(sender, receiver)
    await _last(chance)


async def plane_is_killed(stage, chance):
    leader, _ = await stage.leader()
    name = chance.choice([leader, *(each for each in stage.planes if each != leader)])
    await stage.kill(name)
    await _last(chance, longest=8.0)
    await stage.start_plane(name)


async def plane_is_stopped(stage, chance):
    leader, _ = await stage.leader()
    name = chance.choice([leader, leader, *stage.planes])
    await _stopped(stage, name, chance)


async def agent_is_killed(stage, chance):
    name = chance.choice(stage.agents)
    await stage.kill(name)
    await _last(chance)
    await stage.start_agent(name)


async def agent_is_stopped(stage, chance):
    await _stopped(stage, chance.choice(stage.agents), chance)


async def database_is_killed(stage, chance):
    stage.database.kill()
    await _last(chance, longest=8.0)
    await stage.database.start()


async def database_is_stopped(stage, chance):
    stage.database.stop()
    try:
        await _last(chance)
    finally:
        stage.database.go_on()


FAULTS = (
    leader_and_database,
    leader_and_agents,
    one_agent_with_a_leader_without_database,
    agent_and_everybody,
    follower_and_database,
    one_way,
    plane_is_killed,
    plane_is_stopped,
    agent_is_killed,
    agent_is_stopped,
    database_is_killed,
    database_is_stopped,
)


async def _stopped(stage, name, chance):
    stage.signal(name, signal.SIGSTOP)
    try:
        await _last(chance)
    finally:
        stage.signal(name, signal.SIGCONT)


async def _last(chance, *, shortest=0.5, longest=15.0):
    await asyncio.sleep(chance.uniform(shortest, longest))
