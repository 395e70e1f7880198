"""Rows that people write, and that their functions return: nothing is cut to fit its column, nothing is lost."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shoal.core.errors import InvalidError
from shoal.dataflow.api.context import TopicSpec
from shoal.dataflow.api.reading import make_schema
from shoal.dataflow.api.stream import Stream
from shoal.dataflow.api.topic import Topic
from shoal.dataflow.connectors.brokers import topics_of
from shoal.dataflow.connectors.files import CsvSource
from shoal.dataflow.connectors.memory import CollectSink
from shoal.dataflow.connectors.topics import TopicSource
from shoal.dataflow.language.errors import PlanError
from shoal.dataflow.language.expressions import Column, Named
from shoal.dataflow.language.failures import OperatorFailedError
from shoal.dataflow.language.logical import Node, OnError, Project, SideOutput, Sink, Source, walk
from shoal.dataflow.operators.process_function import ProcessFunction
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
    far = Stream.from_dicts([{"price": 1}, {"price": 10**12}])
    mapped = far.records().map(lambda r: {"disc": 0 if r.price < 10**11 else 0.5})
    with pytest.raises(OperatorFailedError, match=r"disc: is no whole number, .*double for it in schema="):
        mapped.collect()
    assert prices.records().map(lambda r: {"n": r.price + 1}).to_pylist() == [{"n": 2}, {"n": 4}]


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
