"""The policy of every loop: a failure is logged when it starts and when it is over, however many rounds it fails."""

import logging

import pytest

from shoal.control.state.loops import Rounds
from shoal.control.store.errors import StoreError, StoreOutcome
from shoal.core.errors import ConflictError

FULL = StoreError("the disk is full", outcome=StoreOutcome.FULL)
AWAY = StoreError("the store is away")


@pytest.fixture
def rounds(caplog):
    caplog.set_level(logging.INFO, "shoal.control.state.loops")
    return Rounds("workloads")


def run(rounds, about, error=None):
    with rounds.attempt(about):
        if error is not None:
            raise error


def test_one_failure_of_many_is_logged_once_and_its_end_once(rounds, caplog):
    for _ in range(3):
        for about in ("a", "b", "c"):
            run(rounds, about, FULL)
    for about in ("a", "b", "c", "a"):
        run(rounds, about)
    assert caplog.messages == [
        "workloads, a: failed and is tried again: the disk is full",
        "workloads: succeeded again",
    ]


def test_one_that_succeeds_between_does_not_repeat_the_failure_of_another(rounds, caplog):
    for _ in range(3):
        run(rounds, "a", FULL)
        run(rounds, "b")
    assert len(caplog.messages) == 1


def test_failures_of_two_kinds_take_turns_and_each_is_logged_once(rounds, caplog):
    for _ in range(3):
        run(rounds, "a", FULL)
        run(rounds, "b", AWAY)
    assert len(caplog.messages) == 2
    run(rounds, "b", FULL)
    run(rounds, "a", AWAY)
    assert len(caplog.messages) == 3, "that the store is away is news again: meanwhile nothing failed so"


def test_what_is_no_longer_looked_after_does_not_hide_the_next_failure(rounds, caplog):
    run(rounds, "gone", FULL)
    rounds.keep_only(["a"])
    run(rounds, "a", FULL)
    run(rounds, "a")
    assert [message.split(":")[0] for message in caplog.messages] == ["workloads, gone", "workloads, a", "workloads"]


def test_a_lost_race_is_no_warning(rounds, caplog):
    run(rounds, "a", ConflictError("another writer was faster"))
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_a_bug_is_not_caught(rounds):
    with pytest.raises(ValueError, match="a bug"):
        run(rounds, "a", ValueError("a bug"))
