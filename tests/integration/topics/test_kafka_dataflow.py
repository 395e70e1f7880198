"""Topics on Kafka as sources and sinks of a dataflow: each row once, over restarts and changes of width."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from shoal.core.clock import SystemClock
from shoal.core.entropy import SystemEntropy
from shoal.dataflow.connectors.base import CommitContext, SinkContext
from shoal.dataflow.connectors.markers import Marker
from shoal.dataflow.connectors.memory import CallbackSink
from shoal.dataflow.connectors.topics.commits import SinkNames
from shoal.dataflow.connectors.topics.endpoints import TopicSink, TopicSource
from shoal.dataflow.execution import engine
from shoal.dataflow.language.functions import make_ref
from shoal.dataflow.language.logical import OnError, SideOutput, Sink, Source
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from shoal.testing.suites.sinks import SinkKit, SinkSuite
from shoal.testing.suites.topics_kit import TopicsKit
from shoal.topics.base import records
from shoal.topics.errors import FencedError
from shoal.topics.kafka import KafkaSettings, KafkaTopics
from tests.services.kafka import KafkaBroker
from tests.unit.dataflow.connectors.sinks import committed_values
from tests.unit.dataflow.execution.flows import SCHEMA, Tap, collect, rows, tap_source

pytestmark = pytest.mark.integration

KIT = TopicsKit()


@pytest.fixture
def topics(kafka_broker: KafkaBroker) -> Iterator[KafkaTopics]:
    with KafkaTopics(KafkaSettings(kafka_broker.address)) as opened:
        yield opened


class TestKafkaSink(SinkSuite):
    """The sink of a topic in Kafka."""

    __test__ = True

    @pytest.fixture
    def kit(self, kafka_broker: KafkaBroker) -> SinkKit:
        topic = f"sink-{SystemEntropy().token(8)}"
        job = f"job-{topic}"

        class OwnNames(TopicSink):
            """Jobs of other tests have the same names: the ids of their writers are in the same cluster."""

            def open_writer(self, schema: Any, context: SinkContext) -> Any:
                return super().open_writer(schema, replace(context, job=job))

            def open_committer(self, context: CommitContext) -> Any:
                return super().open_committer(replace(context, job=job))

        return SinkKit(
            lambda: OwnNames(topic, kafka_broker.address), lambda: committed_values(kafka_broker.address, topic)
        )


class Job:
    """The sink of one job, as its tasks see it."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.name = f"job-{SystemEntropy().token(8)}"
        self.topic = f"{self.name}-out"

    def writer(self) -> Any:
        """What a task writes with."""
        context = SinkContext(self.name, "out", 0, 1, SystemClock(), exactly_once=True, incarnation=3)
        return TopicSink(self.topic, self.broker).open_writer(None, context)

    def values(self) -> list[int]:
        """What a reader of committed records sees, up to the last that it may."""
        return committed_values(self.broker, self.topic)

    def sees(self, expected: list[int]) -> bool:
        """Whether these are what a reader sees. What is committed is visible by and by."""
        return KIT.until(lambda: sorted(self.values()) == expected)


@pytest.fixture
def job(kafka_broker: KafkaBroker) -> Job:
    return Job(kafka_broker.address)


def test_the_marker_has_the_incarnation_and_the_number(job: Job, topics: KafkaTopics) -> None:
    writer = job.writer()
    names = SinkNames(job.name, "out", job.topic)
    for number in (4, 5, 9):  # by turns: more checkpoints than there are producers
        writer.write(rows(("a", number, 1)))
        writer.prepare(number)
        writer.commit(number)
        assert KIT.until(lambda at=number: at in job.values())
        assert names.read_marker(topics, 0) == Marker(3, number)
    writer.close()
    assert job.values() == [4, 5, 9]


@pytest.mark.parametrize("turn", [0, 1])
def test_two_producers_take_turns_under_names_that_stay(job: Job, topics: KafkaTopics, turn: int) -> None:
    """While the transaction of one waits for its checkpoint the other takes rows. A namesake fences each."""
    writer = job.writer()
    for checkpoint in range(1, turn + 2):
        writer.write(rows(("a", checkpoint, 1)))
        writer.prepare(checkpoint)
    with topics.writer(transactional_id=f"{job.name}.out.0.{turn}"), pytest.raises(FencedError):
        writer.commit(turn + 1)
    writer.close()
    assert job.sees(list(range(1, turn + 1)))


