"""Expressions that cannot be worked out for a row: it ends the run, is left out, or goes aside, as `on_error` says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.connectors.memory import CollectSink
from shoal.dataflow.errors import OperatorFailedError, PlanError
from shoal.dataflow.execution import engine
from shoal.dataflow.language.binding import bind
from shoal.dataflow.language.elements import Batch
from shoal.dataflow.language.expressions.trees import col
from shoal.dataflow.language.logical import Node, OnError, Project, Sink, walk
from shoal.dataflow.operators import stateless
from shoal.dataflow.operators.policies import ErrorPolicy
from shoal.dataflow.plan.documents import read_plan, write_plan
from shoal.dataflow.plan.prepare import prepare
from shoal.dataflow.settings import FlowSettings

BIG = 2**62
FOURFOLD = col("x") * 4
ROWS = [{"k": "a", "x": 1}, {"k": "b", "x": BIG}, {"k": "c", "x": 3}, {"k": "d", "x": -BIG}]


def numbers() -> Stream:
    return Stream.from_dicts(ROWS)


STEPS: list[tuple[Callable[..., Stream], list[dict[str, Any]]]] = [
    (lambda **said: numbers().map(FOURFOLD, **said), [{"x": 4}, {"x": 12}]),
    (lambda **said: numbers().select("k", y=FOURFOLD, **said), [{"k": "a", "y": 4}, {"k": "c", "y": 12}]),
    (lambda **said: numbers().with_columns(x=FOURFOLD, **said), [{"k": "a", "x": 4}, {"k": "c", "x": 12}]),
    (lambda **said: numbers().filter(FOURFOLD > 4, **said), [{"k": "c", "x": 3}]),
    (lambda **said: numbers().records().map(FOURFOLD, **said), [{"x": 4}, {"x": 12}]),
    (lambda **said: numbers().records().filter(FOURFOLD > 4, **said), [{"k": "c", "x": 3}]),
]


@pytest.mark.parametrize(("step", "left"), STEPS)
def test_a_row_that_fails_follows_the_policy(step: Callable[..., Stream], left: list[dict[str, Any]]) -> None:
    with pytest.raises(OperatorFailedError, match=rf"x \* 4.* overflow for the row .*'x': {BIG}") as caught:
        step().collect()
    assert "test_expression_policies.py" in str(caught.value)
    assert "on_error='skip'" in caught.value.hint
    assert step(on_error="skip").to_pylist() == left
    bad = step(on_error="side").side_output("errors").to_pylist()
    assert [(row["k"], row["x"]) for row in bad] == [("b", BIG), ("d", -BIG)]
    assert all("overflow" in row["error"] for row in bad)


@pytest.mark.parametrize(("step", "left"), STEPS)
def test_rows_that_go_aside_leave_the_others_where_they_were(
    step: Callable[..., Stream], left: list[dict[str, Any]]
) -> None:
    stream = step(on_error="side")
    errors = stream.side_output("errors").select("k").node
    sinks: list[Node] = [
        Sink(inputs=(stream.node,), connector=CollectSink(), uid="good"),
        Sink(inputs=(errors,), connector=CollectSink(), uid="bad"),
    ]
    for settings in (FlowSettings(), FlowSettings(morsel_workers=2, morsel_rows=1)):
        tables = engine.run(sinks, settings=settings).tables
        assert tables["good"].to_pylist() == left
        assert tables["bad"].to_pylist() == [{"k": "b"}, {"k": "d"}]


def test_a_failure_names_the_column_and_shows_what_it_read_first() -> None:
    wide = Stream.from_dicts([{"long": "z" * 2000, "n": "7"}, {"long": "z" * 2000, "n": "seven"}])
    with pytest.raises(OperatorFailedError, match=r"column 'number': .*for the row \{'n': 'seven'"):
        wide.with_columns(number=col("n").cast("int64")).collect()
    # The batch fails at `a` of its second row; the first row that is bad is bad for another column.
    both = Stream.from_dicts([{"a": "1", "b": "q"}, {"a": "q", "b": "1"}])
    with pytest.raises(OperatorFailedError, match=r"column 'b': .*for the row \{'b': 'q'"):
        both.select(a=col("a").cast("int64"), b=col("b").cast("int64")).collect()


def test_rows_that_are_left_out_are_counted_and_the_rest_goes_on_as_one_batch() -> None:
    batch = pa.RecordBatch.from_pylist(ROWS * 10)
    policy = ErrorPolicy(OnError.SKIP)
    operator = stateless.Project(columns=[("y", bind(FOURFOLD, batch.schema))], keep_others=True, policy=policy)
    out = Gathered()
    operator.process(batch, out)
    assert operator.statistics() == {"skipped": 20, "put_aside": 0}
    assert [each.num_rows for each in out.batches] == [20]
    assert out.batches[0].column("y").to_pylist() == [4, 12] * 10


@given(st.lists(st.sampled_from([1, 5, BIG, -BIG, None]), min_size=1, max_size=40), st.integers(1, 9))
def test_what_is_left_is_what_python_would_leave(values: list[int | None], rows: int) -> None:
    table = pa.table({"x": pa.array(values, pa.int64())})
    stream = Stream.from_table(table, batch_size=rows).select(y=FOURFOLD, on_error="skip")
    expected = [None if each is None else each * 4 for each in values if each is None or abs(each) < BIG]
    assert stream.collect().column("y").to_pylist() == expected


class Gathered:
    """Keeps what comes out."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def emit(self, batch: Batch) -> None:
        self.batches.append(batch)

    def emit_side(self, tag: str, batch: Batch) -> None:
        raise AssertionError(tag)


