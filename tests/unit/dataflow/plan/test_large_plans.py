"""Expressions and chains of steps that are larger than anybody writes by hand work, or are refused at their line."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import pyarrow as pa
import pytest

from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.errors import PlanError
from shoal.dataflow.language.binding import bind
from shoal.dataflow.language.expressions.trees import (
    MAX_DEPTH,
    Expression,
    col,
    conjunction,
    conjuncts,
    depth_of,
    parts_of,
    same,
    why_too_large,
)
from shoal.dataflow.language.logical import Filter, Project, Sink, walk
from shoal.dataflow.plan.prepare import sketch


def numbers() -> Stream:
    return Stream.from_dicts([{"v": 2, "w": 1}, {"v": 1, "w": 5}])


def total(terms: int) -> Expression:
    return functools.reduce(operator.add, [col("v")] * terms)


@pytest.mark.parametrize("terms", [400, 1500, 5000])
@pytest.mark.parametrize(
    "write",
    [
        lambda terms: numbers().filter(functools.reduce(operator.or_, [col("v") == each for each in range(terms)])),
        lambda terms: numbers().select(t=total(terms)),
        lambda terms: numbers().with_columns(t=total(terms)),
        lambda terms: numbers().map(total(terms)),
        lambda terms: numbers().map(lambda batch: batch).select(t=total(terms)),
        lambda terms: numbers().map(lambda batch: batch).filter(total(terms) > 5),
    ],
)
def test_an_expression_that_is_too_deep_is_refused_at_its_line(write: Callable[[int], Stream], terms: int) -> None:
    with pytest.raises(PlanError, match=r"test_large_plans\.py:\d+: expression: is \d+ operations deep, and") as caught:
        write(terms)
    assert "isin" in caught.value.hint


def test_the_deepest_expression_works_also_far_down_in_a_program() -> None:
    def deeper(calls: int) -> list[dict[str, int]]:
        return deeper(calls - 1) if calls else numbers().select(t=total(MAX_DEPTH + 1)).to_pylist()

    assert deeper(150) == [{"t": 2 * (MAX_DEPTH + 1)}, {"t": MAX_DEPTH + 1}]


def test_parts_that_are_used_again_and_again_are_counted_each_time() -> None:
    doubled: Expression = col("v")
    for _ in range(60):
        doubled = doubled + doubled
    with pytest.raises(PlanError, match="expression: has more than 100,000 parts"):
        bind(doubled, pa.schema({"v": pa.int64()}))


def test_parts_come_from_the_top_and_from_the_left() -> None:
    tree = (col("a") + col("b")) * -col("c")
    assert [repr(each) for each in parts_of(tree)] == ["(a + b) * -c", "a + b", "a", "b", "-c", "c"]
    assert depth_of(tree) == 2
    assert why_too_large(tree) == ""
    assert "…" in repr(total(5000))


def test_many_conditions_are_joined_flatly() -> None:
    parts = [col("v") > each for each in range(1000)]
    whole = conjunction(parts)
    assert depth_of(whole) <= MAX_DEPTH
    assert all(map(same, conjuncts(whole), parts))


def test_a_long_chain_of_columns_is_merged_in_one_go_as_deep_as_may_be() -> None:
    stream = numbers()
    for _ in range(1500):
        stream = stream.with_columns(v=col("v") + 1)
    plan = sketch([Sink(inputs=(stream.node,), connector=_collect())]).sinks
    projects = [each for each in walk(*plan) if isinstance(each, Project)]
    assert len(projects) == -(-1500 // MAX_DEPTH)
    assert stream.to_pylist() == [{"v": 1502, "w": 1}, {"v": 1501, "w": 5}]


def test_a_long_chain_of_filters_is_merged() -> None:
    stream = numbers()
    for each in range(300):
        stream = stream.filter(col("v") < 300 - each)
    plan = sketch([Sink(inputs=(stream.node,), connector=_collect())]).sinks
    assert len([each for each in walk(*plan) if isinstance(each, Filter)]) < 10
    assert stream.to_pylist() == []
    assert stream.filter(col("w") > 0).to_pylist() == []


def test_filters_between_many_projections_come_to_the_source() -> None:
    stream = numbers()
    for each in range(100):
        stream = stream.with_columns(x=col("w") + each).filter(col("v") > -each)
    plan = sketch([Sink(inputs=(stream.node,), connector=_collect())]).sinks
    kinds = [type(each).__name__ for each in walk(*plan)]
    assert kinds[1] == "Filter"
    assert kinds.index("Project") > max(place for place, kind in enumerate(kinds) if kind == "Filter")
    assert stream.to_pylist() == [{"v": 2, "w": 1, "x": 100}, {"v": 1, "w": 5, "x": 104}]


def test_more_steps_than_a_task_can_call_are_refused_at_the_last_one() -> None:
    stream = numbers()
    for _ in range(150):
        stream = stream.map(lambda batch: batch)
    assert stream.to_pylist() == numbers().to_pylist()
    for _ in range(100):
        stream = stream.map(lambda batch: batch)
    with pytest.raises(PlanError, match=r"test_large_plans\.py:\d+: plan: is a chain of 2\d\d steps in one task"):
        stream.to_pylist()


def _collect() -> object:
    from shoal.dataflow.connectors.memory import CollectSink

    return CollectSink()
