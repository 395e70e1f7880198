"""Kafka keeps what every backend of topics promises, and what it promises beyond that, with a real broker."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from shoal.core.clock import SystemClock
from shoal.core.entropy import SystemEntropy
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, ShoalError
from shoal.testing.suites.topics import TopicsSuite
from shoal.testing.suites.topics_kit import TopicsKit
from shoal.topics.base import TopicPartition, Topics, Writer, records
from shoal.topics.errors import FencedError
from shoal.topics.kafka import KafkaSettings, KafkaTopics
from tests.services.kafka import KafkaBroker

pytestmark = pytest.mark.integration

KIT = TopicsKit()


class TestKafka(TopicsSuite):
    """Members wait for each other; one that does not poll is waited for as long as `poll_timeout` says.

    So a group moves on from a member that is not heard of by itself, only later: the brokers give the member up.
    """

    __test__ = True

    @pytest.fixture
    def open_topics(self, kafka_broker: KafkaBroker) -> Iterator[Callable[[], Topics]]:
        with contextlib.ExitStack() as opened:
            yield lambda: opened.enter_context(KafkaTopics(KafkaSettings(kafka_broker.address, poll_timeout=6.0)))


@pytest.fixture
def topics(kafka_broker: KafkaBroker) -> Iterator[KafkaTopics]:
    with KafkaTopics(KafkaSettings(kafka_broker.address)) as opened:
        yield opened


@pytest.fixture
def name() -> str:
    return f"t-{SystemEntropy().token(8)}"


# -------------------------------------------------------------------------------------------------------------
# Records


def test_nothing_is_lost_or_doubled_by_pauses_and_assignments(topics: KafkaTopics, name: str) -> None:
    wanted = topics.create(name, partitions=3).topic_partitions()
    count, chance = 20_000, random.Random(SystemEntropy().token())
    read: dict[TopicPartition, list[int]] = {each: [] for each in wanted}

    def write() -> None:
        with topics.writer() as writer:
            for start in range(0, count, 500):
                batch = records([b"%d" % number for number in range(start, start + 500)])
                for each in wanted:
                    writer.append(name, batch, partition=each.partition)
                writer.flush()

    writing = threading.Thread(target=write)
    writing.start()
    with topics.reader() as reader:
        reader.assign(dict.fromkeys(wanted, 0))

        def all_read() -> bool:
            for fetched in reader.read(max_records=chance.choice([7, 300, 5_000]), timeout=0.05):
                assert fetched.batch["offset"].to_pylist() == [int(each) for each in fetched.batch["value"].to_pylist()]
                read[fetched.topic_partition].extend(fetched.batch["offset"].to_pylist())
            some = chance.sample(wanted, chance.randint(1, 3))
            chance.choice([reader.pause, reader.resume, reader.resume])(some)
            if chance.random() < 0.05:
                reader.assign(reader.positions())
            return all(len(found) >= count for found in read.values())

        assert KIT.until(all_read)
        reader.resume(wanted)
        assert not reader.read(timeout=0.2)
        assert reader.positions() == topics.next_offsets(wanted)
    writing.join()
    for found in read.values():
        assert found == list(range(count))


def test_a_topic_that_goes_away_and_comes_back(topics: KafkaTopics, name: str) -> None:
    where = topics.create(name).topic_partitions()[0]
    with topics.writer() as writer:
        writer.append(name, records([b"old"]))
        writer.flush()
    with topics.reader() as reader:
        reader.assign({where: 0})
        assert KIT.values(KIT.some(reader)) == [b"old"]
        topics.delete(name)

        def gone() -> bool:
            try:
                return bool(reader.read(timeout=0.1))
            except NotFoundError:
                return True

        assert KIT.until(gone)
        for _ in range(2):  # and is said each time
            with pytest.raises(NotFoundError):
                reader.read()
        assert reader.positions() == {where: 1}
        topics.create(name)
        with topics.writer() as writer:
            writer.append(name, records([b"new", b"newer"]))
            writer.flush()
        assert KIT.values(KIT.some(reader)) == [b"newer"]


def test_a_reader_of_what_was_never_there(topics: KafkaTopics, name: str) -> None:
    topics.create(name)
    for missing in (TopicPartition(f"{name}-none", 0), TopicPartition(name, 5)):
        with topics.reader() as reader:
            reader.assign({missing: 0})
            with pytest.raises(NotFoundError):
                KIT.some(reader)


def test_times_before_1970_are_refused(topics: KafkaTopics, name: str) -> None:
    where = topics.create(name).topic_partitions()[0]
    with topics.writer() as writer:
        with pytest.raises(InvalidError):
            writer.append(name, records([b"1", b"2"], timestamps=[None, -1]))
        writer.append(name, records([b"3"], timestamps=[999]))
        writer.flush()
    (fetched,) = KIT.read(topics, {where: 0}, 1)
    assert fetched.batch["timestamp"].to_pylist() == [0]


@pytest.mark.parametrize("keys", [None, [b"k", b"k"]])
def test_tombstones_alone(topics: KafkaTopics, name: str, keys: list[bytes] | None) -> None:
    where = topics.create(name).topic_partitions()[0]
    with topics.writer() as writer:
        writer.append(name, records([None, None], keys=keys))
        writer.flush()
    assert KIT.values(KIT.read(topics, {where: 0}, 2)) == [None, None]


@pytest.mark.long
def test_a_transaction_that_took_too_long_is_fenced(kafka_broker: KafkaBroker, name: str) -> None:
    with KafkaTopics(KafkaSettings(kafka_broker.address, transaction_timeout=5.0)) as topics:
        where = topics.create(name).topic_partitions()[0]
        left = topics.writer(transactional_id=name)
        left.begin()
        left.append(name, records([b"left"]))
        left.flush()
        # While it is open nobody sees what comes after it.
        with topics.writer() as plain:
            plain.append(name, records([b"plain"]))
            plain.flush()
        assert KIT.values(KIT.read(topics, {where: 0}, 1)) == [b"plain"]
        with pytest.raises(FencedError):
            _append_and_flush(left, name)
        for call in (left.commit, left.begin, left.flush):
            with pytest.raises(FencedError):
                call()
        left.abort()
        left.close()
        assert KIT.values(KIT.read(topics, {where: 0}, 1)) == [b"plain"]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("flushed", [0, 3])
def test_records_that_a_fence_throws_away_say_that_it_was_a_fence(
    kafka_broker: KafkaBroker, name: str, native: bool, flushed: int
) -> None:
    with KafkaTopics(KafkaSettings(kafka_broker.address, native=native)) as topics:
        topics.create(name)
        older = topics.writer(transactional_id=name)
        older.begin()
        older.append(name, records([b"old"] * flushed))
        older.flush()
        with topics.writer(transactional_id=name), pytest.raises(FencedError):
            _append_and_flush(older, name)
        with pytest.raises(FencedError):
            older.begin()
        older.close()


def _append_and_flush(writer: Writer, topic: str) -> None:
    writer.append(topic, records([b"never"]))
    writer.flush()


def test_a_record_that_is_too_large_is_refused(topics: KafkaTopics, name: str) -> None:
    where = topics.create(name).topic_partitions()[0]
    with topics.writer() as writer:
        with pytest.raises(InvalidError):
            writer.append(name, records([b"x" * 2_000_000]))
        writer.append(name, records([os.urandom(1_047_900)]))
        writer.flush()
    assert topics.next_offsets([where]) == {where: 1}


def test_partitions_that_were_added_are_used(kafka_broker: KafkaBroker, name: str) -> None:
    class Ahead(SystemClock):
        seconds = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.seconds

    clock = Ahead()
    with KafkaTopics(KafkaSettings(kafka_broker.address), clock=clock) as topics, topics.writer() as writer:
        topics.create(name)
        writer.append(name, records([b"0"]))
        admin = AdminClient({"bootstrap.servers": kafka_broker.address})
        admin.create_partitions([NewPartitions(name, 3)])[name].result()
        deadline = time.monotonic() + 60.0
        while len(topics.describe(name).topic_partitions()) < 3:  # the broker tells of them a moment later
            assert time.monotonic() < deadline
            time.sleep(0.05)
        clock.seconds = 61.0
        for step in range(3):
            writer.append(name, records([b"%d" % step]))
        writer.flush()
        wanted = topics.describe(name).topic_partitions()
        assert sorted(topics.next_offsets(wanted).values()) == [1, 1, 2]


@pytest.mark.parametrize(
    ("milliseconds", "age"),
    [(2**63 - 1, None), (-1, None), (0, timedelta()), (60_000, timedelta(minutes=1))],
    ids=["largest", "never", "at once", "minute"],
)
def test_a_retention_is_described(
    kafka_broker: KafkaBroker, name: str, milliseconds: int, age: timedelta | None
) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
    admin.create_topics([NewTopic(name, 1, 1, config={"retention.ms": str(milliseconds)})])[name].result()
    with KafkaTopics(KafkaSettings(kafka_broker.address)) as topics:
        assert topics.describe(name).retention.age == age


# -------------------------------------------------------------------------------------------------------------
# Groups

MEMBER = """
import sys, json
from shoal.topics.base import TopicPartition, records
from shoal.topics.errors import RebalancedError
from shoal.topics.kafka import KafkaSettings, KafkaTopics