# -- what rules may do to such steps ------------------------------------------------------------------------


def test_a_column_that_nobody_reads_still_leaves_rows_out() -> None:
    for step in (
        numbers().select("k", y=FOURFOLD, on_error="skip"),
        numbers().with_columns(y=FOURFOLD, on_error="skip"),
    ):
        assert step.select("k").to_pylist() == [{"k": "a"}, {"k": "c"}]
        assert step.count() == 2


def test_two_steps_of_unlike_policies_stay_two() -> None:
    lenient = numbers().with_columns(y=FOURFOLD, on_error="skip")
    with pytest.raises(OperatorFailedError, match="column 'z'"):
        lenient.select(z=col("x") + (2**63 - 3)).collect()
    strict = numbers().with_columns(y=FOURFOLD)
    with pytest.raises(OperatorFailedError, match="column 'y'"):
        strict.select(z=col("y") + 1, on_error="skip").collect()


def test_a_filter_behind_sees_only_rows_that_are_left() -> None:
    stream = numbers().select("x", y=FOURFOLD, on_error="skip").filter(FOURFOLD > 4)
    assert stream.to_pylist() == [{"x": 3, "y": 12}]


def test_a_step_that_changes_nothing_keeps_its_side_output() -> None:
    idle = numbers().select("k", "x", on_error="side")
    assert idle.side_output("errors").to_pylist() == []


def test_the_policy_is_written_down() -> None:
    node = numbers().select(y=FOURFOLD, on_error="skip").to_callback(print).node
    (read,) = read_plan(write_plan([node]))
    (project,) = [each for each in walk(read) if isinstance(each, Project)]
    assert project.on_error is OnError.SKIP


# -- what is refused ----------------------------------------------------------------------------------------


def test_a_column_called_on_error_is_written_as_a_mapping() -> None:
    for step in (numbers().select, numbers().with_columns):
        for given_value in (col("x"), "wat", 5, None):
            with pytest.raises(PlanError, match=r"test_expression_policies.py:\d+: on_error: is the policy") as caught:
                step(on_error=given_value)  # type: ignore[arg-type]
            assert '({"on_error": …})' in caught.value.hint
    assert numbers().select({"on_error": col("x")}).take(1)[0].to_pylist()[0] == {"on_error": 1}
    assert numbers().with_columns({"on_error": 5}).schema.names == ["k", "x", "on_error"]  # type: ignore[union-attr]
    with pytest.raises(PlanError, match="select: must be a column's name"):
        numbers().select({5: col("x")})  # type: ignore[dict-item]


def test_errors_have_to_be_asked_for() -> None:
    with pytest.raises(PlanError, match="this select fails on errors"):
        numbers().select("k").side_output("errors")
    with pytest.raises(PlanError, match="nobody reads it"):
        prepare([numbers().map(FOURFOLD, on_error="side").to_callback(print).node])


def test_a_policy_that_cannot_be_is_refused() -> None:
    keep = lambda a, _b: a  # noqa: E731
    reductions: tuple[Callable[[], Any], ...] = (
        lambda: numbers().reduce(keep, on_error="skip"),
        lambda: numbers().key_by("k").reduce(keep, on_error="skip"),
        lambda: numbers().group_by("k").reduce(keep, on_error="skip"),
        lambda: numbers().apply(asyncio.Queue, on_error="skip"),
    )
    for reduction in reductions:
        with pytest.raises(PlanError, match=r"test_expression_policies.py:\d+: on_error: cannot be set"):
            reduction()
    with pytest.raises(PlanError, match="reduce: wat: is no option of it"):
        numbers().reduce(keep, wat=1)
    with pytest.raises(PlanError, match="schema: is for functions"):
        numbers().map(FOURFOLD, schema={"x": "double"})


# -- division by zero ---------------------------------------------------------------------------------------


def test_whole_numbers_by_zero_are_null_and_fractions_have_no_end() -> None:
    rows = Stream.from_dicts([{"x": 7, "zero": 0, "none": 0.0}])
    found = rows.select(
        a=col("x") // col("zero"), b=col("x") % col("zero"), c=col("x") // 0, d=col("x") / col("zero"), e=col("x") / 0.0
    )
    assert found.to_pylist() == [{"a": None, "b": None, "c": None, "d": float("inf"), "e": float("inf")}]
