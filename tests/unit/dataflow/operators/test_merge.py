"""The ordered merge."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal import PlanError, Stream, col, tumbling
from shoal.core.errors import InvalidError, PreconditionError
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME, TIME
from shoal.dataflow.operators.merge import Merge
from tests.unit.dataflow.operators.driving import Collected, Fleet

SCHEMA = pa.schema({"at": pa.int64(), "name": pa.string(), "extra": pa.string()})


def batch(values: list[int], name: str = "x") -> Any:
    times = [value * 10 for value in values]
    return pa.record_batch({"at": values, "name": [name] * len(values), TIME: pa.array(times, pa.int64())})


@given(
    st.lists(st.lists(st.integers(0, 50), max_size=30), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7)), min_size=1, max_size=40),
    st.sets(st.integers(0, 20), max_size=3),
)
@settings(max_examples=100, deadline=None)
def test_rows_come_in_order_however_they_arrive(inputs, order, restarts):
    inputs = [sorted(each) for each in inputs]
    fleet = Fleet(lambda: Merge(by="at", ports=len(inputs)), [()] * len(inputs))
    places = [0] * len(inputs)
    for number, (turn, count) in enumerate(order):
        port = turn % len(inputs)
        rows = inputs[port][places[port] : places[port] + count]
        places[port] += len(rows)
        if rows:
            fleet.feed(batch(rows, str(port)), port)
        if number in restarts:
            fleet = fleet.restored(1)
    for port, each in enumerate(inputs):
        if each[places[port] :]:
            fleet.feed(batch(each[places[port] :], str(port)), port)
        fleet.operators[0].on_port_end(port, fleet.out)
    rows = fleet.out.rows("at", "name")
    assert [at for at, _name in rows] == sorted(at for each in inputs for at in each)
    for port, each in enumerate(inputs):
        assert [at for at, name in rows if name == str(port)] == each


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=30), min_size=2, max_size=3))
@settings(max_examples=50, deadline=None)
def test_rows_that_are_kept_apart_come_in_the_same_pieces(inputs):
    inputs = [sorted(each) for each in inputs]
    pieces: list[list[list[Any]]] = []
    for keep_apart in (False, True):
        seen = Pieces()
        fleet = Fleet(lambda apart=keep_apart: Merge(by="at", ports=len(inputs), keep_apart=apart), [()] * len(inputs))
        fleet.operators[0].open(replace(fleet.operators[0]._context, max_rows=7))
        for port, values in enumerate(inputs):
            fleet.operators[0].process(batch(values, str(port)), seen, port=port)
        for port in range(len(inputs)):
            fleet.operators[0].on_port_end(port, seen)
        pieces.append(seen.sorted_pieces())
    assert pieces[0] == pieces[1]


@pytest.mark.parametrize("keep_apart", [False, True])
@pytest.mark.parametrize(("rows", "pieces", "batches"), [(14, [14], 2), (15, [14, 1], 3)])
def test_a_piece_has_as_many_rows_as_a_batch_of_each_input(keep_apart, rows, pieces, batches):
    seen = Pieces()
    fleet = Fleet(lambda: Merge(by="at", ports=2, keep_apart=keep_apart), [(), ()])
    merge = fleet.operators[0]
    merge.open(replace(merge._context, max_rows=7))
    for start in range(0, rows, 7):
        merge.process(batch(list(range(start, min(start + 7, rows)))), seen, port=1)
    merge.process(batch([99]), seen, port=0)
    assert [len(each) for each in seen.sorted_pieces()] == pieces
    assert len(seen.batches) == batches


class Pieces(Collected):
    """Notes where event time may move on."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = [0]

    def settle(self) -> None:
        self.ends.append(len(self.rows("at")))

    def sorted_pieces(self) -> list[list[Any]]:
        every = self.rows("at", "name")
        return [sorted(every[begin:end]) for begin, end in pairwise([*self.ends, len(every)])]


