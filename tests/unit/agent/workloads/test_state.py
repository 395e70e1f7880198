"""One workload's machine: what follows what."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from shoal.agent.facts import (
    MOVES,
    BecameReady,
    BecameUnready,
    ConfirmOwnership,
    ContactLost,
    ForgetRun,
    ForgetWorkload,
    Forgotten,
    FoundRun,
    IntentChanged,
    LivenessFailed,
    OwnershipConfirmed,
    OwnershipDenied,
    Prepared,
    PrepareRun,
    ProbeReadiness,
    ReadinessTimedOut,
    ReplaceFailed,
    RunEnded,
    RunOutcome,
    RunStarted,
    RunStopped,
    RunTroubled,
    RunUpdated,
    Stage,
    StartFailed,
    StartRefused,
    StartRun,
    StopRun,
    TimerFired,
    UpdateRun,
    Wait,
    WatchLiveness,
    WatchReadiness,
    describe_exit,
)
from shoal.agent.workloads.state import begin_life, handle, reopen
from shoal.agent.workloads.views import status_of, verdict_of
from shoal.model.workloads import CommandProbe, DesiredState, Exit, FailureReason, Readiness, RunState
from tests.unit.agent.making import START, at, intent, rules

#: The hash of the spec "two".
TWO = intent(spec="two").spec_sha256


def started(how=None, what=None, **moment):
    step = begin_life(what or intent(), how or rules(), at(**moment))
    return handle(step.state, RunStarted("w.1", START, pid=7, ports={"http": 8080}), at())


def ended(state, code=0, *, seconds=1.0, signal=0, run="w.1", next_run="w.2", ended_by="", unknown=False, oom=False):
    exit_ = Exit(code, signal, unknown=unknown, ended_at=START + timedelta(seconds=seconds), out_of_memory=oom)
    return handle(state, RunEnded(run, exit_, "last words", ended_by), at(seconds, run=next_run))


def only(step, kind):
    return [instruction for instruction in step.instructions if isinstance(instruction, kind)]


def test_a_new_workload_is_started():
    step = begin_life(intent(), rules(), at())
    assert step.instructions == (StartRun("w.1"),)
    status = status_of(step.state)
    assert (status.state, status.message, status.ready) == (RunState.PENDING, "starting", False)


def test_it_is_running_once_it_runs_and_is_ready():
    step = started()
    status = status_of(step.state)
    assert (status.state, status.ready, status.pid, status.ports) == (RunState.RUNNING, True, 7, {"http": 8080})
    assert verdict_of(step.state).error == ""


def test_it_is_pending_until_its_probe_succeeds():
    step = started(rules(ready_within=5.0))
    assert step.instructions == (ProbeReadiness("w.1", within=5.0),)
    assert status_of(step.state).state is RunState.PENDING
    assert "waiting for port http" in status_of(step.state).message
    assert verdict_of(step.state) is None
    step = handle(step.state, BecameReady("w.1"), at(1))
    assert status_of(step.state).state is RunState.RUNNING


def test_one_that_is_never_ready_is_stopped_and_has_failed():
    step = started(rules(ready_within=5.0))
    step = handle(step.state, ReadinessTimedOut("w.1"), at(5))
    assert step.instructions == (StopRun("w.1"),)
    step = handle(step.state, RunStopped("w.1", Exit(signal=15), "last words"), at(6))
    status = status_of(step.state)
    assert (status.state, status.failure) == (RunState.FAILED, FailureReason.RUNTIME_ERROR)
    assert "not ready within 5s" in status.message
    assert status.last_output == "last words"
    assert verdict_of(step.state).error == status.message


def test_one_that_stops_answering_is_not_ready_until_it_answers_again():
    step = handle(started(rules(ready_within=5.0)).state, BecameReady("w.1"), at(1))
    assert step.instructions == (WatchReadiness("w.1"),)
    step = handle(step.state, BecameUnready("w.1"), at(100))
    assert step.instructions == (ProbeReadiness("w.1", within=None),)
    status = status_of(step.state)
    assert (status.state, status.ready, status.pid) == (RunState.PENDING, False, 7)
    assert status.message == "not ready any longer: waiting for port http"
    step = handle(step.state, BecameReady("w.1"), at(200))
    assert status_of(step.state).ready
    assert step.instructions == (WatchReadiness("w.1"),)


def test_liveness_is_watched_from_the_first_readiness_on_and_only_once():
    how = rules(ready_within=5.0, liveness="port http")
    step = started(how)
    assert not only(step, WatchLiveness)
    step = handle(step.state, BecameReady("w.1"), at(1))
    assert only(step, WatchLiveness) == [WatchLiveness("w.1")]
    step = handle(step.state, BecameUnready("w.1"), at(2))
    step = handle(step.state, BecameReady("w.1"), at(3))
    assert not only(step, WatchLiveness)
    assert only(started(rules(liveness="port http")), WatchLiveness) == [WatchLiveness("w.1")]


@pytest.mark.parametrize("exit_", [Exit(0), Exit(signal=9)], ids=["it obeys", "it is killed"])
@pytest.mark.parametrize("policy", ["always", "on-failure"])
def test_one_that_hangs_is_restarted_as_a_failure(policy, exit_):
    how = rules(policy, liveness="port http")
    step = handle(started(how).state, LivenessFailed("w.1"), at(5))
    assert step.instructions == (StopRun("w.1"),)
    step = handle(step.state, RunStopped("w.1", exit_), at(6, run="w.2"))
    assert only(step, Wait)
    assert status_of(step.state).message.startswith("its liveness probe failed (port http)")
    step = handle(step.state, TimerFired(step.state.waits), at(7, run="w.2"))
    assert only(step, StartRun) == [StartRun("w.2")]
    assert (step.state.progress.failures, status_of(step.state).restarts, step.state.hanging) == (1, 1, "")


def test_one_that_hangs_and_is_never_restarted_has_failed():
    step = handle(started(rules("no", liveness="port http")).state, LivenessFailed("w.1"), at(5))
    step = handle(step.state, RunStopped("w.1", Exit(signal=9)), at(6))
    assert (status_of(step.state).state, status_of(step.state).failure) == (
        RunState.FAILED,
        FailureReason.RUNTIME_ERROR,
    )


def test_one_that_hangs_while_it_is_to_be_stopped_is_only_stopped():
    how = rules(liveness="port http")
    step = handle(started(how).state, LivenessFailed("w.1"), at(5))
    step = handle(step.state, IntentChanged(intent(generation=2, desired=DesiredState.STOPPED), how), at(6))
    step = handle(step.state, RunStopped("w.1", Exit(signal=9)), at(7))
    assert status_of(step.state).state is RunState.STOPPED
    assert not only(step, Wait)


def test_a_late_ready_or_timeout_of_an_earlier_run_means_nothing():
    step = started(rules(ready_within=5.0))
    assert handle(step.state, BecameReady("w.0"), at(1)).state == step.state
    assert handle(step.state, ReadinessTimedOut("w.0"), at(1)).state == step.state


@pytest.mark.parametrize(
    ("policy", "code", "outcome", "waits"),
    [
        ("always", 0, RunOutcome.NONE, True),
        ("always", 3, RunOutcome.NONE, True),
        ("unless-stopped", 0, RunOutcome.NONE, True),
        ("", 0, RunOutcome.NONE, True),
        ("on-failure", 0, RunOutcome.COMPLETED, False),
        ("on-failure", 3, RunOutcome.NONE, True),
        ("no", 0, RunOutcome.COMPLETED, False),
        ("no", 3, RunOutcome.FAILED, False),
    ],
)
def test_the_restart_policy_decides_what_follows_an_end(policy, code, outcome, waits):
    step = ended(started(rules(policy)).state, code)
    assert step.state.progress.outcome is outcome
    assert bool(only(step, Wait)) is waits
    assert only(step, ForgetRun) == [ForgetRun("w.1")]


def test_an_end_that_is_not_known_never_counts_as_completed():
    assert ended(started(rules("no")).state, unknown=True).state.progress.outcome is RunOutcome.FAILED
    assert ended(started(rules("on-failure")).state, unknown=True).state.stage is Stage.WAITING


def test_delays_double_up_to_a_cap_and_start_anew_after_a_healthy_run():
    how = rules(
        "always", delay=timedelta(seconds=1), max_delay=timedelta(seconds=5), healthy_after=timedelta(seconds=60)
    )
    state, clock, waits = started(how).state, 0.0, []
    for number in range(2, 7):
        clock += 1
        step = ended(state, 1, seconds=clock, run=state.progress.run_id)
        waits.append(only(step, Wait)[0].seconds)
        step = handle(step.state, TimerFired(step.state.waits), at(clock, run=f"w.{number}"))
        state = handle(step.state, RunStarted(f"w.{number}", at(clock).now), at(clock)).state
    assert waits == [1, 2, 4, 5, 5]
    step = ended(state, 1, seconds=clock + 60, run=state.progress.run_id)
    assert only(step, Wait)[0].seconds == 1
    assert status_of(step.state).restarts == 5


def test_jitter_only_shortens_a_delay():
    how = rules("always", delay=timedelta(seconds=4))
    exit_ = Exit(1, ended_at=START)
    step = handle(started(how).state, RunEnded("w.1", exit_), at(1, run="w.2", chance=1.0))
    assert only(step, Wait)[0].seconds == 3.0


def test_the_status_says_when_it_is_started_again_and_why_it_is_not_running():
    status = status_of(ended(started().state, 3).state)
    assert status.state is RunState.PENDING
    assert status.message.startswith("exited with code 3; waiting to be started again")
    assert status.next_restart_at == START + timedelta(seconds=1.5)
    assert (status.exit.code, status.last_output, status.failure) == (3, "last words", FailureReason.RUNTIME_ERROR)


def test_on_failure_gives_up_after_its_retries():
    how = rules("on-failure", max_retries=2)
    state = started(how).state
    for number in (2, 3):
        step = ended(state, 1, run=state.progress.run_id)
        assert step.state.stage is Stage.WAITING
        step = handle(step.state, TimerFired(step.state.waits), at(run=f"w.{number}"))
        state = handle(step.state, RunStarted(f"w.{number}", START), at()).state
    step = ended(state, 1, run="w.3")
    assert status_of(step.state).state is RunState.FAILED
    assert "gave up after 2 restarts" in status_of(step.state).message


def test_a_completed_one_is_not_run_again_by_a_new_revision_or_generation():
    step = ended(started(rules("no")).state, 0)
    assert (status_of(step.state).completed, status_of(step.state).state) == (True, RunState.STOPPED)
    step = handle(step.state, IntentChanged(intent(generation=2, revision="r2"), rules("no")), at(2, run="w.2"))
    assert not only(step, StartRun)
    assert status_of(step.state).completed
    for desired in (DesiredState.STOPPED, DesiredState.RUNNING):
        step = handle(step.state, IntentChanged(intent(generation=3, desired=desired), rules("no")), at(run="w.2"))
        assert not only(step, StartRun)
        assert status_of(step.state).completed


def test_a_completed_one_is_run_again_by_a_new_attempt_or_another_spec():
    done = ended(started(rules("no")).state, 0).state
    again = handle(done, IntentChanged(intent(generation=2, attempt=1), rules("no")), at(2, run="w.2"))
    assert only(again, StartRun) == [StartRun("w.2")]
    other = handle(done, IntentChanged(intent(generation=2, spec="spec 2"), rules("no")), at(2, run="w.2"))
    assert only(other, StartRun) == [StartRun("w.2")]
    assert other.state.progress.restarts == 0


def test_an_attempt_asked_for_while_it_is_alive_lets_it_go_on():
    alive = started(rules("no")).state
    step = handle(alive, IntentChanged(intent(generation=2, attempt=1), rules("no")), at(1, run="w.2"))
    assert step.state.stage is Stage.READY
    assert not step.instructions
    step = ended(step.state, 0, seconds=2)
    assert step.state.progress.outcome is RunOutcome.COMPLETED
    assert not only(step, StartRun)


def test_an_attempt_cuts_a_wait_short():
    waiting = ended(started().state, 1).state
    step = handle(waiting, IntentChanged(intent(generation=2, attempt=1), rules()), at(1, run="w.2"))
    assert only(step, StartRun) == [StartRun("w.2")]
    assert step.state.progress.failures == 0


def test_a_failed_one_is_tried_again_by_a_higher_generation_only():
    failed = ended(started(rules("no")).state, 1).state
    same = handle(failed, IntentChanged(intent(), rules("no")), at(2, run="w.2"))
    assert not same.instructions
    higher = handle(failed, IntentChanged(intent(generation=2), rules("no")), at(2, run="w.2"))
    assert only(higher, StartRun) == [StartRun("w.2")]


def test_another_spec_stops_the_old_run_before_the_new_one_is_started():
    alive = started().state
    step = handle(alive, IntentChanged(intent(generation=2, spec="spec 2"), rules()), at(1, run="w.2"))
    assert step.instructions == (StopRun("w.1"),)
    assert status_of(step.state).message == "stopping, to be replaced"
    assert verdict_of(step.state) is None
    step = handle(step.state, RunStopped("w.1", Exit(signal=15)), at(2, run="w.2"))
    assert only(step, StartRun) == [StartRun("w.2")]


def test_a_run_goes_on_until_its_replacement_is_prepared():
    how = rules(prepares=True)
    newer = intent(generation=2, spec="two")
    step = handle(started(how).state, IntentChanged(newer, how), at(1))
    assert step.instructions == (PrepareRun("w.1", TWO),)
    status = status_of(step.state)
    assert (status.state, status.ready, status.pid) == (RunState.PENDING, True, 7)
    assert "the previous one goes on running" in status.message
    assert verdict_of(step.state) is None
    step = handle(step.state, Prepared("w.1", TWO), at(2))
    assert step.instructions == (StopRun("w.1"),)
    step = handle(step.state, RunStopped("w.1", Exit(signal=15)), at(3, run="w.2"))
    assert only(step, StartRun) == [StartRun("w.2")]


def test_what_cannot_be_prepared_is_tried_again_while_the_old_run_goes_on():
    how = rules(prepares=True)
    newer = intent(generation=2, spec="two")
    step = handle(started(how).state, IntentChanged(newer, how), at(1))
    step = handle(step.state, ReplaceFailed("w.1", TWO, FailureReason.IMAGE_NOT_FOUND, "no such image"), at(2))
    assert [type(each) for each in step.instructions] == [PrepareRun]
    assert step.instructions[0].after > 0
    status = status_of(step.state)
    assert (status.state, status.failure) == (RunState.PENDING, FailureReason.IMAGE_NOT_FOUND)
    assert "no such image; the previous revision goes on running" in status.message
    assert status.next_restart_at is not None
    assert verdict_of(step.state).error == "no such image"
    again = handle(step.state, Prepared("w.1", TWO), at(9))
    assert again.instructions == (StopRun("w.1"),)
    back = handle(step.state, IntentChanged(intent(generation=3), how), at(3))
    assert (back.instructions, status_of(back.state).state) == ((), RunState.RUNNING)


def test_a_stop_does_not_wait_for_a_replacement():
    how = rules(prepares=True)
    step = handle(started(how).state, IntentChanged(intent(generation=2, spec="two"), how), at(1))
    stopped = intent(generation=3, spec="two", desired=DesiredState.STOPPED)
    step = handle(step.state, IntentChanged(stopped, how), at(2))
    assert step.instructions == (StopRun("w.1"),)
    assert handle(step.state, Prepared("w.1", TWO), at(3)).instructions == ()


def updating(**how):
    changed = rules(prepares=True, updates=True, **how)
    newer = intent(generation=2, spec="two")
    step = handle(started(changed).state, IntentChanged(newer, changed), at(1))
    step = handle(step.state, Prepared("w.1", TWO), at(2))
    assert step.instructions == (UpdateRun("w.1", TWO),)
    assert step.state.stage is Stage.UPDATING
    return step


def test_a_run_is_changed_in_place_where_the_runtime_can():
    step = handle(updating().state, RunUpdated("w.1", TWO, pid=8), at(3))
    assert step.instructions == ()
    status = status_of(step.state)
    assert (status.state, status.pid, step.state.is_current) == (RunState.RUNNING, 8, True)
    assert verdict_of(step.state).error == ""


def test_a_run_that_was_changed_is_probed_again():
    changed = rules(prepares=True, updates=True, ready_within=5.0)
    step = handle(started(changed).state, BecameReady("w.1"), at(1))
    step = handle(step.state, IntentChanged(intent(generation=2, spec="two"), changed), at(2))
    step = handle(handle(step.state, Prepared("w.1", TWO), at(3)).state, RunUpdated("w.1", TWO), at(4))
    assert step.instructions == (ProbeReadiness("w.1", within=5.0),)


def test_a_change_in_place_that_fails_is_tried_again():
    failed = ReplaceFailed("w.1", TWO, FailureReason.NETWORK_ERROR, "port taken", transient=True)
    step = handle(updating().state, failed, at(3))
    assert step.state.stage is Stage.READY
    assert [type(each) for each in only(step, PrepareRun)] == [PrepareRun]
    assert status_of(step.state).failure is FailureReason.NETWORK_ERROR
    assert verdict_of(step.state) is None


def test_an_end_during_a_change_in_place_is_taken_in_after_it():
    step = ended(updating().state, code=1)
    assert (step.instructions, step.state.stage) == ((), Stage.UPDATING)
    step = handle(step.state, RunUpdated("w.1", TWO), at(4, run="w.2"))
    assert only(step, Wait)
    assert step.state.stage is Stage.WAITING


def test_a_replacement_goes_on_after_a_restart_of_the_agent():
    how = rules(prepares=True)
    state = started(how).state
    found = FoundRun("w.1", START, pid=7)
    step = reopen(intent(generation=2, spec="two"), how, state.progress, found, at(5))
    assert only(step, PrepareRun) == [PrepareRun("w.1", TWO)]


def test_the_health_check_of_an_image_counts_when_the_spec_has_none():
    probe = Readiness(command=CommandProbe(("check",)), deadline=timedelta(seconds=9))
    step = begin_life(intent(), rules(), at())
    step = handle(step.state, RunStarted("w.1", START, readiness=probe), at())
    assert step.instructions == (ProbeReadiness("w.1", within=9.0),)
    step = handle(step.state, BecameReady("w.1"), at(1))
    assert step.instructions == (WatchReadiness("w.1"),)


def test_a_guest_that_does_not_boot_in_time_has_failed_as_such():
    how = rules(ready_within=5.0, late_failure=FailureReason.VM_BOOT_FAILED, stays_watched=False)
    step = handle(started(how).state, ReadinessTimedOut("w.1"), at(5))
    step = handle(step.state, RunStopped("w.1", Exit(signal=9), "Kernel panic"), at(6))
    status = status_of(step.state)
    assert (status.failure, status.last_output) == (FailureReason.VM_BOOT_FAILED, "Kernel panic")
    assert handle(started(how).state, BecameReady("w.1"), at(1)).instructions == ()


def test_the_same_spec_with_another_revision_changes_nothing_that_runs():
    alive = started().state
    step = handle(alive, IntentChanged(intent(generation=2, revision="r2"), rules()), at(1, run="w.2"))
    assert not step.instructions
    assert (status_of(step.state).generation, status_of(step.state).revision_id) == (2, "r2")


def test_an_older_intent_is_ignored():
    state = started(what=intent(generation=5)).state
    step = handle(state, IntentChanged(intent(generation=4, desired=DesiredState.STOPPED), rules()), at())
    assert step.state == state


def test_stopping_and_starting_again():
    step = handle(started().state, IntentChanged(intent(generation=2, desired=DesiredState.STOPPED), rules()), at())
    step = handle(step.state, RunStopped("w.1", Exit(signal=15, ended_at=START)), at(1))
    assert (status_of(step.state).state, status_of(step.state).completed) == (RunState.STOPPED, False)
    step = handle(step.state, IntentChanged(intent(generation=3), rules()), at(2, run="w.2"))
    assert only(step, StartRun) == [StartRun("w.2")]


def test_a_failure_is_over_when_it_is_stopped_and_still_told():
    failed = ended(started(rules("no")).state, 3).state
    step = handle(failed, IntentChanged(intent(generation=2, desired=DesiredState.STOPPED), rules("no")), at())
    status = status_of(step.state)
    assert (status.state, status.failure) == (RunState.STOPPED, FailureReason.NONE)
    assert "it failed: exited with code 3" in status.message


def test_one_that_ends_by_itself_while_it_is_stopped_has_completed():
    how = rules("no")
    step = handle(started(how).state, IntentChanged(intent(generation=2, desired=DesiredState.STOPPED), how), at())
    step = handle(step.state, RunStopped("w.1", Exit(0, ended_at=START), ended_by=""), at(1))
    assert status_of(step.state).completed


def test_one_that_ended_by_itself_before_the_agent_died_while_stopping_it_has_completed():
    how = rules("no")
    stopping = handle(started(how).state, IntentChanged(intent(generation=2, desired=DesiredState.STOPPED), how), at())
    step = again(stopping.state, FoundRun("w.1", START, exit=Exit(0, ended_at=START)))
    assert status_of(step.state).completed
    step = handle(step.state, IntentChanged(intent(generation=3), how), at(2, run="w.2"))
    assert not only(step, StartRun)


def test_starts_that_fail_for_a_passing_reason_are_tried_again():
    state = begin_life(intent(), rules(delay=timedelta(seconds=2)), at()).state
    step = handle(state, StartFailed("w.1", FailureReason.NETWORK_ERROR, "port busy", transient=True), at())
    assert only(step, Wait)[0].seconds == 2
    status = status_of(step.state)
    assert (status.state, status.failure) == (RunState.PENDING, FailureReason.NETWORK_ERROR)
    assert "could not be started: port busy" in status.message
    step = handle(step.state, TimerFired(step.state.waits), at(2, run="w.2"))
    step = handle(step.state, StartFailed("w.2", FailureReason.NETWORK_ERROR, "port busy", transient=True), at(2))
    assert only(step, Wait)[0].seconds == 4


def test_starts_that_fail_for_good_are_not():
    state = begin_life(intent(), rules(), at()).state
    step = handle(state, StartFailed("w.1", FailureReason.INVALID_SPEC, "no such program"), at())
    assert not step.instructions
    assert (status_of(step.state).state, status_of(step.state).failure) == (RunState.FAILED, FailureReason.INVALID_SPEC)


def test_failed_starts_cost_no_retries():
    how = rules("on-failure", max_retries=1)
    state = begin_life(intent(), how, at()).state
    for number in range(2, 6):
        step = handle(
            state, StartFailed(state.progress.run_id, FailureReason.STORAGE_ERROR, "full", transient=True), at()
        )
        state = handle(step.state, TimerFired(step.state.waits), at(run=f"w.{number}")).state
    step = handle(state, RunStarted("w.5", START), at())
    assert ended(step.state, 1, run="w.5").state.stage is Stage.WAITING


def test_a_runtime_that_does_not_answer_is_said_and_waited_for():
    state = begin_life(intent(), rules(), at()).state
    step = handle(state, RunTroubled("w.1", "the keeper does not answer"), at())
    assert not step.instructions
    assert status_of(step.state).message == "the keeper does not answer"
    assert handle(step.state, RunStarted("w.1", START), at()).state.stage is Stage.READY


@pytest.mark.parametrize(
    "event", [RunTroubled("w.1", "fetching its image"), RunStarted("w.1", START)], ids=["fetches", "runs"]
)
@pytest.mark.parametrize("failure", [FailureReason.STORAGE_ERROR, FailureReason.RUNTIME_ERROR])
def test_a_start_without_an_answer_has_a_reason_and_a_next_try_until_it_is_answered(failure, event):
    state = begin_life(intent(), rules(), at()).state
    again_at = at(4).now
    told = handle(state, RunTroubled("w.1", "no answer", failure, again_at), at()).state
    status = status_of(told)
    assert (status.state, status.failure, status.next_restart_at) == (RunState.PENDING, failure, again_at)
    status = status_of(handle(told, event, at()).state)
    assert (status.failure, status.next_restart_at) == (FailureReason.NONE, None)


def test_an_end_before_the_answer_to_the_start_counts():
    state = begin_life(intent(), rules("no"), at()).state
    step = ended(state, 0)
    assert step.state.progress.outcome is RunOutcome.COMPLETED
    assert handle(step.state, RunStarted("w.1", START), at()).state == step.state


def test_the_same_end_told_twice_counts_once():
    step = ended(started().state, 1)
    assert ended(step.state, 1).state == step.state


def test_a_timer_of_an_earlier_wait_means_nothing():
    step = ended(started().state, 1)
    assert handle(step.state, TimerFired(step.state.waits - 1), at(run="w.9")).state == step.state


# ---------------------------------------------------------------------------------------------------------
# Deleting


def test_deleting_stops_then_forgets():
    step = handle(started().state, IntentChanged(intent(deleting=True), rules()), at(1))
    assert step.instructions == (StopRun("w.1"),)
    assert status_of(step.state).deleting
    step = handle(step.state, RunStopped("w.1", Exit(signal=15)), at(2))
    assert only(step, ForgetWorkload)
    assert verdict_of(step.state) is None
    step = handle(step.state, Forgotten(), at(3))
    assert step.state.stage is Stage.FORGOTTEN
    assert verdict_of(step.state).error == ""


@pytest.mark.parametrize("stage", ["waiting", "completed", "failed"])
def test_deleting_one_that_does_not_run(stage):
    how = rules("always" if stage == "waiting" else "no")
    state = ended(started(how).state, 0 if stage == "completed" else 1).state
    step = handle(state, IntentChanged(intent(deleting=True), how), at(2))
    assert step.instructions == (ForgetWorkload(),)


def test_applied_again_while_it_is_being_removed_it_is_a_new_life():
    step = handle(started(rules("no")).state, IntentChanged(intent(deleting=True), rules("no")), at(1))
    new = intent(generation=2, born=2)
    step = handle(step.state, IntentChanged(new, rules("no")), at(1, run="w.2"))
    assert not step.instructions
    step = handle(step.state, RunStopped("w.1", Exit(0), ended_by=""), at(2, run="w.2"))
    assert only(step, ForgetWorkload)
    assert step.state.progress.outcome is not RunOutcome.COMPLETED
    step = handle(step.state, Forgotten(), at(3, run="w.2"))
    assert only(step, StartRun) == [StartRun("w.2")]
    assert step.state.progress.born == 2


def test_applied_again_after_it_was_forgotten():
    step = handle(started().state, IntentChanged(intent(deleting=True), rules()), at(1))
    step = handle(step.state, RunStopped("w.1"), at(2))
    step = handle(step.state, Forgotten(), at(3))
    step = handle(step.state, IntentChanged(intent(generation=2, born=2), rules()), at(4, run="w.2"))
    assert only(step, StartRun) == [StartRun("w.2")]


# ---------------------------------------------------------------------------------------------------------
# At most one

ONCE = rules(at_most_one=True)


def held():
    return begin_life(intent(), ONCE, at())


def once_started():
    step = handle(held().state, OwnershipConfirmed(1), at())
    return handle(step.state, RunStarted("w.1", START), at()).state


def test_what_may_exist_only_once_is_started_on_the_control_planes_word():
    step = held()
    assert step.instructions == (ConfirmOwnership(1),)
    assert status_of(step.state).state is RunState.PENDING
    step = handle(step.state, OwnershipConfirmed(1), at())
    assert step.instructions == (StartRun("w.1"),)


def test_the_word_about_another_generation_does_not_count():
    state = held().state
    assert handle(state, OwnershipConfirmed(2), at()).state == state
    step = handle(state, IntentChanged(intent(generation=2), ONCE), at())
    assert only(step, ConfirmOwnership) == [ConfirmOwnership(2)]
    assert handle(step.state, OwnershipConfirmed(1), at()).state == step.state


def test_a_denial_is_shown():
    step = handle(held().state, OwnershipDenied(1, "held: generation 2 is node n2's"), at())
    assert status_of(step.state).message == "held: generation 2 is node n2's"
    assert not step.instructions


def test_ended_by_its_deadline_it_waits_for_contact_and_costs_nothing():
    step = ended(once_started(), signal=15, ended_by="deadline", next_run="w.2")
    assert only(step, ConfirmOwnership) == [ConfirmOwnership(1)]
    status = status_of(step.state)
    assert (status.state, status.message) == (RunState.PENDING, "stopped: no contact with the control plane")
    assert step.state.progress.failures == 0
    assert status.restarts == 0
    step = handle(step.state, OwnershipConfirmed(1), at(9, run="w.2"))
    assert step.instructions == (StartRun("w.2"),)
    assert status_of(step.state).restarts == 1


def test_it_is_stopped_when_the_agent_counts_the_lease_as_over():
    step = handle(once_started(), ContactLost(), at(20))
    assert step.instructions == (StopRun("w.1"),)
    step = handle(step.state, RunStopped("w.1", Exit(signal=15)), at(21, run="w.2"))
    assert only(step, ConfirmOwnership)
    assert status_of(step.state).message == "stopped: no contact with the control plane"


def test_others_go_on_without_contact():
    state = started().state
    assert handle(state, ContactLost(), at(20)).state == state


def test_contact_lost_at_the_last_moment_before_a_start():
    step = handle(held().state, OwnershipConfirmed(1), at())
    step = handle(step.state, StartRefused("w.1"), at(1, run="w.2"))
    assert only(step, ConfirmOwnership)
    assert step.state.stage is Stage.HELD
    step = handle(step.state, OwnershipConfirmed(1), at(9, run="w.2"))
    assert step.instructions == (StartRun("w.2"),)
    assert status_of(step.state).restarts == 0, "nothing had been started"


def test_a_crash_of_it_is_confirmed_again_before_the_restart():
    step = ended(once_started(), 1)
    step = handle(step.state, TimerFired(step.state.waits), at(2, run="w.2"))
    assert step.instructions == (ConfirmOwnership(1),)


# ---------------------------------------------------------------------------------------------------------
# After a restart of the agent


def again(state, found=None, *, moment=None, what=None, how=None):
    return reopen(what or state.intent, how or state.rules, state.progress, found, moment or at(10, run="w.9"))


def test_a_run_that_goes_on_is_adopted():
    state = started().state
    step = again(state, FoundRun("w.1", START, pid=7, ports={"http": 8080}))
    assert not step.instructions
    assert (status_of(step.state).state, status_of(step.state).pid) == (RunState.RUNNING, 7)


def test_one_that_was_not_ready_is_probed_for_the_rest_of_its_time():
    state = started(rules(ready_within=30.0)).state
    step = again(state, FoundRun("w.1", START))
    assert step.instructions == (ProbeReadiness("w.1", within=20.0),)
    late = again(state, FoundRun("w.1", START), moment=at(100))
    assert late.instructions == (ProbeReadiness("w.1", within=0.0),)


def test_one_that_was_ready_still_is():
    state = started(rules(ready_within=30.0)).state
    state = handle(state, BecameReady("w.1"), at(1)).state
    assert status_of(again(state, FoundRun("w.1", START)).state).ready


def test_an_end_that_was_missed_is_taken_in():
    state = started(rules("no")).state
    step = again(state, FoundRun("w.1", START, exit=Exit(0, ended_at=START)))
    assert (status_of(step.state).completed, only(step, ForgetRun)) == (True, [ForgetRun("w.1")])
    assert not only(step, StartRun)


def test_a_run_that_the_last_agent_stopped_with_itself_is_started_again():
    state = started(rules("no")).state
    step = again(state, FoundRun("w.1", START, exit=Exit(0, ended_at=START), ended_by="stop"))
    assert only(step, StartRun) == [StartRun("w.9")]


def test_a_start_that_never_happened_is_made_up_for():
    state = begin_life(intent(), rules(), at()).state
    assert only(again(state), StartRun) == [StartRun("w.9")]


def test_a_completed_one_stays_completed():
    state = ended(started(rules("no")).state, 0).state
    step = again(state)
    assert not step.instructions
    assert status_of(step.state).completed
    assert again(state, FoundRun("w.1", START, exit=Exit(0))).instructions == (ForgetRun("w.1"),)


def test_a_failed_one_stays_failed_unless_it_was_asked_for_again():
    state = ended(started(rules("no")).state, 1).state
    assert status_of(again(state).state).state is RunState.FAILED
    assert only(again(state, what=intent(generation=2)), StartRun)


def test_a_wait_goes_on_where_it_was_and_is_never_longer_than_it_can_be():
    how = rules(delay=timedelta(seconds=20), max_delay=timedelta(seconds=20))
    state = ended(started(how).state, 1, seconds=0).state
    assert only(again(state), Wait)[0].seconds == 10
    assert only(again(state, moment=at(-100000)), Wait)[0].seconds == 20
    assert only(again(state, moment=at(100000)), Wait)[0].seconds == 0


def test_orders_that_came_last_are_followed():
    alive = FoundRun("w.1", START)
    state = started().state
    stopped = again(state, alive, what=intent(generation=2, desired=DesiredState.STOPPED))
    assert stopped.instructions == (StopRun("w.1"),)
    assert again(state, alive, what=intent(generation=2, spec="spec 2")).instructions == (StopRun("w.1"),)
    assert again(state, alive, what=intent(deleting=True)).instructions == (StopRun("w.1"),)
    assert again(state, alive, what=intent(generation=2, born=2)).instructions == (StopRun("w.1"),)


def test_what_is_left_of_an_earlier_life_is_removed_first():
    done = ended(started(rules("no")).state, 0).state
    step = again(done, what=intent(generation=2, born=2))
    assert step.instructions == (ForgetWorkload(),)
    step = handle(step.state, Forgotten(), at(11, run="w.9"))
    assert only(step, StartRun) == [StartRun("w.9")]


def test_what_may_exist_only_once_is_not_started_from_memory():
    state = once_started()
    assert again(state, FoundRun("w.1", START, exit=Exit(signal=9))).state.stage is Stage.WAITING
    ended_by_deadline = again(state, FoundRun("w.1", START, exit=Exit(signal=15), ended_by="deadline"))
    assert only(ended_by_deadline, ConfirmOwnership)
    assert not only(ended_by_deadline, StartRun)
    assert not only(again(state), StartRun)


# ---------------------------------------------------------------------------------------------------------


def test_every_stage_has_moves_and_no_stage_is_out_of_reach():
    assert set(MOVES) == set(Stage)
    reachable = {Stage.RESTING}.union(*MOVES.values())
    assert reachable == set(Stage)


@pytest.mark.parametrize(
    ("exit_", "words"),
    [
        (Exit(0), "exited with code 0"),
        (Exit(signal=9), "killed by signal 9 (SIGKILL)"),
        (Exit(signal=9, out_of_memory=True), "killed: out of memory"),
        (Exit(signal=250), "killed by signal 250"),
        (Exit(unknown=True), "ended, and how is not known"),
    ],
)
def test_ends_in_words(exit_, words):
    assert describe_exit(exit_) == words


def test_what_it_printed_is_cut():
    state = replace(started().state)
    step = handle(state, RunEnded("w.1", Exit(1), "x" * 10_000), at(1))
    assert len(status_of(step.state).last_output) == 4096
