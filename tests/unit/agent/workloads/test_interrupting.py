"""Starts that take long, hang or are not wanted any more, and runs that nobody can tell of."""

from __future__ import annotations

import pytest

from shoal.core.ids import WorkloadId
from shoal.model.resources import Resources
from shoal.model.workloads import DesiredState, FailureReason, RunState
from shoal.runtimes.base import RunRequest
from shoal.testing.runtimes import FakeFetchingRuntime, FakeScript, FakeUpdatingRuntime
from tests.unit.agent.kit import Kit, opened
from tests.unit.agent.making import process

pytestmark = pytest.mark.looptime

ENDLESS = 1e6


async def interrupt(kit: Kit, how: str) -> None:
    if how == "delete":
        await kit.delete()
    elif how == "stop":
        await kit.apply(desired=DesiredState.STOPPED)
    else:
        await kit.apply(spec=process("another"))
    await kit.settle(1)


@pytest.mark.parametrize("how", ["stop", "delete", "update"])
@pytest.mark.parametrize(
    "script",
    [
        FakeScript(fetch_takes=ENDLESS),
        FakeScript(start_takes=ENDLESS),
        FakeScript(start_takes=ENDLESS, starts_anyway=True),
    ],
    ids=["fetching", "starting", "started although canceled"],
)
async def test_a_start_that_hangs_is_interrupted(tmp_path, how, script):
    async with opened(tmp_path, runtime=FakeFetchingRuntime) as kit:
        kit.machine.script = script
        await kit.apply()
        await kit.settle(10)
        assert kit.status().state is RunState.PENDING
        kit.machine.script = FakeScript()
        await interrupt(kit, how)
        alive = [kit.machine.started_with[run.run_id].spec.command[0] for run in kit.machine.alive("w")]
        assert alive == (["another"] if how == "update" else [])
        assert kit.knows() == (how != "delete")
        if how == "stop":
            assert kit.status().state is RunState.STOPPED
        assert kit.machine.most_at_once("w") <= 1


@pytest.mark.parametrize("how", ["stop", "delete"])
async def test_a_change_in_place_that_hangs_is_interrupted(tmp_path, how):
    async with opened(tmp_path, runtime=FakeUpdatingRuntime) as kit:
        await kit.apply()
        await kit.settle(1)
        kit.machine.script = FakeScript(update_takes=ENDLESS)
        await kit.apply(spec=process("two"))
        await kit.settle(10)
        assert kit.machine.count("updated", "w") == 0
        await interrupt(kit, how)
        assert kit.machine.alive("w") == []
        assert kit.knows() == (how != "delete")


async def test_fetches_that_hang_keep_no_other_workload_from_its_start(tmp_path):
    async with opened(tmp_path, runtime=FakeFetchingRuntime, capacity=Resources(100_000, 100_000)) as kit:
        for number in range(20):
            kit.machine.scripts[f"hung{number}"] = FakeScript(fetch_takes=ENDLESS)
            await kit.apply(f"hung{number}")
        await kit.apply("quick")
        await kit.settle(1)
        assert kit.status("quick").state is RunState.RUNNING


async def test_a_fetch_that_fails_is_tried_again_and_says_why(tmp_path):
    async with opened(tmp_path, runtime=FakeFetchingRuntime) as kit:
        kit.machine.script = FakeScript(
            fetch_takes=8,
            fetch_says="pulling a:1: 1 of 2 layers",
            fetch_error="no progress",
            failure=FailureReason.IMAGE_PULL_FAILED,
            transient=True,
        )
        await kit.apply()
        await kit.settle(3)
        assert kit.status().message == "starting: fetching its images"
        await kit.settle(2)
        assert kit.status().message == "starting: pulling a:1: 1 of 2 layers"
        await kit.settle(3.1)
        status = kit.status()
        assert (status.state, status.failure) == (RunState.PENDING, FailureReason.IMAGE_PULL_FAILED)
        assert "no progress" in status.message
        assert status.next_restart_at is not None
        kit.machine.script = FakeScript()
        await kit.settle(60)
        assert kit.status().state is RunState.RUNNING


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("how", ["stop", "delete", "update", "nothing"])
async def test_nothing_is_said_to_have_stopped_while_nobody_can_tell(tmp_path, how, is_there):
    """The agent was killed in the middle of a start, and its engine is away when the next one comes up."""
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(start_takes=ENDLESS)
        await kit.apply()
        await kit.settle(1)
        run_id = kit.executor.roster.actor(WorkloadId("w")).state.progress.run_id
        await kit.kill()
        kit.machine.script = FakeScript()
        if is_there:
            kit.machine.begin(RunRequest(run_id, WorkloadId("w"), process()), FakeScript())
        kit.machine.is_in_doubt = True
        await kit.open()
        if how != "nothing":
            await interrupt(kit, how)
        await kit.settle(60)
        assert kit.knows()
        assert kit.status().state is RunState.PENDING
        assert "not" in kit.status().message
        kit.machine.is_in_doubt = False
        await kit.settle(60)
        alive = [kit.machine.started_with[run.run_id].spec.command[0] for run in kit.machine.alive("w")]
        assert alive == {"nothing": ["sleep"], "update": ["another"]}.get(how, [])
        assert kit.knows() == (how != "delete")
        assert kit.machine.most_at_once("w") <= 1
        if how == "nothing":
            assert kit.machine.count("started", "w") == 1


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_deletion_waits_until_the_engine_can_be_asked(tmp_path, is_there):
    """It was stopped before the agent was killed; what an earlier run left is still looked for."""
    async with opened(tmp_path) as kit:
        await kit.apply(desired=DesiredState.STOPPED)
        await kit.kill()
        if is_there:
            kit.machine.begin(RunRequest("left", WorkloadId("w"), process()), FakeScript())
        kit.machine.is_in_doubt = True
        await kit.open()
        await kit.delete()
        await kit.settle(60)
        assert kit.knows()
        kit.machine.is_in_doubt = False
        await kit.settle(60)
        assert not kit.knows()
        assert kit.machine.alive("w") == []
