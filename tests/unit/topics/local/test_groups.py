"""Partitions are shared as evenly as can be, and stay where they are when they can."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.topics.local.history.groups import share

members = st.dictionaries(st.sampled_from("abcdef"), st.frozensets(st.integers(1, 3)), max_size=6)
partitions = st.dictionaries(st.integers(1, 3), st.integers(1, 9), max_size=3)


@given(members, partitions, st.dictionaries(st.tuples(st.integers(1, 4), st.integers(0, 9)), st.sampled_from("abcxyz")))
def test_every_partition_that_somebody_wants_has_one_owner_who_wants_it(subscriptions, counts, before) -> None:
    owners = share(subscriptions, counts, before)
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert owners.keys() == {(topic, n) for topic in wanted & counts.keys() for n in range(counts[topic])}
    assert all(topic in subscriptions[owner] for (topic, _), owner in owners.items())
    assert share(subscriptions, counts, before) == owners
    assert share(subscriptions, counts, owners) == owners


@given(st.sets(st.sampled_from("abcdefgh"), min_size=1), st.integers(1, 40), st.data())
def test_members_that_want_the_same_get_the_same_number(names, count, data) -> None:
    subscriptions = dict.fromkeys(names, frozenset({1}))
    before: dict = {}
    for _ in range(3):
        owners = share(subscriptions, {1: count}, before)
        loads = [list(owners.values()).count(name) for name in subscriptions]
        assert max(loads) - min(loads) <= 1
        before = owners
        subscriptions = dict.fromkeys(data.draw(st.sets(st.sampled_from("abcdefgh"), min_size=1)), frozenset({1}))


@given(st.integers(2, 6), st.integers(6, 30))
def test_a_member_that_leaves_gives_away_only_its_own(size: int, count: int) -> None:
    subscriptions = {chr(97 + number): frozenset({1}) for number in range(size)}
    before = share(subscriptions, {1: count}, {})
    after = share({name: topics for name, topics in subscriptions.items() if name != "a"}, {1: count}, before)
    assert all(after[partition] == owner for partition, owner in before.items() if owner != "a")
