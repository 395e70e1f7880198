"""Batches, iterables and generators as sources; callbacks and collecting as sinks."""

from __future__ import annotations

import itertools
import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.clock import SystemClock
from shoal.core.errors import InvalidError, PreconditionError
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.connectors.memory import BatchesSource, CallbackSink, Collected, IterableSource
from shoal.dataflow.execution import engine
from shoal.dataflow.language.functions import make_ref
from shoal.dataflow.language.logical import OnError, Sink, Source

ONE = pa.record_batch({"x": [1, 2, 3], "y": ["a", "b", "c"]})
SPLIT = Split("0")


def read(source, *, max_rows: int = 1000, position=None) -> list[dict]:
    reader = source.open_reader(source.find_splits(), source.find_schema(), clock=SystemClock())
    if position is not None:
        reader.seek(SPLIT, position)
    found: list[dict] = []
    while not reader.ended():
        fetched = reader.fetch(max_rows=max_rows, timeout=1.0)
        if fetched is not None:
            assert fetched.batch.num_rows <= max_rows
            found += fetched.batch.to_pylist()
    reader.close()
    return found


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(0, 40),
)
def test_batches_come_in_order_from_any_place(sizes, max_rows, position):
    numbers = itertools.count()
    batches = tuple(
        pa.record_batch({"x": pa.array([next(numbers) for _ in range(size)], pa.int64())}) for size in sizes
    )
    rows = read(BatchesSource(batches), max_rows=max_rows, position=position)
    assert [row["x"] for row in rows] == list(range(position, sum(sizes)))


def test_fewer_columns_are_read_when_fewer_are_wanted():
    assert read(BatchesSource((ONE,)).with_columns(("y",))) == [{"y": "a"}, {"y": "b"}, {"y": "c"}]


def test_nothing_has_no_columns():
    with pytest.raises(InvalidError, match="must not be empty"):
        BatchesSource(()).find_schema()
    assert read(BatchesSource((), schema=ONE.schema)) == []


def iterable(items, **options) -> IterableSource:
    return IterableSource(make_ref(items if callable(items) else lambda: items), **options)


@pytest.mark.parametrize(
    "items",
    [
        [{"x": 1}, {"x": 2}, {"x": 3}],
        [[{"x": 1}, {"x": 2}], [{"x": 3}]],
        [pa.record_batch({"x": [1, 2]}), pa.record_batch({"x": [3]})],
        [pa.table({"x": [1, 2, 3]})],
    ],
)
@pytest.mark.parametrize("bounded", [True, False])
def test_iterables_of_all_kinds(items, bounded):
    source = iterable(items, replayable=True, bounded=bounded)
    assert read(source, max_rows=2) == [{"x": 1}, {"x": 2}, {"x": 3}]
    assert read(source, position=2) == [{"x": 3}]


def test_looking_at_a_generator_takes_nothing_from_it():
    source = iterable({"x": each} for each in range(3))
    assert source.find_schema() == pa.schema([("x", pa.int64())])
    assert [row["x"] for row in read(source)] == [0, 1, 2]


def test_a_generator_can_be_read_once_and_says_so():
    source = iterable(({"x": each} for each in range(3)), schema=pa.schema([("x", pa.int64())]))
    read(source)
    with pytest.raises(PreconditionError, match="can be read only once") as caught:
        read(source)
    assert "replayable=True" in caught.value.hint


def test_going_on_in_a_generator_needs_it_again():
    with pytest.raises(PreconditionError, match="can be read only once"):
        read(iterable({"x": each} for each in range(3)), position=1)


def test_an_empty_generator_has_no_columns():
    with pytest.raises(InvalidError, match="gave nothing"):
        iterable(lambda: iter(())).find_schema()


def test_an_item_of_another_kind_is_refused():
    with pytest.raises(InvalidError, match="must be a record batch"):
        read(iterable([3], schema=pa.schema([("x", pa.int64())])))


def test_an_endless_generator_that_waits_holds_nobody_up():
    gate = threading.Event()

    def rows():
        yield {"x": 1}
        yield {"x": 2}
        gate.wait(10)
        yield {"x": 3}

    source = iterable(rows, replayable=True, bounded=False, schema=pa.schema([("x", pa.int64())]))
    reader = source.open_reader([SPLIT], source.find_schema(), clock=SystemClock())
    got: list[int] = []
    while len(got) < 2:
        fetched = reader.fetch(max_rows=100, timeout=5.0)
        got += [row["x"] for row in fetched.batch.to_pylist()]
    assert got == [1, 2]
    assert reader.fetch(max_rows=100, timeout=0.01) is None
    gate.set()
    assert reader.fetch(max_rows=100, timeout=5.0).batch.to_pylist() == [{"x": 3}]
    reader.close()


