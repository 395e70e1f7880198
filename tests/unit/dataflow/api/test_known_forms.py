"""What users of such programs write from habit: it works, or the error says what to write."""

from __future__ import annotations

import asyncio
import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import NotFoundError
from shoal.dataflow.api.apps.app import App
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.connectors.topics.endpoints import TopicSource
from shoal.dataflow.errors import PlanError
from shoal.dataflow.language.logical import Source, walk
from shoal.dataflow.operators.record import Record


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App("shop", data_dir=tmp_path / "shop")


# ---------------------------------------------------------------------------------------------------------
# Brokers


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("localhost:9092", "localhost:9092"),
        ("kafka://localhost:9092", "localhost:9092"),
        ("kafka://localhost", "localhost:9092"),
        ("kafka://a:9092;b:9093/", "a:9092,b:9093"),
        ("kafka://a,b", "a:9092,b:9092"),
        (" a:9092, b:9093 ", "a:9092,b:9093"),
        ("./log", "./log"),
        ("/var/lib/topics", "/var/lib/topics"),
        ("file:///var/lib/topics", "file:///var/lib/topics"),
    ],
)
def test_brokers(said: str, meant: str) -> None:
    assert App("shop", broker=said).broker == meant
    flow = App("shop").dataflow("f")(lambda: Stream.from_kafka(said, "orders", "mine").to_kafka("out"))
    source = next(node for node in walk(*flow.plan()) if isinstance(node, Source))
    assert isinstance(source.connector, TopicSource)
    assert source.connector.broker == meant


@pytest.mark.parametrize("said", ["localhost", "redis://localhost:6379", "memory://", "kafka://", "a:9092,b", "a b:1"])
def test_what_is_no_broker(said: str) -> None:
    with pytest.raises(PlanError, match="broker: must be host:port or kafka://host:port"):
        App("shop", broker=said)


# ---------------------------------------------------------------------------------------------------------
# Arguments and methods of elsewhere


def test_arguments_of_elsewhere_are_told_what_to_write(app: App) -> None:
    with pytest.raises(PlanError, match="flight_port: is no argument of App") as caught:
        App("shop", flight_port=8815, database_url="postgresql://x", brokr="a:1")
    assert [each.field for each in caught.value.problems] == ["flight_port", "database_url", "brokr"]
    assert "did you mean 'broker'?" in str(caught.value)
    assert "database_url: leave it out: state lies in checkpoints" in caught.value.hint
    assert caught.value.at is not None
    assert caught.value.at.file.endswith("test_known_forms.py")
    for call, hint in [
        (lambda: app.agent("orders", concurrency=4), "shoal run --parallelism 4"),
        (lambda: app.topic("orders", value_serializer="arrow"), 'codec="arrow"'),
        (lambda: app.table("counts", backend="rocksdb://x"), "leave it out"),
        (lambda: Stream.from_kafka("a:1", "orders", "g", batch_size=5), "FlowSettings(batch_rows=…)"),
    ]:
        with pytest.raises(PlanError, match="is no argument of") as caught:
            call()
        assert hint in caught.value.hint


def test_methods_of_elsewhere_are_told_what_to_write(app: App) -> None:
    with pytest.raises(AttributeError, match=r"an app has no joins\(\); write stream\.join"):
        app.joins()
    assert not hasattr(app, "nothing")
    assert copy.copy(app).id == "shop"


# ---------------------------------------------------------------------------------------------------------
# Topics and tables


def test_a_topic_that_is_asked_for_again_is_the_one_that_was_declared(app: App) -> None:
    orders = app.topic("orders", schema={"id": "int64"}, key="id")
    assert app.topic("orders").spec is orders.spec
    changed = app.topic("orders", schema={"id": "string"})
    assert app.topic("orders").spec is changed.spec


def test_streams_take_what_app_topic_gave(app: App) -> None:
    orders = app.topic("orders", schema={"id": "int64"})
    flow = app.dataflow("f")(lambda: Stream.from_kafka(orders).to_kafka(app.topic("out", key="id")))
    (sink,) = flow.plan()
    assert sink.inputs[0].schema == orders.schema  # type: ignore[attr-defined]
    assert sink.connector.key == "id"  # type: ignore[attr-defined]
    with pytest.raises(PlanError, match=r"must be the name of a topic, or one of app\.topic\(\)"):
        Stream.from_kafka(5)