def test_a_watermark_keeps_its_place_among_the_rows():
    fleet = Fleet(lambda: Merge(by="at", ports=2), [(), ()])
    merge = fleet.operators[0]
    fleet.feed(batch([1, 5, 9]), 0)
    merge.on_port_watermark(90, 0, fleet.out)
    assert merge.output_watermark(START_OF_TIME) == START_OF_TIME
    assert merge.preferred_ports() == frozenset({1})
    fleet.feed(batch([2, 3]), 1)
    merge.on_port_watermark(30, 1, fleet.out)
    assert fleet.out.rows("at") == [(1,), (2,), (3,)]
    # 90 of the first input comes behind its row 9, which waits; 30 of the second stands behind rows that are out
    assert merge.output_watermark(30) == START_OF_TIME
    fleet = fleet.restored(1)
    merge = fleet.operators[0]
    fleet.feed(batch([9, 12]), 1)
    assert fleet.out.rows("at")[3:] == [(5,), (9,), (9,)]
    assert merge.output_watermark(30) == 30
    merge.on_port_watermark(120, 1, fleet.out)
    merge.on_port_end(0, fleet.out)
    assert fleet.out.rows("at")[6:] == [(12,)]
    assert merge.output_watermark(120) == 120
    merge.on_port_end(1, fleet.out)
    assert merge.output_watermark(END_OF_TIME) == END_OF_TIME


def test_columns_that_an_input_has_not_are_null():
    fleet = Fleet(lambda: Merge(by="at", ports=2, schema=SCHEMA), [(), ()])
    fleet.feed(pa.record_batch({"at": [1], "extra": ["e"], TIME: [10]}), 0)
    fleet.feed(pa.record_batch({"name": ["n"], "at": [2], TIME: [20]}), 1)
    fleet.end()
    assert fleet.out.batches[0].schema.names == ["at", "name", "extra", TIME]
    assert fleet.out.rows("at", "name", "extra") == [(1, None, "e"), (2, "n", None)]


def test_an_input_that_is_not_sorted_is_refused():
    fleet = Fleet(lambda: Merge(by="at", ports=2), [(), ()])
    with pytest.raises(PreconditionError, match="input 1 of a merge is not sorted by 'at'"):
        fleet.feed(batch([2, 1]), 0)
    fleet.feed(batch([5]), 1)
    with pytest.raises(PreconditionError, match="input 2"):
        fleet.feed(batch([4]), 1)
    with pytest.raises(InvalidError, match="to merge by it"):
        fleet.feed(pa.record_batch({"at": ["text"]}), 0)
    with pytest.raises(InvalidError, match="no place in an order"):
        fleet.feed(pa.record_batch({"at": [1.0, float("nan")]}), 0)


def test_what_cannot_be_merged_is_told_before_anything_runs():
    one = Stream.from_dicts([{"at": 1, "name": "a"}])
    others = [
        Stream.from_dicts([{"place": 1}]),
        Stream.from_dicts([{"at": "x"}]),
        Stream.from_dicts([{"name": 1, "at": 1}]),
    ]
    for other in (*others, 3):
        with pytest.raises(PlanError, match="merge"):
            Stream.merge(one, other, by="at")
    with pytest.raises(PlanError, match="numbers or times"):
        Stream.merge(one, one, by="name")
    with pytest.raises(PlanError, match="another stream"):
        Stream.merge(one, by="at")


def test_event_time_moves_on_between_the_pieces_of_what_is_given():
    """A row that waited long must not meet the watermark of the time when it began to wait."""
    seen: list[tuple[tuple[int], int]] = []

    class Settling(Collected):
        def settle(self) -> None:
            seen.append((self.rows("at")[-1], merge.output_watermark(0)))

    fleet = Fleet(lambda: Merge(by="at", ports=2), [(), ()], max_rows=2)
    merge, fleet.out = fleet.operators[0], Settling()
    fleet.feed(batch([0]), 1)
    merge.on_port_watermark(1000, 1, fleet.out)
    for value in (1, 3, 4, 5, 6, 7):
        fleet.feed(batch([value]), 0)
        merge.on_port_watermark(value * 10, 0, fleet.out)
    assert fleet.out.rows("at") == [(0,)]
    fleet.feed(batch([8]), 1)
    assert fleet.out.rows("at") == [(0,), (1,), (3,), (4,), (5,), (6,), (7,)]
    assert seen == [((5,), 50)]
    assert merge.output_watermark(0) == 70


@pytest.mark.parametrize("size", [1, 7, 100])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_windows_behind_a_merge_of_one_stream_with_itself(size, parallelism):
    """Both inputs end at once, in one task: the rows that wait then are not lost, nor are the windows they are in."""
    table = pa.table({"a": list(range(100)), "at": pa.array([1000 * i for i in range(100)], pa.timestamp("ms"))})
    stream = Stream.from_table(table, size, event_time="at")
    merged = Stream.merge(stream.filter(col("a") % 3 == 0), stream.filter(col("a") % 3 != 0), by="a")
    for timed in (merged, merged.event_time("at")):
        counts = timed.window(tumbling(10)).count().collect(parallelism=parallelism)
        assert counts.column("count").to_pylist() == [10] * 10
