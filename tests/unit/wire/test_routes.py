"""The leader is found among several addresses."""

import pytest

from shoal.core.errors import InvalidError, NotFoundError, NotLeaderError, UnavailableError
from shoal.wire.routes import ControlAddresses, ask_in_turn, named_leader

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


class OneWay:
    """A connection that notes whom it asked; `fails` has the error of each address that does not answer."""

    def __init__(self, addresses, fails):
        self.addresses, self.fails = addresses, fails
        self.asked, self.is_closed = [], False
        self._at = 0

    async def use_next(self):
        self._at = (self._at + 1) % len(self.addresses)

    async def close(self):
        self.is_closed = True

    async def ask(self):
        address = self.addresses[self._at]
        self.asked.append(address)
        if address in self.fails:
            raise self.fails[address]
        return address


AWAY, FOLLOWS, WRONG = UnavailableError("away"), NotLeaderError(""), NotFoundError("workload", "w")


@pytest.mark.parametrize(
    ("addresses", "fails", "asked", "raised"),
    [
        ([A], {}, [A], None),
        ([A], {A: AWAY}, [A], AWAY),
        ([A, B, C], {A: AWAY}, [A, B], None),
        ([A, B, C], {A: AWAY, B: FOLLOWS}, [A, B, C], None),
        ([A, B, C], {A: AWAY, B: FOLLOWS, C: AWAY}, [A, B, C], AWAY),
        ([A, B], {A: WRONG}, [A], WRONG),
    ],
    ids=["first", "only-one", "second", "last", "none", "no-use-asking-another"],
)
async def test_addresses_are_asked_in_turn_each_once(addresses, fails, asked, raised):
    way = OneWay(addresses, fails)
    if raised is None:
        assert await ask_in_turn(lambda: way, OneWay.ask) == asked[-1]
    else:
        with pytest.raises(type(raised)):
            await ask_in_turn(lambda: way, OneWay.ask)
    assert (way.asked, way.is_closed) == (asked, True)
