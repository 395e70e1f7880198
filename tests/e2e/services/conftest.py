"""A fleet of three agents for the tests of jobs."""

from datetime import timedelta

import pytest

from shoal.cli.local.fleet import LocalFleet


@pytest.fixture
async def fleet(tmp_path):
    """A control plane and three agents. The lease is longer than the restart of an agent on a busy machine."""
    fleet = LocalFleet(
        tmp_path,
        agents=3,
        slots=0,
        cpu="4",
        memory="4096MB",
        lease=timedelta(seconds=5),
        heartbeat_interval=timedelta(milliseconds=300),
        stop_workloads_on_exit=False,
        secure=False,
    )
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.kill()


@pytest.fixture
async def control(fleet):
    """A client of the fleet's control plane."""
    async with fleet.client() as client:
        yield client
