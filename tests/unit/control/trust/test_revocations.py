"""Which certificates a revocation covers, and how many revocations are kept."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shoal.control.state.fleet import Fleet
from shoal.control.store.base import Batch
from shoal.control.trust import revocations
from shoal.control.trust.revocations import UNSEEN_LIFETIME, Revocations
from shoal.core.errors import UnauthenticatedError
from shoal.core.ids import NodeId
from shoal.model.identity import CLOCK_SKEW, Caller, Identity, Role, workload_identity
from shoal.model.trust import JOINED_LIFETIME, Revocation
from shoal.testing.control import START
from shoal.testing.suites.store_records import node

N1 = NodeId("n1")
AGENT = Identity(Role.AGENT, "blue", "n1")
LATER = timedelta(seconds=1)


def caller(identity=AGENT, *, issued_at=START, lives=timedelta(days=1)):
    return Caller(identity, issued_at - CLOCK_SKEW, issued_at + lives)


def revoke(fleet, known, node_id=N1, *, at=START):
    revocation, dropped = known.revoke(node_id, "the node was removed", at=at)
    fleet.take(Batch(revocations=(revocation,), removed_revocations=dropped))
    return fleet.revocations[node_id]


@pytest.fixture
def fleet():
    fleet = Fleet()
    fleet.take(Batch(nodes=(node("n1"), node("n2"))))
    return fleet


@pytest.mark.parametrize(
    ("identity", "issued_at", "is_refused"),
    [
        (AGENT, START, True),
        (AGENT, START - timedelta(days=300), True),
        (workload_identity("blue", job="clicks", node="n1"), START, True),
        (AGENT, START + LATER, False),
        (Identity(Role.AGENT, "blue", "n2"), START, False),
        (workload_identity("blue", job="clicks", node="n2"), START, False),
        (Identity(Role.OPERATOR, "blue", "n1"), START, False),
        (Identity(Role.CONTROL, "blue", "n1"), START, False),
    ],
    ids=["now", "long ago", "its workload", "later", "another", "another's workload", "operator", "control"],
)
def test_a_revocation_covers_the_certificates_of_its_node_that_were_issued_before(
    fleet, identity, issued_at, is_refused
):
    known = Revocations(fleet)
    revoke(fleet, known)
    if not is_refused:
        known.check(caller(identity, issued_at=issued_at))
        return
    with pytest.raises(UnauthenticatedError, match=r"was revoked at .* UTC: the node was removed") as caught:
        known.check(caller(identity, issued_at=issued_at))
    assert "shoal token create --node-id n1" in caught.value.hint


def test_a_certificate_is_dated_so_that_no_revocation_covers_it(fleet):
    known = Revocations(fleet)
    assert known.first_valid_issue(N1, START) == START
    revoke(fleet, known)
    issued_at = known.first_valid_issue(N1, START)
    known.check(caller(issued_at=issued_at.replace(microsecond=0)))
    assert known.first_valid_issue(N1, START + timedelta(hours=1)) == START + timedelta(hours=1)


@pytest.mark.parametrize("lives", [timedelta(hours=1), timedelta(days=400)], ids=["short", "long"])
def test_a_revocation_ends_with_the_last_certificate_that_it_covers(fleet, lives):
    known = Revocations(fleet)
    known.check(caller(lives=lives))
    assert revoke(fleet, known).ends_at == START + max(lives, JOINED_LIFETIME)


def test_a_revocation_of_a_certificate_that_was_never_shown_lasts_as_long_as_any_can(fleet):
    assert revoke(fleet, Revocations(fleet)).ends_at == START + UNSEEN_LIFETIME


def test_a_certificate_from_a_clock_that_is_ahead_is_covered(fleet):
    known = Revocations(fleet)
    shown = caller(issued_at=START + timedelta(minutes=3))
    known.check(shown)
    revoke(fleet, known)
    with pytest.raises(UnauthenticatedError):
        known.check(shown)


def test_revocations_that_have_ended_are_dropped_with_the_next_one(fleet):
    known = Revocations(fleet)
    revoke(fleet, known)
    revoke(fleet, known, NodeId("n2"), at=START + UNSEEN_LIFETIME)
    assert set(fleet.revocations) == {"n2"}


def test_there_is_one_revocation_for_a_node(fleet):
    known = Revocations(fleet)
    revoke(fleet, known)
    again = revoke(fleet, known, at=START + timedelta(hours=1))
    assert (again.version, again.revoked_at) == (2, START + timedelta(hours=1))
    assert len(fleet.revocations) == 1


def test_beyond_the_bound_the_revocation_that_ends_first_is_dropped(fleet, monkeypatch, caplog):
    monkeypatch.setattr(revocations, "MOST_REVOCATIONS", 2)
    known = Revocations(fleet)
    ends = {"a": 3, "b": 1}
    fleet.take(
        Batch(
            revocations=tuple(
                Revocation(NodeId(name), START, START + timedelta(days=days), "x") for name, days in ends.items()
            )
        )
    )
    revoke(fleet, known)
    assert set(fleet.revocations) == {"a", "n1"}
    assert "dropped that of node b" in caplog.text
