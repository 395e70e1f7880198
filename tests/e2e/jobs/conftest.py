"""A fleet of three agents of real processes, with certificates, and one job on it."""

from datetime import timedelta

import pytest

from shoal.cli.local.fleet import LocalFleet
from tests.e2e.jobs.world import World


@pytest.fixture
def lease():
    return timedelta(seconds=15)


@pytest.fixture
async def fleet(tmp_path, lease):
    made = LocalFleet(
        tmp_path / "fleet",
        agents=3,
        slots=2,
        cpu="4",
        memory="4096MB",
        lease=lease,
        heartbeat_interval=timedelta(milliseconds=500),
        stop_workloads_on_exit=False,
    )
    try:
        await made.start()
        yield made
    finally:
        await made.kill()


@pytest.fixture
async def world(fleet, tmp_path):
    async with fleet.client() as client:
        yield World(fleet, client, tmp_path)
