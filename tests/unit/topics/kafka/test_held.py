"""What a reader holds between its client and its caller."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from shoal.topics.kafka.feed import to_batch
from shoal.topics.kafka.held import Held


def message(offset: int, **given: Any) -> Message:
    return Message(**{"topic": "t", "partition": 0, "offset": offset, "value": b"v", "timestamp": (1, 5)} | given)


def offsets(batches: list[Any]) -> list[int]:
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


def test_what_was_given_before_is_not_held_again() -> None:
    held = Held(2)
    held.add(to_batch([message(at) for at in range(4)]))
    held.add(to_batch([message(at) for at in range(1, 4)]))
    held.add(to_batch([message(at) for at in range(3, 6)]))
    assert (offsets(held.take(10, 1000, at_least_one=True)), held.position) == ([2, 3, 4, 5], 6)


def test_the_end_lies_behind_what_is_held() -> None:
    held = Held(0)
    held.add(to_batch([message(0), message(1)]))
    held.reach_end(5)
    assert held.position == 0
    held.take(1, 1000, at_least_one=True)
    assert held.position == 1
    held.take(1, 1000, at_least_one=True)
    assert held.position == 5
    held.reach_end(3)  # said before, and late
    assert held.position == 5
    held.add(to_batch([message(6)]))
    assert (held.end, held.position) == (None, 5)


Runs = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=400), max_size=8)


@given(lengths=Runs, bounds=st.lists(st.tuples(st.integers(1, 500), st.integers(1, 2000)), max_size=20), data=st.data())
def test_all_is_given_once_in_order_and_within_bounds(
    lengths: list[list[int]], bounds: list[tuple[int, int]], data: st.DataObject
) -> None:
    held, expected, given_out, at = Held(0), [], [], 0
    pending = list(lengths)
    for records, size in bounds:
        while pending and data.draw(st.booleans()):
            run = pending.pop()
            held.add(to_batch([message(at + index, value=b"x" * length) for index, length in enumerate(run)]))
            expected.extend(range(at, at + len(run)))
            at += len(run) + 1  # a hole
        batches = held.take(records, size, at_least_one=True)
        found = offsets(batches)
        total = sum(len(value) for batch in batches for value in batch.column(2).to_pylist())
        assert len(found) <= records
        assert total <= size or len(found) == 1
        given_out.extend(found)
        assert given_out == expected[: len(given_out)]
        assert held.records == len(expected) - len(given_out)
        assert held.position == (given_out[-1] + 1 if given_out else 0)
    given_out.extend(offsets(held.take(10**9, 10**9, at_least_one=True)))
    assert given_out == expected
    assert (held.records, held.size) == (0, 0)
