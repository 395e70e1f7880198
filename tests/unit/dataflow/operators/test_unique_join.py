"""The join whose right side has one row for each key, against nested loops."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal import PlanError, Stream, tumbling
from shoal.core.errors import PreconditionError
from shoal.dataflow.language.elements import TIME
from shoal.dataflow.language.logical import Join, JoinKind, walk
from shoal.dataflow.operators.joins import unique
from shoal.dataflow.operators.joins.unique import UniqueJoin
from shoal.dataflow.plan.documents import read_plan, write_plan
from tests.unit.dataflow.operators.driving import Fleet, cut

LEFT = pa.schema({"key": pa.int64(), "value": pa.int64(), TIME: pa.int64()})
RIGHT = pa.schema({"id": pa.int32(), "name": pa.string(), TIME: pa.int64()})
KEYS = [("key",), ("id",)]


def make(kind: JoinKind = JoinKind.INNER) -> UniqueJoin:
    return UniqueJoin(kind=kind, left=LEFT, right=RIGHT, left_keys=("key",), right_keys=("id",))


def left_batch(rows: Any) -> Any:
    keys, values = ([each[place] for each in rows] for place in range(2))
    return pa.record_batch([keys, values, [0] * len(rows)], schema=LEFT)


def right_batch(keys: Any) -> Any:
    return pa.record_batch([keys, [f"n{key}" for key in keys], [0] * len(keys)], schema=RIGHT)


def expected(lefts: Any, rights: Any, kind: JoinKind) -> Counter[Any]:
    there = {key for key in rights if key is not None}
    rows = [(key, value, key, f"n{key}") for key, value in lefts if key in there]
    if kind in (JoinKind.LEFT, JoinKind.OUTER):
        rows += [(key, value, None, None) for key, value in lefts if key not in there]
    if kind in (JoinKind.RIGHT, JoinKind.OUTER):
        met = {key for key, _value in lefts if key in there}
        rows += [(None, None, key, f"n{key}") for key in rights if key not in met]
    return Counter(rows)


@given(
    lefts=st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 12)), st.integers(0, 9)), max_size=40),
    rights=st.lists(st.one_of(st.none(), st.integers(0, 12)), unique=True, max_size=14),
    turns=st.lists(st.booleans(), min_size=1, max_size=20),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    restarts=st.dictionaries(st.integers(0, 12), st.integers(1, 3), max_size=2),
    kind=st.sampled_from(list(JoinKind)),
)
@settings(max_examples=80, deadline=None)
def test_whatever_comes_first(*, lefts, rights, turns, sizes, restarts, kind):
    waiting = {False: cut(lefts, sizes), True: cut(rights, sizes)}
    fleet = Fleet(lambda: make(kind), KEYS, 2)
    number = 0
    while waiting[False] or waiting[True]:
        is_right = turns[number % len(turns)]
        is_right = is_right if waiting[is_right] else not is_right
        rows = waiting[is_right].pop(0)
        fleet.feed(right_batch(rows) if is_right else left_batch(rows), int(is_right))
        if number in restarts:
            fleet = fleet.restored(restarts[number])
        number += 1
    fleet.end()
    assert all(batch.num_rows <= fleet.max_rows for batch in fleet.out.batches)
    assert Counter(fleet.out.rows("key", "value", "id", "name")) == expected(lefts, rights, kind)


def test_rows_that_have_met_their_partner_are_not_kept():
    fleet = Fleet(make, KEYS)
    fleet.feed(left_batch([(1, 1), (2, 2), (1, 3)]))
    assert fleet.operators[0].statistics()["left_rows"] == 3
    fleet.feed(right_batch([1]), 1)
    assert fleet.operators[0].statistics()["left_rows"] == 1
    fleet.feed(left_batch([(1, 4)] * 5))
    assert fleet.operators[0].statistics() == {"left_rows": 1, "right_rows": 1, "keys": 2}


def test_partners_old_and_new_are_found_in_one_batch(monkeypatch):
    monkeypatch.setattr(unique, "_LEAST_RECENT", 8)
    fleet = Fleet(make, KEYS, max_rows=1000)
    known = 0
    for count in (1, 30, 3, 3, 40, 2):
        fleet.feed(right_batch(list(range(known, known + count))), 1)
        known += count
        before = len(fleet.out.rows())
        wanted = [(key, key) for key in reversed(range(known))]
        fleet.feed(left_batch(wanted))
        rows = fleet.out.rows("key", "value", "id", "name")[before:]
        assert sorted(rows) == [(key, key, key, f"n{key}") for key in range(known)]


@pytest.mark.parametrize(("before", "keys"), [([5], [1, 2, 1]), ([1, 2], [3, 2])])
def test_a_second_row_of_a_key_is_refused(before, keys):
    fleet = Fleet(make, KEYS)
    fleet.feed(right_batch(before), 1)
    with pytest.raises(PreconditionError, match=r"second row with \{'id': [12]\}"):
        fleet.feed(right_batch(keys), 1)


def test_as_users_write_it():
    bids = Stream.from_dicts([{"item": 1, "price": 5}, {"item": 2, "price": 6}, {"item": 1, "price": 7}], batch_size=1)
    items = Stream.from_dicts([{"item": 1, "name": "lamp"}])
    for width in (1, 2):
        rows = bids.join(items, on="item", right_is_unique=True).to_pylist(parallelism=width)
        assert sorted(row["price"] for row in rows) == [5, 7]
    kept = write_plan([bids.join(items, on="item", right_is_unique=True).to_callback(print).node])
    assert any(isinstance(node, Join) and node.right_is_unique for node in walk(*read_plan(kept)))
    assert "one on the right" in str(bids.join(items, on="item", right_is_unique=True).explain())
    with pytest.raises(PlanError, match="right_is_unique"):
        bids.join(items, on="item", right_is_unique=True, window=tumbling(1))
    with pytest.raises(PlanError, match="right_is_unique"):
        bids.join(items, on="item", right_is_unique=True, ttl="1s")


def test_what_follows_by_the_same_key_needs_no_exchange():
    bids = Stream.from_dicts([{"item": 1, "price": 5}])
    items = Stream.from_dicts([{"item": 1, "name": "lamp"}])
    best = bids.join(items, on="item", right_is_unique=True).group_by("item").max("price")
    assert best.to_pylist(parallelism=3) == [{"item": 1, "price": 5}]
    plan = str(best.explain(parallelism=3))
    stage = next(part for part in plan.split("stage ") if "join" in part.partition("\n")[2] and "tasks" in part)
    assert "aggregate(item)" in stage


def test_rows_behind_a_union_of_timed_and_untimed_ones_are_joined() -> None:
    def rows(name: str, count: int) -> Stream:
        made = [{"key": f"{name}{number}", "at": number} for number in range(count)]
        return Stream.from_dicts(made, event_time="at", time_unit="s", batch_size=1)

    timed = rows("a", 3).join(rows("a", 3), on="key", within="1s").select("key", "at")  # has event time for itself
    mixed = timed.union(rows("b", 9))
    asked = Stream.from_dicts([{"key": f"{name}{number}"} for name in "ab" for number in range(9)], batch_size=2)
    for is_unique in (False, True):
        assert asked.join(mixed, on="key", right_is_unique=is_unique).count() == 12
        assert mixed.join(asked, on="key", right_is_unique=is_unique).count() == 12
