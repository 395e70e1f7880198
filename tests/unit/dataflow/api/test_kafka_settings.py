"""Settings of Kafka that an app is given: who uses them, and that nothing that is written down has them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from shoal.core.errors import PreconditionError
from shoal.dataflow.api.apps.app import App, Dataflow
from shoal.dataflow.api.context import Launch, launching
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.connectors.topics import brokers
from shoal.dataflow.connectors.topics.brokers import settings_of
from shoal.dataflow.connectors.topics.endpoints import TopicSink, TopicSource
from shoal.dataflow.errors import PlanError
from shoal.dataflow.language.logical import Sink, Source, walk
from shoal.dataflow.plan.documents import read_plan, write_plan
from shoal.topics.kafka import KafkaSettings

SECRET = "hunter2-and-more"
HERE = "kafka.example:9093"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins without any."""
    monkeypatch.setattr(brokers, "_settings", {})


def secured(address: str = HERE, **others: Any) -> KafkaSettings:
    return KafkaSettings(address, client={"sasl.username": "lovelace", "sasl.password": SECRET}, **others)


def places(flow: Dataflow) -> list[str]:
    """The brokers of a dataflow's sources and sinks."""
    found = [node.connector for node in walk(*flow.plan()) if isinstance(node, Source | Sink)]
    assert all(isinstance(each, TopicSource | TopicSink) for each in found)
    return [each.broker for each in found]


def test_every_reader_and_writer_of_an_app_has_its_settings() -> None:
    settings = secured(fetch_ahead=1 << 20)
    app = App("shop", broker=settings)
    orders = app.topic("orders", schema={"id": "int64"})
    app.topic("elsewhere", broker="other:9092")

    @app.dataflow()
    def copied() -> Any:
        named = Stream.from_kafka(HERE, "named", "group")  # the app's own, by its address
        return [
            Stream.from_kafka("orders").to_kafka("copies"),
            named.to_kafka(app.broker, "more"),
            Stream.from_topic(app.topic("by-address", broker=HERE).spec).to_topic("elsewhere"),
        ]

    assert app.broker == orders.spec.broker == f"kafka://shop@{HERE}"
    assert set(places(copied)) == {app.broker, "other:9092"}
    assert places(copied).count("other:9092") == 1
    assert settings_of(app.broker) == settings
    assert settings_of("other:9092") == KafkaSettings("other:9092")


def test_settings_of_one_stream_or_topic_are_its_own() -> None:
    app = App("shop", broker="plain:9092")
    mine = secured()
    special = app.topic("special", broker=mine)

    @app.dataflow()
    def copied() -> Any:
        stream = Stream.from_kafka(secured(), "orders", "group")
        return stream.to_kafka(bootstrap_servers=secured("third:9092"), topic="copies")

    assert sorted(places(copied)) == [f"kafka://shop@{HERE}", "kafka://shop@third:9092"]
    assert special.spec.broker == f"kafka://shop@{HERE}"
    assert settings_of(special.spec.broker) == mine
    alone = Stream.from_kafka(mine, "orders", "a group/of mine").node
    assert isinstance(alone, Source)
    assert alone.connector.broker == f"kafka://a-group-of-mine@{HERE}"


def test_two_apps_of_one_name_do_not_mix_up_their_settings() -> None:
    one, other, again = (
        App("shop", broker=secured()),
        App("shop", broker=KafkaSettings(HERE)),
        App("shop", broker=secured()),
    )
    assert (one.broker, other.broker, again.broker) == (
        f"kafka://shop@{HERE}",
        f"kafka://shop-2@{HERE}",
        f"kafka://shop@{HERE}",
    )
    assert settings_of(one.broker).client
    assert not settings_of(other.broker).client


def test_settings_are_as_they_were_when_they_were_given() -> None:
    client: dict[str, Any] = {"sasl.password": SECRET}
    app = App("shop", broker=KafkaSettings(HERE, client=client))
    client.clear()
    assert settings_of(app.broker).client == {"sasl.password": SECRET}


