"""Channels and inboxes: order, bounds, alignment, fairness."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.dataflow.execution.alignment import AlignedInbox, Idle, send
from shoal.dataflow.language.elements import Barrier, End, Watermark
from shoal.exchange.errors import Cancelled
from shoal.exchange.inbox import size_of


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(values, pa.int64())})


def put(inbox: AlignedInbox, index: int, element) -> None:
    send(inbox.sender(index, str(index)), element)


def drain(inbox: AlignedInbox, **options) -> list:
    found = []
    while (received := inbox.receive(0, **options)) is not None:
        found.append((received.channel, received.element))
    return found


def test_elements_of_a_channel_keep_their_order():
    inbox = AlignedInbox([0], capacity=1 << 20)
    elements = [batch(1), Watermark(5), batch(2), Watermark(6), Idle(), batch(3), Watermark(7), End()]
    for each in elements:
        put(inbox, 0, each)
    assert [element for _channel, element in drain(inbox)] == elements


def test_a_full_channel_takes_everything_but_batches():
    inbox = AlignedInbox([0], capacity=size_of(batch(1, 2)))
    put(inbox, 0, batch(1, 2))
    for each in (Watermark(1), Barrier(1), End(), Idle()):
        put(inbox, 0, each)
    blocked = threading.Thread(target=put, args=(inbox, 0, batch(3)), daemon=True)
    blocked.start()
    blocked.join(timeout=0.05)
    assert blocked.is_alive()
    inbox.receive(0)
    blocked.join(timeout=60)
    assert not blocked.is_alive()


def test_a_batch_larger_than_the_channel_fits_when_it_is_empty():
    inbox = AlignedInbox([0], capacity=1)
    put(inbox, 0, batch(*range(100)))
    assert inbox.receive(0).element.num_rows == 100
    assert inbox.waiting_bytes == 0


def test_who_waits_for_room_hears_of_the_end_of_the_run():
    inbox = AlignedInbox([0], capacity=1)
    put(inbox, 0, batch(1))
    heard = threading.Event()

    def wait_for_room() -> None:
        with pytest.raises(Cancelled):
            put(inbox, 0, batch(2))
        heard.set()

    thread = threading.Thread(target=wait_for_room, daemon=True)
    thread.start()
    inbox.cancel()
    assert heard.wait(60)
    with pytest.raises(Cancelled):
        inbox.receive(None)


def test_a_channel_that_brought_the_barrier_waits_for_the_others():
    inbox = AlignedInbox([0, 0], capacity=1 << 20)
    put(inbox, 0, Barrier(1))
    put(inbox, 0, batch(9))
    put(inbox, 1, batch(1))
    put(inbox, 1, batch(2))
    assert drain(inbox) == [(1, batch(1)), (1, batch(2))]
    put(inbox, 1, Barrier(1))
    assert drain(inbox) == [(-1, Barrier(1)), (0, batch(9))]


def test_a_channel_that_ended_counts_as_aligned():
    inbox = AlignedInbox([0, 0], capacity=1 << 20)
    put(inbox, 0, Barrier(3))
    put(inbox, 1, End())
    assert drain(inbox) == [(1, End()), (-1, Barrier(3))]


def test_channels_are_read_in_turn():
    inbox = AlignedInbox([0, 0, 0], capacity=1 << 20)
    for value in range(3):
        for channel in range(3):
            put(inbox, channel, batch(value))
    assert [channel for channel, _element in drain(inbox)] == [0, 1, 2] * 3


def test_what_was_sent_by_several_channels_is_read_in_that_order():
    inbox = AlignedInbox([0, 1], capacity=1 << 20)
    for value in range(3):
        for channel in (1, 0):
            put(inbox, channel, batch(value))
    assert [channel for channel, _element in drain(inbox)] == [1, 0] * 3


def test_a_busy_channel_holds_no_other_up():
    inbox = AlignedInbox([0, 0], capacity=1 << 20)
    for value in range(4):
        put(inbox, 0, batch(value))
    put(inbox, 1, batch(9))
    assert [channel for channel, _element in drain(inbox)] == [0, 1, 0, 0, 0]


def test_preferred_ports_are_read_first_and_others_not_at_all():
    inbox = AlignedInbox([0, 1], capacity=1 << 20)
    put(inbox, 0, batch(1))
    put(inbox, 0, Watermark(1))
    put(inbox, 1, batch(2))
    put(inbox, 1, batch(3))
    wanted = frozenset({1})
    assert drain(inbox, preferred=wanted) == [(1, batch(2)), (1, batch(3))]
    assert inbox.receive(0, preferred=frozenset({0})).element == batch(1)
    assert inbox.receive(0, preferred=wanted).element == Watermark(1)  # what is no batch is never held back


def test_a_full_channel_is_read_though_it_is_not_preferred_when_nothing_else_comes():
    inbox = AlignedInbox([0, 1], capacity=size_of(batch(1)))
    put(inbox, 0, batch(1))
    assert inbox.receive(None, preferred=frozenset({1})).element == batch(1)


def test_no_port_is_preferred_while_a_barrier_is_open():
    """The preferred port has brought its barrier, and waits for that of the other one."""
    inbox = AlignedInbox([0, 1], capacity=1 << 20)
    for each in (batch(1), Barrier(1), batch(2)):
        put(inbox, 0, each)
    put(inbox, 1, Barrier(1))
    wanted = frozenset({1})
    assert drain(inbox, preferred=wanted) == [(0, batch(1)), (-1, Barrier(1))]
    assert inbox.receive(0, preferred=frozenset()).element == batch(2)


def test_a_preferred_port_that_has_ended_holds_nobody_up():
    inbox = AlignedInbox([0, 1], capacity=1 << 20)
    for each in (batch(1), End()):
        put(inbox, 0, each)
    put(inbox, 1, End())
    assert drain(inbox, preferred=frozenset({1})) == [(1, End()), (0, batch(1)), (0, End())]


def test_a_port_whose_writer_waits_for_room_is_read_however_little_lies_in_it():
    """A batch of more than half of the room waits behind a small one: the channel is not half full."""
    large = batch(*range(100))
    inbox = AlignedInbox([0, 1], capacity=size_of(large))
    put(inbox, 0, batch(1))
    blocked = threading.Thread(target=put, args=(inbox, 0, large), daemon=True)
    blocked.start()
    assert inbox.receive(60, preferred=frozenset({1})).element == batch(1)
    blocked.join(timeout=60)
    assert not blocked.is_alive()


def test_a_barrier_behind_the_end_is_nobodys():
    """A task that has ended is triggered all the same, and passes the barrier on behind its end."""
    inbox = AlignedInbox([0, 0], capacity=1 << 20)
    for each in (End(), Barrier(1)):
        put(inbox, 0, each)
    for each in (Barrier(1), batch(1)):
        put(inbox, 1, each)
    assert drain(inbox) == [(0, End()), (-1, Barrier(1)), (1, batch(1))]


def test_a_late_barrier_does_not_take_the_place_of_the_one_that_is_open():
    inbox = AlignedInbox([0, 0, 0], capacity=1 << 20)
    put(inbox, 0, Barrier(2))
    assert drain(inbox) == []
    for each in (End(), Barrier(1)):
        put(inbox, 1, each)
    assert drain(inbox) == [(1, End())]
    put(inbox, 2, End())
    assert drain(inbox) == [(2, End()), (-1, Barrier(2))]


def test_wake_ends_one_wait():
    inbox = AlignedInbox([0], capacity=1)
    inbox.wake()
    assert inbox.receive(None) is None
    put(inbox, 0, batch(1))
    assert inbox.receive(None).element == batch(1)


def test_a_batch_goes_before_a_wake():
    inbox = AlignedInbox([0], capacity=1)
    inbox.wake()
    put(inbox, 0, batch(1))
    assert inbox.receive(None).element == batch(1)
    assert inbox.receive(None) is None


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["row", "mark"])), max_size=40), st.randoms())
def test_alignment_never_mixes_what_stands_before_and_behind_a_barrier(script, random):
    """Whatever the interleaving, everything before barrier n on any channel comes before it, the rest behind."""
    inbox = AlignedInbox([0, 0, 0], capacity=1 << 30)
    per_channel: list[list] = [[], [], []]
    for index, (channel, kind) in enumerate(script):
        per_channel[channel].append(("before", batch(index)) if kind == "row" else ("before", Watermark(index)))
    for channel in range(3):
        per_channel[channel].append(("barrier", Barrier(1)))
        per_channel[channel] += [("after", batch(1000 + channel))]
    queues = [list(each) for each in per_channel]
    seen: list[str] = []
    while any(queues):
        channel = random.choice([each for each in range(3) if queues[each]])
        label, element = queues[channel].pop(0)
        put(inbox, channel, element)
        del label
        if random.random() < 0.5:
            seen += _labels(inbox)
    seen += _labels(inbox)
    place = seen.index("barrier")
    assert seen.count("barrier") == 1
    assert set(seen[:place]) <= {"before"}
    assert seen[place + 1 :] == ["after"] * 3


def _labels(inbox: AlignedInbox) -> list[str]:
    labels = []
    for _channel, element in drain(inbox):
        if isinstance(element, Barrier):
            labels.append("barrier")
        elif isinstance(element, Watermark):
            labels.append("before")
        else:
            labels.append("after" if element["x"][0].as_py() >= 1000 else "before")
    return labels
