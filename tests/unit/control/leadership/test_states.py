"""A control plane's part in the election: every change is in the table, and the election follows it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.control.leadership.election import Election
from shoal.control.leadership.states import (
    LEADERSHIP_TRANSITIONS,
    LeadershipChange,
    LeadershipState,
    change_leadership,
    judge_leader,
)
from shoal.control.store.base import Leader
from shoal.core.errors import InternalError, UnavailableError
from shoal.testing.clock import LoopClock

S, C = LeadershipState, LeadershipChange


def test_the_table_names_every_change():
    assert LEADERSHIP_TRANSITIONS.keys() == set(C)


@given(st.lists(st.sampled_from(C), max_size=12))
def test_nobody_leads_without_an_election_and_a_start(changes):
    state, taken = S.LEADERLESS, []
    for what in changes:
        if state not in LEADERSHIP_TRANSITIONS[what]:
            with pytest.raises(InternalError, match=f"that is {state} cannot be {what}"):
                change_leadership(state, what)
            continue
        state = change_leadership(state, what)
        taken.append(what)
    assert (state is S.LEADING) == (taken[-2:] == [C.ELECTED, C.STARTED])
    assert (state is S.RESIGNED) == (C.RESIGNED in taken)


class Answers:
    """A store that answers each request for the leadership with the next leader."""

    def __init__(self):
        self.leader = Leader(0, "", "", 0.0)
        self.resigned = 0

    async def acquire_leadership(self, _holder, _address, *, seconds):
        return self.leader

    async def resign(self, _holder):
        self.resigned += 1


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("was", [S.LEADERLESS, S.FOLLOWING, S.LEADING])
@pytest.mark.parametrize("holder", ["", "other", "me"])
async def test_the_election_follows_the_table(holder, was, fails):
    store, failing = Answers(), False

    async def on_change(_leader, _leads):
        if failing:
            raise UnavailableError("the store cannot be read")

    clock = LoopClock(datetime(2030, 1, 1, tzinfo=UTC))
    election = Election(store, holder="me", address=lambda: "host:1", clock=clock, on_change=on_change)
    before = {S.LEADERLESS: "", S.FOLLOWING: "other", S.LEADING: "me"}[was]
    store.leader = Leader(1, before, f"{before}:1", 5.0)
    await election.once()
    assert election.state is was

    store.leader, failing = Leader(2, holder, f"{holder}:1", 5.0), fails
    elected = judge_leader(store.leader, holder="me") is C.ELECTED
    if fails:
        with pytest.raises(UnavailableError):
            await election.once()
        assert not election.leads
        failing = False
    await election.once()
    assert election.state is {"": S.LEADERLESS, "other": S.FOLLOWING, "me": S.LEADING}[holder]
    assert election.leads == elected
    await election.resign()
    assert (election.state, store.resigned) == (S.RESIGNED, int(elected))


async def test_one_that_stops_while_it_starts_resigns_too():
    store = Answers()

    async def on_change(_leader, _leads):
        raise UnavailableError("the store cannot be read")

    clock = LoopClock(datetime(2030, 1, 1, tzinfo=UTC))
    election = Election(store, holder="me", address=lambda: "host:1", clock=clock, on_change=on_change)
    store.leader = Leader(1, "me", "host:1", 5.0)
    with pytest.raises(UnavailableError):
        await election.once()
    await election.resign()
    assert (election.leads, store.resigned) == (False, 1)
