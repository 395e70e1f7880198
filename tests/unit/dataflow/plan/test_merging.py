"""Merges whose inputs are told apart again behind them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from shoal import Stream, col
from shoal.dataflow.language.expressions.trees import Expression
from shoal.dataflow.plan.merging import can_keep_apart, rejects
from shoal.dataflow.plan.physical import plan
from shoal.dataflow.plan.prepare import prepare

ONE = pa.table({"at": [1, 3, 5], "name": ["a", "b", None], "when": pa.array([1, 3, 5], pa.timestamp("s"))})
OTHER = pa.table({"at": [2, 4, 6], "price": [1, 20, 3], "when": pa.array([2, 4, 6], pa.timestamp("s"))})


def merged() -> Stream:
    return Stream.merge(Stream.from_table(ONE), Stream.from_table(OTHER), by="at")


@pytest.mark.parametrize(
    ("predicate", "is_rejected"),
    [
        (col("x").is_valid(), True),
        (col("x") > 1, True),
        (col("x").isin([1, 2]), True),
        ((col("x") == 1) & (col("y") == 1), True),
        ((col("x") == 1) | (col("x") == 2), True),
        (col("y").is_valid(), False),
        (col("x").is_null(), False),
        (~col("x").is_valid(), False),
        ((col("x") == 1) | (col("y") == 1), False),
        (col("x").fill_null(1) == 1, False),
    ],
    ids=repr,
)
def test_a_predicate_rejects_rows_without_its_columns(predicate: Expression, is_rejected: bool) -> None:
    assert rejects(predicate, {"x"}) is is_rejected


def is_apart(*streams: Stream) -> bool:
    prepared = prepare([each.to_callback(print).node for each in streams])
    physical = plan(prepared.sinks, parallelism=1, key_groups=128)
    [(stage, index)] = [
        (stage, index)
        for stage in physical.stages
        for index, step in enumerate(stage.steps)
        if type(step.node).__name__ == "Merge"
    ]
    return can_keep_apart(stage, index, physical.outputs_of(stage.number), prepared.facts)


def test_a_merge_is_kept_apart_when_all_of_its_readers_want_one_input_each():
    rows = merged()
    assert is_apart(rows.filter(col("name").is_valid()), rows.filter(col("price") > 2))
    timed = merged().event_time("when")
    assert is_apart(timed.filter(col("name").is_valid()), timed.filter(col("price") > 2))


def test_a_merge_is_woven_when_a_reader_sees_both_inputs():
    rows = merged()
    assert not is_apart(rows)
    assert not is_apart(rows.filter(col("name").is_valid()), rows)
    assert not is_apart(rows.filter(col("at") > 2))
    assert not is_apart(rows.filter(col("name").is_null()), rows.filter(col("price") > 2))
    assert not is_apart(rows.filter(col("price") + 1 > 2))  # may fail on a row, and says so as it is written


@pytest.mark.parametrize("size", [1, 2, 100])
def test_streams_that_are_told_apart_have_their_own_rows(size: int) -> None:
    one, other = Stream.from_table(ONE, size), Stream.from_table(OTHER, size)
    rows = Stream.merge(one, other, by="at")
    names, prices = rows.filter(col("name").is_valid()), rows.filter(col("price") > 2)
    both = names.select("at").union(prices.select("at")).collect()
    assert sorted(both.column("at").to_pylist()) == [1, 3, 4, 6]
    assert prices.select("price").collect().column("price").to_pylist() == [20, 3]
