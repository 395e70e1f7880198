"""Runs of whole plans: results, errors, stopping, back pressure."""

from __future__ import annotations

import threading
from typing import ClassVar

import pyarrow as pa
import pytest

from shoal.core.errors import DeadlineError, InvalidError
from shoal.dataflow.connectors.memory import CallbackSink
from shoal.dataflow.errors import Location, OperatorFailedError
from shoal.dataflow.execution import engine
from shoal.dataflow.language.functions import make_ref
from shoal.dataflow.language.logical import (
    KeyBy,
    SideOutput,
    Sink,
    Source,
    Union,
)
from shoal.dataflow.operators.base import StepOperator
from shoal.dataflow.settings import FlowSettings
from tests.unit.dataflow.execution.flows import (
    MICROS,
    SCHEMA,
    Multiply,
    Tap,
    collect,
    custom,
    expected_sums,
    rows,
    sums_of,
    table_source,
    tap_source,
    window_sums,
)

SMALL = FlowSettings(batch_rows=7)


def many(count: int = 500) -> pa.RecordBatch:
    return rows(*((f"k{each % 13}", each, each) for each in range(count)))


@pytest.mark.parametrize("parallelism", [1, 2, 5])
@pytest.mark.parametrize("batch_rows", [1, 7, 10_000])
def test_results_do_not_depend_on_width_and_batches(parallelism, batch_rows):
    source = table_source(many(200), MICROS)
    report = engine.run(
        [collect(window_sums(custom(source, Multiply)))],
        parallelism=parallelism,
        settings=FlowSettings(batch_rows=batch_rows),
    )
    doubled = [(key, start, total * 2) for key, start, total in expected_sums([many(200)])]
    assert sums_of(report.tables["out"]) == doubled


def test_a_plan_without_exchange_keeps_the_order():
    report = engine.run([collect(custom(table_source(many()), Multiply))], parallelism=4, settings=SMALL)
    assert report.tables["out"]["value"].to_pylist() == [each * 2 for each in range(500)]


def test_a_stream_that_is_used_twice_runs_once():
    source = table_source(many(50), MICROS)
    doubled = custom(source, Multiply)
    report = engine.run([collect(doubled, "one"), collect(window_sums(source), "two")], parallelism=2)
    assert report.tables["one"]["value"].to_pylist() == [each * 2 for each in range(50)]
    assert sums_of(report.tables["two"]) == expected_sums([many(50)])
    assert report.rows("source-1") == 50


def test_both_ends_of_a_diamond_get_everything():
    source = table_source(many(100), MICROS)
    both = Union(inputs=(custom(source, Multiply), custom(source, lambda: Multiply(3))))
    report = engine.run([collect(window_sums(both))], parallelism=3, settings=SMALL)
    assert sums_of(report.tables["out"]) == [(k, s, t * 5) for k, s, t in expected_sums([many(100)])]


def test_a_union_of_sources_waits_for_the_slower_one():
    slow, fast = Tap(), Tap()
    both = Union(inputs=(tap_source(slow, uid="slow"), tap_source(fast, uid="fast")))
    flow = engine.start([collect(window_sums(both))], settings=SMALL)
    fast.give(rows(("a", 1, 5), ("a", 1, 500)))
    fast.wait_fetched(1)
    slow.give(rows(("a", 1, 6)))
    slow.give(rows(("a", 1, 7), ("b", 1, 15)))
    slow.wait_fetched(2)
    report = flow.stop(finish=True)
    assert sums_of(report.tables["out"]) == [("a", 0, 3), ("a", 500, 1), ("b", 10, 1)]


class Odd(StepOperator):
    """Odd values go to the side."""

    def process(self, batch, out, *, port=0):
        odd = pa.array([value % 2 == 1 for value in batch["value"].to_pylist()])
        out.emit_side("odd", batch.filter(odd))
        out.emit(batch.filter(pa.array([not each.as_py() for each in odd])))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_side_outputs_are_read_or_counted(parallelism):
    keyed = KeyBy(inputs=(table_source(many(100)),), keys=("key",))
    node = custom(keyed, Odd, keys=("key",), uid="odd")
    report = engine.run(
        [collect(node, "even"), collect(SideOutput(inputs=(node,), tag="odd", schema=SCHEMA), "odd-rows")],
        parallelism=parallelism,
    )
    assert sorted(report.tables["odd-rows"]["value"].to_pylist()) == list(range(1, 100, 2))
    assert sorted(report.tables["even"]["value"].to_pylist()) == list(range(0, 100, 2))
    alone = engine.run([collect(custom(table_source(many(100)), Odd, uid="odd"), "even")])
    assert [each.dropped for each in alone.steps if each.uid == "odd"] == [50]


