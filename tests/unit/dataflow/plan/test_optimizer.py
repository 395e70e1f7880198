"""Rules: what each does, what it keeps its hands off, and that no result changes, whatever the plan."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import session, tumbling
from shoal.dataflow.connectors.memory import CollectSink
from shoal.dataflow.language.aggregates import AGGREGATES
from shoal.dataflow.language.expressions.trees import col, describe, lit, same
from shoal.dataflow.language.logical import Aggregate, Filter, Join, Node, Project, Sink, Source, walk
from shoal.dataflow.plan.optimizer import RULES, optimise
from shoal.dataflow.plan.resolve import resolve, with_uids
from shoal.dataflow.plan.rewrites import fold, is_total
from tests.unit.dataflow.plan.interpreter import results
from tests.unit.dataflow.plan.plans import Same, WholeSource, plans

ORDERS = [{"id": 1, "user": "a", "amount": 5, "note": None}, {"id": 2, "user": "b", "amount": 7, "note": "x"}]


def orders() -> Stream:
    return Stream.from_dicts(ORDERS)


def sink(*streams: Stream) -> tuple[Node, ...]:
    return with_uids([Sink(inputs=(each.node,), connector=CollectSink()) for each in streams])


def better(*streams: Stream, only: str = "") -> tuple[Node, ...]:
    plan = sink(*streams)
    rules = [rule for rule in RULES if not only or rule.name == only]
    assert rules
    return optimise(plan, resolve(plan), resolve, rules)[0]


def of_kind(plan: tuple[Node, ...], kind: type[Any]) -> list[Any]:
    return [node for node in walk(*plan) if isinstance(node, kind)]


def shape(plan: tuple[Node, ...]) -> str:
    return " ".join(type(node).__name__.lower() for node in walk(*plan))


@settings(max_examples=80)
@given(plan=plans())
def test_no_result_changes(plan: list[Node]) -> None:
    naive = with_uids(plan)
    expected = results(naive)
    changed, _facts, _rules = optimise(naive, resolve(naive), resolve)
    if expected is not None:  # a plan may fail less often than written, never more often
        assert results(changed) == expected


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@settings(max_examples=20)
@given(plan=plans())
def test_no_rule_changes_a_result_by_itself(rule: Any, plan: list[Node]) -> None:
    naive = with_uids(plan)
    expected = results(naive)
    changed = rule.apply(naive, resolve(naive))
    resolve(with_uids(changed))
    if expected is not None:
        assert results(changed) == expected


@settings(max_examples=20)
@given(plan=plans())
def test_state_keeps_its_name(plan: list[Node]) -> None:
    naive = with_uids(plan)
    changed, _facts, _rules = optimise(naive, resolve(naive), resolve)
    stateful = {"Aggregate", "Distinct", "Join"}
    before = {node.uid for node in walk(*naive) if type(node).__name__ in stateful}
    assert {node.uid for node in walk(*changed) if type(node).__name__ in stateful} == before


@settings(max_examples=20)
@given(plan=plans())
def test_the_optimizer_comes_to_rest(plan: list[Node]) -> None:
    naive = with_uids(plan)
    once, facts, _rules = optimise(naive, resolve(naive), resolve)
    again, _facts, more = optimise(once, facts, resolve)
    assert more == ()
    assert again == once


# ---------------------------------------------------------------------------------------------------------
# Filters


def test_a_filter_goes_below_columns_that_only_pass() -> None:
    plan = better(
        orders().with_columns(twice=col("amount") * 2).filter((col("user") == "a") & (col("twice") > 3)),
        only="push filters down",
    )
    below, above = of_kind(plan, Filter)
    assert describe(below.predicate) == "user == 'a'"
    assert describe(above.predicate) == "twice > 3"
    assert shape(plan) == "source filter project filter sink"


def test_a_filter_follows_a_name_back() -> None:
    plan = better(orders().select(who=col("user")).filter(col("who") == "a"), only="push filters down")
    (only,) = of_kind(plan, Filter)
    assert describe(only.predicate) == "user == 'a'"
    assert isinstance(only.inputs[0], Source)


def test_a_filter_goes_into_every_branch_of_a_union() -> None:
    plan = better(orders().union(orders()).filter(col("amount") > 5), only="push filters down")
    assert shape(plan) == "source filter source filter union sink"


def test_a_filter_goes_to_the_side_of_a_join_that_it_reads() -> None:
    joined = orders().join(orders(), on="id").filter((col("amount") > 5) & (col("amount_right") > 6))
    plan = better(joined, only="push filters down")
    assert [describe(each.predicate) for each in of_kind(plan, Filter)] == ["amount > 5", "amount > 6"]
    left = orders().join(orders(), on="id", how="left").filter((col("amount") > 5) & (col("amount_right") > 6))
    plan = better(left, only="push filters down")
    assert shape(plan) == "source filter source join filter sink"


def test_a_filter_stays_behind_what_is_opaque_or_has_state() -> None:
    ordered = orders().with_columns(ts=col("amount").cast("timestamp[us]"))
    for stream in (
        orders().map(lambda batch: batch, schema=orders().schema),
        orders().records().map(lambda row: row, schema=orders().schema),
        orders().filter(lambda batch: batch["amount"]),
        orders().distinct("user"),
        ordered.event_time("ts"),
        orders().apply(Same, schema=orders().schema),
    ):
        written = stream.filter(col("user") == "a")
        assert shape(better(written, only="push filters down")) == shape(sink(written))


def test_a_filter_stays_behind_what_others_read_too() -> None:
    shared = orders().with_columns(twice=col("amount") * 2)
    plan = better(shared.filter(col("user") == "a"), shared.select("twice"), only="push filters down")
    assert shape(plan) == "source project filter sink project sink"


def test_a_filter_with_tasks_of_its_own_stays_where_it_is() -> None:
    written = orders().with_columns(x=lit(1)).filter(col("user") == "a").with_parallelism(3)
    assert shape(better(written, only="push filters down")) == "source project filter sink"


def test_filters_merge_unless_the_second_could_fail_on_what_the_first_keeps_away() -> None:
    plan = better(orders().filter(col("user") != "").filter(col("amount") > 5), only="merge filters")
    assert [describe(each.predicate) for each in of_kind(plan, Filter)] == ["(user != '') & (amount > 5)"]
    risky = orders().filter(col("user") != "b").filter(col("user").cast("int64") > 5)
    assert len(of_kind(better(risky), Filter)) == 2


# ---------------------------------------------------------------------------------------------------------
# Projections


def test_projections_merge_unless_something_would_be_worked_out_twice() -> None:
    once = orders().with_columns(x=col("amount") * 2).select(y=col("x") + 1, user=col("user"))
    (only,) = of_kind(better(once, only="merge projections"), Project)
    assert [describe(each.expression) for each in only.columns] == ["(amount * 2) + 1", "user"]
    twice = orders().with_columns(x=col("amount") * 2).select(y=col("x") + col("x"))
    assert len(of_kind(better(twice, only="merge projections"), Project)) == 2


def test_added_columns_keep_their_places_when_merged() -> None:
    written = orders().with_columns(a=lit(1), b=lit(2)).with_columns(c=lit(3), a=col("id"))
    (only,) = of_kind(better(written, only="merge projections"), Project)
    assert [each.name for each in only.columns] == ["a", "b", "c"]
    assert only.keep_others


def test_a_projection_that_does_nothing_goes_away() -> None:
    assert shape(better(orders().select("id", "user", "amount", "note"))) == "source sink"


def test_sources_read_only_what_is_used() -> None:
    plan = better(orders().filter(col("amount") > 5).group_by("user").aggregate({"n": ("*", "count")}))
    (source,) = of_kind(plan, Source)
    assert source.connector.columns == ("user", "amount")
    assert source.schema.names == ["user", "amount"]


def test_a_count_of_everything_still_reads_a_column() -> None:
    (source,) = of_kind(better(orders().aggregate({"n": ("*", "count")})), Source)
    assert source.connector.columns == ("id",)


def test_a_source_reads_its_event_time_and_what_late_rows_show() -> None:
    rows = [{"ts": 1, "user": "a", "amount": 1, "note": "x"}]
    timed = Stream.from_dicts(rows).event_time("ts", unit="us")
    windowed = timed.group_by("user").window(tumbling(seconds=1)).sum("amount")
    (source,) = of_kind(better(windowed), Source)
    assert set(source.schema.names) == {"ts", "user", "amount"}
    (source,) = of_kind(better(windowed, windowed.side_output("late")), Source)
    assert set(source.schema.names) == {"ts", "user", "amount", "note"}


def test_each_side_of_a_join_reads_what_its_own_late_rows_show() -> None:
    rows = [{"ts": 1, "id": 1, "amount": 1, "note": "x"}]
    left, right = (Stream.from_dicts(rows).event_time("ts", unit="us") for _ in range(2))
    joined = left.join(right, on="id", within="1s")
    shown = joined.select("id")
    for late, expected in (
        ([], [{"ts", "id"}, {"ts", "id"}]),
        (["late"], [{"ts", "id", "note"}, {"ts", "id"}]),
        (["late_right"], [{"ts", "id"}, {"ts", "id", "note"}]),
        (["late", "late_right"], [{"ts", "id", "note"}, {"ts", "id", "note"}]),
    ):
        plan = better(shown, *(joined.side_output(tag).select("note") for tag in late))
        assert [set(each.schema.names) for each in of_kind(plan, Source)] == expected


def test_a_filter_stays_behind_a_join_whose_late_rows_are_read() -> None:
    rows = [{"ts": 1, "id": 1}]
    left, right = (Stream.from_dicts(rows).event_time("ts", unit="us") for _ in range(2))
    joined = left.join(right, on="id", within="1s")
    plan = better(joined.filter(col("id") > 5), joined.side_output("late_right"))
    (kept,) = of_kind(plan, Filter)
    assert isinstance(kept.inputs[0], Join)


def test_nothing_is_pruned_below_a_function() -> None:
    written = orders().map(lambda batch: batch["amount"], schema={"amount": "int64"}).select("amount")
    (source,) = of_kind(better(written), Source)
    assert source.connector.columns is None


def test_a_name_that_comes_from_two_sides_does_not_change() -> None:
    plan = better(orders().join(orders(), on="id").select("amount_right"))
    assert resolve(plan)[plan[0]].schema.names == ["amount_right"]
    assert [set(each.schema.names) for each in of_kind(plan, Source)] == [{"id", "amount"}, {"id", "amount"}]


# ---------------------------------------------------------------------------------------------------------
# Constants


@pytest.mark.parametrize(
    ("written", "folded"),
    [
        (col("a") > lit(2) * 3, "a > 6"),
        (lit(7) // 2, "3"),
        (lit(True) & (col("a") > 1), "a > 1"),
        ((col("a") > 1) | True, "True"),
        (~~(col("a") > 1), "a > 1"),
        (lit(1).cast("int8") + 1, "2"),
        (lit("a") + "b", "'ab'"),
        (col("a") + 1, "a + 1"),
    ],
)
def test_constants_are_worked_out(written: Any, folded: str) -> None:
    assert describe(fold(written)) == folded


@pytest.mark.parametrize("written", [lit(1).cast("int8"), lit("x").cast("int64"), lit(2**62) * 4])
def test_what_has_no_literal_or_fails_stays_as_it_is(written: Any) -> None:
    assert same(fold(written), written)


def test_a_filter_that_lets_all_through_goes_away() -> None:
    assert shape(better(orders().filter(lit(1) < 2), only="fold constants")) == "source sink"


def test_what_can_fail_is_known() -> None:
    assert is_total((col("a") > 1) & col("b").isin([1]) | (col("c") % 2 == 0))
    assert not is_total(col("a").cast("int64") > 1)
    assert not is_total(col("a") + 1 > 1)


# ---------------------------------------------------------------------------------------------------------
# Marks


def timed() -> Stream:
    return Stream.from_dicts([{"ts": 1, "user": "a", "amount": 1}]).event_time("ts", unit="us")


def test_aggregates_that_merge_begin_before_the_exchange() -> None:
    for stream, expected in (
        (timed().group_by("user").sum("amount"), True),
        (timed().window(tumbling(seconds=1)).sum("amount"), True),
        (timed().group_by("user").window(session(gap_seconds=1)).sum("amount"), False),
        (timed().group_by("user").aggregate({"x": ("amount", "last")}), False),
    ):
        (only,) = of_kind(better(stream), Aggregate)
        assert only.partial is expected


def test_late_rows_that_somebody_reads_are_not_summed_before() -> None:
    windowed = timed().group_by("user").window(tumbling(seconds=1)).sum("amount")
    (only,) = of_kind(better(windowed, windowed.side_output("late")), Aggregate)
    assert not only.partial


def test_what_is_mergeable_is_said_for_every_aggregate() -> None:
    able = {name for name, each in AGGREGATES.items() if each.is_mergeable}
    assert able == {"sum", "count", "mean", "min", "max", "variance", "stddev", "any", "all"}


def test_a_filter_and_a_narrowed_source_do_not_push_each_other_about() -> None:
    """The source cannot leave columns out: a projection right behind it would go away again in every round."""
    batch = pa.record_batch({"a": [1], "b": [2], "c": [3]})
    stream = Stream.from_source(WholeSource((batch,)), schema=batch.schema).filter(col("b") > 0).select("a")
    plan = sink(stream)
    once, facts, _rules = optimise(plan, resolve(plan), resolve)
    assert optimise(once, facts, resolve)[2] == ()
    assert shape(once) == "source filter project sink"


def test_event_time_is_named_before_rows_are_exchanged() -> None:
    named = orders().filter(col("id") > 0).key_by("user").batches().event_time("amount", unit="s", disorder=3)
    assert shape(better(named, only="name times early")) == "source filter assigntime keyby sink"


def test_a_source_keeps_the_time_that_is_named_behind_it() -> None:
    named = orders().key_by("user").batches().event_time("amount", unit="s", disorder=3)
    plan = better(named, only="name times early")
    assert shape(plan) == "source keyby sink"
    (source,) = of_kind(plan, Source)
    assert (source.time.column, source.time.disorder) == ("amount", 3_000_000)


def test_event_time_stays_behind_what_others_read_too() -> None:
    source = orders()
    named = source.event_time("amount", unit="s").key_by("user").batches().event_time("id", unit="s")
    assert shape(better(named, source, only="name times early")).count("source") == 2
    keyed = orders().filter(col("id") > 0).key_by("user").batches()
    plan = better(keyed, keyed.event_time("id", unit="s"), only="name times early")
    assert shape(plan) == "source filter keyby sink assigntime sink"


def test_unknown_columns_are_left_alone() -> None:
    source = Stream.from_iterable(list, event_time="ts")
    written = source.filter(col("a") > 1).select("a", "b").filter(col("b") == 2)
    plan = better(written)
    assert shape(plan) == "source filter project sink"
    assert of_kind(plan, Source)[0].schema is None


def test_many_steps_are_no_problem() -> None:
    stream = orders()
    for number in range(300):
        stream = stream.map(lambda batch: batch, schema=stream.schema).uid(f"step-{number}")
    assert len(list(walk(*better(stream)))) == 302


def test_arrow_types_survive() -> None:
    table = pa.table({"k": pa.array([1], pa.int8()), "v": pa.array([1.5], pa.float32())})
    plan = better(Stream.from_table(table).select(v=col("v"), k=col("k")).filter(col("k") > 0))
    assert resolve(plan)[plan[0]].schema.types == [pa.float32(), pa.int8()]
