"""Many lives of a fleet whose parts are cut off, killed and stopped by chance, one fault after another or two at once.

Each fault alone is met for certain; the others come as a seed says, which is part of a test's name.
"""

import asyncio
import random
import time

import pytest

from shoal.testing.evidence import find_faults
from tests.e2e.partition.faults import FAULTS
from tests.e2e.partition.witness import Clients, Processes

# Each ends by itself before it is ended from outside, which would leave its network behind.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SEEDS = range(6)
FAULTS_PER_LIFE = 8
LONGEST = 600.0
#: From the end of all faults until exactly what was requested runs.
BOUND = 60.0


async def live(stage, seed, choose):
    """Bear some faults, heal, and check the whole history."""
    clients = Clients(stage, plain=["a", "b", "c", "d", "e"], only_once=["only", "once"], seed=seed)
    try:
        with Processes(stage.control_address) as processes:
            await asyncio.gather(*(clients.insist(name) for name in (*clients.plain, *clients.only_once)))
            clients.begin()
            async with asyncio.timeout(LONGEST):
                await choose()
            stage.network.heal()
            await clients.rest()
            evidence = await clients.converge(processes, healed_at=time.monotonic(), bound=BOUND)
    finally:
        await clients.close()
    faults = find_faults(evidence, bound=BOUND)
    faults += [f"two copies: {path.read_text()}" for path in stage.folder.glob("*.overlap")]
    assert faults == [], "\n".join([*faults, *(stage.log_of(name) for name in (*stage.planes, *stage.agents))])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_each_fault_alone(stage, fault):
    chance = random.Random(fault.__name__)

    async def choose():
        for _ in range(2):
            await fault(stage, chance)
            stage.network.heal()

    await live(stage, 1, choose)


@pytest.mark.parametrize("seed", SEEDS)
async def test_faults_by_chance(stage, seed):
    chance = random.Random(seed)

    async def choose():
        for _ in range(FAULTS_PER_LIFE):
            await chance.choice(FAULTS)(stage, chance)
            if chance.random() < 0.7:
                stage.network.heal()
            await asyncio.sleep(chance.uniform(0.0, 4.0))

    await live(stage, seed, choose)
