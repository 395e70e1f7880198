"""The checkpoint protocol: what it decides, and what it never does whatever happens in whatever order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.dataflow.checkpoint import protocol
from shoal.dataflow.checkpoint.messages import TaskId
from shoal.dataflow.checkpoint.protocol import (
    Discard,
    GiveUp,
    Members,
    NoteCommitted,
    Phase,
    Rules,
    SendCommit,
    SendFinish,
    SendTrigger,
    WriteManifest,
)

SOURCE, MIDDLE, SINK = TaskId(0, 0), TaskId(1, 0), TaskId(2, 0)
EVERYONE = frozenset({SOURCE, MIDDLE, SINK})
MEMBERS = Members(EVERYONE, frozenset({SOURCE}), frozenset({SINK}))
RULES = Rules(interval=10.0, min_pause=2.0, timeout=60.0, tolerated_failures=1)


def begun(number: int = 0, now: float = 10.0) -> protocol.State:
    state, _instructions = protocol.tick(protocol.begin_run(number, 0.0), MEMBERS, RULES, now)
    return state


def acknowledged(state: protocol.State) -> tuple[protocol.State, tuple]:
    instructions: tuple = ()
    for task in sorted(EVERYONE):
        state, instructions = protocol.acknowledge(state, task, state.number)
    return state, instructions


def test_the_first_one_begins_soon_and_triggers_the_sources():
    state = protocol.begin_run(7, 0.0)
    soon = replace(RULES, min_pause=0.0)
    assert protocol.due_at(state, MEMBERS, soon) == pytest.approx(0.1)
    assert protocol.tick(state, MEMBERS, soon, 0.09) == (state, ())
    state, instructions = protocol.tick(state, MEMBERS, soon, 0.11)
    assert instructions == (SendTrigger(8, frozenset({SOURCE})),)
    assert state.phase is Phase.COLLECTING


def test_each_later_one_waits_twice_as_long_up_to_the_interval():
    state, now, waits = protocol.begin_run(0, 0.0), 0.0, []
    rules = replace(RULES, interval=1.0, min_pause=0.0)
    for number in range(1, 7):
        due = protocol.due_at(state, MEMBERS, rules)
        waits.append(due - now)
        now = due
        state, _ = acknowledged(protocol.tick(state, MEMBERS, rules, now)[0])
        state, _ = protocol.complete(state, MEMBERS, number, now)
        state, _ = protocol.commit(state, SINK, number, now)
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_the_manifest_is_written_when_all_have_acknowledged_and_not_before():
    state = begun()
    state, nothing = protocol.acknowledge(state, SINK, 1)
    assert nothing == ()
    state, nothing = protocol.acknowledge(state, SINK, 1)  # twice is once
    assert nothing == ()
    state, nothing = protocol.acknowledge(state, MIDDLE, 1)
    assert nothing == ()
    state, instructions = protocol.acknowledge(state, SOURCE, 1)
    assert instructions == (WriteManifest(1, final=False),)


def test_sinks_commit_when_it_is_complete_and_the_next_waits_for_them():
    state, _ = acknowledged(begun())
    state, instructions = protocol.complete(state, MEMBERS, 1, 11.0)
    assert instructions == (SendCommit(1, frozenset({SINK})),)
    assert protocol.tick(state, MEMBERS, RULES, 30.0) == (state, ())
    state, instructions = protocol.commit(state, SINK, 1, 31.0)
    assert instructions == (NoteCommitted(1),)
    assert protocol.tick(state, MEMBERS, RULES, 32.9)[1] == ()  # the pause
    assert protocol.tick(state, MEMBERS, RULES, 33.0)[1] == (SendTrigger(2, frozenset({SOURCE})),)


def test_one_that_was_asked_for_does_not_wait_for_the_interval():
    state, _ = acknowledged(begun())
    state, _ = protocol.complete(state, MEMBERS, 1, 11.0)
    state, _ = protocol.commit(state, SINK, 1, 11.0)
    state, _ = protocol.ask(state)
    assert protocol.due_at(state, MEMBERS, RULES) == 13.0


def test_a_task_that_ends_while_it_is_waited_for_is_triggered():
    state, instructions = protocol.drain(begun(), MIDDLE)
    assert instructions == (SendTrigger(1, frozenset({MIDDLE})),)
    state, _ = protocol.acknowledge(state, SINK, 1)
    assert protocol.drain(state, SINK)[1] == ()  # it has answered already


def test_tasks_that_have_ended_are_triggered_like_sources():
    state, _ = protocol.drain(protocol.begin_run(0, 0.0), MIDDLE)
    assert protocol.tick(state, MEMBERS, RULES, 10.0)[1] == (SendTrigger(1, frozenset({SOURCE, MIDDLE})),)


def test_when_all_have_ended_the_last_one_comes_at_once_and_then_the_end():
    state = protocol.begin_run(0, 0.0)
    for task in EVERYONE:
        state, _ = protocol.drain(state, task)
    state, instructions = protocol.tick(state, MEMBERS, RULES, 0.0)
    assert instructions == (SendTrigger(1, EVERYONE),)
    state, instructions = acknowledged(state)
    assert instructions == (WriteManifest(1, final=True),)
    state, _ = protocol.complete(state, MEMBERS, 1, 0.1)
    state, instructions = protocol.commit(state, SINK, 1, 0.2)
    assert instructions == (NoteCommitted(1), SendFinish())
    assert state.phase is Phase.OVER


def test_one_that_was_under_way_when_all_ended_is_not_the_last():
    state = begun()
    for task in EVERYONE:
        state, _ = protocol.drain(state, task)
    state, instructions = acknowledged(state)
    assert instructions == (WriteManifest(1, final=False),)
    state, _ = protocol.complete(state, MEMBERS, 1, 11.0)
    state, instructions = protocol.commit(state, SINK, 1, 11.0)
    assert instructions == (NoteCommitted(1),)
    assert protocol.tick(state, MEMBERS, RULES, 11.0)[1] == (SendTrigger(2, EVERYONE),)


def test_one_that_takes_too_long_is_given_up_and_the_next_has_a_new_number():
    state, instructions = protocol.tick(begun(), MEMBERS, RULES, 70.0)
    assert instructions == (Discard(1, "tasks 0.0, 1.0, 2.0 did not answer in time"),)
    assert protocol.acknowledge(state, SINK, 1) == (state, ())  # late
    assert protocol.tick(state, MEMBERS, RULES, 72.0)[1] == (SendTrigger(2, frozenset({SOURCE})),)


def test_too_many_failures_in_a_row_fail_the_run():
    state, _ = protocol.fail(begun(), RULES, 1, "late", 11.0)
    state, _ = protocol.tick(state, MEMBERS, RULES, 30.0)
    state, instructions = protocol.fail(state, RULES, 2, "late", 31.0)
    assert instructions == (Discard(2, "late"), GiveUp("2 checkpoints in a row failed, the last: late"))


def test_one_that_cannot_be_written_is_tried_again_as_long_as_the_job_runs():
    state, now = begun(), 11.0
    for number in range(1, 50):
        state, instructions = protocol.fail(state, RULES, number, "disk full", now, is_unwritten=True)
        assert instructions == (Discard(number, "disk full"),)
        now += 10.0
        state, instructions = protocol.tick(state, MEMBERS, RULES, now)
        assert instructions == (SendTrigger(number + 1, frozenset({SOURCE})),)


def test_the_last_one_of_a_run_is_not_tried_for_ever():
    """However many could not be written while it ran: the last one has its own attempts."""
    state, now = begun(), 11.0
    for number in range(1, 6):
        state, _ = protocol.fail(state, RULES, number, "disk full", now, is_unwritten=True)
        now += 10.0
        state, _ = protocol.tick(state, MEMBERS, RULES, now)
    state, _ = protocol.fail(state, RULES, state.number, "disk full", now, is_unwritten=True)
    for task in EVERYONE:
        state, _ = protocol.drain(state, task)
    outcomes = []
    for _attempt in range(2):
        now = protocol.due_at(state, MEMBERS, RULES)
        state, _ = protocol.tick(state, MEMBERS, RULES, now)
        assert state.final
        state, outcome = protocol.fail(state, RULES, state.number, "disk full", now, is_unwritten=True)
        outcomes.append(outcome[1:])
    assert outcomes == [(), (GiveUp("2 checkpoints in a row failed, the last: disk full"),)]
    assert state.phase is Phase.OVER


def test_one_that_succeeds_forgives_those_before():
    state, _ = protocol.fail(begun(), RULES, 1, "disk full", 11.0)
    state, _ = protocol.tick(state, MEMBERS, RULES, 30.0)
    state, _ = acknowledged(state)
    state, _ = protocol.complete(state, MEMBERS, 2, 31.0)
    assert state.failures == 0


def test_a_sink_that_does_not_commit_fails_the_run():
    state, _ = acknowledged(begun())
    state, _ = protocol.complete(state, MEMBERS, 1, 11.0)
    _state, instructions = protocol.tick(state, MEMBERS, RULES, 71.0)
    assert isinstance(instructions[0], GiveUp)


EVENTS = st.one_of(
    st.tuples(st.just("tick"), st.floats(0, 30)),
    st.tuples(st.just("ack"), st.sampled_from(sorted(EVERYONE)), st.integers(-1, 1)),
    st.tuples(st.just("commit"), st.integers(-1, 1)),
    st.tuples(st.just("drain"), st.sampled_from(sorted(EVERYONE))),
    st.tuples(st.just("written"), st.booleans()),
    st.tuples(st.just("ask")),
)


@given(st.lists(EVENTS, max_size=80))
def test_whatever_happens_nothing_is_committed_that_is_not_complete(events):
    state, now = protocol.begin_run(0, 0.0), 0.0
    acks: dict[int, set[TaskId]] = {}
    complete: set[int] = set()
    committed: list[int] = []
    waiting: int | None = None
    for event in events:
        match event:
            case ("tick", seconds):
                now += seconds
                state, out = protocol.tick(state, MEMBERS, RULES, now)
            case ("ack", task, shift):
                number = state.number + shift
                acks.setdefault(number, set()).add(task)
                state, out = protocol.acknowledge(state, task, number)
            case ("commit", shift):
                state, out = protocol.commit(state, SINK, state.number + shift, now)
            case ("drain", task):
                state, out = protocol.drain(state, task)
            case ("written", is_good) if waiting is not None:
                number, waiting = waiting, None
                if is_good:
                    complete.add(number)
                    state, out = protocol.complete(state, MEMBERS, number, now)
                else:
                    state, out = protocol.fail(state, RULES, number, "full", now)
            case _:
                state, out = protocol.ask(state)
        for each in out:
            match each:
                case WriteManifest(number):
                    assert acks[number] >= EVERYONE
                    assert waiting is None
                    waiting = number
                case SendCommit(number):
                    assert number in complete
                    committed.append(number)
                case Discard(number):
                    assert number not in complete
    assert committed == sorted(set(committed))
