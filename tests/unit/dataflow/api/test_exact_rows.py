"""Rows that people write, and that their functions return: nothing is cut to fit its column, nothing is lost."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.core.errors import InvalidError
from shoal.dataflow.api.apps.topic import Topic
from shoal.dataflow.api.context import TopicSpec
from shoal.dataflow.api.process_function import ProcessFunction
from shoal.dataflow.api.streams.reading import make_schema
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.connectors.files.sources import CsvSource
from shoal.dataflow.connectors.memory import CollectSink
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.dataflow.connectors.topics.endpoints import TopicSource
from shoal.dataflow.errors import OperatorFailedError, PlanError
from shoal.dataflow.language.expressions.trees import Column, Named, col
from shoal.dataflow.language.logical import Node, OnError, Project, SideOutput, Sink, Source, walk
from shoal.dataflow.plan.prepare import prepare
from shoal.topics.base import records

MOMENT = dt.datetime(2024, 1, 2, 3, 4, 5, 678_901)  # noqa: DTZ001


def generate() -> Iterator[dict[str, Any]]:
    yield {"v": 1}
    yield {"v": 2.5}
    yield {"v": 3.0}


def test_rows_in_a_list_get_types_that_all_of_them_need() -> None:
    for items in ([{"v": 1}, {"v": 2.5}], [[{"v": 1}], [{"v": 2.5}]]):
        assert Stream.from_iterable(items).to_pylist() == [{"v": 1.0}, {"v": 2.5}]
    assert Stream.from_iterable([{"v": None}, {"v": 2}]).to_pylist() == [{"v": None}, {"v": 2}]
    assert Stream.from_dicts([{"v": 1}, {"v": 2.5}]).to_pylist() == [{"v": 1.0}, {"v": 2.5}]


def test_a_generator_s_first_row_decides_and_others_are_bad() -> None:
    with pytest.raises(OperatorFailedError, match=r"v: is no whole number, .*schema= \(got 2.5\)"):
        Stream.from_generator(generate).collect()
    assert Stream.from_generator(generate, on_error="skip").to_pylist() == [{"v": 1}, {"v": 3}]
    wide = Stream.from_generator(generate, schema={"v": "double"})
    assert wide.to_pylist() == [{"v": 1.0}, {"v": 2.5}, {"v": 3.0}]


def test_the_row_that_does_not_fit_is_named() -> None:
    with pytest.raises(OperatorFailedError, match=r"row 2: v: is no whole number, .*got 2\.5") as caught:
        Stream.from_generator(generate).collect()
    assert "schema=" in caught.value.hint
    rows = [{"v": 1}] * 25_000 + [{"v": "x"}]
    for items in (rows, [rows]):
        with pytest.raises(OperatorFailedError, match=r"row 25001: v: cannot be a column of int64: .*got 'x'"):
            Stream.from_iterable(items).collect()
        errors = Stream.from_iterable(items, on_error="side").side_output("errors").to_pylist()
        assert [(row["offset"], row["value"]) for row in errors] == [(25_001, b"{'v': 'x'}")]
    with pytest.raises(PlanError, match=r"v: cannot be a column: .*, in row 25001 \(got .*x"):
        Stream.from_dicts(rows)
    with pytest.raises(PlanError, match=r"v: cannot be a column of int64: .*, in row 25001 \(got .*x"):
        Stream.from_dicts(rows, schema={"v": "int64"})


@pytest.mark.parametrize("first", [1, np.int8(1), np.uint16(1), np.int32(1)])
def test_whole_numbers_that_grow_have_room(first: Any) -> None:
    rows = [{"v": first, "all": [first]}, {"v": 2**62, "all": [2**62]}]
    for items in (rows, [rows], lambda: iter(rows)):
        assert [row["v"] for row in Stream.from_iterable(items).to_pylist()] == [1, 2**62]
    floats = [{"v": np.float32(0.5)}, {"v": 0.1}]
    assert Stream.from_generator(lambda: iter(floats)).to_pylist() == [{"v": 0.5}, {"v": 0.1}]
    with pytest.raises(OperatorFailedError, match="row 2: v: cannot be a column of int64"):
        Stream.from_generator(lambda: iter([{"v": first}, {"v": 2**64}])).collect()


def test_what_is_none_at_first_gets_its_type_from_later_rows() -> None:
    rows: list[dict[str, Any]] = [{"v": None, "w": []}] * 500 + [{"v": 5, "w": ["a"]}, {"v": None, "w": []}]
    for items in (rows, [rows], [rows[:3], rows[3:]], lambda: iter(rows), iter(rows), lambda: iter([rows])):
        assert Stream.from_iterable(items).to_pylist() == rows
    endless = Stream.from_generator(lambda: iter(rows), bounded=False)
    with pytest.raises(OperatorFailedError, match="row 501: v: cannot be a column of null") as caught:
        endless.take(502)
    assert "schema=" in caught.value.hint


def test_rows_in_lists_follow_the_policy_too() -> None:
    items = [[{"v": 1}, {"v": "x"}], [{"v": 3}]]
    assert Stream.from_iterable(items, on_error="skip").to_pylist() == [{"v": 1}, {"v": 3}]


def test_an_iterator_that_was_used_up_is_named() -> None:
    stream = Stream.from_iterable(iter([{"v": 1}]))
    assert stream.to_pylist() == [{"v": 1}]
    with pytest.raises(PlanError, match="the list_iterator that it reads can be gone through once only") as caught:
        stream.to_pylist()
    assert "give a list" in caught.value.hint


def test_none_among_the_items_is_no_end() -> None:
    with pytest.raises(OperatorFailedError, match=r"item: must be a record batch, .*got 'NoneType'"):
        Stream.from_generator(lambda: iter([{"v": 1}, None, {"v": 2}]), batch_size=1).collect()


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_times_with_and_without_a_zone_do_not_mix_over_batches(policy: str) -> None:
    zoned = MOMENT.replace(tzinfo=dt.UTC)
    for values in ([MOMENT, zoned], [zoned, MOMENT]):
        rows = [{"v": each} for each in values]
        with pytest.raises(OperatorFailedError, match="v: has no zone"):
            Stream.from_generator(lambda rows=rows: iter(rows), batch_size=1, on_error=policy).collect()
    batches = [pa.record_batch({"v": [each]}) for each in (MOMENT, zoned)]
    for items in (batches, batches[::-1]):
        with pytest.raises(OperatorFailedError, match=r"column 'v': cannot be a column of timestamp.*zone"):
            Stream.from_generator(lambda items=items: iter(items), on_error=policy).collect()


@pytest.mark.parametrize("kind", ["date32", "timestamp[s]", "time64[us]", "int8"])
def test_batches_and_parquet_are_not_cut_to_fit(tmp_path: Path, kind: str) -> None:
    value: Any = 300 if kind == "int8" else MOMENT
    pq.write_table(pa.table({"v": [value]}), tmp_path / "x.parquet")
    with pytest.raises(OperatorFailedError, match=r"x\.parquet: column 'v': cannot be a column of "):
        Stream.from_parquet(str(tmp_path), schema={"v": kind}).collect()
    with pytest.raises(OperatorFailedError, match=r"column 'v': cannot be a column of "):
        Stream.from_iterable([pa.record_batch({"v": [value]})], schema={"v": kind}).collect()
    midnight = pa.record_batch({"v": [dt.datetime(2024, 1, 2)]})  # noqa: DTZ001
    assert Stream.from_iterable([midnight], schema={"v": "date32"}).to_pylist() == [{"v": dt.date(2024, 1, 2)}]


@pytest.mark.parametrize(
    ("row", "kind"),
    [({"v": 2.9}, "int64"), ({"v": MOMENT}, "timestamp[s]"), ({"v": MOMENT}, "date32"), ({"w": 1}, "int64")],
)
def test_declared_rows_must_fit(row: dict[str, Any], kind: str) -> None:
    with pytest.raises(PlanError, match=r"test_exact_rows\.py:\d+: (v|row): .*got"):
        Stream.from_dicts([row], schema={"v": kind})
    with pytest.raises(OperatorFailedError, match=r"(v|row): .*got"):
        Stream.from_iterable([row], schema={"v": kind}).collect()
    assert Stream.from_iterable([row], schema={"v": kind}, on_error="skip").to_pylist() == []


def test_columns_that_come_later_are_kept_or_refused() -> None:
    rows = [{"v": 1}, {"v": 2, "w": 3}]
    assert Stream.from_dicts(rows).to_pylist() == [{"v": 1, "w": None}, {"v": 2, "w": 3}]
    for items in (rows, lambda: iter(rows), [rows]):
        with pytest.raises(OperatorFailedError, match="has the columns w beside v"):
            Stream.from_iterable(items).collect()
    assert Stream.from_iterable(rows, on_error="skip").to_pylist() == [{"v": 1}]
    with pytest.raises(OperatorFailedError, match="row: must be a dict, in a list of dicts"):
        Stream.from_iterable([[{"v": 1}], [5]], schema={"v": "int64"}).collect()


def test_times_with_and_without_a_zone_do_not_mix() -> None:
    rows = [{"v": MOMENT}, {"v": MOMENT.replace(tzinfo=dt.UTC)}]
    with pytest.raises(PlanError, match="v: has no zone"):
        Stream.from_dicts(rows)
    for policy in ("fail", "skip"):
        with pytest.raises(OperatorFailedError, match="v: has no zone"):
            Stream.from_iterable(rows, on_error=policy).collect()


def test_what_a_function_gives_for_plain_values_does_not_decide_alone() -> None:
    prices = Stream.from_dicts([{"price": 1}, {"price": 3}])
    assert prices.records().map(lambda r: {"disc": 0 if r.price < 2 else 0.5}).to_pylist() == [
        {"disc": 0.0},
        {"disc": 0.5},
    ]
    one_by_one = Stream.from_dicts([{"price": 1}, {"price": 3}], batch_size=1).records()
    with pytest.raises(OperatorFailedError, match=r"disc: is no whole number, .*double for it in schema="):
        one_by_one.map(lambda r: {"disc": 0 if r.price < 2 else 0.5}).collect()
    said = one_by_one.map(lambda r: {"disc": 0 if r.price < 2 else 0.5}, schema={"disc": "double"})
    assert said.to_pylist() == [{"disc": 0.0}, {"disc": 0.5}]
    assert prices.records().map(lambda r: {"n": r.price + 1}).to_pylist() == [{"n": 2}, {"n": 4}]


def test_a_record_function_sees_one_invented_record_at_most() -> None:
    seen: list[Any] = []

    def counted(record: Any) -> Any:
        seen.append(record.price)
        return {"n": len(seen)}

    prices = Stream.from_dicts([{"price": 70}, {"price": 30}])
    assert prices.records().map(counted).to_pylist() == [{"n": 2}, {"n": 3}]
    assert seen == [1, 70, 30]
    for stream in (
        prices.records(probe=False).map(counted),
        prices.records(probe=False).filter(col("price") > 0).flat_map(counted).with_parallelism(1),
        prices.records().map(counted, schema={"n": "int64"}),
    ):
        seen.clear()
        assert stream.to_pylist() == [{"n": 1}, {"n": 2}]
        assert seen == [70, 30]
    text = str(prices.records(probe=False).map(counted).explain())
    assert "columns known at run" in text


def test_a_reduction_and_a_process_function_cut_nothing_off() -> None:
    class Halves(ProcessFunction):
        def process(self, record: Any, context: Any) -> Any:
            yield {"x": 2.9}

    rows = Stream.from_dicts([{"k": "a", "v": 1}, {"k": "a", "v": 2}])
    with pytest.raises(OperatorFailedError, match=r"v: is no whole number.*got 1\.5"):
        rows.key_by("k").reduce(lambda a, b: {"k": a["k"], "v": (a["v"] + b["v"]) / 2}).collect()
    with pytest.raises(OperatorFailedError, match=r"extra: is not in"):
        rows.key_by("k").reduce(lambda a, b: {**b, "extra": 1}).collect()
    with pytest.raises(OperatorFailedError, match=r"x: is no whole number.*got 2\.9"):
        rows.key_by("k").process(Halves, schema={"x": "int64"}).collect()


# ---------------------------------------------------------------------------------------------------------
# Topics


def topic_of(broker: Path, schema: dict[str, str]) -> Topic:
    return Topic(TopicSpec("t", str(broker), "", make_schema(schema)))


def read(broker: Path, **options: Any) -> Stream:
    return Stream.from_kafka(str(broker), "t", "g", schema={"v": "int64", "w": "string"}, bounded=True, **options)


async def test_what_is_sent_must_fit_the_topic(tmp_path: Path) -> None:
    topic = topic_of(tmp_path / "log", {"v": "int64", "w": "string"})
    for value, said in (
        ({"v": 2.9}, r"topic t: v: is no whole number.*got 2\.9"),
        ({"x": 1}, "topic t: row: has the columns x beside v, w"),
        ({"v": 1, "extra": 5}, "has the columns extra beside v, w"),
        (5, r"topic t: value: must be a mapping with the columns v, w \(got 5\)"),
        ({"v": "a"}, "topic t: v: cannot be a column of int64"),
    ):
        with pytest.raises(InvalidError, match=said):
            await topic.send(value)
    await topic.send({"v": 1})
    await topic.send({"v": 2.0, "w": "a"})
    assert read(tmp_path / "log").to_pylist() == [{"v": 1, "w": None}, {"v": 2, "w": "a"}]


async def test_a_single_value_goes_into_the_only_column(tmp_path: Path) -> None:
    await topic_of(tmp_path / "log", {"v": "int64"}).send(5)
    assert read(tmp_path / "log").to_pylist() == [{"v": 5, "w": None}]


def test_which_records_are_bad_does_not_depend_on_what_is_read(tmp_path: Path) -> None:
    values: list[Any] = [{"v": 1, "w": "a"}, {"v": 2.9, "w": "b"}, {"v": "x", "w": "c"}, None, 5, {"v": 4, "w": "d"}]
    with topics_of(str(tmp_path / "log")) as topics:
        topics.create("t", partitions=1)
        with topics.writer() as writer:
            writer.append("t", records([json.dumps(each).encode() for each in values]))
            writer.flush()
    source = read(tmp_path / "log", on_error="skip")
    assert source.to_pylist() == [{"v": 1, "w": "a"}, {"v": 4, "w": "d"}]
    assert source.select("w").to_pylist() == [{"w": "a"}, {"w": "d"}]
    with pytest.raises(OperatorFailedError):
        read(tmp_path / "log").collect()


@pytest.mark.parametrize(
    ("policy", "columns"), [(OnError.FAIL, ("w",)), (OnError.SKIP, None), (OnError.SIDE, None)], ids=str
)
def test_a_source_that_leaves_bad_rows_out_reads_all_columns(policy: OnError, columns: Any) -> None:
    schema = pa.schema([("v", pa.int64()), ("w", pa.string())])
    for connector in (CsvSource("x.csv", on_error=policy), TopicSource("t", "nowhere", on_error=policy)):
        source = Source(connector=connector, schema=schema, uid="in")
        chosen = Project(inputs=(source,), columns=(Named(Column("w"), "w"),))
        sinks: list[Node] = [Sink(inputs=(chosen,), connector=CollectSink())]
        if policy is OnError.SIDE:
            aside = SideOutput(inputs=(source,), tag="errors")
            sinks.append(Sink(inputs=(aside,), connector=CollectSink()))
        found = [each.connector for each in walk(*prepare(sinks).sinks) if isinstance(each, Source)]
        assert [each.columns for each in found] == [columns]
