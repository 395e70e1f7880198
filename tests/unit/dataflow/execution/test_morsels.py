"""Morsels: the same rows in the same order, whichever thread works on them."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.clock import SystemClock
from shoal.core.errors import InvalidError
from shoal.dataflow.execution import building, engine
from shoal.dataflow.execution.morsels import Choice, MorselStep, find_runs, find_workers, rows_of_morsel
from shoal.dataflow.language.expressions.trees import Named, col
from shoal.dataflow.language.keys import KeyGroups
from shoal.dataflow.language.logical import Filter, KeyBy, Project
from shoal.dataflow.operators.base import Context, StepOperator
from shoal.dataflow.plan.physical import plan
from shoal.dataflow.settings import FlowSettings
from tests.unit.dataflow.execution.flows import Multiply, collect, custom, rows, table_source

CONTEXT = Context("test", 0, 1, KeyGroups(0, 128, 128), SystemClock())


class Kept:
    def __init__(self) -> None:
        self.values: list[int] = []

    def emit(self, batch: pa.RecordBatch) -> None:
        self.values += batch["value"].to_pylist()

    def emit_side(self, tag: str, batch: pa.RecordBatch) -> None:
        raise AssertionError(tag)


class Even(StepOperator):
    def process(self, batch, out, *, port=0):
        out.emit(batch.filter(pa.array([value % 2 == 0 for value in batch["value"].to_pylist()])))


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 20), st.lists(st.integers(0, 100), max_size=5))
def test_rows_come_out_in_their_order(workers, morsel, sizes):
    step = MorselStep(lambda: [Multiply(3), Even()], workers=workers, rows=morsel)
    step.open(CONTEXT)
    kept, expected = Kept(), []
    for size in sizes:
        values = range(size)
        step.process(pa.record_batch({"value": pa.array(values, pa.int64())}), kept)
        expected += [value * 3 for value in values if value % 2 == 0]
    step.close()
    assert kept.values == expected


def test_workers_help_each_other():
    """The first morsel of each share waits until somebody else has done all the others."""
    gate, done = threading.Event(), []

    class Waits(StepOperator):
        def process(self, batch, out, *, port=0):
            first = batch["value"][0].as_py()
            if first == 0:
                assert gate.wait(10)
            else:
                done.append(first)
                if len(done) == 9:
                    gate.set()
            out.emit(batch)

    step = MorselStep(lambda: [Waits()], workers=2, rows=1)
    step.open(CONTEXT)
    kept = Kept()
    step.process(pa.record_batch({"value": pa.array(range(10), pa.int64())}), kept)
    step.close()
    assert kept.values == list(range(10))


def test_an_error_of_a_worker_is_the_steps_error():
    class Breaks(StepOperator):
        def process(self, batch, out, *, port=0):
            if 7 in batch["value"].to_pylist():
                raise ValueError("seven")

    step = MorselStep(lambda: [Breaks()], workers=3, rows=1)
    step.open(CONTEXT)
    with pytest.raises(ValueError, match="seven"):
        step.process(pa.record_batch({"value": pa.array(range(10), pa.int64())}), Kept())
    step.close()


def stateless_plan():
    source = table_source(rows(*((f"k{each % 5}", each, each) for each in range(1000))))
    chosen = Filter(inputs=(source,), predicate=col("value") % 3 == 0)
    scaled = Project(inputs=(chosen,), columns=(Named(col("value") * 10, "value"),), keep_others=True)
    return [collect(custom(KeyBy(inputs=(scaled,), keys=("key",)), Multiply, keys=("key",)))]


def test_stateless_neighbours_are_found():
    sinks = stateless_plan()
    stage = plan(sinks, parallelism=1).stages[0]
    assert find_runs(stage, ()) == [range(1, 3)]
    shared = [*sinks, collect(sinks[0].inputs[0].inputs[0].inputs[0].inputs[0], "also")]  # somebody reads the filter
    assert find_runs(plan(shared, parallelism=1).stages[0], ()) == [range(1, 2), range(2, 3)]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_flow_gives_the_same_with_and_without(parallelism):
    def run(workers: int) -> list[int]:
        chosen = FlowSettings(morsel_workers=workers, morsel_rows=37)
        return engine.run(stateless_plan(), parallelism=parallelism, settings=chosen).tables["out"]["value"].to_pylist()

    assert run(3) == run(0)
    assert sorted(run(3)) == [each * 20 for each in range(0, 1000, 3)]


def numbers(rows: int, columns: int = 1) -> pa.RecordBatch:
    return pa.record_batch({f"c{each}": pa.array(range(rows), pa.int64()) for each in range(columns)})


def test_a_morsel_fits_into_a_cache_and_every_worker_has_one():
    assert rows_of_morsel(numbers(65_536), 2) == 32_768
    assert rows_of_morsel(numbers(65_536, columns=8), 2) == 8_192  # 512 KB
    assert rows_of_morsel(numbers(65_536, columns=5), 2) == 10_923  # three for each, not three and two
    assert rows_of_morsel(numbers(65_536, columns=100), 2) == 4_096
    assert rows_of_morsel(numbers(10), 4) == 4_096


@pytest.mark.parametrize(("asked", "given", "workers"), [(0, "", 1), (0, "3", 3), (2, "3", 2), (1, "3", 1)])
def test_an_agent_says_how_many_threads_share_the_work_unless_the_program_does(asked, given, workers):
    assert find_workers(asked, {"SHOAL_WORKERS": given}) == workers


@pytest.mark.parametrize("given", ["no", "0", "-1", "99999"])
def test_a_number_of_workers_that_is_none_is_refused(given):
    with pytest.raises(InvalidError, match="SHOAL_WORKERS"):
        find_workers(0, {"SHOAL_WORKERS": given})


def test_tasks_below_an_agent_share_their_work(monkeypatch):
    made: list[int] = []

    class Spy(MorselStep):
        def __init__(self, *arguments, workers, **others):
            made.append(workers)
            super().__init__(*arguments, workers=workers, **others)

    monkeypatch.setattr(building, "MorselStep", Spy)
    for workers in ("1", "2"):
        monkeypatch.setenv("SHOAL_WORKERS", workers)
        engine.run(stateless_plan())
    assert made == [2]


def choose(alone: float, shared: float, batches: int = 400) -> list[bool]:
    """Which batches were shared out, when rows cost so much in both ways."""
    choice, found = Choice(), []
    for _ in range(batches):
        is_shared = choice.next(1000)
        found.append(is_shared)
        choice.took(is_shared, 1000 * (shared if is_shared else alone), 1000)
    return found


def test_the_quicker_way_is_chosen_and_the_other_one_tried_again_from_time_to_time():
    assert 390 <= sum(choose(alone=2, shared=1)) < 400
    assert 0 < sum(choose(alone=1, shared=2)) <= 10
    assert sum(choose(alone=1, shared=0.99)) <= 10  # not worth another core
    assert not any(choose(alone=0.9e-6, shared=0))  # a batch that costs so little


def test_a_batch_that_waited_for_a_core_changes_nothing():
    choice = Choice()
    for batch in range(90):
        is_shared = choice.next(1)
        choice.took(is_shared, 50 if batch % 3 == 0 else 1 if is_shared else 2, 1)
    assert choice.next(1)


def test_the_two_ways_do_not_take_turns_while_they_cost_about_the_same():
    choice, found = Choice(), []
    for batch in range(90):
        is_shared = choice.next(1)
        found.append(is_shared)
        choice.took(is_shared, (0.8 if batch < 30 else 0.9) if is_shared else 1, 1)
    assert found == [False] * 3 + [True] * 87


def test_a_way_that_became_quicker_is_taken():
    choice = Choice()
    for batch in range(950):
        is_shared = choice.next(1)
        choice.took(is_shared, 2 if is_shared == (batch < 300) else 1, 1)
    assert choice.next(1)
