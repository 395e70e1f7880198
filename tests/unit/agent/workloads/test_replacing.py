"""Updates on runtimes that prepare runs or change them in place, and workloads whose runtime is not there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.core.errors import UnsupportedError
from shoal.model.workloads import DesiredState, FailureReason, FileSpec, RunState
from shoal.testing.runtimes import FakePreparingRuntime, FakeScript, FakeUpdatingRuntime
from tests.unit.agent.kit import opened
from tests.unit.agent.making import process

pytestmark = pytest.mark.looptime


def happened(kit, workload_id="w"):
    return [moment.what for moment in kit.machine.history if moment.workload_id == workload_id]


async def test_the_new_run_is_prepared_before_the_old_one_stops(tmp_path):
    async with opened(tmp_path, runtime=FakePreparingRuntime) as kit:
        await kit.apply(spec=process("one"))
        await kit.settle(1)
        kit.machine.script = FakeScript(prepare_takes=30)
        await kit.apply(spec=process("two"))
        await kit.settle(10)
        assert happened(kit) == ["started"]
        status = kit.status()
        assert (status.state, status.ready) == (RunState.PENDING, True)
        assert "the previous one goes on running" in status.message
        await kit.settle(30)
        assert [what for what in happened(kit) if what != "forgotten"] == ["started", "prepared", "ended", "started"]
        assert kit.status().state is RunState.RUNNING
        assert kit.machine.most_at_once("w") == 1


async def test_an_update_that_cannot_be_prepared_leaves_the_old_run(tmp_path):
    async with opened(tmp_path, runtime=FakePreparingRuntime) as kit:
        await kit.apply(spec=process("one"))
        await kit.settle(1)
        kit.machine.script = FakeScript(prepare_error="no such image", failure=FailureReason.IMAGE_NOT_FOUND)
        await kit.apply(spec=process("two"))
        await kit.settle(60)
        status = kit.status()
        assert (status.state, status.failure) == (RunState.PENDING, FailureReason.IMAGE_NOT_FOUND)
        assert status.next_restart_at is not None
        assert happened(kit) == ["started"]
        kit.machine.script = FakeScript()
        await kit.settle(120)
        assert kit.status().state is RunState.RUNNING
        assert kit.machine.count("started", "w") == 2


async def test_a_stop_ends_the_preparation(tmp_path):
    async with opened(tmp_path, runtime=FakePreparingRuntime) as kit:
        await kit.apply(spec=process("one"))
        await kit.settle(1)
        kit.machine.script = FakeScript(prepare_takes=30)
        await kit.apply(spec=process("two"))
        await kit.settle(1)
        await kit.apply(spec=process("two"), desired=DesiredState.STOPPED)
        await kit.settle(100)
        assert kit.status().state is RunState.STOPPED
        assert kit.machine.count("prepared", "w") == 0


async def test_a_run_is_changed_in_place(tmp_path):
    async with opened(tmp_path, runtime=FakeUpdatingRuntime) as kit:
        await kit.apply(spec=process("one"))
        await kit.settle(1)
        await kit.apply(spec=process("two"))
        await kit.settle(1)
        assert happened(kit) == ["started", "prepared", "updated"]
        assert kit.status().state is RunState.RUNNING
        (run,) = kit.machine.alive("w")
        assert kit.machine.started_with[run.run_id].spec.command == ("two",)
        await kit.restart()
        await kit.settle(1)
        assert happened(kit) == ["started", "prepared", "updated"]


async def test_a_change_in_place_that_the_agent_did_not_see_the_end_of_is_made_again(tmp_path):
    async with opened(tmp_path, runtime=FakeUpdatingRuntime) as kit:
        await kit.apply(spec=process("one"))
        await kit.settle(1)
        kit.machine.script = FakeScript(update_takes=30)
        await kit.apply(spec=process("two"))
        await kit.settle(5)
        kit.machine.script = FakeScript()
        await kit.restart()
        await kit.settle(5)
        assert happened(kit) == ["started", "prepared", "prepared", "updated"]


async def test_data_goes_only_with_a_delete(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply(spec=process("one"))
        await kit.settle(1)
        await kit.delete()
        await kit.settle(1)
        assert kit.machine.count("workload forgotten", "w") == 1
        assert kit.machine.count("data deleted", "w") == 0


async def test_files_come_with_a_run(tmp_path):
    async with opened(tmp_path) as kit:
        files = (FileSpec("etc/a.conf", content="ü"),)
        await kit.apply(spec=replace(process("one"), files=files))
        await kit.settle(1)
        (run,) = kit.machine.alive("w")
        assert kit.machine.started_with[run.run_id].files == ((files[0], "ü".encode()),)


async def test_a_workload_whose_runtime_is_gone_is_kept_and_its_state_is_unknown(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply(spec=process("one"))
        await kit.settle(1)
        types, kit.types = kit.types, ()
        await kit.restart()
        await kit.settle(60)
        status = kit.status()
        assert status.state is RunState.UNKNOWN
        assert "has no process runtime" in status.message
        assert (await kit.executor.health())["process"] == "unhealthy: this agent has no process runtime"
        with pytest.raises(UnsupportedError):
            await kit.apply("v", spec=process("one"))
        kit.types = types
        await kit.restart()
        await kit.settle(1)
        assert kit.status().state is RunState.RUNNING
        assert happened(kit) == ["started"]
