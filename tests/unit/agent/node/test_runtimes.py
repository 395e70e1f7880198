"""Which kinds of workload a node offers, as its runtimes come and go."""

from __future__ import annotations

import asyncio

import pytest

from shoal.agent.settings import AgentSettings, Pool, parse_pool
from shoal.core.errors import InvalidError, UnavailableError
from shoal.core.shape import check
from tests.unit.agent.scene import scene


def offered(it):
    return list(it.control.registrations[-1][1].capabilities.supported_workload_types)


@pytest.mark.looptime
async def test_a_runtime_that_is_down_is_withdrawn_until_it_returns(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        await it.apply(agent)
        await asyncio.sleep(22)
        assert (len(it.control.registrations), offered(it)) == (1, ["process"])
        it.machine.outage = UnavailableError("the engine is down")
        await asyncio.sleep(4)
        assert offered(it) == ["process"]  # one bad look may be a hiccup
        await asyncio.sleep(30)
        assert (len(it.control.registrations), offered(it)) == (2, [])
        assert it.machine.alive("w")
        conditions = {each.type: each.message for each in it.control.heartbeats[-1][1].conditions}
        assert "process is unhealthy: the engine is down" in conditions["RuntimeUnavailable"]
        it.machine.outage = None
        await asyncio.sleep(30)
        assert (len(it.control.registrations), offered(it)) == (3, ["process"])
        assert it.machine.count("started", "w") == 1


@pytest.mark.looptime
async def test_storage_pools_are_registered_beside_the_disk(tmp_path):
    async with scene(tmp_path) as it:
        await it.start(storage_pools=("fast=/srv/fast:200",), disk_gb=50)
        await asyncio.sleep(5)
        pools = it.control.registrations[-1][1].capabilities.storage_pools
        assert [(each.name, each.total_gb) for each in pools] == [("root", 50), ("fast", 200)]


def test_a_pool_is_a_name_a_path_and_a_size(tmp_path):
    assert parse_pool("fast=/srv/a:b:200") == Pool("fast", type(tmp_path)("/srv/a:b"), 200)
    far = parse_pool("far=filer:/export/a:200")
    assert far == Pool("far", type(tmp_path)("/export/a"), 200, "filer")
    assert (far.place, far.driver) == ("filer:/export/a", "nfs")


@pytest.mark.parametrize(
    "wrong",
    [
        ("fast",),
        ("fast=srv:1",),
        ("fast=/srv",),
        ("fast=/srv:0",),
        ("fast=/srv:x",),
        ("a b=/srv:1",),
        ("a=/srv:1", "a=/other:1"),
        ("root=/srv:1",),
    ],
)
def test_a_pool_that_is_none_is_refused(wrong):
    with pytest.raises(InvalidError, match="storage_pools"):
        check(AgentSettings(data_dir="/d", standalone=True, insecure=True, storage_pools=wrong))
