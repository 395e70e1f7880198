"""What interrupts a start or a change in place, and what follows when nobody can tell whether there is a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.agent.facts import IntentChanged, RunStarted, RunStopped, RunUpdated, Stage, StartRun, StopRun
from shoal.agent.workloads.state import begin_life, handle, reopen
from shoal.agent.workloads.views import status_of, verdict_of
from shoal.model.workloads import DesiredState, Exit, RunState
from tests.unit.agent.making import START, at, intent, rules
from tests.unit.agent.workloads.test_state import TWO, ended, updating


@pytest.mark.parametrize(
    ("newest", "is_interrupted"),
    [
        ({"desired": DesiredState.STOPPED, "spec": "two"}, True),
        ({"deleting": True, "spec": "two"}, True),
        ({"born": 9, "spec": "two"}, True),
        ({"spec": "three"}, False),
        ({"spec": "one"}, False),
    ],
    ids=["stop", "delete", "delete and apply", "another update", "back again"],
)
def test_what_is_not_wanted_interrupts_a_change_in_place(newest, is_interrupted):
    how = rules(prepares=True, updates=True)
    step = ended(updating().state, code=1)
    step = handle(step.state, IntentChanged(intent(generation=9, **newest), how), at(3))
    assert step.instructions == ((StopRun("w.1"),) if is_interrupted else ())
    assert step.state.stage is (Stage.STOPPING if is_interrupted else Stage.UPDATING)
    # Its answer comes too late.
    late = handle(step.state, RunUpdated("w.1", TWO), at(4, run="w.2"))
    assert is_interrupted == (late.state == step.state)


@pytest.mark.parametrize(
    ("newest", "is_interrupted"),
    [
        ({"desired": DesiredState.STOPPED}, True),
        ({"deleting": True}, True),
        ({"born": 9}, True),
        ({"spec": "two"}, True),
        ({"revision": "r2"}, False),
        ({"attempt": 1}, False),
    ],
    ids=["stop", "delete", "delete and apply", "update", "another revision", "another attempt"],
)
def test_what_is_not_wanted_interrupts_a_start(newest, is_interrupted):
    step = begin_life(intent(), rules(), at())
    step = handle(step.state, IntentChanged(intent(generation=9, **newest), rules()), at(1, run="w.2"))
    assert step.instructions == ((StopRun("w.1"),) if is_interrupted else ())
    assert step.state.stage is (Stage.STOPPING if is_interrupted else Stage.STARTING)
    late = handle(step.state, RunStarted("w.1", START), at(2))
    assert is_interrupted == (late.state == step.state)


@pytest.mark.parametrize(
    ("how", "newest", "instruction"),
    [
        ({}, {}, StartRun("w.1")),
        ({"at_most_one": True}, {}, StopRun("w.1")),
        ({}, {"spec": "two"}, StopRun("w.1")),
        ({}, {"deleting": True}, StopRun("w.1")),
        ({}, {"desired": DesiredState.STOPPED}, StopRun("w.1")),
    ],
    ids=["wanted", "at most one", "updated", "deleted", "stopped"],
)
def test_a_run_that_nobody_can_tell_of_is_neither_followed_nor_called_stopped(how, newest, instruction):
    progress = begin_life(intent(), rules(), at()).state.progress
    progress = replace(progress, run_id="w.1", run_sha256=intent().spec_sha256)
    step = reopen(intent(**newest), rules(**how), progress, None, at(5, run="w.2"), is_known=False)
    assert step.instructions == (instruction,)
    assert "not known yet" in step.state.note
    assert status_of(step.state).state is RunState.PENDING


@pytest.mark.parametrize("never", [None, Exit(signal=15)], ids=["never started", "ended"])
def test_a_start_that_was_interrupted_is_over_when_the_runtime_says_so(never):
    starting = begin_life(intent(), rules(), at()).state
    step = handle(starting, IntentChanged(intent(generation=2, desired=DesiredState.STOPPED), rules()), at(run="w.2"))
    over = handle(step.state, RunStopped("w.1", never), at(2, run="w.2"))
    assert (status_of(over.state).state, verdict_of(over.state).error) == (RunState.STOPPED, "")
