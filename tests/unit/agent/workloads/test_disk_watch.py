"""Work directories are kept within `resources.disk_gb`, in virtual time."""

import pytest

from shoal.agent.workloads.disk_watch import AT_ONCE, GIB, MEASURE_EVERY
from shoal.model.resources import Resources
from shoal.model.workloads import FailureReason, RunState
from tests.unit.agent.kit import opened
from tests.unit.agent.making import process

pytestmark = pytest.mark.looptime


async def test_a_run_beyond_its_disk_is_stopped_as_a_storage_error(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply("greedy", request=Resources(disk_gb=2))
        await kit.apply("modest", request=Resources(disk_gb=2))
        await kit.apply("unbounded")
        await kit.settle(MEASURE_EVERY)
        kit.machine.disk_used |= {"greedy": 2 * GIB + 1, "modest": 2 * GIB, "unbounded": 50 * GIB}
        assert kit.machine.alive("greedy")
        await kit.settle(MEASURE_EVERY + 1)
        status = kit.status("greedy")
        assert (status.state, status.failure) == (RunState.FAILED, FailureReason.STORAGE_ERROR)
        assert status.message == "its work directory uses more than the 2 GB of resources.disk_gb"
        await kit.settle(100)
        assert kit.machine.count("started", "greedy") == 1
        assert kit.machine.alive("modest")
        assert kit.machine.alive("unbounded")


async def test_a_directory_that_the_spec_names_is_not_measured(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply("w", process(working_dir="/srv"), request=Resources(disk_gb=1))
        kit.machine.disk_used["w"] = 9 * GIB
        await kit.settle(3 * MEASURE_EVERY)
        assert kit.machine.alive("w")


async def test_one_that_cannot_be_measured_goes_on(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply("w", request=Resources(disk_gb=1))
        await kit.settle(1)
        kit.machine.disk_used["w"] = 9 * GIB
        kit.machine.outage = OSError(5, "Input/output error")
        await kit.settle(MEASURE_EVERY)
        kit.machine.outage = None
        assert kit.machine.alive("w")
        await kit.settle(MEASURE_EVERY + 1)
        assert not kit.machine.alive("w")


async def test_a_directory_that_takes_long_or_for_ever_does_not_delay_the_others(tmp_path):
    async with opened(tmp_path) as kit:
        for workload_id in ("hangs", "slow", "greedy"):
            await kit.apply(workload_id, request=Resources(disk_gb=1))
        await kit.settle(1)
        kit.machine.disk_walks |= {"hangs": 1e9, "slow": 25.0}
        kit.machine.disk_used |= {"slow": 2 * GIB, "greedy": 2 * GIB}
        await kit.settle(MEASURE_EVERY)
        assert not kit.machine.alive("greedy")
        assert kit.machine.alive("slow")
        await kit.settle(26)
        assert not kit.machine.alive("slow")
        assert kit.machine.alive("hangs")


async def test_more_directories_than_are_measured_at_once_are_all_measured(tmp_path):
    async with opened(tmp_path) as kit:
        names = [f"w{number}" for number in range(2 * AT_ONCE)]
        for workload_id in names:
            await kit.apply(workload_id, request=Resources(disk_gb=1))
        await kit.settle(1)
        kit.machine.disk_walks |= dict.fromkeys(names, 4.0)
        kit.machine.disk_used |= dict.fromkeys(names, 2 * GIB)
        await kit.settle(MEASURE_EVERY + 5)
        assert sum(bool(kit.machine.alive(name)) for name in names) == AT_ONCE
        await kit.settle(4)
        assert not any(kit.machine.alive(name) for name in names)
