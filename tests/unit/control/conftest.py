"""A whole control plane with hollow agents, in one event loop and virtual time.

Agents that have streams are in `make test`, those without in `make test-long`. Tests of the contract have both.
"""

from datetime import timedelta

import pytest

from shoal.testing.control import ControlKit


def made(folder, *, streams):
    return ControlKit(folder, lease=timedelta(seconds=30), heartbeat_interval=timedelta(seconds=10), streams=streams)


@pytest.fixture(params=[pytest.param(False, id="unary", marks=pytest.mark.long), pytest.param(True, id="stream")])
async def kit(tmp_path, request):
    async with made(tmp_path, streams=request.param) as kit:
        yield kit


@pytest.fixture(params=[False, True], ids=["unary", "stream"])
async def each_kit(tmp_path, request):
    async with made(tmp_path, streams=request.param) as kit:
        yield kit
