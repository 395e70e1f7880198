"""Which states a control plane can be in during the election, and which state may follow which. Pure.

The store decides who leads. Called by `election`.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.control.store.base import Leader
from shoal.core.errors import InternalError
from shoal.model.described import Described


class LeadershipState(Described):
    """Where a control plane is in the election."""

    LEADERLESS = "Leaderless", "It knows no leader. It serves reads."
    FOLLOWING = "Following", "Another control plane leads. It serves reads."
    STARTING = "Starting", "It was elected and reads the store. It serves reads."
    LEADING = "Leading", "It leads: it takes changes and commands agents."
    RESIGNED = "Resigned", "It has stopped and takes no further part."


class LeadershipChange(Described):
    """What can happen to a control plane in the election."""

    ELECTED = "Elected", "The store gave it a new term."
    STARTED = "Started", "It has read the store."
    SUPERSEDED = "Superseded", "Another control plane leads."
    VACATED = "Vacated", "Nobody leads."
    RESIGNED = "Resigned", "It stops."


_S = LeadershipState
_TAKING_PART = (_S.LEADERLESS, _S.FOLLOWING, _S.STARTING, _S.LEADING)

LEADERSHIP_TRANSITIONS: Mapping[LeadershipChange, Mapping[LeadershipState, LeadershipState]] = {
    # Also a leader: with a new term everything of the previous one ends, and it starts again.
    LeadershipChange.ELECTED: dict.fromkeys(_TAKING_PART, _S.STARTING),
    LeadershipChange.STARTED: {_S.STARTING: _S.LEADING},
    LeadershipChange.SUPERSEDED: dict.fromkeys(_TAKING_PART, _S.FOLLOWING),
    LeadershipChange.VACATED: dict.fromkeys(_TAKING_PART, _S.LEADERLESS),
    LeadershipChange.RESIGNED: dict.fromkeys(_S, _S.RESIGNED),
}
"""For each change the states in which it is possible, each with the state that follows."""


def change_leadership(state: LeadershipState, what: LeadershipChange) -> LeadershipState:
    """The state after a change. Raises `InternalError` when the table does not allow it."""
    after = LEADERSHIP_TRANSITIONS[what].get(state)
    if after is None:
        raise InternalError(f"a control plane that is {state} cannot be {what}", state=state, change=what)
    return after


def judge_leader(seen: Leader, *, holder: str) -> LeadershipChange:
    """What a new answer of the store means for the control plane with the id `holder`."""
    if seen.holder == holder:
        return LeadershipChange.ELECTED
    return LeadershipChange.SUPERSEDED if seen.holder else LeadershipChange.VACATED
