"""A broker that dies and comes back: survived by who has the patience, and told to who has not."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.core.errors import ShoalError, UnavailableError
from shoal.testing.suites.topics_kit import TopicsKit
from shoal.topics.base import TopicPartition, records
from shoal.topics.kafka import KafkaSettings, KafkaTopics
from tests.services.private_broker import PrivateBroker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

KIT = TopicsKit()
PATIENCE = 60.0
#: Short, and yet a broker that was started just now answers within it on a busy machine.
IMPATIENCE = 5.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[PrivateBroker]:
    made = PrivateBroker(tmp_path)
    try:
        yield made
    finally:
        made.remove()


@pytest.mark.long
def test_an_outage(broker: PrivateBroker) -> None:
    with contextlib.ExitStack() as opened:
        patient = opened.enter_context(KafkaTopics(KafkaSettings(broker.address, patience=PATIENCE)))
        impatient = opened.enter_context(KafkaTopics(KafkaSettings(broker.address, patience=IMPATIENCE)))
        wanted = patient.create("events", partitions=2).topic_partitions()
        (output,) = patient.create("output").topic_partitions()

        member = opened.enter_context(patient.member("group", ["events"]))
        KIT.assigned(member, lambda found: found.partitions == set(wanted))
        exact = opened.enter_context(patient.writer(transactional_id="exact"))
        exact.begin()
        exact.append("output", records([b"before"]))
        exact.flush()
        hasty_reader, hasty_writer = impatient.reader(), impatient.writer()
        hasty_reader.assign({output: 0})
        hasty_writer.append("output", records([b"hasty"]))
        hasty_writer.flush()

        read: dict[TopicPartition, list[int]] = {each: [] for each in wanted}
        written, done = 0, threading.Event()
        reading = threading.Thread(target=_read_all, args=(patient, read, done))
        opened.callback(done.set)
        reading.start()
        writer = opened.enter_context(patient.writer())
        for _ in range(20):
            written = _write(writer.append, written)
        writer.flush()

        broker.kill()
        for _ in range(20):
            written = _write(writer.append, written)
        _tells_of_the_outage(lambda: hasty_reader.read(timeout=0.5))
        _tells_of_the_outage(lambda: (hasty_writer.append("output", records([b"lost"])), hasty_writer.flush()))
        _tells_of_the_outage(impatient.names)
        _tells_of_the_outage(lambda: impatient.writer(transactional_id="hasty"))

        broker.restart()
        for _ in range(20):
            written = _write(writer.append, written)
        writer.flush()
        assert KIT.until(lambda: all(len(found) >= written for found in read.values()))
        done.set()
        reading.join()
        for found in read.values():
            assert found == list(range(written))

        exact.append("output", records([b"after"]))
        exact.commit(offsets={"marker": {output: 7}})
        assert patient.committed("marker") == {output: 7}
        KIT.assigned(member, lambda found: found.partitions == set(wanted))
        member.commit({wanted[0]: 5})
        assert patient.committed("group") == {wanted[0]: 5}

        # Who was told goes on with what it has.
        assert KIT.until(lambda: _works(lambda: hasty_writer.append("output", records([b"again"]))))
        assert KIT.until(lambda: _works(hasty_writer.flush))
        values: list[bytes | None] = []

        def all_seen() -> bool:
            with contextlib.suppress(UnavailableError):
                values.extend(KIT.values(hasty_reader.read(timeout=0.2)))
            return len([each for each in values if each != b"lost"]) >= 4

        assert KIT.until(all_seen)
        # What was given up may have been written all the same, but not twice.
        assert sorted(each for each in values if each not in {b"lost", None}) == [
            b"after",
            b"again",
            b"before",
            b"hasty",
        ]
        assert values.count(b"lost") <= 1


def _write(append: Callable[..., None], start: int) -> int:
    for partition in range(2):
        append("events", records([b"%d" % number for number in range(start, start + 50)]), partition=partition)
    return start + 50


def _read_all(topics: KafkaTopics, read: dict[TopicPartition, list[int]], done: threading.Event) -> None:
    with topics.reader() as reader:
        reader.assign(dict.fromkeys(read, 0))
        while not done.is_set():
            for fetched in reader.read(timeout=0.1):
                read[fetched.topic_partition].extend(int(each) for each in fetched.batch["value"].to_pylist())


def _tells_of_the_outage(call: Callable[[], object]) -> None:
    """It may go well for a while: the client notices by and by."""

    def told() -> bool:
        try:
            call()
        except UnavailableError:
            return True
        return False

    assert KIT.until(told)


def _works(call: Callable[[], object]) -> bool:
    try:
        call()
    except ShoalError:
        return False
    return True


@pytest.mark.long
def test_offsets_can_be_asked_of_a_cluster_that_had_no_groups_yet(broker: PrivateBroker) -> None:
    """In a process of its own: what the client library has for administrators brought it down."""
    program = (
        "import sys\n"
        "from shoal.topics import KafkaSettings, KafkaTopics\n"
        "with KafkaTopics(KafkaSettings(sys.argv[1])) as topics:\n"
        "    topics.create('any')\n"
        "    print(topics.committed('one'), topics.committed('other'))\n"
    )
    command = [sys.executable, "-c", program, broker.address]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (answer.returncode, answer.stdout) == (0, "{} {}\n"), answer.stderr


def test_an_address_at_which_nobody_answers_is_named():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # not listening, and nobody else's while this lasts
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with KafkaTopics(KafkaSettings(address, patience=0.5)) as topics:
            for ask in (topics.names, lambda: topics.describe("orders")):
                with pytest.raises(UnavailableError, match=f"no Kafka broker at {address} has answered"):
                    ask()


@pytest.mark.long
def test_the_end_of_a_partition_is_not_confirmed_while_its_leader_is_away(broker: PrivateBroker) -> None:
    """Nothing comes then either, and yet there may be something: who waits for it goes on waiting."""
    settings = KafkaSettings(broker.address, patience=PATIENCE)
    with KafkaTopics(settings) as topics, topics.reader() as reader:
        (only,) = topics.create("events").topic_partitions()
        reader.assign({only: 0})
        assert KIT.until(lambda: not reader.read(timeout=0.1) and reader.confirm_end([only]) == {only})
        broker.kill()
        assert KIT.until(lambda: not reader.read(timeout=0.1) and reader.confirm_end([only]) == set())
        assert reader.at_end() == {only}  # as far as it knows
        broker.restart()
        assert KIT.until(lambda: not reader.read(timeout=0.1) and reader.confirm_end([only]) == {only})
