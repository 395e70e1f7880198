"""Headers are found in whole batches, and made for them."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from shoal.topics.base import EVENT_TIME_HEADER, HEADERS, TRACE_HEADER, records
from shoal.topics.headers import event_times, header, make_headers, trace_ids

maps = st.lists(
    st.none() | st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.none() | st.binary(max_size=3)), max_size=4),
    max_size=12,
)


@given(maps, st.data())
def test_the_first_of_a_name_is_found(content, data: st.DataObject) -> None:
    column = pa.array(content, HEADERS)
    start = data.draw(st.integers(0, len(content)))
    expected = [next((value for name, value in each or [] if name == "b"), None) for each in content]
    assert header(column, "b").to_pylist() == expected
    assert header(column.slice(start), "b").to_pylist() == expected[start:]
    assert header(column, "missing").to_pylist() == [None] * len(content)


@given(st.lists(st.tuples(st.none() | st.binary(max_size=4), st.none() | st.integers(0, 99)), max_size=12))
def test_what_is_made_is_found(rows) -> None:
    first = pa.array([row[0] for row in rows], pa.binary())
    second = pa.array([row[1] for row in rows], pa.int64())
    made = make_headers({"x": first, "y": second}, len(rows))
    assert made.type == HEADERS
    assert header(made, "x").to_pylist() == [row[0] for row in rows]
    assert header(made, "y").to_pylist() == [None if row[1] is None else b"%d" % row[1] for row in rows]
    assert [name for each in made.to_pylist() for name, _ in each or []].count("x") == len(rows) - first.null_count


def test_the_time_of_an_event_and_its_trace() -> None:
    batch = records(
        [b""] * 5,
        timestamps=[1, 2, 3, 4, 5],
        headers=[
            [(EVENT_TIME_HEADER, b"1700000000000001"), (TRACE_HEADER, b"abc")],
            None,
            [(EVENT_TIME_HEADER, b"-7")],
            [(EVENT_TIME_HEADER, b"30")],
            [(TRACE_HEADER, b"\xff")],
        ],
    )
    assert event_times(batch).to_pylist() == [1700000000000001, 2, -7, 30, 5]
    assert trace_ids(batch).to_pylist() == [b"abc", None, None, None, b"\xff"]


def test_a_header_that_is_no_number_does_not_count() -> None:
    wrong = [b"soon", b"\xff", b"", b"9" * 40, b"1.5", "٣".encode(), b"--1"]
    batch = records(
        [b""] * (len(wrong) + 1),
        timestamps=list(range(len(wrong) + 1)),
        headers=[[(EVENT_TIME_HEADER, value)] for value in [*wrong, b"77"]],
    )
    assert event_times(batch).to_pylist() == [*range(len(wrong)), 77]
    plain = records([b"1"], timestamps=[5])
    assert event_times(plain).to_pylist() == [5]
