"""Joins whose rows lie in a row store: the tests of joins with every segment stored, in chunks of a few rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from shoal.dataflow.language.logical import JoinKind
from shoal.dataflow.language.windows import SlidingWindow
from shoal.dataflow.operators.joins import base, buffer, window
from shoal.dataflow.operators.joins.interval import IntervalJoin
from shoal.dataflow.operators.joins.regular import RegularJoin
from shoal.dataflow.operators.joins.window import WindowJoin
from shoal.dataflow.state import row_store
from shoal.dataflow.state.memory import MemoryState
from tests.unit.dataflow.operators import test_joins, test_window_join
from tests.unit.dataflow.operators.driving import Fleet
from tests.unit.dataflow.operators.test_joins import KEYS, SETTINGS, left_batch, right_batch


@pytest.fixture(scope="module", autouse=True)
def stored() -> Iterator[list[MemoryState]]:
    """Every segment goes to a store; the stores that were opened."""
    opened: list[MemoryState] = []

    def open_backend(_kind: str, _scratch: str) -> MemoryState:
        opened.append(MemoryState())
        return opened[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffer, "MOST_BYTES", -1)
        patch.setattr(window, "MOST_BYTES", -1)
        patch.setattr(row_store, "CHUNK", 3)
        patch.setattr(base, "open_backend", open_backend)
        patch.setattr(test_joins, "RegularJoin", partial(RegularJoin, state="rocks"))
        patch.setattr(test_joins, "IntervalJoin", partial(IntervalJoin, state="rocks"))
        for module in (test_joins, test_window_join):
            patch.setattr(module, "WindowJoin", partial(WindowJoin, state="rocks"))
        yield opened


@pytest.mark.parametrize(
    "test",
    [
        test_joins.test_the_regular_join_of_bounded_input,
        test_joins.test_changes_of_the_regular_join_add_up,
        test_joins.test_the_regular_join_forgets_after_its_time,
        test_joins.test_a_hot_key_comes_out_in_chunks,
        test_joins.test_equal_key_names_are_one_column_and_traces_go_along,
        test_joins.test_the_interval_join_pairs_what_is_near,
        test_joins.test_the_interval_join_with_late_rows,
        test_joins.test_the_interval_join_frees_rows_and_holds_its_watermark_back,
        test_joins.test_the_window_join_pairs_within_windows,
        test_joins.test_rows_of_windows_that_have_ended_are_late_for_the_window_join,
    ],
)
def test_joins_of_stored_rows(test, stored):
    before = len(stored)
    test()
    assert len(stored) > before


def test_rows_that_are_freed_leave_the_store(stored):
    fleet = Fleet(lambda: IntervalJoin(kind=JoinKind.INNER, lower=0, upper=5, state="rocks", **SETTINGS), KEYS, 1)
    for start in range(0, 1000, 10):
        fleet.feed(left_batch([(start, "a", 1)]), 0)
        fleet.feed(right_batch([(start, "a", 2)]), 1)
        fleet.watermark(start)
    (store,) = stored[-1:]
    assert len(list(store.scan("rows", 0))) < 10


def test_windows_of_one_slice_come_in_their_order(monkeypatch, stored):
    before = len(stored)
    monkeypatch.setattr(window, "_SLICES", 1)
    test_window_join.test_windows_come_in_their_order_however_many_end_at_once()
    assert len(stored) > before


def test_rows_of_windows_that_are_over_leave_the_store(stored):
    fleet = Fleet(lambda: WindowJoin(kind=JoinKind.LEFT, window=SlidingWindow(10, 10), state="rocks", **SETTINGS), KEYS)
    for start in range(0, 200, 10):
        for key in "abcdefgh":
            fleet.feed(left_batch([(start, key, 1)]), 0)
            fleet.feed(right_batch([(start, key, 2)]), 1)
        fleet.watermark(start)
    (store,) = stored[-1:]
    assert len(list(store.scan("rows", 0))) == 16
    assert fleet.operators[0].statistics() == {"late": 0, "late_right": 0, "left_rows": 8, "right_rows": 8}
    assert len(fleet.out.rows()) == 19 * 8
