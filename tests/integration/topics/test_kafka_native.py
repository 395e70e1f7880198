"""Both ways to the client library do the same: message by message, and many at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from shoal.core.entropy import SystemEntropy
from shoal.core.errors import InvalidError, NotFoundError
from shoal.testing.suites.topics_kit import TopicsKit
from shoal.topics.base import TopicPartition, records
from shoal.topics.kafka import KafkaSettings, KafkaTopics
from shoal.topics.kafka.feed import MessageFeed
from shoal.topics.kafka.interface import find
from shoal.topics.kafka.native_feed import NativeFeed
from shoal.topics.kafka.native_outbox import NativeOutbox
from shoal.topics.kafka.outbox import MessageOutbox
from tests.services.kafka import KafkaBroker

pytestmark = pytest.mark.integration

KIT = TopicsKit()
VALUES = [b"v" * size for size in (0, 1, 11, 12, 13, 100, 5_000)]
HEADERS: list[Any] = [[("a", b"1"), ("a", None), ("é", b"")], None, [("t", b"x" * 300)]]


@pytest.fixture(params=[True, False], ids=["native", "messages"])
def topics(kafka_broker: KafkaBroker, request: pytest.FixtureRequest) -> Iterator[KafkaTopics]:
    with KafkaTopics(KafkaSettings(kafka_broker.address, native=request.param)) as opened:
        yield opened


@pytest.fixture
def name() -> str:
    return f"t-{SystemEntropy().token(8)}"


def test_each_way_is_the_one_that_was_asked_for(kafka_broker: KafkaBroker) -> None:
    assert find() is not None
    for is_native, feed, outbox in ((True, NativeFeed, NativeOutbox), (False, MessageFeed, MessageOutbox)):
        with KafkaTopics(KafkaSettings(kafka_broker.address, native=is_native)) as opened:
            assert isinstance(opened.reader()._feed, feed)
            assert isinstance(opened.writer()._outbox, outbox)


def read_all(topics: KafkaTopics, where: TopicPartition, count: int) -> Any:
    return pa.Table.from_batches([each.batch for each in KIT.read(topics, {where: 0}, count)])


def test_values_and_keys_come_back_as_they_were(topics: KafkaTopics, name: str) -> None:
    where = topics.create(name).topic_partitions()[0]
    values = [*VALUES, None, b"end"]
    keys = [None, b"", b"k", b"k" * 12, b"k" * 13, None, b"key", b"gone", None]
    with topics.writer() as writer:
        writer.append(name, records(values, keys=keys))
        writer.append(name, records(values))
        writer.flush()
    found = read_all(topics, where, 2 * len(values))
    assert found["value"].to_pylist() == values + values
    assert found["key"].to_pylist() == keys + [None] * len(values)
    assert found["offset"].to_pylist() == list(range(2 * len(values)))
    assert found["headers"].null_count == len(found)
    assert min(found["timestamp"].to_pylist()) > 0


def test_headers_come_back_wherever_they_are(topics: KafkaTopics, name: str) -> None:
    """Few among many without, behind values of every size and behind none."""
    where = topics.create(name).topic_partitions()[0]
    values: list[bytes | None] = []
    headers: list[Any] = []
    for number in range(3_000):
        values.append(None if number % 7 == 0 else VALUES[number % len(VALUES)])
        headers.append(HEADERS[number % 3] if number % 50 == 3 or number % 7 == 0 else None)
    with topics.writer() as writer:
        writer.append(name, records(values, headers=headers, timestamps=[1_000_000] * len(values)))
        writer.flush()
    found = read_all(topics, where, len(values))
    assert found["headers"].to_pylist() == headers
    assert found["value"].to_pylist() == values
    assert set(found["timestamp"].to_pylist()) == {1_000_000}


def test_what_nobody_reads_may_be_left_out(topics: KafkaTopics, name: str) -> None:
    where = topics.create(name).topic_partitions()[0]
    with topics.writer() as writer:
        writer.append(name, records([b"1", b"2"], timestamps=[1_000, 2_000]))
        writer.flush()
    with topics.reader(columns=["offset", "value"]) as reader:
        reader.assign({where: 0})
        assert KIT.values(KIT.some(reader)) == [b"1", b"2"]


def test_a_record_that_brokers_refuse_is_told(kafka_broker: KafkaBroker, topics: KafkaTopics, name: str) -> None:
    """The client took it, so that only its report says it."""
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
    admin.create_topics([NewTopic(name, 1, 1, config={"max.message.bytes": "2000"})])[name].result()
    content = SystemEntropy().token(20_000).encode()
    with topics.writer() as writer:
        writer.append(name, records([b"small"] * 3))
        writer.flush()
        with pytest.raises(InvalidError, match="larger than allowed"):
            _write(writer, name, [content])
        writer.append(name, records([b"small"]))
        writer.flush()
    with topics.writer(transactional_id=name) as exact:
        exact.begin()
        with pytest.raises(InvalidError, match="larger than allowed"):
            _write(exact, name, [b"small", content])
        exact.abort()
    where = TopicPartition(name, 0)
    assert KIT.values(KIT.read(topics, {where: 0}, 4)) == [b"small"] * 4


def _write(writer: Any, topic: str, values: list[bytes]) -> None:
    writer.append(topic, records(values))
    writer.flush()


def test_more_than_the_queue_holds_waits_and_keeps_its_order(kafka_broker: KafkaBroker, name: str) -> None:
    for is_native in (True, False):
        small = KafkaSettings(kafka_broker.address, native=is_native, unacknowledged=64 * 1024)
        topic = f"{name}-{is_native}"
        with KafkaTopics(small) as topics:
            where = topics.create(topic).topic_partitions()[0]
            with topics.writer() as writer:
                for start in range(0, 20_000, 5_000):
                    writer.append(topic, records([b"%020d" % number for number in range(start, start + 5_000)]))
                writer.flush()
            assert KIT.values(KIT.read(topics, {where: 0}, 20_000)) == [b"%020d" % number for number in range(20_000)]


def test_a_topic_that_is_not_there(topics: KafkaTopics, name: str) -> None:
    with topics.writer() as writer, pytest.raises(NotFoundError):
        writer.append(name, records([b"1"]))
    with topics.reader() as reader:
        reader.assign({TopicPartition(name, 0): 0})
        with pytest.raises(NotFoundError):
            KIT.some(reader)
