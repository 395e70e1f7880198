"""Workloads on a fake machine, in virtual time: commands, ends, restarts of the agent."""

from __future__ import annotations

import asyncio
import errno
from datetime import timedelta

import pytest

from shoal.agent.store.action_log import ActionQuery
from shoal.agent.workloads.orphans import LIST_EVERY, OrphanWatch
from shoal.core.errors import (
    PreconditionError,
    StaleGenerationError,
    UnavailableError,
)
from shoal.core.ids import RunId, WorkloadId
from shoal.model.actions import ActionStatus, ActionType
from shoal.model.nodes import ConditionType
from shoal.model.resources import Resources
from shoal.model.workloads import (
    CommandProbe,
    DesiredState,
    FailureReason,
    Liveness,
    NamedPort,
    ProcessSpec,
    RestartPolicy,
    RunState,
)
from shoal.runtimes.base import RunRequest
from shoal.testing.runtimes import FakeRuntime, FakeScript
from tests.unit.agent.kit import Kit, opened
from tests.unit.agent.making import probed, process

pytestmark = pytest.mark.looptime

ONCE = RestartPolicy(policy="no")


async def actions(kit: Kit, workload_id: str = "w"):
    return await kit.executor.list_actions(ActionQuery(workload_id=workload_id))


async def test_an_accepted_command_is_answered_at_once_and_carried_out(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(start_takes=3)
        answer = await kit.apply(revision="r1")
        assert (answer.status.state, answer.status.generation, answer.status.revision_id) == (RunState.PENDING, 1, "r1")
        assert answer.task_id
        await kit.settle(1)
        assert [action.status for action in await actions(kit)] == [ActionStatus.RUNNING]
        await kit.settle(3)
        assert kit.status().state is RunState.RUNNING
        (action,) = await actions(kit)
        assert (action.status, action.task_id, action.type) == (
            ActionStatus.COMPLETED,
            answer.task_id,
            ActionType.APPLY,
        )
        assert action.created_at <= action.started_at <= action.ended_at


async def test_the_same_command_again_is_skipped_and_its_generation_noted(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply(generation=3)
        await kit.settle()
        again = await kit.apply(generation=3)
        assert (again.skipped, again.status.state) == (True, RunState.RUNNING)
        higher = await kit.apply(generation=8)
        assert (higher.skipped, higher.status.generation) == (True, 8)
        await kit.settle()
        assert kit.status().generation == 8
        assert kit.machine.count("started", "w") == 1
        with pytest.raises(StaleGenerationError):
            await kit.apply(generation=7)
        assert len(await actions(kit)) == 1


async def test_another_content_under_an_accepted_generation_is_refused(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply(generation=3)
        with pytest.raises(PreconditionError, match="with another content"):
            await kit.apply(generation=3, desired=DesiredState.STOPPED)


async def test_a_scheduler_that_knows_no_generations_always_gets_the_next(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply()
        answer = await kit.apply(spec=process("other"))
        assert (answer.skipped, answer.status.generation) == (False, 2)


async def test_an_update_ends_the_old_run_first_and_gives_the_new_one_another_id(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(stop_takes=4)
        await kit.apply()
        await kit.settle()
        await kit.apply(spec=process("other"))
        await kit.settle(1)
        assert kit.status().message == "stopping, to be replaced"
        await kit.settle(4)
        assert kit.status().state is RunState.RUNNING
        assert kit.machine.most_at_once("w") == 1
        starts = [moment.run_id for moment in kit.machine.history if moment.what == "started"]
        assert len(set(starts)) == 2


async def test_commands_for_one_workload_keep_their_order_and_the_last_one_counts(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(start_takes=1, stop_takes=1)
        for number in range(1, 6):
            await kit.apply(spec=process(f"program-{number}"), generation=number)
        await kit.apply(generation=6, desired=DesiredState.STOPPED)
        await kit.apply(spec=process("last"), generation=7)
        await kit.settle(20)
        (alive,) = kit.machine.alive("w")
        assert kit.machine.started_with[alive.run_id].spec.command == ("last",)
        assert kit.machine.most_at_once("w") == 1
        log = await actions(kit)
        assert [action.status for action in log] == [ActionStatus.FAILED] * 6 + [ActionStatus.COMPLETED]
        assert all("replaced by the later command" in action.error for action in log[:-1])


async def test_one_slow_workload_delays_nobody(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.scripts["slow"] = FakeScript(start_takes=1000)
        await kit.apply("slow")
        await kit.apply("quick")
        await kit.settle(0.1)
        assert (kit.status("slow").state, kit.status("quick").state) == (RunState.PENDING, RunState.RUNNING)


async def test_starts_at_the_same_time_are_bounded(tmp_path):
    async with opened(tmp_path, capacity=Resources(100_000, 100_000)) as kit:
        kit.machine.script = FakeScript(start_takes=10)
        for number in range(20):
            await kit.apply(f"w{number}")
        await kit.settle(11)
        assert sum(kit.machine.count("started", f"w{number}") for number in range(20)) == 8
        await kit.settle(20)
        assert sum(kit.machine.count("started", f"w{number}") for number in range(20)) == 20


async def test_a_crash_loop_is_slowed_down_and_reported(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(run_for=0.1, exit_code=3, output="boom")
        await kit.apply(spec=process(restart=RestartPolicy(delay=timedelta(seconds=1), max_delay=timedelta(seconds=8))))
        await kit.settle(100)
        status = kit.status()
        assert (status.state, status.failure) == (RunState.PENDING, FailureReason.RUNTIME_ERROR)
        assert (status.exit.code, status.last_output) == (3, "boom")
        assert status.next_restart_at > kit.clock.wall()
        assert 10 <= status.restarts <= 20
        assert kit.machine.most_at_once("w") == 1


async def test_a_run_to_completion_runs_once_also_after_the_agent_was_killed(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(run_for=2)
        await kit.apply(spec=process(restart=ONCE))
        await kit.settle(3)
        assert (kit.status().state, kit.status().completed) == (RunState.STOPPED, True)
        for _ in range(3):
            await kit.restart()
            await kit.settle(10)
        assert kit.status().completed
        assert kit.machine.count("started", "w") == 1


async def test_one_that_completed_while_the_agent_was_away_is_not_run_again(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(run_for=5)
        await kit.apply(spec=process(restart=ONCE))
        await kit.settle(1)
        await kit.kill()
        await asyncio.sleep(60)
        await kit.open()
        await kit.settle()
        assert (kit.status().completed, kit.status().exit.code) == (True, 0)
        assert kit.machine.count("started", "w") == 1
        assert not kit.machine.runs


async def test_what_runs_is_adopted_by_the_next_agent(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply(spec=process(ports=(NamedPort("http"),)))
        await kit.settle()
        before = kit.status()
        await kit.restart()
        await kit.settle()
        after = kit.status()
        assert (after.state, after.pid, after.ports) == (RunState.RUNNING, before.pid, before.ports)
        assert kit.machine.count("started", "w") == 1


async def test_a_crash_while_the_agent_was_away_is_taken_in(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply()
        await kit.settle()
        await kit.kill()
        (alive,) = kit.machine.alive("w")
        kit.machine.kill(alive.run_id)
        await kit.open()
        await kit.settle(5)
        assert (kit.status().state, kit.status().restarts) == (RunState.RUNNING, 1)


async def test_a_command_accepted_before_the_agent_was_killed_is_carried_out_by_the_next(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(start_takes=100)
        answer = await kit.apply(generation=4)
        await kit.kill()
        kit.machine.script = FakeScript()
        await kit.open()
        await kit.settle()
        assert (kit.status().state, kit.status().generation) == (RunState.RUNNING, 4)
        (action,) = await actions(kit)
        assert (action.task_id, action.status) == (answer.task_id, ActionStatus.COMPLETED)


async def test_a_start_cut_off_by_a_kill_is_not_followed_by_a_second_one(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(start_takes=1)
        await kit.apply()
        await kit.settle(0.5)
        run_id = kit.executor.roster.actor(WorkloadId("w")).state.progress.run_id
        await kit.kill()
        # The machine had the message already.
        kit.machine.begin(RunRequest(run_id, WorkloadId("w"), process()), FakeScript())
        await kit.open()
        await kit.settle(5)
        assert (kit.status().state, kit.machine.count("started", "w")) == (RunState.RUNNING, 1)


async def test_an_agent_told_to_stop_its_workloads_starts_them_again_next_time(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.scripts["slow"] = FakeScript(stop_takes=5)
        await kit.apply("w", process(restart=ONCE))
        await kit.apply("slow")
        await kit.settle()
        before = kit.clock.monotonic()
        await kit.executor.stop_all()
        assert kit.clock.monotonic() - before == 5
        assert not kit.machine.alive("w")
        assert not kit.machine.alive("slow")
        await kit.restart()
        await kit.settle(1)
        assert kit.status("w").state is kit.status("slow").state is RunState.RUNNING


async def test_deleting_removes_everything_but_the_generation(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(output="hello\n", stop_takes=2)
        await kit.apply(generation=5)
        await kit.settle()
        answer = await kit.delete(generation=6)
        assert answer.message == "being removed"
        await kit.settle(1)
        assert kit.status().deleting
        assert (await kit.delete(generation=6)).message == "being removed already"
        await kit.settle(2)
        assert not kit.knows()
        assert not kit.machine.runs
        assert "w" not in kit.machine.logs
        assert [(a.type, a.status) for a in await actions(kit)] == [
            (ActionType.APPLY, ActionStatus.COMPLETED),
            (ActionType.DELETE, ActionStatus.COMPLETED),
        ]
        for stale in (5, 6):
            with pytest.raises(StaleGenerationError):
                await kit.apply(generation=stale)
        await kit.restart()
        with pytest.raises(StaleGenerationError):
            await kit.apply(generation=6)
        await kit.apply(generation=7)
        await kit.settle(1)
        assert kit.status().state is RunState.RUNNING


async def test_an_older_delete_does_not_touch_a_newer_copy(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply(generation=5)
        with pytest.raises(StaleGenerationError):
            await kit.delete(generation=4)
        await kit.settle()
        assert kit.status().state is RunState.RUNNING


async def test_deleting_what_is_not_here_succeeds_and_keeps_older_commands_out(tmp_path):
    async with opened(tmp_path) as kit:
        answer = await kit.delete("ghost", generation=9)
        assert "not found" in answer.message
        (action,) = await actions(kit, "ghost")
        assert (action.type, action.status) == (ActionType.DELETE, ActionStatus.COMPLETED)
        with pytest.raises(StaleGenerationError):
            await kit.apply("ghost", generation=9)


async def test_applied_again_while_it_is_removed_it_begins_anew(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(run_for=1, stop_takes=3)
        await kit.apply(spec=process(restart=ONCE), generation=1)
        await kit.settle(2)
        assert kit.status().completed
        await kit.delete(generation=2)
        await kit.apply(spec=process(restart=ONCE), generation=3)
        await kit.settle(3)
        assert (kit.status().completed, kit.status().generation) == (True, 3)
        assert kit.machine.count("started", "w") == 2
        assert kit.machine.count("workload forgotten", "w") == 1
        assert [a.status for a in await actions(kit)] == [ActionStatus.COMPLETED] * 3


async def test_an_agent_killed_while_it_removes_goes_on_removing(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(stop_takes=5)
        await kit.apply(generation=1)
        await kit.settle()
        await kit.delete(generation=2)
        await kit.settle(1)
        await kit.restart()
        await kit.settle(10)
        assert not kit.knows()
        assert (await actions(kit))[-1].status is ActionStatus.COMPLETED


async def test_readiness_decides_when_it_is_running(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(ready_after=3)
        await kit.apply(spec=probed())
        await kit.settle(2)
        assert (kit.status().state, (await actions(kit))[0].status) == (RunState.PENDING, ActionStatus.RUNNING)
        await kit.settle(2)
        assert (kit.status().state, (await actions(kit))[0].status) == (RunState.RUNNING, ActionStatus.COMPLETED)


async def test_a_service_that_hangs_is_not_ready_and_returns(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(hangs_from=10, hangs_until=60)
        await kit.apply(spec=probed())
        await kit.settle(9)
        assert (kit.status().state, kit.status().ready) == (RunState.RUNNING, True)
        await kit.settle(25)  # three tries, five seconds apart
        assert (kit.status().state, kit.status().ready) == (RunState.PENDING, False)
        assert "not ready any longer" in kit.status().message
        await kit.settle(30)
        assert (kit.status().state, kit.status().ready, kit.status().restarts) == (RunState.RUNNING, True, 0)


async def test_a_single_try_that_fails_changes_nothing(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(hangs_from=9, hangs_until=12)
        await kit.apply(spec=probed())
        for _ in range(30):
            await kit.settle(1)
            assert kit.status().state is RunState.RUNNING


@pytest.mark.parametrize("agent_restarts", [False, True], ids=["the same agent", "an agent that was restarted"])
async def test_a_service_that_hangs_for_good_is_restarted_by_its_liveness_probe(tmp_path, agent_restarts):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(hangs_from=10)
        alive = Liveness(command=CommandProbe(("check",)), interval=timedelta(seconds=2), failure_threshold=2)
        await kit.apply(spec=probed(liveness=alive))
        await kit.settle(5)
        first = kit.status()
        assert first.state is RunState.RUNNING
        if agent_restarts:
            await kit.restart()
        await kit.settle(12)
        again = kit.status()
        assert (again.state, again.restarts) == (RunState.RUNNING, 1)
        assert again.started_at > first.started_at


async def test_one_that_is_never_ready_has_failed_and_is_tried_again_on_request(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(never_ready=True)
        await kit.apply(spec=probed())
        await kit.settle(6)
        assert (kit.status().state, "not ready within 5s" in kit.status().message) == (RunState.FAILED, True)
        (action,) = await actions(kit)
        assert (action.status, action.error) == (ActionStatus.FAILED, kit.status().message)
        assert not kit.machine.alive("w")
        kit.machine.script = FakeScript()
        assert not (await kit.apply(spec=probed())).skipped
        await kit.settle(1)
        assert kit.status().state is RunState.RUNNING


async def test_starts_that_fail_in_passing_are_repeated(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(start_error="busy", start_errors=3, transient=True)
        await kit.apply()
        await kit.settle(0.1)
        assert "could not be started: busy" in kit.status().message
        await kit.settle(10)
        assert kit.status().state is RunState.RUNNING


async def test_starts_that_fail_for_good_are_not(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(start_error="no such program", failure=FailureReason.INVALID_SPEC)
        await kit.apply()
        await kit.settle(100)
        assert (kit.status().state, kit.status().failure) == (RunState.FAILED, FailureReason.INVALID_SPEC)
        assert (await actions(kit))[0].error == "no such program"


async def test_a_runtime_that_does_not_answer_loses_nothing_and_doubles_nothing(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.outage = UnavailableError("the keeper does not answer")
        await kit.apply()
        await kit.settle(60)
        assert "the keeper does not answer" in kit.status().message
        assert (await kit.executor.health())["process"].startswith("unhealthy: ")
        kit.machine.outage = None
        await kit.settle(20)
        assert kit.status().state is RunState.RUNNING
        kit.machine.outage = UnavailableError("gone again")
        await kit.delete()
        await kit.settle(60)
        assert kit.knows()
        kit.machine.outage = None
        await kit.settle(20)
        assert not kit.knows()
        assert kit.machine.count("started", "w") == 1


async def test_runs_that_belong_to_nobody_are_left_alone_until_somebody_asks_for_their_workload(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.begin(RunRequest("w.old", WorkloadId("w"), process()), FakeScript())
        kit.machine.begin(RunRequest("x.old", WorkloadId("x"), process()), FakeScript())
        await kit.restart()
        await kit.settle(100)
        assert {info.run_id for info in kit.executor.roster.orphans.values()} == {"w.old", "x.old"}
        await kit.executor.stop_all()
        assert len(kit.machine.alive("w")) == len(kit.machine.alive("x")) == 1
        await kit.restart()
        await kit.apply("w")
        await kit.settle(1)
        assert kit.machine.most_at_once("w") == 1
        assert [info.run_id for info in kit.machine.alive("x")] == ["x.old"]
        assert set(kit.executor.roster.orphans) == {"x.old"}


async def test_a_delete_ends_orphans_of_a_workload_that_is_not_known(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.kill()
        kit.machine.begin(RunRequest("w.old", WorkloadId("w"), process()), FakeScript())
        await kit.open()
        assert "w.old" in kit.executor.conditions()[ConditionType.ORPHANED_PROCESSES]
        answer = await kit.delete("w")
        assert answer.message == "1 runs that belonged to no workload are being ended"
        await kit.settle(1)
        assert not kit.machine.alive("w")
        assert not kit.executor.roster.orphans
        assert not kit.executor.conditions()


async def test_orphans_that_a_runtime_finds_after_an_outage_are_reported_until_they_are_gone(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply("known")
        await kit.settle(1)
        await kit.kill()
        kit.machine.begin(RunRequest("w.old", WorkloadId("w"), process()), FakeScript())
        kit.machine.is_in_doubt = True
        await kit.open()
        await kit.settle(100)
        assert not kit.executor.roster.orphans
        kit.machine.is_in_doubt = False
        await kit.settle(LIST_EVERY)
        assert set(kit.executor.roster.orphans) == {"w.old"}
        assert "w.old" in kit.executor.conditions()[ConditionType.ORPHANED_PROCESSES]
        # A runtime that does not answer says nothing about it.
        kit.machine.outage = UnavailableError("the engine is away")
        await kit.settle(100)
        assert set(kit.executor.roster.orphans) == {"w.old"}
        kit.machine.outage = None
        await kit.executor.stop_all()
        assert len(kit.machine.alive("w")) == 1
        await kit.restart()
        kit.machine.kill("w.old")
        kit.machine.forget("w.old")
        await kit.settle(LIST_EVERY)
        assert not kit.executor.conditions()


async def test_a_late_orphan_is_ended_by_a_delete_or_before_the_next_run(tmp_path):
    async with opened(tmp_path) as kit:
        for workload_id in ("w", "x"):
            script = FakeScript(stop_takes=2 * LIST_EVERY)
            kit.machine.begin(RunRequest(f"{workload_id}.old", WorkloadId(workload_id), process()), script)
        await kit.settle(LIST_EVERY)
        assert set(kit.executor.roster.orphans) == {"w.old", "x.old"}
        await kit.apply("w")
        await kit.delete("x")
        await kit.settle(4 * LIST_EVERY)
        assert kit.machine.most_at_once("w") == 1
        assert kit.status("w").state is RunState.RUNNING
        assert not kit.machine.alive("x")
        assert not kit.executor.roster.orphans


@pytest.mark.parametrize("change", ["deleted", "applied"])
async def test_a_workload_that_comes_or_goes_while_runs_are_listed_has_no_orphans(tmp_path, change):
    async with opened(tmp_path) as kit:
        if change == "deleted":
            await kit.apply()
            await kit.settle(1)

        class SlowList(FakeRuntime):
            async def list_runs(self):
                before = await super().list_runs()
                await (kit.delete() if change == "deleted" else kit.apply())
                await kit.settle(1)
                return before if change == "deleted" else await super().list_runs()

        runtime = SlowList(kit.machine)
        await OrphanWatch(kit.executor.roster, {runtime.type: runtime}, kit.clock).compare()
        assert kit.knows() is (change == "applied")
        assert not kit.executor.roster.orphans


async def test_strays_of_a_known_workload_are_ended(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply()
        await kit.settle()
        await kit.kill()
        kit.machine.begin(RunRequest("w.stray", WorkloadId("w"), process()), FakeScript())
        await kit.open()
        await kit.settle(1)
        (alive,) = kit.machine.alive("w")
        assert alive.run_id != "w.stray"


async def test_a_probe_that_cannot_be_run_says_nothing_about_a_run(tmp_path):
    async with opened(tmp_path) as kit:
        alive = Liveness(command=CommandProbe(("check",)), interval=timedelta(seconds=2), failure_threshold=2)
        await kit.apply(spec=probed(liveness=alive))
        await kit.settle(5)
        assert kit.status().state is RunState.RUNNING
        kit.machine.outage = UnavailableError("the engine is away")
        await kit.settle(60)
        assert (kit.status().state, kit.status().ready) == (RunState.RUNNING, True)
        kit.machine.outage = None
        await kit.settle(60)
        assert (kit.status().state, kit.status().restarts) == (RunState.RUNNING, 0)
        assert kit.machine.count("started", "w") == 1


@pytest.mark.parametrize(
    ("script", "state"),
    [(FakeScript(ready_after=62), RunState.RUNNING), (FakeScript(never_ready=True), RunState.FAILED)],
    ids=["ready in what is left", "never ready"],
)
async def test_an_outage_does_not_use_up_the_time_to_become_ready(tmp_path, script, state):
    async with opened(tmp_path) as kit:
        kit.machine.script = script
        await kit.apply(spec=probed(restart=ONCE))
        await kit.settle(1)
        kit.machine.outage = UnavailableError("the engine is away")
        await kit.settle(60)
        assert kit.status().state is RunState.PENDING
        kit.machine.outage = None
        await kit.settle(10)
        assert kit.status().state is state


async def test_a_deleted_workload_ends_a_run_that_its_runtime_found_late(tmp_path):
    """A killed agent left it, and the engine was away when the next one started."""
    async with opened(tmp_path) as kit:
        await kit.apply(desired=DesiredState.STOPPED)
        await kit.settle()
        kit.machine.begin(RunRequest(RunId("w-left"), WorkloadId("w"), spec=ProcessSpec(("left",))), FakeScript())
        await kit.delete()
        await kit.settle(5)
        assert kit.machine.alive("w") == []
        assert not kit.knows()


async def test_a_start_that_the_agent_s_disk_keeps_from_its_answer_says_so(tmp_path):
    """With the reason and the time of the next try, and only until there is room again."""
    async with opened(tmp_path) as kit:
        error = UnavailableError("run w.1 cannot be written down: no space left")
        error.__cause__ = OSError(errno.ENOSPC, "no space left")
        kit.machine.outage = error
        await kit.apply()
        await kit.settle(20)
        status = kit.status()
        assert (status.state, status.failure) == (RunState.PENDING, FailureReason.STORAGE_ERROR)
        assert status.next_restart_at > kit.clock.wall()
        assert status.message == "the agent cannot write: run w.1 cannot be written down: no space left"
        kit.machine.outage = UnavailableError("the engine is down")
        await kit.settle(20)
        assert kit.status().failure is FailureReason.RUNTIME_ERROR
        kit.machine.outage = None
        await kit.settle(20)
        status = kit.status()
        assert (status.state, status.failure, status.next_restart_at) == (RunState.RUNNING, FailureReason.NONE, None)
