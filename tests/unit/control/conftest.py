"""A whole control plane with hollow agents, in one event loop and virtual time."""

from datetime import timedelta

import pytest

from shoal.testing.control import ControlKit


@pytest.fixture
async def kit(tmp_path):
    async with ControlKit(tmp_path, lease=timedelta(seconds=30), heartbeat_interval=timedelta(seconds=10)) as kit:
        yield kit