address, name = sys.argv[1:]
with KafkaTopics(KafkaSettings(address)) as topics:
    member, writer = topics.member(name, [name]), topics.writer(transactional_id=name)
    writer.begin()
    writer.append(f"{name}-out", records([b"zombie"]))
    while not (assignment := member.poll(0.1)).partitions:
        pass
    where = sorted(assignment.partitions)[0]
    member.commit({where: 1})
    print("ready", flush=True)
    sys.stdin.readline()
    for commit in (
        lambda: writer.commit(offsets={name: {where: 66}}, member=member),
        lambda: member.commit({where: 99}),
    ):
        try:
            commit()
            print("accepted", flush=True)
        except RebalancedError:
            print("refused", flush=True)
"""


@pytest.mark.parametrize("others_stay", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_member_that_was_stopped_is_refused_when_it_wakes(
    kafka_broker: KafkaBroker, topics: KafkaTopics, name: str, others_stay: bool
) -> None:
    wanted = set(topics.create(name, partitions=2).topic_partitions())
    output = topics.create(f"{name}-out").topic_partitions()[0]
    where = min(wanted)
    with subprocess.Popen(
        [sys.executable, "-c", MEMBER, kafka_broker.address, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGSTOP)
            with topics.member(name, [name]) as other:
                KIT.assigned(other, lambda found: found.partitions == wanted)
                other.commit({where: 5})
                if not others_stay:  # to an empty group anybody may commit: the zombie has to know that it is one
                    other.close()
                process.send_signal(signal.SIGCONT)
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.read().split() == ["refused", "refused"]
                assert topics.committed(name) == {where: 5}
        finally:
            process.kill()
    with topics.reader() as reader:
        reader.assign({output: 0})
        assert list(reader.read(timeout=0.5)) == []


def test_members_that_never_poll_leave_in_peace(topics: KafkaTopics, name: str) -> None:
    topics.create(name, partitions=2)
    members = [topics.member(f"{name}-{number}", [name]) for number in range(20)]
    last = members[-1]
    KIT.assigned(last, lambda found: bool(found.partitions))  # by now the others have their assignments waiting
    for member in members:
        member.close()


def test_a_member_that_has_nothing_yet_commits_nothing(topics: KafkaTopics, name: str) -> None:
    where = topics.create(name).topic_partitions()[0]
    with topics.member(name, [name]) as member, topics.writer(transactional_id=name) as writer:
        with pytest.raises(InvalidError):
            member.commit({where: 1})
        writer.begin()
        with pytest.raises(PreconditionError):
            writer.commit(offsets={name: {where: 1}}, member=member)
    assert topics.committed(name) == {}


# -------------------------------------------------------------------------------------------------------------
# Names, secrets, ends


def test_names_are_checked_before_a_broker_is_asked() -> None:
    # Who asks first finds nobody there, which is another error.
    with KafkaTopics(KafkaSettings("127.0.0.1:1", patience=1.0)) as topics, topics.writer() as writer:
        for call in (
            lambda: topics.create("a b", partitions=0),
            lambda: topics.describe("a/b"),
            lambda: topics.delete(""),
            lambda: topics.first_offsets([TopicPartition("..", 0)]),
            lambda: topics.member("group", ["fine", "not fine"]),
            lambda: topics.member("", ["fine"]),
            lambda: writer.append("a b", records([b"1"])),
        ):
            with pytest.raises(InvalidError):
                call()


def test_a_secret_reaches_no_log_and_no_error(
    kafka_broker: KafkaBroker, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "hunter2-and-more"
    settings = KafkaSettings(
        kafka_broker.address,  # which knows of no passwords, so everything fails
        patience=1.0,
        client={
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "somebody",
            "sasl.password": secret,
            "debug": "conf,security,broker",
        },
    )
    said = [repr(settings)]
    with caplog.at_level(logging.DEBUG), KafkaTopics(settings) as topics:
        writer, reader = topics.writer(), topics.reader()
        reader.assign({TopicPartition("any", 0): 0})
        calls: list[Callable[[], object]] = [
            topics.names,
            lambda: topics.create("any"),
            lambda: topics.committed("any"),
            lambda: reader.read(timeout=2.0),
            lambda: writer.append("any", records([b"1"])),
            lambda: topics.writer(transactional_id="any"),
        ]
        for call in calls:
            try:
                call()
            except ShoalError as error:
                said.append(f"{error!r} {error.facts} {error.hint} {error.__cause__!r} {error.__context__!r}")
    assert len(said) > 4
    assert caplog.records
    captured = capfd.readouterr()
    assert secret not in caplog.text + json.dumps(said) + captured.out + captured.err


def test_a_read_in_another_thread_ends_when_all_is_closed(topics: KafkaTopics, name: str) -> None:
    where = topics.create(name).topic_partitions()[0]
    reader = topics.reader()
    reader.assign({where: 0})
    begun, ended = threading.Event(), []

    def read() -> None:
        begun.set()
        try:
            reader.read(timeout=KIT.patience)
        except PreconditionError as error:
            ended.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    begun.wait()
    topics.close()
    reading.join(KIT.patience)
    assert len(ended) == 1


def test_what_was_closed_is_forgotten(topics: KafkaTopics, name: str) -> None:
    topics.create(name)
    for _ in range(5):
        topics.reader().close()
        topics.writer().close()
    assert len(topics._opened) <= 1