def test_what_an_endless_generator_raises_is_raised_behind_its_rows():
    def rows():
        yield {"x": 1}
        raise ValueError("broken")

    source = iterable(rows, replayable=True, bounded=False, schema=pa.schema([("x", pa.int64())]))
    reader = source.open_reader([SPLIT], source.find_schema(), clock=SystemClock())
    assert reader.fetch(max_rows=100, timeout=5.0).batch.num_rows == 1
    with pytest.raises(ValueError, match="broken"):
        reader.fetch(max_rows=100, timeout=5.0)
    reader.close()


def test_a_generator_is_closed_when_it_was_not_read_to_its_end():
    closed = threading.Event()

    def rows():
        try:
            yield from ({"x": each} for each in itertools.count())
        finally:
            closed.set()

    for bounded in (True, False):
        closed.clear()
        source = iterable(rows, replayable=True, bounded=bounded, schema=pa.schema([("x", pa.int64())]))
        reader = source.open_reader([SPLIT], source.find_schema(), clock=SystemClock())
        reader.fetch(max_rows=5, timeout=5.0)
        reader.close()
        assert closed.wait(60)


@given(st.lists(st.one_of(st.integers(-5, 5), st.text(max_size=2)), max_size=40))
def test_bad_rows_are_found_and_the_others_kept_in_order(values):
    items = [{"x": value} for value in values]
    source = iterable(items, replayable=True, schema=pa.schema([("x", pa.int64())]), on_error=OnError.SKIP)
    reader = source.open_reader([SPLIT], source.find_schema(), clock=SystemClock())
    good, bad = [], 0
    while not reader.ended():
        fetched = reader.fetch(max_rows=7, timeout=1.0)
        if fetched is not None:
            good += [row["x"] for row in fetched.batch.to_pylist()]
            bad += 0 if fetched.poison is None else fetched.poison.num_rows
    assert good == [value for value in values if isinstance(value, int)]
    assert bad == sum(isinstance(value, str) for value in values)


@given(st.lists(st.one_of(st.integers(-5, 5), st.text(max_size=2)), max_size=30), st.integers(1, 5), st.integers(1, 7))
def test_bad_rows_are_told_once_from_every_place_on(values, most, size):
    items = [{"x": value} for value in values]
    source = iterable(items, replayable=True, schema=pa.schema([("x", pa.int64())]), on_error=OnError.SIDE)

    def pieces(position, max_rows):
        reader = source.open_reader([SPLIT], source.find_schema(), clock=SystemClock())
        if position:
            reader.seek(SPLIT, position)
        while not reader.ended():
            fetched = reader.fetch(max_rows=max_rows, timeout=1.0)
            if fetched is not None:
                bad = [] if fetched.poison is None else fetched.poison.column("offset").to_pylist()
                yield fetched.batch.column("x").to_pylist(), bad, fetched.position

    numbers = [number for number, value in enumerate(values, 1) if isinstance(value, str)]
    for _rows, _bad, position in list(pieces(None, most)):
        rest = list(pieces(position, size))  # after a restart batches may have other sizes
        assert [row for rows, _, _ in rest for row in rows] == [
            each for each in values[position:] if isinstance(each, int)
        ]
        assert [each for _, bad, _ in rest for each in bad] == [each for each in numbers if each > position]


def test_callbacks_see_every_batch():
    seen: list[int] = []
    source = Source(connector=BatchesSource((ONE, ONE)), schema=ONE.schema)
    engine.run([Sink(inputs=(source,), connector=CallbackSink(make_ref(lambda b: seen.append(b.num_rows))))])
    assert seen == [3, 3]


def test_what_was_collected_is_in_the_order_of_tasks():
    into = Collected()
    into.add(1, pa.record_batch({"x": [3]}))
    into.add(0, pa.record_batch({"x": [1]}))
    into.add(0, pa.record_batch({"x": [2]}))
    assert into.table()["x"].to_pylist() == [1, 2, 3]
    into.clear()
    assert into.table(ONE.schema).schema == ONE.schema


@pytest.mark.parametrize("as_batch", [True, False])
def test_an_endless_iterable_is_read_only_a_little_ahead(as_batch):
    """What is read ahead is bounded by bytes: a batch of a megabyte counts for more than a row."""
    given = []
    mark = threading.Event()

    def items():
        for number in itertools.count():
            given.append(number)
            if len(given) == 3:
                mark.set()
            rows = [{"x": each} for each in range(4096)]
            yield pa.record_batch({"x": pa.array(range(131_072), pa.int64())}) if as_batch else rows

    source = IterableSource(make_ref(items), bounded=False, replayable=True, schema=pa.schema([("x", pa.int64())]))
    reader = source.open_reader(source.find_splits(), source.find_schema(), clock=SystemClock())
    assert reader.fetch(max_rows=10, timeout=10.0) is not None
    assert mark.wait(10.0)
    reader.close()
    assert len(given) < 12
