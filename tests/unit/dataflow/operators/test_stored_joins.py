"""Joins whose rows lie in a row store: the tests of joins with every segment stored, in chunks of a few rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from shoal.dataflow.language.logical import JoinKind
from shoal.dataflow.operators.joins import base, buffer
from shoal.dataflow.operators.joins.interval import IntervalJoin
from shoal.dataflow.operators.joins.regular import RegularJoin
from shoal.dataflow.state import row_store
from shoal.dataflow.state.memory import MemoryState
from tests.unit.dataflow.operators import test_joins
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
        patch.setattr(row_store, "CHUNK", 3)
        patch.setattr(base, "open_backend", open_backend)
        patch.setattr(test_joins, "RegularJoin", partial(RegularJoin, state="rocks"))
        patch.setattr(test_joins, "IntervalJoin", partial(IntervalJoin, state="rocks"))
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
