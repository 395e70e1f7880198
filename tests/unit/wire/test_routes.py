"""The leader is found among several addresses."""

import pytest

from shoal.core.errors import InvalidError, NotLeaderError
from shoal.wire.routes import ControlAddresses, named_leader

A, B, C = "a:1", "b:2", "c:3"


@pytest.mark.parametrize(
    ("named", "leader"), [(A, A), ("[::1]:5", "[::1]:5"), ("", ""), ("nonsense", ""), ("a:0", ""), ("a:1/b", "")]
)
def test_a_leader_is_an_address_that_can_be_dialed(named, leader):
    assert named_leader(NotLeaderError(named)) == leader


def test_the_leader_is_used_whether_or_not_it_is_configured():
    addresses = ControlAddresses([A, B], field="control")
    assert addresses.follow(NotLeaderError(C))
    assert (addresses.current, addresses.in_order(), addresses.has_others) == (C, [C, A, B], True)
    assert not addresses.follow(NotLeaderError(C))
    assert not addresses.follow(NotLeaderError(""))
    addresses.use_next()
    assert addresses.current == B
    assert addresses.follow(NotLeaderError(A))
    addresses.use_next()
    assert addresses.in_order() == [B, A]


def test_with_one_address_there_is_no_other_unless_a_leader_was_named():
    addresses = ControlAddresses([A], field="control")
    assert not addresses.has_others
    addresses.use_next()
    assert addresses.current == A
    assert addresses.follow(NotLeaderError(B))
    assert addresses.has_others


def test_there_is_at_least_one():
    with pytest.raises(InvalidError, match="control: must have at least one address"):
        ControlAddresses([], field="control")
