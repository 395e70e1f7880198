"""Processes that end with the test."""

import pytest

from tests.e2e.upgrade.processes import Machines


@pytest.fixture
async def machines(tmp_path):
    machines = Machines(tmp_path)
    try:
        yield machines
    finally:
        await machines.end_everything()
