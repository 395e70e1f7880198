"""A fleet of real processes for the tests of one module."""

from datetime import timedelta

import pytest

from shoal.cli.local.fleet import LocalFleet

LEASE = timedelta(seconds=2)
HEARTBEAT = timedelta(milliseconds=300)


@pytest.fixture
def lease():
    """How long a silent node counts as alive; a class whose agents are to be back in time overrides it."""
    return LEASE


@pytest.fixture
async def fleet(tmp_path, lease):
    """A control plane and two agents, with a short lease; workloads outlive agents that are told to stop."""
    fleet = LocalFleet(
        tmp_path,
        agents=2,
        slots=8,
        cpu="4",
        memory="4096MB",
        lease=lease,
        heartbeat_interval=HEARTBEAT,
        stop_workloads_on_exit=False,
        secure=False,  # quick; a life with certificates is in test_postgres.py, and in tests/e2e/cli
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
