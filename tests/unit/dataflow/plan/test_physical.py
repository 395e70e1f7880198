"""Stages and edges of plans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.dataflow.connectors.memory import CollectSink
from shoal.dataflow.language.expressions.trees import Named, col
from shoal.dataflow.language.functions import make_ref
from shoal.dataflow.language.logical import (
    Aggregate,
    Aggregation,
    AssignTime,
    Distinct,
    Filter,
    Join,
    JoinKind,
    JoinMode,
    KeyBy,
    Merge,
    Node,
    Project,
    Reduce,
    SideOutput,
    Sink,
    Source,
    Union,
)
from shoal.dataflow.plan.physical import Exchange, Role, describe_plan, key_groups_of, plan
from tests.unit.dataflow.execution.flows import MICROS, SCHEMA, Tap, TapSource, rows, table_source


def source(**options) -> Source:
    return Source(connector=TapSource(Tap()), schema=SCHEMA, **options)


def sink(node: Node) -> Sink:
    return Sink(inputs=(node,), connector=CollectSink())


def by_key(node: Node, **options) -> Aggregate:
    return Aggregate(inputs=(node,), keys=("key",), aggregations=(Aggregation("n", "*", "count"),), **options)


def shapes(*sinks: Node, parallelism: int = 3):
    made = plan(sinks, parallelism=parallelism)
    return (
        [(stage.parallelism, [step.uid for step in stage.steps]) for stage in made.stages],
        [(edge.source, edge.target, edge.port, edge.exchange, edge.keys) for edge in made.edges],
    )


def where(node: Node) -> Filter:
    return Filter(inputs=(node,), predicate=col("value") > 1)


def test_steps_without_an_exchange_share_a_stage():
    assert shapes(sink(where(source()))) == ([(3, ["source-1", "filter-1", "sink-1"])], [])


def test_with_one_task_everything_of_a_source_is_one_stage():
    stages, edges = shapes(sink(by_key(KeyBy(inputs=(where(source()),), keys=("key",)))), parallelism=1)
    assert (len(stages), edges) == (1, [])


def test_keys_are_exchanged_once():
    keyed = KeyBy(inputs=(source(),), keys=("key",))
    assert shapes(sink(by_key(where(keyed)))) == (
        [(3, ["source-1"]), (3, ["key-by-1", "filter-1", "aggregate-1", "sink-1"])],
        [(0, 1, 0, Exchange.HASH, ("key",))],
    )


@pytest.mark.parametrize(
    ("columns", "keep", "again"),
    [
        ((Named(col("key"), "key"),), False, False),
        ((Named(col("value"), "value"),), False, True),  # the key is gone
        ((Named(col("value"), "key"),), True, True),  # another one stands under its name
        ((Named(col("value"), "other"),), True, False),
        ((Named(col("key"), "other"), Named(col("value"), "key")), False, True),  # it went on under another name
    ],
)
def test_a_projection_keeps_the_partitioning_if_it_keeps_the_keys(columns, keep, again):
    keyed = KeyBy(inputs=(source(),), keys=("key",))
    chosen = Project(inputs=(keyed,), columns=columns, keep_others=keep)
    _stages, edges = shapes(sink(by_key(chosen)))
    assert len(edges) == (2 if again else 1)


def test_other_keys_are_exchanged_again():
    keyed = KeyBy(inputs=(source(),), keys=("value",))
    _stages, edges = shapes(sink(by_key(keyed)))
    assert [edge[-1] for edge in edges] == [("value",), ("key",)]


def test_rows_without_a_key_meet_in_one_task_and_what_follows_stays_there():
    whole = Aggregate(inputs=(source(),), keys=(), aggregations=(Aggregation("n", "*", "count"),))
    assert shapes(sink(where(whole))) == (
        [(3, ["source-1"]), (1, ["aggregate-1", "filter-1", "sink-1"])],
        [(0, 1, 0, Exchange.GATHER, ())],
    )


def test_an_aggregate_in_parts_has_a_step_on_both_sides_of_the_exchange():
    made = plan([sink(by_key(source(), partial=True))], parallelism=2)
    assert [[(step.uid, step.role) for step in stage.steps] for stage in made.stages] == [
        [("source-1", Role.WHOLE), ("aggregate-1.partial", Role.PARTIAL)],
        [("aggregate-1", Role.FINAL), ("sink-1", Role.WHOLE)],
    ]
    alone = plan([sink(by_key(source(), partial=True))], parallelism=1)
    assert [step.role for step in alone.stages[0].steps] == [Role.WHOLE] * 3


def join(left: Node, right: Node, mode: JoinMode = JoinMode.REGULAR, keys: tuple[str, ...] = ("key",)) -> Join:
    return Join(inputs=(left, right), kind=JoinKind.INNER, mode=mode, left_keys=keys, right_keys=keys)


def test_joins_exchange_both_inputs():
    assert shapes(sink(join(source(), source()))) == (
        [(3, ["source-1"]), (3, ["source-2"]), (3, ["join-1", "sink-1"])],
        [(0, 2, 0, Exchange.HASH, ("key",)), (1, 2, 1, Exchange.HASH, ("key",))],
    )


def test_a_small_input_goes_to_everyone():
    _stages, edges = shapes(sink(join(source(), source(), JoinMode.BROADCAST)))
    assert [edge[3] for edge in edges] == [Exchange.FORWARD, Exchange.BROADCAST]


def test_a_join_without_keys_and_a_merge_run_in_one_task():
    for node in (join(source(), source(), JoinMode.ASOF, ()), Merge(inputs=(source(), source()), by="time")):
        stages, edges = shapes(sink(node))
        assert stages[-1][0] == 1
        assert {edge[3] for edge in edges} == {Exchange.GATHER}


def test_two_ways_within_one_stage_meet_in_it():
    start = source()
    stages, edges = shapes(sink(Union(inputs=(where(start), where(start)))))
    assert (len(stages), edges) == (1, [])


def test_another_width_is_rebalanced_or_by_key_where_there_is_one():
    _stages, edges = shapes(sink(Filter(inputs=(source(),), predicate=col("value") > 1, parallelism=2)))
    assert [edge[3] for edge in edges] == [Exchange.REBALANCE]
    narrow = Sink(inputs=(by_key(source()),), connector=CollectSink(), parallelism=2)
    _stages, edges = shapes(narrow)
    assert [(edge[3], edge[4]) for edge in edges] == [(Exchange.HASH, ("key",)), (Exchange.HASH, ("key",))]
    one = Sink(inputs=(by_key(source()),), connector=CollectSink(), parallelism=1)
    assert shapes(one)[1][-1][3] is Exchange.GATHER


def test_a_width_that_is_asked_for_counts_more_than_that_of_the_program():
    made = plan([sink(by_key(source(), parallelism=2))], parallelism=3, widths={"aggregate-1": 5})
    assert [(stage.parallelism, stage.steps[-1].uid) for stage in made.stages] == [(3, "source-1"), (5, "sink-1")]
    together = Aggregate(inputs=(source(),), keys=(), aggregations=(Aggregation("n", "*", "count"),))
    assert plan([sink(together)], parallelism=3, widths={"aggregate-1": 5}).stages[-1].parallelism == 1


def test_changes_stay_in_order_also_under_another_name():
    renamed = Project(inputs=(by_key(source()),), columns=(Named(col("key"), "k"), Named(col("n"), "n")))
    _stages, edges = shapes(Sink(inputs=(renamed,), connector=CollectSink(), parallelism=2))
    assert [(edge[3], edge[4]) for edge in edges] == [(Exchange.HASH, ("key",)), (Exchange.HASH, ("k",))]


def test_a_renamed_key_need_not_be_exchanged_again():
    keyed = KeyBy(inputs=(source(),), keys=("value",))
    renamed = Project(inputs=(keyed,), columns=(Named(col("value"), "key"),))
    _stages, edges = shapes(sink(by_key(renamed)))
    assert [edge[-1] for edge in edges] == [("value",)]


def test_what_a_function_made_of_a_key_is_not_known():
    """A reduction may put anything into the column that it went by: rows of one key are not in one task any more."""
    reduced = Reduce(inputs=(source(),), keys=("key",), function=make_ref(lambda a, b: {**b, "key": "all"}))
    _stages, edges = shapes(sink(by_key(reduced)))
    assert [(edge[3], edge[4]) for edge in edges] == [(Exchange.HASH, ("key",)), (Exchange.HASH, ("key",))]


def test_event_time_that_is_named_behind_an_exchange_is_told_to_all_tasks():
    """Each task has a time of its own there, and windows go by the least of them: by the same in all tasks."""
    timed = AssignTime(inputs=(KeyBy(inputs=(source(),), keys=("key",)),), time=MICROS)
    _stages, edges = shapes(sink(by_key(timed)))
    assert [(edge[3], edge[4]) for edge in edges] == [(Exchange.HASH, ("key",)), (Exchange.HASH, ("key",))]


def test_a_source_with_one_split_has_one_task():
    stages, _edges = shapes(sink(table_source(rows())))
    assert stages[0][0] == 1


def test_side_outputs_lead_from_their_operator():
    node = by_key(source(), uid="sums")
    made = plan([sink(node), sink(SideOutput(inputs=(node,), tag="late"))], parallelism=2)
    late = made.stages[1].steps[-1].links
    assert [(link.tag, link.step) for link in late] == [("late", 0)]


def test_distinct_goes_by_its_columns():
    _stages, edges = shapes(sink(Distinct(inputs=(source(),), columns=("key", "value"))))
    assert edges[0][-1] == ("key", "value")


def test_an_identity_is_there_once():
    with pytest.raises(InvalidError, match="'sums'"):
        plan([sink(by_key(by_key(source(), uid="sums"), uid="sums"))])


@pytest.mark.parametrize("width", [0, -1, 129])
def test_widths_have_bounds(width):
    with pytest.raises(InvalidError, match="from 1 to 128"):
        plan([sink(source())], parallelism=width)
    with pytest.raises(InvalidError, match="from 1 to 128"):
        plan([sink(source(parallelism=width or 500))])


def test_people_can_read_it():
    text = describe_plan(plan([sink(by_key(where(source()), partial=True))], parallelism=2))
    assert text.splitlines() == [
        "stage 0: 2 tasks",
        "  source(tap)  [source-1]",
        "  filter  [filter-1]",
        "  partial aggregate(key)  [aggregate-1.partial]",
        "  -> hash by key -> stage 1",
        "stage 1: 2 tasks",
        "  aggregate(key)  [aggregate-1]",
        "  sink(collect)  [sink-1]",
    ]


@given(st.integers(1, 128), st.integers(1, 256))
def test_every_key_group_belongs_to_exactly_the_task_that_rows_are_sent_to(parallelism, total):
    if parallelism > total:
        return
    shares = [key_groups_of(subtask, parallelism, total) for subtask in range(parallelism)]
    for group in range(total):
        assert [subtask for subtask, share in enumerate(shares) if group in share] == [group * parallelism // total]
