"""What a reader holds between its client and its caller."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from shoal.topics.kafka.feed import to_batch
from shoal.topics.kafka.fetch_buffer import FetchBuffer


def message(offset: int, **given: Any) -> Message:
    return Message(**{"topic": "t", "partition": 0, "offset": offset, "value": b"v", "timestamp": (1, 5)} | given)


def offsets(batches: list[Any]) -> list[int]:
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


def test_what_was_returned_before_is_not_buffered_again() -> None:
    buffer = FetchBuffer(2)
    buffer.add(to_batch([message(at) for at in range(4)]))
    buffer.add(to_batch([message(at) for at in range(1, 4)]))
    buffer.add(to_batch([message(at) for at in range(3, 6)]))
    assert (offsets(buffer.take(10, 1000, at_least_one=True)), buffer.position) == ([2, 3, 4, 5], 6)


def test_the_end_lies_behind_what_is_buffered() -> None:
    buffer = FetchBuffer(0)
    buffer.add(to_batch([message(0), message(1)]))
    buffer.reach_end(5)
    assert buffer.position == 0
    buffer.take(1, 1000, at_least_one=True)
    assert buffer.position == 1
    buffer.take(1, 1000, at_least_one=True)
    assert buffer.position == 5
    buffer.reach_end(3)  # an earlier report that comes late
    assert buffer.position == 5
    buffer.add(to_batch([message(6)]))
    assert (buffer.end, buffer.position) == (None, 5)


Runs = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=400), max_size=8)


@given(lengths=Runs, bounds=st.lists(st.tuples(st.integers(1, 500), st.integers(1, 2000)), max_size=20), data=st.data())
def test_all_is_returned_once_in_order_and_within_bounds(
    lengths: list[list[int]], bounds: list[tuple[int, int]], data: st.DataObject
) -> None:
    buffer, expected, returned, at = FetchBuffer(0), [], [], 0
    pending = list(lengths)
    for records, size in bounds:
        while pending and data.draw(st.booleans()):
            run = pending.pop()
            buffer.add(to_batch([message(at + index, value=b"x" * length) for index, length in enumerate(run)]))
            expected.extend(range(at, at + len(run)))
            at += len(run) + 1  # a hole
        batches = buffer.take(records, size, at_least_one=True)
        found = offsets(batches)
        total = sum(len(value) for batch in batches for value in batch.column(2).to_pylist())
        assert len(found) <= records
        assert total <= size or len(found) == 1
        returned.extend(found)
        assert returned == expected[: len(returned)]
        assert buffer.records == len(expected) - len(returned)
        assert buffer.position == (returned[-1] + 1 if returned else 0)
    returned.extend(offsets(buffer.take(10**9, 10**9, at_least_one=True)))
    assert returned == expected
    assert (buffer.records, buffer.size) == (0, 0)
