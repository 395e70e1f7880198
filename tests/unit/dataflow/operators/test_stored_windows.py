"""Windows whose panes lie in a state backend: the tests of windows again, and what there is of the backend besides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shoal.core.errors import PreconditionError
from shoal.dataflow.language.elements import END_OF_TIME
from shoal.dataflow.language.logical import Aggregation
from shoal.dataflow.language.windows import SlidingWindow
from shoal.dataflow.operators.grouping import Grouping
from shoal.dataflow.operators.windows import stored
from shoal.dataflow.operators.windows.aggregate import WindowAggregate
from shoal.dataflow.operators.windows.stored import StoredWindowAggregate
from shoal.dataflow.state.memory import MemoryState
from tests.unit.dataflow.operators import test_aggregates, test_small_windows, test_windows
from tests.unit.dataflow.operators.driving import Fleet, batch_of
from tests.unit.dataflow.operators.test_windows import ALL, WHOLE

GROUPING = Grouping(keys=("key",), aggregations=ALL)


@pytest.fixture(scope="module", autouse=True)
def opened() -> Iterator[list[MemoryState]]:
    """Panes go to a backend at once; the backends that were opened."""
    found: list[MemoryState] = []

    def open_backend(kind: str, _scratch: str) -> MemoryState:
        assert kind == "rocks"
        found.append(MemoryState())
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "MOST_BYTES", -1)
        patch.setattr(stored, "open_backend", open_backend)
        for module in (test_windows, test_small_windows, test_aggregates):
            patch.setattr(module, "WindowAggregate", StoredWindowAggregate)
        yield found


@pytest.mark.parametrize(
    "test",
    [
        test_windows.test_results_and_late_rows_are_those_of_the_naive_reading,
        test_windows.test_many_panes_of_one_batch_are_filled_at_once,
        test_windows.test_a_restart_at_another_width_changes_nothing,
        test_windows.test_aggregated_in_part_before_the_exchange_it_is_the_same,
        test_windows.test_many_windows_at_once_after_a_restart,
        test_windows.test_keys_that_come_in_another_order_stay_themselves,
        test_windows.test_two_key_columns_of_any_type_make_a_key,
        test_windows.test_floats_texts_and_decimals,
        test_windows.test_nothing_but_nulls,
        test_windows.test_sums_up_to_the_limit_are_exact,
        test_windows.test_results_carry_their_last_moment_where_somebody_needs_it,
        test_windows.test_a_silence_and_a_row_far_ahead_cost_nothing,
        test_small_windows.test_a_restart_at_another_width_changes_nothing,
        test_small_windows.test_floats_and_texts_are_what_they_are_window_by_window,
        test_small_windows.test_a_reduction_applies_its_function_in_order,
        test_aggregates.test_a_reduction_is_a_sum_when_its_function_adds,
    ],
    ids=lambda test: test.__name__,
)
def test_windows_of_stored_panes(test, opened):
    before = len(opened)
    test()
    assert len(opened) > before


@pytest.mark.parametrize(
    "test",
    [
        test_windows.test_results_and_late_rows_are_those_of_the_naive_reading,
        test_windows.test_a_restart_at_another_width_changes_nothing,
        test_small_windows.test_a_restart_at_another_width_changes_nothing,
    ],
)
def test_windows_whose_panes_are_stored_when_there_are_a_few(test, monkeypatch):
    monkeypatch.setattr(stored, "MOST_BYTES", 700)
    test()


def stored_fleet() -> Fleet:
    return Fleet(lambda: StoredWindowAggregate(grouping=GROUPING, window=SlidingWindow(10, 10)), [("key",)])


def many(start: int, rows: int = 100):
    return batch_of([(start, f"k{number}", number) for number in range(rows)])


def test_panes_that_are_over_leave_the_backend(opened):
    fleet = stored_fleet()
    for start in range(0, 200, 10):
        fleet.feed(many(start))
        fleet.watermark(start)
    (backend,) = opened[-1:]
    assert sum(len(list(backend.scan("cells", group))) for group in range(16)) == 100
    assert fleet.operators[0].statistics()["panes"] == 1
    fleet.watermark(END_OF_TIME)
    assert fleet.operators[0].statistics() == {"late": 0, "keys": 0, "panes": 0, "rows": 0}
    assert len(fleet.out.rows()) == 20 * 100


def test_a_snapshot_has_what_changed_as_it_is_now():
    operator = stored_fleet().operators[0]
    operator.process(many(0), None)
    first = operator.snapshot()
    assert first.is_whole
    assert len(first.tables["panes"].rows) == 100
    operator.process(many(1, rows=3), None)
    operator.process(many(2, rows=2), None)
    second = operator.snapshot()
    assert not second.is_whole
    counts = dict(zip(*second.tables["panes"].rows.select(["__key_0", "__rows"]).to_pydict().values(), strict=True))
    assert counts == {"k0": 3, "k1": 3, "k2": 2}
    assert len(operator.snapshot().tables["panes"].rows) == 0


def test_state_moves_between_memory_and_a_backend():
    fleet = stored_fleet()
    fleet.feed(many(0))
    fleet.make = lambda: WindowAggregate(grouping=GROUPING, window=SlidingWindow(10, 10))
    fleet = fleet.restored(2)
    fleet.feed(many(1))
    fleet.make = lambda: StoredWindowAggregate(grouping=GROUPING, window=SlidingWindow(10, 10))
    fleet = fleet.restored(3)
    fleet.feed(many(2))
    fleet.end()
    assert sorted(fleet.out.rows("key", "rows")) == sorted((f"k{number}", 3) for number in range(100))


def test_state_of_something_else_is_refused():
    fleet = stored_fleet()
    fleet.feed(many(0))
    states = fleet.snapshot()
    other = Grouping(keys=("key",), aggregations=(*WHOLE, Aggregation("mean", "value", "mean")))
    for window, grouping in ((SlidingWindow(20, 10), GROUPING), (SlidingWindow(10, 10), other)):
        operator = StoredWindowAggregate(grouping=grouping, window=window)
        with pytest.raises(PreconditionError, match="its state in the checkpoint is of"):
            Fleet(lambda made=operator: made, [("key",)], states=[*states, *states])