class Broken(StepOperator):
    def process(self, batch, out, *, port=0):
        if 60 in batch["value"].to_pylist():
            raise ValueError("sixty is too much")
        out.emit(batch)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_an_error_names_the_operator_and_the_users_line(parallelism):
    node = custom(table_source(many()), Broken, keys=("key",), at=Location("my_app.py", 12))
    with pytest.raises(
        OperatorFailedError, match=r"custom \(task \d, from my_app.py:12\): ValueError: sixty"
    ) as caught:
        engine.run([collect(custom(node, Multiply))], parallelism=parallelism, settings=SMALL)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.at == Location("my_app.py", 12)


def test_a_failure_ends_an_endless_flow():
    tap = Tap()
    flow = engine.start([collect(custom(tap_source(tap), Broken))], parallelism=2)
    tap.give(rows(("a", 60, 1)))
    with pytest.raises(OperatorFailedError):
        flow.wait(timeout=10)
    assert flow.is_done
    assert isinstance(flow.failed, OperatorFailedError)


class Fussy(StepOperator):
    closed: ClassVar[list[str]] = []

    def __init__(self, name: str, fails: bool = False) -> None:
        self._name, self._fails = name, fails

    def open(self, context):
        if self._fails:
            raise RuntimeError("no such thing")

    def process(self, batch, out, *, port=0):
        out.emit(batch)

    def close(self):
        Fussy.closed.append(self._name)


def test_everything_that_was_opened_is_closed_when_opening_fails():
    Fussy.closed = []
    node = custom(custom(table_source(many()), lambda: Fussy("first", fails=True)), lambda: Fussy("second"))
    with pytest.raises(OperatorFailedError, match="no such thing"):
        engine.run([collect(node)])
    assert sorted(Fussy.closed) == ["first", "second"]


def test_stopping_lets_everything_through_and_keeps_windows_shut():
    tap = Tap()
    flow = engine.start([collect(window_sums(tap_source(tap)))], parallelism=2)
    tap.give(rows(("a", 1, 1), ("a", 2, 12)))
    tap.wait_fetched(1)
    report = flow.stop()
    assert sums_of(report.tables["out"]) == [("a", 0, 1)]


def test_aborting_ends_it_at_once():
    tap = Tap()
    flow = engine.start([collect(window_sums(tap_source(tap)))], parallelism=2)
    flow.abort()
    assert flow.is_done
    assert flow.wait().tables["out"].num_rows == 0


def test_waiting_gives_up_in_time():
    tap = Tap()
    flow = engine.start([collect(tap_source(tap))])
    with pytest.raises(DeadlineError):
        flow.wait(timeout=0.01)
    flow.abort()


def test_a_slow_sink_slows_the_source_and_memory_stays_bounded():
    gate, tap = threading.Event(), Tap()
    wide = rows(*(("key", each, each) for each in range(100)))
    for _ in range(50):
        tap.give(wide)
    sink = Sink(inputs=(KeyBy(inputs=(tap_source(tap),), keys=("key",)),), connector=_waiting(gate))
    flow = engine.start([sink], parallelism=2, settings=FlowSettings(queue_bytes=3 * wide.nbytes))
    tap.wait_fetched(2)
    with tap.changed:
        stuck = not tap.changed.wait_for(lambda: tap.fetched > 8, timeout=0.2)
    assert stuck
    assert max(flow.metrics().waiting_bytes.values()) <= 4 * wide.nbytes
    gate.set()
    tap.wait_fetched(50)
    flow.stop()


def _waiting(gate: threading.Event) -> CallbackSink:
    return CallbackSink(make_ref(lambda batch: gate.wait(10)))


def test_a_source_without_splits_for_a_task_ends_there():
    report = engine.run([collect(_parallel_source())], parallelism=4)
    assert report.tables["out"].num_rows == 2


def _parallel_source() -> Source:
    tap = Tap(splits=2)
    tap.give(rows(("a", 1, 1)), "0")
    tap.give(rows(("a", 2, 2)), "1")
    tap.close()
    return tap_source(tap, bounded=True)


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x"])
def test_names_that_cannot_be_directories_are_refused(name):
    with pytest.raises(InvalidError, match="must be letters"):
        engine.run([collect(table_source(many()))], name=name)


def test_metrics_say_what_each_step_did():
    report = engine.run([collect(custom(table_source(many(100), MICROS), Multiply, uid="m"))])
    step = next(each for each in report.steps if each.uid == "m")
    assert (step.rows, step.batches, step.dropped) == (100, 1, 0)
    assert report.rows("out") == 100
    assert report.seconds >= 0