def test_poison_goes_to_the_side_with_its_offset(kafka_broker: KafkaBroker, topics: KafkaTopics) -> None:
    name = f"poison-{SystemEntropy().token(8)}"
    topics.create(name)
    values = [b'{"key": "a", "value": %d, "time": 1}' % number for number in range(1_000)]
    values[17], values[500], values[999] = b"{nonsense", None, values[999] * 2
    with topics.writer() as writer:
        writer.append(name, records(values, keys=[b"%d" % number for number in range(1_000)]))
        writer.flush()
    connector = TopicSource(name, kafka_broker.address, schema=SCHEMA, bounded=True, on_error=OnError.SIDE)
    source = Source(connector=connector, schema=SCHEMA)
    report = engine.run([collect(source), collect(SideOutput(inputs=(source,), tag="errors"), "errors")])
    good = [number for number in range(1_000) if number not in {17, 500, 999}]
    assert report.tables["out"]["value"].to_pylist() == good
    assert report.tables["errors"].select(["split", "offset", "key", "value"]).to_pylist() == [
        {"split": "0", "offset": at, "key": b"%d" % at, "value": values[at]} for at in (17, 500, 999)
    ]


def test_a_partition_that_was_made_while_the_job_was_down_is_read_from_its_beginning(
    kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    name = f"latest-{SystemEntropy().token(8)}"
    topics.create(name)
    seen: list[int] = []
    source = TopicSource(name, kafka_broker.address, schema=SCHEMA, start="latest")
    node = Source(connector=source, schema=SCHEMA, uid="in")
    sink = Sink(inputs=(node,), connector=CallbackSink(make_ref(lambda batch: seen.extend(batch["value"].to_pylist()))))
    settings = FlowSettings(checkpoint=CheckpointSettings(directory=str(tmp_path), interval=60))

    def write(value: int, partition: int) -> None:
        with topics.writer() as writer:
            content = json.dumps(rows(("k", value, value)).to_pylist()[0]).encode()
            writer.append(name, records([content]), partition=partition)
            writer.flush()

    write(1, 0)  # before the job: latest does not have it
    flow = engine.start([sink], name="latest", settings=settings)
    assert KIT.until(lambda: flow.metrics().checkpoints.completed)  # it has begun to read
    write(2, 0)
    assert KIT.until(lambda: seen == [2])
    flow.stop(timeout=60)
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
    admin.create_partitions([NewPartitions(name, 2)])[name].result()
    write(3, 0)
    assert KIT.until(lambda: len(topics.describe(name).topic_partitions()) == 2)
    with KafkaTopics(KafkaSettings(kafka_broker.address)) as fresh, fresh.writer() as writer:
        content = json.dumps(rows(("k", 4, 4)).to_pylist()[0]).encode()
        writer.append(name, records([content]), partition=1)
        writer.flush()
    flow = engine.start([sink], name="latest", settings=settings)
    assert KIT.until(lambda: sorted(seen) == [2, 3, 4])
    flow.stop(timeout=60)


def test_a_marker_that_the_cluster_has_dropped_doubles_nothing(
    kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    """Kafka drops the offsets of a group without members after a week; here somebody deletes the group."""
    name = f"dropped-{SystemEntropy().token(8)}"
    tap = Tap()
    sink = Sink(
        inputs=(tap_source(tap, time=None, uid="in"),), connector=TopicSink(name, kafka_broker.address), uid="out"
    )
    settings = FlowSettings(checkpoint=CheckpointSettings(directory=str(tmp_path), interval=20, min_pause=20))

    def live(value: int) -> None:
        tap.give(rows(("k", value, value)))
        flow = engine.start([sink], name=name, settings=settings)
        tap.wait_empty(tap.empty + 1)
        flow.stop(timeout=60)

    live(1)
    assert KIT.until(lambda: committed_values(kafka_broker.address, name) == [1])
    names = SinkNames(name, "out", name)
    assert names.read_marker(topics, 0) is not None
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
    for deleted in admin.delete_consumer_groups([names.group(0)]).values():
        deleted.result()
    assert names.read_marker(topics, 0) is None
    live(2)
    assert KIT.until(lambda: committed_values(kafka_broker.address, name) == [1, 2])
    assert names.read_marker(topics, 0) is not None
