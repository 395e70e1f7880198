"""What is known of plans before they run, and every refusal with its words."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shoal.core.errors import InvalidError
from shoal.dataflow.api.apps.app import App
from shoal.dataflow.api.context import TopicSpec
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import count, session, sliding, tumbling
from shoal.dataflow.connectors.base import SinkMode
from shoal.dataflow.connectors.memory import CollectSink
from shoal.dataflow.errors import PlanError
from shoal.dataflow.language.expressions.trees import col, lit
from shoal.dataflow.language.logical import MapBatches, Node, Sink, Source, walk
from shoal.dataflow.plan.facts import Facts
from shoal.dataflow.plan.prepare import prepare, sketch
from shoal.dataflow.plan.resolve import resolve, with_uids

ORDERS = {"id": "int64", "user": "string", "amount": "double", "ts": "timestamp[us]", "tags": pa.list_(pa.string())}


def orders(*, bounded: bool = True, **options: Any) -> Stream:
    return Stream.from_iterable(list, schema=ORDERS, bounded=bounded, **options)


def timed(*, bounded: bool = True) -> Stream:
    return orders(bounded=bounded, event_time="ts")


def interval_joined() -> Stream:
    return timed().select("id", "ts").join(timed().select("user", "id", "ts"), on="id", within=("0s", "5s"))


class AppendOnly(CollectSink):
    """A sink that cannot take anything back."""

    __slots__ = ()
    modes = frozenset({SinkMode.APPEND})  # type: ignore[assignment]
    label = "csv files"  # type: ignore[assignment]


def ends(*streams: Stream) -> list[Node]:
    return [Sink(inputs=(each.node,), connector=CollectSink()) for each in streams]


def facts_of(stream: Stream) -> Facts:
    plan = with_uids(ends(stream))
    return resolve(plan)[plan[0].inputs[0]]


def schema_text(stream: Stream) -> str:
    schema = facts_of(stream).schema
    return ", ".join(f"{each.name} {each.type}" for each in schema) if schema is not None else "?"


# ---------------------------------------------------------------------------------------------------------
# What comes out


@pytest.mark.parametrize(
    ("make", "columns"),
    [
        (lambda: orders().select("user", twice=col("amount") * 2), "user string, twice double"),
        (lambda: orders().select(col("id").alias("key"), n=5), "key int64, n int64"),
        (lambda: orders().select("id").with_columns(n=lit("x"), id=col("id") / 2), "id double, n string"),
        (lambda: orders().drop("tags", "ts", "amount"), "id int64, user string"),
        (lambda: orders().select("id").rename(id="key"), "key int64"),
        (lambda: orders().map(col("amount") * 2), "amount double"),
        (lambda: orders().map(col("amount") * col("id")), "value double"),
        (lambda: orders().map(lambda b: b), "?"),
        (lambda: orders().map(lambda b: b, schema={"x": int, "y": "string"}), "x int64, y string"),
        (lambda: orders().group_by("user").sum("amount"), "user string, amount double"),
        (
            lambda: orders().group_by("user", "id").aggregate(n="count", m=("id", "avg"), l=("tags", "last")),
            "user string, id int64, n int64, m double, l list<item: string>",
        ),
        (
            lambda: timed().group_by("user").window(tumbling(seconds=60)).aggregate({"total": ("amount", "sum")}),
            "user string, window_start timestamp[us], window_end timestamp[us], total double",
        ),
        (lambda: timed().window(count(10)).count(), "count int64"),
        (lambda: orders().aggregate(lo=("id", "min"), v=("id", "variance", {"ddof": 1})), "lo int64, v double"),
        (
            lambda: orders(bounded=False).group_by("user").count(),
            "user string, count int64, op string",
        ),
        (
            lambda: orders(bounded=False).group_by("user").count().select("user", n=col("count")),
            "user string, n int64, op string",
        ),
        (
            lambda: orders().select("id", "user").join(orders().select("id", "user", "amount"), on="id"),
            "id int64, user string, user_right string, amount double",
        ),
        (
            lambda: timed().select("id").join(timed().select("id", "user"), on="id", window=tumbling(seconds=1)),
            "id int64, user string, window_start timestamp[us], window_end timestamp[us]",
        ),
        (
            lambda: orders().select("id").join(orders().select("user", key=col("id")), "id", "key", "left"),
            "id int64, user string, key int64",
        ),
        (lambda: orders().select("id", "user").union(orders().select("user", "id")), "id int64, user string"),
        (
            lambda: Stream.merge(orders().select("id", "user"), orders().select("amount", "id"), by="id"),
            "id int64, user string, amount double",
        ),
        (lambda: orders().distinct("user").select("user"), "user string"),
        (lambda: orders().key_by("user").reduce(lambda a, b: a).select("id"), "id int64"),
        (lambda: timed().window(tumbling(seconds=1)).sum("id").side_output("late").select("user"), "user string"),
        (lambda: interval_joined().side_output("late"), "id int64, ts timestamp[us]"),
        (lambda: interval_joined().side_output("late_right"), "user string, id int64, ts timestamp[us]"),
        (
            lambda: timed().asof_join(timed().select("user", "ts"), on="user").side_output("late").select("amount"),
            "amount double",
        ),
        (
            lambda: orders().map(lambda b: b, on_error="side").side_output("errors").select("id", "error"),
            "id int64, error string",
        ),
        (
            lambda: orders(bounded=False).group_by("user").count().changes_as_rows("what"),
            "user string, count int64, what string",
        ),
    ],
)
def test_columns(make: Callable[[], Stream], columns: str) -> None:
    assert schema_text(make()) == columns


def test_time_bounds_and_changes_are_known() -> None:
    assert facts_of(timed()).time
    assert not facts_of(orders()).time
    assert facts_of(orders().event_time("ts")).time
    assert not facts_of(timed().flat_map(lambda b: [b])).time
    assert facts_of(timed().records().flat_map(lambda r: [r])).time
    assert not facts_of(orders(bounded=False).union(orders())).bounded
    windowed = timed(bounded=False).group_by("user").window(tumbling(seconds=1))
    assert not facts_of(windowed.count()).changes
    assert facts_of(windowed.count()).time
    early = timed().group_by("user").window(tumbling(seconds=1), early_every="1s").count()
    assert facts_of(early).changes
    assert facts_of(early).keys == ("user", "window_start", "window_end")


def test_event_time_is_carried_only_where_somebody_reads_it() -> None:
    def carrying(*streams: Stream) -> list[str]:
        plan = with_uids(ends(*streams))
        facts = resolve(plan)
        return [node.uid for node in walk(*plan) if facts[node].needs_time]

    filtered = timed().filter(col("id") > 1)
    assert carrying(filtered) == []
    assert carrying(filtered.window(tumbling(seconds=1)).count()) == ["source-1", "filter-1"]
    assert carrying(filtered.group_by("user").count()) == []
    joined = timed().interval_join(timed(), None, "-1s", "1s", on="id")
    assert carrying(joined) == ["source-1", "source-2"]
    again = timed().window(tumbling(seconds=1)).count().window(tumbling(seconds=5)).count()
    assert carrying(again) == ["source-1", "aggregate-1"]


def test_the_timestamps_of_records_are_not_copied_for_their_own_sake() -> None:
    schema = pa.schema({"id": pa.int64(), "user": pa.string(), "ts": pa.timestamp("us")})
    found: list[list[str]] = []

    def carrying(stream: Stream) -> None:
        plan = with_uids((stream.to_topic("out").node,))
        facts = resolve(plan)
        found.append([node.uid for node in walk(*plan) if facts[node].needs_time])

    app = App("app")

    @app.dataflow()
    def defined() -> None:
        stamped = Stream.from_topic("in", schema=schema).filter(col("id") > 1)
        carrying(stamped)
        carrying(stamped.union(stamped.with_columns(x=col("id")).drop("x")))
        carrying(Stream.from_topic("in", schema=schema, event_time="ts").filter(col("id") > 1))
        carrying(stamped.group_by("user").window(tumbling(seconds=1)).count())

    defined.plan()
    assert found == [[], [], ["source-1", "filter-1"], ["source-1", "filter-1", "aggregate-1"]]


def test_names_are_given_by_place_and_never_twice() -> None:
    stream = orders().filter(col("id") > 1).uid("filter-1").filter(col("id") > 2)
    plan = with_uids(ends(stream, stream))
    assert [node.uid for node in walk(*plan)] == ["source-1", "filter-1", "filter-2", "sink-1", "sink-2"]
    assert with_uids(plan) == plan


# ---------------------------------------------------------------------------------------------------------
# What is refused, as soon as it is known


@pytest.mark.parametrize(
    ("make", "said", "hint"),
    [
        (lambda: orders().filter(col("amout") > 5), "column 'amout': does not exist; did you mean 'amount'?", ""),
        (lambda: orders().filter(col("amount")), "a filter needs true or false for each row, and this is double", ""),
        (lambda: orders().select(col("id") + 1), "id + 1: needs a name", "alias"),
        (lambda: orders().select("id", id=col("user")), "select: column 'id': would be there 2 times", "alias"),
        (lambda: orders().select(__x=col("id")), "begins with __, which is the engine's", ""),
        (lambda: orders().drop("nope"), "column 'nope': does not exist", ""),
        (lambda: orders().group_by("usr").count(), "group key 'usr': does not exist; did you mean 'user'?", ""),
        (
            lambda: orders().group_by("tags").count(),
            "group key 'tags': is list<item: string>; keys are single values",
            "",
        ),
        (lambda: orders().group_by("id", "id").count(), "group key 'id': is named 2 times", ""),
        (lambda: orders().group_by().count(), "group_by: needs a column", ""),
        (lambda: orders().group_by(col("id") + 1), "group key: must be a column's name", ".with_columns"),
        (
            lambda: orders().group_by("id").aggregate(t=("amount", "summ")),
            "t: 'summ': is no aggregate; did you mean 'sum'? (the aggregates are sum, count, mean, min, max",
            "",
        ),
        (lambda: orders().group_by("id").sum("user"), "user: sum: takes numbers, and user is string", 'cast("double")'),
        (lambda: orders().aggregate(t=("nope", "sum")), "t: column 'nope': does not exist", ""),
        (lambda: orders().aggregate(t=("*", "sum")), "t: sum: needs a column; only count takes *", '("amount", "sum")'),
        (lambda: orders().aggregate(t=5), "t: must be a column and an aggregate", '("amount", "sum")'),
        (lambda: orders().aggregate(t=("id", "sum", {"dof": 1})), "t: option 'dof': does not exist", ""),
        (
            lambda: orders().aggregate(n="sum"),
            "n: column 'n': does not exist; the columns are id, user",
            '.aggregate(n=("amount", "sum"))',
        ),
        (
            lambda: orders().aggregate({"n of all": "max"}),
            "n of all: column 'n of all': does not exist",
            '.aggregate({\'n of all\': ("amount", "max")})',
        ),
        (lambda: orders().aggregate(t=("usr", "count")), "did you mean 'user'?", '.aggregate(t=("user", "count"))'),
        (lambda: orders().aggregate(t=("sum", "id")), "t: 'id': is no aggregate", '.aggregate(t=("id", "sum"))'),
        (
            lambda: orders().aggregate(t="amount"),
            "t: 'amount': is no aggregate: it is a column",
            '.aggregate(t=("amount", "sum"))',
        ),
        (lambda: orders().aggregate(t=sum), "t: must be a column and an aggregate", '.aggregate(t=("amount", "sum"))'),
        (lambda: orders().aggregate({}), "aggregate: needs a result", ""),
        (
            lambda: timed().group_by("user").window(tumbling(seconds=1)).aggregate(window_end="count"),
            "aggregate: column 'window_end': would be there 2 times",
            "",
        ),
        (
            lambda: orders().window(tumbling(seconds=60)).count(),
            "event time: a window is made of it, and nothing says which column it is",
            '.event_time("ts")',
        ),
        (
            lambda: orders().select("id").window(session(gap_seconds=1)).count(),
            "event time: a session is made of it",
            '.event_time("id", unit="ms")',
        ),
        (lambda: orders().window("1m"), "window: must be a window", "tumbling(seconds=60)"),  # type: ignore[arg-type]
        (
            lambda: orders().event_time("id"),
            "event time column 'id': is int64, and nothing says what it counts",
            'unit="ms"',
        ),
        (
            lambda: orders().event_time("user"),
            "event time column 'user': is string; event time is a timestamp",
            "fn.to_timestamp",
        ),
        (lambda: orders().event_time("tss"), "event time column 'tss': does not exist; did you mean 'ts'?", ""),
        (lambda: orders(disorder="1s"), "disorder: says nothing without event time", 'event_time="ts"'),
        (lambda: timed().flat_map(lambda b: [b]).window(tumbling(seconds=1)).count(), "event time", ".event_time("),
        (
            lambda: orders().join(orders().select(id=col("user")), on="id"),
            "join key 'id' = 'id': id is int64 here, and id is string on the right",
            'col("id").cast("int64")',
        ),
        (
            lambda: orders().select(id=col("id").cast("int32")).join(orders(), on="id"),
            "join key 'id' = 'id': id is int32 here, and id is int64 on the right",
            '.with_columns(id=col("id").cast("int64")) on the left side',
        ),
        (
            lambda: orders().join(orders().select(key=col("id").cast("int32")), ["id"], ["key"]),
            "join key 'id' = 'key': id is int64 here, and key is int32 on the right",
            '.with_columns(key=col("key").cast("int64")) on the right side',
        ),
        (
            lambda: (
                orders().select(id=col("id").cast("int16")).join(orders().select(id=col("id").cast("uint8")), on="id")
            ),
            "is int16 here, and id is uint8",
            '.cast("int64")) on the left side and .with_columns(id=col("id").cast("int64")) on the right side',
        ),
        (lambda: orders().join(orders(), on="nope"), "left join key 'nope': does not exist", ""),
        (lambda: orders().join(orders()), "join keys: are needed", 'on="user_id"'),
        (lambda: orders().join(orders(), ["id", "user"], ["id"]), "must be as many on both sides", ""),
        (lambda: orders().join(orders(), on="id", how="inne"), "how: is not known; did you mean 'inner'?", ""),
        (
            lambda: orders(bounded=False).join(orders(bounded=False), on="id", how="left"),
            "a left join waits for partners, and the other side has no end",
            'ttl="1h"',
        ),
        (
            lambda: orders().join(orders(), on="id", window=tumbling(seconds=1)),
            "a windowed join is made of it, and the left",
            "",
        ),
        (
            lambda: orders().join(timed(), on="id", window=session(gap_seconds=1)),
            "of a join is tumbling or sliding",
            "",
        ),
        (lambda: timed().interval_join(timed(), None, "1s", "-1s", on="id"), "must have lower <= upper", ""),
        (lambda: timed().asof_join(timed(), on="id", how="outer"), "an as-of join is inner or left", ""),
        (lambda: timed().asof_join(timed(), direction="back"), "direction: is not known", ""),
        (
            lambda: orders().join(orders(), on="id").join(orders(), on="id"),
            "'user_right': would be there 2 times",
            'suffix="_right_2"',
        ),
        (lambda: orders().join("users", on="id"), "join: takes a Stream or a table", ""),
        (
            lambda: orders().union(orders().select("id")),
            "union: input 2: user, amount, ts, tags is missing",
            ".select('id'",
        ),
        (
            lambda: orders().select("id").union(orders().select(id=col("user"))),
            "id is int64 in one and string in the other",
            "",
        ),
        (lambda: Stream.merge(orders(), orders().select("id"), by="user"), "merge column 'user': does not exist", ""),
        (lambda: orders().side_output("late"), "side output 'late': does not exist on a source; it has none", ""),
        (lambda: interval_joined().side_output("old"), "does not exist on a join; it has late, late_right", ""),
        (
            lambda: timed().asof_join(timed(), on="user").side_output("late_right"),
            "'late_right': does not exist on a join; it has late",
            "",
        ),
        (
            lambda: orders().join(orders(), on="id").side_output("late"),
            "'late': does not exist on a join; it has none",
            "",
        ),
        (
            lambda: timed().window(tumbling(seconds=1)).sum("id").side_output("late_right"),
            "'late_right': does not exist on a aggregate; it has late",
            "",
        ),
        (
            lambda: orders().map(lambda b: b).side_output("errors"),
            "gets nothing: this mapbatches fails",
            'on_error="side"',
        ),
        (lambda: orders().map(lambda b: b, on_error="ignore"), 'on_error: must be "fail"', ""),
        (lambda: orders().map("f"), "map: must be a function or an expression", ""),  # type: ignore[arg-type]
        (lambda: orders().with_parallelism(0), "parallelism: must be a whole number from 1 on", ""),
        (lambda: orders().with_resources(memory="lots"), "memory: must be bytes", ""),
        (lambda: orders().uid("a b"), "uid: must be letters", ""),
        (lambda: Stream.from_dicts([]), "rows: are none", "schema="),
        (lambda: Stream.from_dicts([{"a": 1}, {"a": "x"}]), "a: cannot be a column", ""),
        (lambda: Stream.from_batches([]), "needs at least one batch", "from_table"),
        (lambda: Stream.from_iterable(5), "items: must be iterable", ""),  # type: ignore[arg-type]
        (lambda: Stream.from_iterable(list, schema={"a": "int46"}), "schema: a: must be a type such as", ""),
        (
            lambda: Stream.from_kafka("orders"),
            "from_kafka('orders'): needs a broker",
            "localhost:9092",
        ),
        (lambda: Stream.from_kafka("k:9092", "my orders", "g"), "topic: must be 1 to 249 letters", ""),
        (lambda: Stream.from_kafka("./log", "-orders", "g"), "topic: must be 1 to 128 letters", ""),
        (lambda: Stream.from_kafka("k:9092", "orders", "g", codec_type="jsn"), "codec: must be one of arrow", ""),
        (lambda: Stream.from_kafka("k:9092", "orders", "g", codec_type="protobuf"), "options of codec protobuf", ""),
        (
            lambda: Stream.from_kafka("k:9092", "orders", "g", codec_options={"null": 1}),
            "options of codec json: ",
            "",
        ),
        (lambda: orders().to_kafka("k:9092", ".."), "topic: must be 1 to 249 letters", ""),
        (lambda: orders().to_kafka("k:9092", "out", codec_type="avro"), "codec: must be one of arrow", ""),
        (lambda: App("a", broker="k:9092").topic("a/b"), "topic: must be 1 to 249 letters", ""),
        (lambda: App("a", broker="./log").topic("a" * 129), "topic: must be 1 to 128 letters", ""),
        (lambda: App("a", broker="k:9092").agent("a b"), "topic: must be 1 to 249 letters", ""),
        (lambda: App("a", broker="k:9092").topic("a", codec="xml"), "codec: must be one of arrow", ""),
        (lambda: orders().key_by("id").distinct("nope"), "distinct column 'nope': does not exist", ""),
        (lambda: orders().changes_as_rows(), "these rows do not change", ""),
    ],
)
def test_refusals_name_the_line_and_what_to_write(make: Callable[[], Any], said: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        make()
    assert re.match(r"tests/unit/dataflow/plan/test_resolve\.py:\d+: ", str(caught.value))
    assert said in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "behind",
    [
        lambda s: s.map(lambda b: b),
        lambda s: s.filter(lambda b: b["n"]),
        lambda s: s.records().filter(lambda r: r),
        lambda s: s.distinct("user"),
        lambda s: s.window(count(3)).count(),
        lambda s: s.group_by("user").aggregate(m=("n", "max")),
        lambda s: s.join(orders(), left_keys="user", right_keys="user"),
        lambda s: s.union(orders().select("user", n=col("id"))),
        lambda s: s.process(lambda: None),
        lambda s: s.reduce(lambda a, b: a),
        lambda s: Stream.merge(s, s, by="user"),
    ],
)
def test_what_cannot_stand_behind_changes(behind: Callable[[Stream], Any]) -> None:
    changing = orders(bounded=False).group_by("user").count("n")
    with pytest.raises(PlanError, match="change"):
        behind(changing)


def test_what_can_stand_behind_changes() -> None:
    changing = orders(bounded=False).group_by("user").count("n")
    assert facts_of(changing.filter(col("n") > 1)).changes
    assert facts_of(changing.with_columns(m=col("n") * 2)).keys == ("user",)
    assert facts_of(changing.select(who=col("user"))).keys == ("who",)
    assert facts_of(changing.union(changing)).changes
    summed = changing.aggregate(total=("n", "sum"))
    assert facts_of(summed).changes
    assert not facts_of(changing.changes_as_rows()).changes
    table = orders().join(changing, left_keys="user", right_keys="user", broadcast=True)
    assert not facts_of(table).changes


def test_the_sink_that_is_named_instead_takes_the_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    day = dt.datetime(2024, 5, 1)  # noqa: DTZ001 - a column without a zone
    rows = pa.table({"user": ["a", "b", "a"], "ts": pa.array([day] * 3, pa.timestamp("us"))})
    grouped = Stream.from_table(rows, event_time="ts").group_by("user")
    changing = grouped.window(tumbling(seconds=60), allowed_lateness="1m").count("n")
    with pytest.raises(PlanError, match="only appends") as caught:
        changing.to_sink(AppendOnly())
    call = re.search(r"\.to_sql\(.*?\)", caught.value.hint)
    assert call is not None
    eval(f"changing{call[0]}", {"changing": changing}).run()  # what a reader would type
    found = Stream.from_sql("SELECT * FROM results", "results.duckdb").collect()
    assert sorted((row["user"], row["n"]) for row in found.to_pylist()) == [("a", 2), ("b", 1)]


def test_no_sink_is_named_for_changes_that_have_no_key() -> None:
    with pytest.raises(PlanError, match="only appends") as caught:
        orders(bounded=False).aggregate(n="count").to_sink(AppendOnly())
    assert "to_sql" not in caught.value.hint
    assert ".changes_as_rows()" in caught.value.hint


def test_changes_are_refused_by_sinks_that_only_append() -> None:
    changing = orders(bounded=False).group_by("user").count()
    with pytest.raises(PlanError, match="csv files: only appends, and these rows change") as caught:
        changing.to_sink(AppendOnly())
    assert "tumbling(seconds=60)" in caught.value.hint
    orders().group_by("user").count().to_sink(AppendOnly())
    timed(bounded=False).group_by("user").window(sliding(60, 10)).count().to_sink(AppendOnly())
    with pytest.raises(PlanError, match="only appends"):
        timed().group_by("user").window(tumbling(seconds=1), allowed_lateness="1m").count().to_sink(AppendOnly())


# ---------------------------------------------------------------------------------------------------------
# Whole plans


def test_a_plan_needs_a_sink() -> None:
    with pytest.raises(PlanError, match="has no sink"):
        resolve([])


def test_one_name_for_two_steps_is_refused() -> None:
    with pytest.raises(PlanError, match="uid: is the name of 2 steps"):
        resolve(ends(orders().uid("a").filter(col("id") > 1).uid("a")))


def test_errors_that_nobody_reads_are_refused() -> None:
    failing = orders().map(lambda b: b, on_error="side")
    with pytest.raises(PlanError, match="nobody reads it") as caught:
        resolve(ends(failing))
    assert 'side_output("errors")' in caught.value.hint
    resolve(ends(failing, failing.side_output("errors")))
    source = orders(on_error="side")
    with pytest.raises(PlanError, match="nobody reads it"):
        resolve(ends(source))
    resolve(ends(source, source.side_output("errors")))


def test_all_mistakes_are_told_at_once_when_a_source_answers() -> None:
    source = Stream.from_iterable(list)
    plan = ends(source.filter(col("amout") > 1), source.filter(col("usr") == "a"))
    with pytest.raises(PlanError) as caught:
        prepare(plan, find_schema=lambda _source: orders().schema)
    assert [each.field.rpartition(": ")[2] for each in caught.value.problems] == ["column 'amout'", "column 'usr'"]
    assert isinstance(caught.value, InvalidError)


def test_sources_are_asked_once_and_functions_tried_once() -> None:
    asked: list[str] = []
    source = Stream.from_iterable(list)

    def find(node: Source) -> Any:
        asked.append("schema")
        return orders().schema

    def probe(node: Node, schema: Any) -> Any:
        asked.append("probe")
        assert isinstance(node, MapBatches)
        return pa.schema([("id", pa.int64()), ("x", pa.string())])

    made = source.map(lambda b: b)
    prepared = prepare(ends(made.filter(col("id") > 1), made.select("x")), find_schema=find, probe=probe)
    assert asked == ["schema", "probe"]
    assert [prepared.facts[sink].schema.names for sink in prepared.sinks] == [["id", "x"], ["x"]]


def test_a_source_that_cannot_answer_is_named_with_its_line() -> None:
    class Broken(CollectSink):
        __slots__ = ()
        is_bounded = True
        label = "topic orders"  # type: ignore[assignment]
        on_error = None

        def find_schema(self) -> Any:
            raise InvalidError([], what="the topic is empty", hint='app.topic("orders", schema=…)')

    with pytest.raises(PlanError, match="topic orders: could not tell its columns: the topic is empty") as caught:
        prepare(ends(Stream.from_source(Broken())))  # type: ignore[arg-type]
    assert "app.topic" in caught.value.hint
    assert caught.value.at is not None


def test_a_sketch_asks_nobody() -> None:
    def never() -> Any:
        raise AssertionError("called")

    source = Stream.from_iterable(never)
    sketched = sketch(ends(source.map(lambda b: never()).filter(col("x") > 1)))
    assert all(facts.schema is None for facts in sketched.facts.values())


def test_topics_say_what_the_stream_needs() -> None:
    spec = TopicSpec("orders", "localhost:9092", schema=orders().schema)
    stream = Stream.from_topic(spec)
    assert stream.facts.time
    assert not stream.facts.bounded
    assert stream.schema is not None