async def test_a_topic_that_is_not_there_shows_the_line_to_write(app: App) -> None:
    unknown = app.dataflow("unknown")(lambda: Stream.from_kafka("nobody").to_callback(print))
    with pytest.raises(PlanError, match="topic 'nobody' not found") as caught:
        await unknown.start()
    assert 'app.topic("nobody", schema={"id": "int64", …})' in caught.value.hint
    described = app.dataflow("described")(
        lambda: Stream.from_kafka("nobody", schema={"id": "int64"}).to_callback(print)
    )
    with pytest.raises(NotFoundError) as missing:
        await described.start()
    assert 'app.topic("nobody", schema=' in missing.value.hint
    assert not described.is_running


async def test_an_empty_topic_shows_the_line_to_write(app: App) -> None:
    app.topic("orders", partitions=2)
    flow = app.dataflow("f")(lambda: Stream.from_kafka("orders").to_callback(print))
    with pytest.raises(PlanError, match="is empty, so its columns are not known") as caught:
        await flow.start()
    assert 'app.topic("orders", schema=' in caught.value.hint


async def test_tables_of_programs_that_await(app: App) -> None:
    async with app.table("counts") as counts:
        await counts.aset("a", 1)
        await counts.aset("b", 2)
        await counts.adelete("b")
        await counts.adelete("c")
        assert (await counts.aget("a"), await counts.aget("b"), await counts.aget("b", 7)) == (1, None, 7)
        assert (await counts.akeys(), await counts.avalues(), await counts.aitems()) == (["a"], [1], [("a", 1)])
        await counts.aclear()
        assert await counts.asize() == 0


# ---------------------------------------------------------------------------------------------------------
# Records


def test_records_have_items_and_attributes() -> None:
    record = Record({"total": 5, "user": {"name": "a"}, "lines": [{"price": 1}, {"price": 2}]})
    assert record["total"] == record.total == record.get("total") == 5
    assert record.user.name == "a"
    assert [line.price for line in record.lines] == [1, 2]
    record.total = 6
    assert record["total"] == 6
    del record.total
    assert "total" not in record
    with pytest.raises(AttributeError, match="this record has no 'usr'; did you mean 'user'"):
        _ = record.usr
    with pytest.raises(AttributeError, match="has no 'total'"):
        del record.total
    for again in (copy.copy(record), copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
        assert again == record
        assert isinstance(again, Record)


@pytest.mark.parametrize("value", [5, {"value": 5}])
async def test_plain_values_reach_an_agent_as_they_are(app: App, value: Any) -> None:
    with pytest.warns(DeprecationWarning, match="deprecated"):

        @app.agent("numbers", sink="doubles")
        async def double(number: int) -> Any:
            yield number * 2

    assert await double.send(value) == (10,)
    call = app.dataflows["double"].plan()[0].inputs[0].function.target  # type: ignore[attr-defined]
    assert await call({"value": 5}) == [10]


async def test_an_agent_is_called_with_real_records_only(app: App) -> None:
    calls: list[Any] = []
    numbers = app.topic("numbers", schema={"n": "int64"})
    with pytest.warns(DeprecationWarning, match="deprecated"):

        @app.agent(numbers, sink="out")
        async def note(record: Any) -> Any:
            calls.append(record.n)
            return {"n": record.n}

    await numbers.send({"n": 7})
    await app.start()
    while not calls:
        await asyncio.sleep(0)
    await app.stop()
    assert calls == [7]
    assert app.stream("out", bounded=True).to_pylist() == [{"n": 7}]


async def test_mistakes_about_an_agent_have_its_line(app: App) -> None:
    with pytest.warns(DeprecationWarning, match="deprecated"):

        @app.agent("nobody")
        async def note(record: Any) -> None: ...

    with pytest.raises(PlanError, match="'nobody' not found") as caught:
        await app.start()
    assert caught.value.at is not None
    assert caught.value.at.file.endswith("test_known_forms.py")
