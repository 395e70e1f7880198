"""Which states the registration of an agent can be in, and which state may follow which. Pure.

Called by `shoal.agent.contact.registration`.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.core.errors import InternalError
from shoal.model.described import Described


class RegistrationState(Described):
    """How an agent stands with the control plane."""

    OFFLINE = "offline", "The control plane was not reached, or not lately."
    REGISTERED = "registered", "The control plane acknowledges heartbeats."
    REFUSED = "refused", "The control plane refuses this node, with a reason."
    SUPERSEDED = "superseded", "Another agent took this node id; this one sends nothing."


class RegistrationChange(Described):
    """What can happen to a registration."""

    ACCEPTED = "accepted", "The control plane has taken the node in."
    ACKNOWLEDGED = "acknowledged", "The control plane has acknowledged a heartbeat."
    LOST = "lost", "A call failed."
    FORGOTTEN = "forgotten", "The control plane does not know the node, or its session."
    REFUSED = "refused", "The control plane does not take the node in."
    SUPERSEDED = "superseded", "Another agent took the node id."


_S = RegistrationState
_TRYING = (_S.OFFLINE, _S.REGISTERED, _S.REFUSED)

REGISTRATION_TRANSITIONS: Mapping[RegistrationChange, Mapping[RegistrationState, RegistrationState]] = {
    # Only a heartbeat proves contact. A node that registers again, because what it can run has changed, stays in it.
    RegistrationChange.ACCEPTED: {
        _S.OFFLINE: _S.OFFLINE,
        _S.REFUSED: _S.OFFLINE,
        _S.REGISTERED: _S.REGISTERED,
    },
    RegistrationChange.ACKNOWLEDGED: dict.fromkeys(_TRYING, _S.REGISTERED),
    # A refusal says more than that the next try failed.
    RegistrationChange.LOST: {
        _S.OFFLINE: _S.OFFLINE,
        _S.REGISTERED: _S.OFFLINE,
        _S.REFUSED: _S.REFUSED,
    },
    RegistrationChange.FORGOTTEN: dict.fromkeys(_TRYING, _S.OFFLINE),
    RegistrationChange.REFUSED: dict.fromkeys(_TRYING, _S.REFUSED),
    RegistrationChange.SUPERSEDED: dict.fromkeys(_TRYING, _S.SUPERSEDED),
}
"""For each change the states in which it is possible, each with the state that follows."""


def change_registration(state: RegistrationState, what: RegistrationChange) -> RegistrationState:
    """The state after a change. Raises `InternalError` when the table does not allow it."""
    after = REGISTRATION_TRANSITIONS[what].get(state)
    if after is None:
        raise InternalError(f"a registration that is {state} cannot be {what}", state=state, change=what)
    return after