def test_no_secret_is_in_a_plan_an_explanation_or_a_repr(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    app = App("shop", broker=secured(), data_dir=tmp_path)
    orders = app.topic("orders", schema={"id": "int64"})

    @app.dataflow()
    def copied() -> Any:
        # The function knows of its app, so the app lies in the plan.
        return (
            Stream.from_kafka("orders").map(lambda b: b if app.id else None, schema={"id": "int64"}).to_kafka("copies")
        )

    written = write_plan(copied.plan())
    copied.explain()
    copied.visualize(str(tmp_path / "plan.dot"))
    said = [
        written.to_json(),
        str(copied.explain()),
        (tmp_path / "plan.dot").read_text(),
        capsys.readouterr().out,
        *(repr(each) for each in (app, copied, orders, orders.spec, copied.plan(), vars(app))),
    ]
    assert written.blobs
    assert not [each for each in said if SECRET in each or "lovelace" in each]
    assert not [name for name, blob in written.blobs.items() if SECRET.encode() in blob]
    assert f"shop@{HERE}" in said[0]
    restored = read_plan(written)
    assert {node.connector.broker for node in walk(*restored) if isinstance(node, Source | Sink)} == {app.broker}


def test_a_function_that_holds_settings_cannot_be_written_down() -> None:
    settings = secured()
    assert SECRET.encode() in cloudpickle.dumps(lambda: settings)  # as it would be
    stream = Stream.from_dicts([{"id": 1}]).map(lambda b: b if settings.brokers else None, schema={"id": "int64"})
    with pytest.raises(PlanError, match="KafkaSettings may hold secrets, and stays in its process") as raised:
        write_plan([stream.to_callback(print).node])
    assert SECRET not in str(raised.value)


def test_a_plan_needs_the_settings_in_the_process_that_runs_it() -> None:
    broker = App("shop", broker=secured()).broker
    source = pickle.loads(pickle.dumps(TopicSource("orders", broker)))
    brokers._settings.clear()  # another process
    with pytest.raises(PreconditionError, match=r"settings of kafka://shop@.* are not known") as raised:
        source.find_splits()
    assert "KafkaSettings" in raised.value.hint


@pytest.mark.parametrize(
    ("said", "meant", "has_secret"),
    [("stage:9092", "kafka://shop@stage:9092", True), ("./log", "./log", False)],
)
def test_another_address_from_outside_is_used_with_the_apps_settings(said: str, meant: str, has_secret: bool) -> None:
    with launching(Launch(broker=said)):
        app = App("shop", broker=secured(fetch_ahead=1 << 20))
        plain = App("plain", broker="x:1")
    assert app.broker == meant
    assert plain.broker == said
    if has_secret:
        assert settings_of(meant) == secured("stage:9092", fetch_ahead=1 << 20)


@pytest.mark.parametrize(
    "said", [f"kafka://lovelace:{SECRET}@host:9092", f"lovelace:{SECRET}@host:9092", f"lovelace:{SECRET}/x@host:9092"]
)
def test_a_password_in_an_address_is_refused_and_not_shown(said: str) -> None:
    with pytest.raises(PlanError, match="must not have a user or a password") as raised:
        App("shop", broker=said)
    assert SECRET not in f"{raised.value} {raised.value.problems}"
    assert "KafkaSettings" in raised.value.hint


def test_what_is_neither_an_address_nor_settings_is_refused() -> None:
    with pytest.raises(PlanError, match="broker: must be text such as"):
        App("shop", broker=9092)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="broker: must be text such as"):
        Stream.from_kafka(9092, "orders", "group")
    with pytest.raises(PlanError, match="must be the name of a topic"):
        Stream.from_kafka(secured())
    assert App("shop", broker="./a@b:1").broker == "./a@b:1"
