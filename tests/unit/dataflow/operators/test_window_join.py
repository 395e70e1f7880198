"""Windows that end together are joined together: the same rows in the same order, in few batches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.dataflow.language.elements import TIME
from shoal.dataflow.language.logical import JoinKind
from shoal.dataflow.language.windows import SlidingWindow
from shoal.dataflow.operators.joins.window import WindowJoin
from shoal.dataflow.operators.keys.index import KeyIndex
from tests.unit.dataflow.operators.driving import Fleet

LEFT = pa.schema({"key": pa.string(), "left": pa.int64(), TIME: pa.int64()})
RIGHT = pa.schema({"key": pa.string(), "right": pa.int64(), TIME: pa.int64()})
NAMES = ("key", "left", "right", "window_start", "window_end")

rows = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(-20, 60)), max_size=25)


def make_fleet(kind: JoinKind, window: SlidingWindow, max_rows: int) -> Fleet:
    sides: dict[str, Any] = {"left": LEFT, "right": RIGHT, "left_keys": ("key",), "right_keys": ("key",)}
    return Fleet(lambda: WindowJoin(kind=kind, window=window, **sides), [("key",), ("key",)], max_rows=max_rows)


def feed(fleet: Fleet, given_rows: Any, port: int) -> None:
    if given_rows:
        keys, times = zip(*given_rows, strict=True)
        schema = (LEFT, RIGHT)[port]
        fleet.feed(pa.record_batch([list(keys), list(range(len(keys))), list(times)], schema=schema), port)


def expected(lefts: Any, rights: Any, kind: JoinKind, window: SlidingWindow) -> list[tuple[Any, ...]]:
    """One window after the other: pairs, then left rows without a partner, then right ones."""
    found: list[tuple[Any, ...]] = []
    for start in range(-200, 200):
        if start % window.slide:
            continue
        bounds = (start, start + window.size)
        mine, theirs = (
            sorted(
                (
                    (time // window.pane, number, key)
                    for number, (key, time) in enumerate(side)
                    if start <= time < bounds[1]
                )
            )
            for side in (lefts, rights)
        )
        left_keys, right_keys = ({key for _pane, _number, key in side} for side in (mine, theirs))
        found += [
            (key, i, j, *bounds) for _, i, key in mine for _, j, other in theirs if key is not None and key == other
        ]
        if kind in (JoinKind.LEFT, JoinKind.OUTER):
            found += [(key, i, None, *bounds) for _, i, key in mine if key is None or key not in right_keys]
        if kind in (JoinKind.RIGHT, JoinKind.OUTER):
            found += [(key, None, j, *bounds) for _, j, key in theirs if key is None or key not in left_keys]
    return found


@given(
    lefts=rows,
    rights=rows,
    kind=st.sampled_from(list(JoinKind)),
    shape=st.sampled_from([(1, 1), (10, 10), (10, 5), (9, 3), (12, 1), (10, 4)]),
    watermarks=st.lists(st.integers(-10, 70), max_size=3),
    max_rows=st.sampled_from([1, 7, 1000]),
)
@settings(max_examples=80, deadline=None)
def test_windows_come_in_their_order_however_many_end_at_once(*, lefts, rights, kind, shape, watermarks, max_rows):
    window = SlidingWindow(*shape)
    fleet = make_fleet(kind, window, max_rows)
    feed(fleet, lefts, 0)
    feed(fleet, rights, 1)
    for time in sorted(watermarks):
        fleet.watermark(time)
    fleet.end()
    assert fleet.out.rows(*NAMES) == expected(lefts, rights, kind, window)
    assert all(batch.num_rows <= max_rows for batch in fleet.out.batches)


@pytest.mark.parametrize("kind", list(JoinKind))
def test_many_small_windows_cost_as_much_as_their_rows(kind, monkeypatch):
    """500 windows with a pair and a row alone on each side: keys are compared, and batches given, a few times only."""
    calls = []
    slots_of = KeyIndex.slots_of
    monkeypatch.setattr(KeyIndex, "slots_of", lambda *given: calls.append(1) or slots_of(*given))
    fleet = make_fleet(kind, SlidingWindow(10, 10), 400)
    feed(fleet, [row for start in range(0, 5000, 10) for row in (("a", start), ("b", start + 3))], 0)
    feed(fleet, [row for start in range(0, 5000, 10) for row in (("a", start), ("c", start + 3))], 1)
    calls.clear()
    fleet.end()
    # Each stretch has 400 rows of both sides: 100 windows.
    assert len(calls) <= 2 * 5
    assert len(fleet.out.batches) <= 5
    alone = {JoinKind.INNER: 0, JoinKind.LEFT: 1, JoinKind.RIGHT: 1, JoinKind.OUTER: 2}[kind]
    assert len(fleet.out.rows()) == 500 * (1 + alone)


def test_a_window_with_more_rows_than_a_batch_is_looked_at_alone():
    fleet = make_fleet(JoinKind.OUTER, SlidingWindow(10, 10), 5)
    lefts = [("a", time) for time in range(3)] + [("b", 12)] + [("a", 21)]
    rights = [("a", time) for time in range(4)] + [("b", 13)] + [("a", 25)]
    feed(fleet, lefts, 0)
    feed(fleet, rights, 1)
    fleet.end()
    assert [batch.num_rows for batch in fleet.out.batches] == [5, 5, 2, 2]
    assert fleet.out.rows(*NAMES) == expected(lefts, rights, JoinKind.OUTER, SlidingWindow(10, 10))
