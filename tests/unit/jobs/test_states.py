"""The table of states: what it allows, and what no sequence of transitions can do."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InternalError, PreconditionError
from shoal.jobs.states import ACTIVE, ENDED, TABLE, Transition, check, check_action, desired_after
from shoal.model.jobs import JobAction, JobDesired, JobState, job_state

EDGES = {
    (transition, before, after)
    for transition, rows in TABLE.items()
    for before, afters in rows.items()
    for after in afters
}


def test_every_transition_is_in_the_table():
    assert set(TABLE) == set(Transition)
    assert all(TABLE[each] for each in Transition)


@pytest.mark.parametrize("transition", Transition)
def test_only_the_table_decides(transition):
    for before, after in itertools.product(JobState, JobState):
        if (transition, before, after) in EDGES:
            check(transition, before, after)
        else:
            with pytest.raises(InternalError, match="cannot go"):
                check(transition, before, after)


def test_every_state_is_reached_from_submitted_and_can_be_left():
    reached, new = set(), {JobState.SUBMITTED}
    while new:
        reached |= new
        new = {after for _t, before, after in EDGES if before in reached} - reached
    assert reached == set(JobState)
    for state in JobState:
        assert any(before is state and after is not state for _t, before, after in EDGES), state


def test_every_state_can_be_stopped_or_has_ended():
    for state in set(JobState) - ENDED - {JobState.STOPPING}:
        assert any(t in (Transition.STOP, Transition.END) and before is state for t, before, _a in EDGES), state


@given(st.lists(st.sampled_from(sorted(EDGES)), max_size=30))
def test_a_job_that_has_ended_moves_only_by_a_person(steps):
    """Walk the table at random: an ended job is left by resume, or becomes canceled or stopped, and by nothing else."""
    state = JobState.SUBMITTED
    for transition, before, after in steps:
        if before is not state:
            continue
        if state in ENDED:
            assert transition in (Transition.RESUME, Transition.END, Transition.STOP)
        if after in ACTIVE:
            assert state in ACTIVE or state is JobState.SUBMITTED
        state = after


@pytest.mark.parametrize("action", JobAction)
def test_an_action_is_taken_or_refused_with_a_way_out(action):
    for state in JobState:
        error = refusal(action, state)
        if error is not None:
            assert error.hint
            assert state in str(error)
            assert action in str(error)


def refusal(action, state):
    try:
        check_action("web", action, state)
    except PreconditionError as error:
        return error
    return None


def test_cancel_is_taken_in_every_state_but_finished():
    for state in set(JobState) - {JobState.FINISHED}:
        check_action("web", JobAction.CANCEL, state)


def test_what_is_wanted_after_an_action():
    assert desired_after(JobAction.CANCEL, JobDesired.RUNNING) is JobDesired.CANCELED
    assert desired_after(JobAction.SAVEPOINT, JobDesired.RUNNING) is JobDesired.RUNNING
    assert desired_after(JobAction.SAVEPOINT, JobDesired.RUNNING, stop=True) is JobDesired.STOPPED
    assert desired_after(JobAction.RESUME, JobDesired.STOPPED) is JobDesired.RUNNING


def test_states_have_names():
    assert all(job_state(each.value) is each for each in JobState)
    with pytest.raises(ValueError, match="not a state"):
        job_state("Flying")
