"""The registration of an agent: every change is in the table, and what the states promise holds after any of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.contact.states import (
    REGISTRATION_TRANSITIONS,
    RegistrationChange,
    RegistrationState,
    change_registration,
)
from shoal.core.errors import InternalError

S, C = RegistrationState, RegistrationChange


def test_the_table_names_every_change():
    assert REGISTRATION_TRANSITIONS.keys() == set(C)


def test_an_agent_whose_id_was_taken_does_nothing_more():
    for what in C:
        with pytest.raises(InternalError, match=f"that is {S.SUPERSEDED} cannot be {what}"):
            change_registration(S.SUPERSEDED, what)


@given(st.lists(st.sampled_from([each for each in C if each is not C.SUPERSEDED]), max_size=12))
def test_contact_and_refusals_last_until_something_says_otherwise(changes):
    state = S.OFFLINE
    for what in changes:
        state = change_registration(state, what)
    told = [what for what in changes if what is not C.ACCEPTED]
    assert (state is S.REGISTERED) == (told[-1:] == [C.ACKNOWLEDGED])
    said = [what for what in changes if what is not C.LOST]
    assert (state is S.REFUSED) == (said[-1:] == [C.REFUSED])
