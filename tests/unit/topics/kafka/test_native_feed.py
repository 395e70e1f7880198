"""Messages of several partitions that come mixed are put together, each partition's in the order they came in."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.topics.kafka import binding
from shoal.topics.kafka.native_feed import _changes, _order

#: Topics are pointers.
places = st.lists(
    st.tuples(st.sampled_from([2**47 - 8, 8, 16]), st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=12
)


def mixed(runs: list[tuple[int, int, int]]) -> Any:
    """Messages in runs: so many of a topic's partition. Every field of each is different."""
    made = np.zeros(sum(count for _topic, _partition, count in runs), binding.MESSAGE)
    for at, name in enumerate(made.dtype.names):
        made[name] = np.arange(len(made)) * 16 + at
    at = 0
    for topic, partition, count in runs:
        made["topic"][at : at + count] = topic
        made["partition"][at : at + count] = partition
        at += count
    return made


def by_place(messages: Any) -> list[int]:
    return sorted(range(len(messages)), key=lambda at: (messages["topic"][at], messages["partition"][at]))


@given(places)
@example([(8, 0, 1), (8, 1, 1), (8, 0, 1)])
@example([(8, 1, 2), (8, 0, 2)])
def test_the_order_is_a_stable_sort_by_partition(runs: list[tuple[int, int, int]]) -> None:
    messages = mixed(runs)
    bounds = _changes(messages)
    order = _order(messages, bounds)
    together = len({(topic, partition) for topic, partition, _count in runs})
    assert (order is None) == (len(bounds) - 1 == together)
    if order is not None:
        assert order.tolist() == by_place(messages)
        ordered = binding.in_order(messages, order)
        assert ordered.dtype == binding.MESSAGE
        assert ordered.tolist() == [messages[at].item() for at in by_place(messages)]
        assert len(_changes(ordered)) - 1 == together


@given(places)
def test_bounds_are_where_the_partition_changes(runs: list[tuple[int, int, int]]) -> None:
    messages = mixed(runs)
    bounds = _changes(messages)
    assert bounds[0] == 0
    assert bounds[-1] == len(messages)
    seen = [(messages["topic"][at], messages["partition"][at]) for at in bounds[:-1]]
    assert all(one != following for one, following in pairwise(seen))
    for start, end in pairwise(bounds):
        assert len({(each["topic"], each["partition"]) for each in messages[start:end]}) == 1


@given(places, st.data())
def test_what_stands_apart_is_a_run_of_its_own(runs: list[tuple[int, int, int]], data: st.DataObject) -> None:
    messages = mixed(runs)
    apart = np.array(data.draw(st.lists(st.booleans(), min_size=len(messages), max_size=len(messages))))
    bounds = _changes(messages, apart=apart)
    assert all(end - start == 1 for start, end in pairwise(bounds) if apart[start:end].any())


@given(places, st.integers(0, 5), st.data())
def test_structs_are_read_whole_wherever_they_lie(runs, gap: int, data: st.DataObject) -> None:
    """At any word, in any order, twice as well; what lies between them is not theirs."""
    messages = mixed(runs)
    size = binding.MESSAGE.itemsize
    memory = np.full((len(messages), size + 8 * gap), 0xAA, np.uint8)
    memory[:, :size] = messages.view(np.uint8).reshape(len(messages), size)
    memory = np.ascontiguousarray(memory)
    chosen = data.draw(st.lists(st.integers(0, len(messages) - 1), min_size=1))
    pointers = binding.address_of(memory) + np.array(chosen, np.int64) * memory.shape[1]
    read = binding.read_messages(pointers)
    assert read.dtype == binding.MESSAGE
    assert read.tolist() == [messages[at].item() for at in chosen]
