"""A whole control plane with hollow agents, in one event loop and virtual time."""

from datetime import timedelta

import pytest

from shoal.testing.control import ControlKit


@pytest.fixture(params=[False, True], ids=["unary", "stream"])
async def kit(tmp_path, request):
    made = ControlKit(
        tmp_path, lease=timedelta(seconds=30), heartbeat_interval=timedelta(seconds=10), streams=request.param
    )
    async with made as kit:
        yield kit
