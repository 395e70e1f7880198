"""Topics on Kafka as sources and sinks of a dataflow: each row once, over restarts and changes of width."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from shoal.core.clock import SystemClock
from shoal.core.entropy import SystemEntropy
from shoal.core.errors import PreconditionError
from shoal.dataflow.connectors.base import SinkContext
from shoal.dataflow.connectors.brokers import topics_of
from shoal.dataflow.connectors.memory import CallbackSink
from shoal.dataflow.connectors.topics import TopicSink, TopicSource
from shoal.dataflow.execution import engine
from shoal.dataflow.language.functions import make_ref
from shoal.dataflow.language.logical import OnError, SideOutput, Sink, Source
from shoal.dataflow.language.settings import CheckpointSettings, FlowSettings
from shoal.testing.suites.topics_kit import TopicsKit
from shoal.topics.base import TopicPartition, records
from shoal.topics.errors import FencedError
from shoal.topics.kafka import KafkaSettings, KafkaTopics
from tests.services.kafka import KafkaBroker
from tests.unit.dataflow.execution.flows import SCHEMA, collect, rows

pytestmark = pytest.mark.integration

KIT = TopicsKit()


@pytest.fixture
def topics(kafka_broker: KafkaBroker) -> Iterator[KafkaTopics]:
    with KafkaTopics(KafkaSettings(kafka_broker.address)) as opened:
        yield opened


class Job:
    """The sink of one job, as its tasks see it."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.name = f"job-{SystemEntropy().token(8)}"
        self.topic = f"{self.name}-out"

    def writer(self, subtask: int = 0, parallelism: int = 1, former: int = 0) -> Any:
        """What a task writes with."""
        context = SinkContext(
            self.name, "out", subtask, parallelism, SystemClock(), exactly_once=True, former_parallelism=former
        )
        return TopicSink(self.topic, self.broker).open_writer(None, context)

    def values(self) -> list[int]:
        """What a reader of committed records sees, up to the last that it may."""
        where, found = TopicPartition(self.topic, 0), []
        with topics_of(self.broker) as topics:
            end = topics.next_offsets([where])[where]
            with topics.reader() as reader:
                reader.assign({where: 0})
                while reader.positions()[where] < end:
                    for fetched in reader.read(timeout=1.0):
                        found += [json.loads(value)["value"] for value in fetched.batch["value"].to_pylist()]
        return found

    def sees(self, expected: list[int]) -> bool:
        """Whether these are what a reader sees. What is committed is visible by and by."""
        return KIT.until(lambda: sorted(self.values()) == expected)


@pytest.fixture
def job(kafka_broker: KafkaBroker) -> Job:
    return Job(kafka_broker.address)


def test_rows_appear_with_their_checkpoint_and_the_marker_is_its_number(job: Job, topics: KafkaTopics) -> None:
    writer = job.writer()
    writer.restore([])
    for number in (4, 5, 9):  # by turns: more checkpoints than there are producers
        writer.write(rows(("a", number, 1)))
        writer.prepare(number)
        assert number not in job.values()
        writer.commit(number)
        writer.commit(number)
        assert KIT.until(lambda at=number: at in job.values())
        assert topics.committed(f"shoal.{job.name}.out.0") == {TopicPartition(job.topic, 0): number}
    writer.close()
    assert job.values() == [4, 5, 9]


@pytest.mark.parametrize("turn", [0, 1])
def test_two_producers_take_turns_under_names_that_stay(job: Job, topics: KafkaTopics, turn: int) -> None:
    """While the transaction of one waits for its checkpoint the other takes rows. A namesake fences each."""
    writer = job.writer()
    writer.restore([])
    for checkpoint in range(1, turn + 2):
        writer.write(rows(("a", checkpoint, 1)))
        writer.prepare(checkpoint)
    with topics.writer(transactional_id=f"{job.name}.out.0.{turn}"), pytest.raises(FencedError):
        writer.commit(turn + 1)
    writer.close()
    assert job.sees(list(range(1, turn + 1)))


def test_what_was_prepared_and_not_committed_is_sent_again_once(job: Job) -> None:
    writer = job.writer()
    writer.restore([])
    for number in (1, 2):
        writer.write(rows(("a", number, 1)))
        prepared = writer.prepare(number)
    writer.write(rows(("a", 99, 1)))  # of no checkpoint
    for _ in range(2):
        again = job.writer()
        again.restore([(2, 0, prepared)])
        again.close()
    assert job.sees([1, 2])
    with pytest.raises(PreconditionError):  # it is not the one any more
        writer.commit(2)
    writer.close()
    assert job.sees([1, 2])


def test_what_was_committed_is_not_sent_again(job: Job) -> None:
    writer = job.writer()
    writer.restore([])
    writer.write(rows(("a", 1, 1)))
    prepared = writer.prepare(1)
    writer.commit(1)
    again = job.writer()
    again.restore([(1, 0, prepared)])
    assert job.sees([1])
    again.close()
    writer.close()


def test_transactions_of_tasks_that_are_no_more_are_ended(job: Job) -> None:
    """Else whoever reads committed records would wait for them until they time out."""
    wide = [job.writer(subtask, 3) for subtask in range(3)]
    prepared = []
    for subtask, writer in enumerate(wide):
        writer.restore([])
        writer.write(rows(("a", 10 + subtask, 1)))
        prepared.append((1, subtask, writer.prepare(1)))
        writer.write(rows(("a", 90 + subtask, 1)))  # open in the other producer, and of no checkpoint
    wide[1].commit(1)
    narrow = job.writer(0, 1, former=3)
    narrow.restore(prepared)
    assert job.sees([10, 11, 12])
    narrow.write(rows(("a", 7, 1)))
    narrow.prepare(2)
    narrow.commit(2)
    for writer in wide:
        with pytest.raises(PreconditionError):
            _end(writer, 3)
    assert job.sees([7, 10, 11, 12])
    for writer in [narrow, *wide]:
        writer.close()


def _end(writer: Any, checkpoint: int) -> None:
    writer.prepare(checkpoint)
    writer.commit(checkpoint)


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
