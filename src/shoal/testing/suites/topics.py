"""What every backend of `shoal.topics.base` promises.

A test module makes a subclass per backend and overrides the fixtures `open_topics` and, where names of topics outlive a
test, `name`:

    class TestLocalLog(TopicsSuite):
        __test__ = True

        @pytest.fixture
        def open_topics(self, tmp_path) -> Iterator[Callable[[], Topics]]:
            with contextlib.ExitStack() as opened:
                yield lambda: opened.enter_context(LocalTopics(tmp_path))

Timestamps here are whole milliseconds, and nothing is expected sooner than within `patience`: a broker takes its time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pyarrow as pa
import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError
from shoal.testing.suites.topics_groups import GroupsSuite, TransactionsSuite
from shoal.testing.suites.topics_kit import TopicsKit
from shoal.topics.base import FETCHED, Fetched, Reset, Retention, TopicPartition, Topics, ensure_topic, records
from shoal.topics.errors import OffsetOutOfRangeError
from shoal.topics.partitioning import partitions_of


class RecordsSuite(TopicsKit):
    """Conformance of topics, partitions and records."""

    # ------------------------------------------------------------------------------------------------
    # Topics

    def test_a_topic_is_made_described_and_deleted(self, topics: Topics, name: str) -> None:
        retention = Retention(age=timedelta(hours=3), size=10_000_000)
        made = topics.create(name, partitions=3, retention=retention)
        assert (made.name, made.partitions, made.retention) == (name, 3, retention)
        assert topics.describe(name) == made
        assert name in topics.names()
        assert list(topics.names()) == sorted(topics.names())
        assert made.topic_partitions() == tuple(TopicPartition(name, number) for number in range(3))
        topics.delete(name)
        assert self.until(lambda: name not in topics.names())
        with pytest.raises(NotFoundError):
            topics.describe(name)
        with pytest.raises(NotFoundError):
            topics.delete(name)

    def test_a_topic_is_made_once(self, topics: Topics, name: str) -> None:
        topics.create(name)
        with pytest.raises(PreconditionError):
            topics.create(name, partitions=5)
        assert ensure_topic(topics, name, partitions=7).partitions == 1
        assert ensure_topic(topics, f"{name}-2", partitions=7).partitions == 7

    def test_many_make_the_same_topic_at_once(self, open_topics: Callable[[], Topics], name: str) -> None:
        opened = [open_topics() for _ in range(4)]
        with ThreadPoolExecutor(len(opened)) as threads:
            for number in range(5):
                topic = f"{name}-{number}"
                found = list(threads.map(lambda each, topic=topic: ensure_topic(each, topic, partitions=2), opened))
                assert [each.partitions for each in found] == [2] * len(opened)

    @pytest.mark.parametrize("bad", ["", "a b", "../x", "a/b", "é", "x" * 300])
    def test_a_bad_name_is_refused(self, topics: Topics, bad: str) -> None:
        with pytest.raises(InvalidError):
            topics.create(bad)

    def test_a_topic_has_at_least_one_partition(self, topics: Topics, name: str) -> None:
        with pytest.raises(InvalidError):
            topics.create(name, partitions=0)
        assert name not in topics.names()

    def test_others_see_a_topic(self, open_topics: Callable[[], Topics], name: str) -> None:
        one, other = open_topics(), open_topics()
        one.create(name, partitions=2)
        assert self.until(lambda: name in other.names())
        with one.writer() as writer:
            writer.append(name, records([b"1"]), partition=1)
            writer.flush()
        assert self.values(self.read(other, {TopicPartition(name, 1): 0}, 1)) == [b"1"]

    def test_what_is_not_there_is_not_found(self, topics: Topics, name: str) -> None:
        with pytest.raises(NotFoundError):
            topics.first_offsets([TopicPartition(name, 0)])
        with pytest.raises(NotFoundError):
            topics.next_offsets([TopicPartition(name, 0)])
        with topics.writer() as writer, pytest.raises(NotFoundError):
            writer.append(name, records([b"1"]))
        topics.create(name)
        with pytest.raises(NotFoundError):
            topics.first_offsets([TopicPartition(name, 1)])

    def test_an_empty_topic_begins_and_ends_at_the_same_offset(self, topics: Topics, name: str) -> None:
        wanted = topics.create(name, partitions=2).topic_partitions()
        assert topics.first_offsets(wanted) == topics.next_offsets(wanted) == dict.fromkeys(wanted, 0)

    # ------------------------------------------------------------------------------------------------
    # Records

    def test_what_was_appended_is_read(self, topics: Topics, name: str) -> None:
        topics.create(name)
        headers: list[list[tuple[str, bytes | None]]] = [
            [("a", b"1"), ("b", b""), ("a", b"2")],
            [],
            [("x", None)],
            [("größe", b"\x00\xff")],
        ]
        batch = records(
            [b"one", b"", None, b"\x00" * 100],
            keys=[b"k", None, b"", b"\xff\xfe"],
            timestamps=[1_700_000_000_123_000, 1_000, 1_700_000_000_000_000, 0],
            headers=headers,
        )
        with topics.writer() as writer:
            writer.append(name, batch)
            writer.flush()
        (fetched,) = self.read(topics, {TopicPartition(name, 0): 0}, 4)
        assert fetched.batch.schema.equals(FETCHED)
        assert fetched.batch["value"].equals(batch["value"])
        assert fetched.batch["key"].equals(batch["key"])
        assert fetched.batch["timestamp"].equals(batch["timestamp"])
        assert [each or [] for each in fetched.batch["headers"].to_pylist()] == headers
        assert fetched.batch["offset"].to_pylist() == [0, 1, 2, 3]
        assert (fetched.topic_partition, fetched.next_offset) == (TopicPartition(name, 0), 4)

    def test_the_time_of_the_append_stands_in_for_a_missing_one(self, topics: Topics, name: str) -> None:
        topics.create(name)
        before = SystemClock().wall().timestamp() * 1e6
        with topics.writer() as writer:
            writer.append(name, records([b"1", b"2"], timestamps=[5_000, None]))
            writer.flush()
        after = SystemClock().wall().timestamp() * 1e6
        (fetched,) = self.read(topics, {TopicPartition(name, 0): 0}, 2)
        given, stamped = fetched.batch["timestamp"].to_pylist()
        assert given == 5_000
        assert before - 1_000 <= stamped <= after + 1_000

    def test_an_empty_append_is_nothing(self, topics: Topics, name: str) -> None:
        topics.create(name)
        with topics.writer() as writer:
            writer.append(name, records([]))
            writer.append(name, records([b"1"]))
            writer.flush()
        assert self.values(self.read(topics, {TopicPartition(name, 0): 0}, 1)) == [b"1"]

    def test_a_batch_of_another_schema_is_refused(self, topics: Topics, name: str) -> None:
        topics.create(name)
        with topics.writer() as writer:
            for bad in (pa.record_batch({"value": [b"1"]}), pa.table({"value": [b"1"]}), [b"1"]):
                with pytest.raises(InvalidError):
                    writer.append(name, bad)
        assert topics.next_offsets([TopicPartition(name, 0)]) == {TopicPartition(name, 0): 0}

    def test_order_and_offsets(self, topics: Topics, name: str) -> None:
        topics.create(name)
        where = TopicPartition(name, 0)
        expected = [b"%d" % number for number in range(1000)]
        with topics.writer() as writer:
            for start in range(0, 1000, 100):
                writer.append(name, records(expected[start : start + 100]))
            writer.flush()
        fetched = self.read(topics, {where: 0}, 1000)
        assert self.values(fetched) == expected
        offsets = self.offsets(fetched)
        assert offsets == sorted(set(offsets))
        assert topics.first_offsets([where]) == {where: offsets[0]}
        assert topics.next_offsets([where])[where] > offsets[-1]
        for begin in (0, 1, 99, 100, 101, 555, 999):
            again = self.read(topics, {where: offsets[begin]}, 1000 - begin)
            assert self.values(again) == expected[begin:]
            assert self.offsets(again) == offsets[begin:]

    def test_all_readers_see_one_order(self, open_topics: Callable[[], Topics], name: str) -> None:
        topics = open_topics()
        wanted = topics.create(name, partitions=2).topic_partitions()
        written: list[bytes] = []
        failed: list[BaseException] = []

        def write(number: int) -> None:
            try:
                with open_topics().writer() as writer:
                    for step in range(40):
                        values = [b"%d:%d:%d" % (number, step, each) for each in range(5)]
                        writer.append(name, records(values), partition=step % 2)
                        written.extend(values)
                    writer.flush()
            except BaseException as error:
                failed.append(error)
                raise

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        read = [self.read(each, dict.fromkeys(wanted, 0), 800) for each in (topics, open_topics())]
        for where in wanted:
            orders = [self.values(each for each in one if each.topic_partition == where) for one in read]
            assert orders[0] == orders[1]
            for number in range(4):
                own = [value for value in orders[0] if value is not None and value.startswith(b"%d:" % number)]
                assert own == [
                    b"%d:%d:%d" % (number, step, each) for step in range(where.partition, 40, 2) for each in range(5)
                ]
        assert sorted(value for value in self.values(read[0]) if value) == sorted(written)

    def test_records_outlive_their_reader_and_topic(self, topics: Topics, name: str) -> None:
        topics.create(name)
        with topics.writer() as writer:
            writer.append(name, records([b"x" * 1_000_000, b"y"]))
            writer.flush()
        fetched = self.read(topics, {TopicPartition(name, 0): 0}, 2)
        topics.delete(name)
        assert self.values(fetched) == [b"x" * 1_000_000, b"y"]

    # ------------------------------------------------------------------------------------------------
    # Partitions

    def test_a_key_has_the_same_partition_everywhere(self, topics: Topics, name: str) -> None:
        wanted = topics.create(name, partitions=5).topic_partitions()
        keys = [b"", b"21", b"foobar", b"a-little-bit-long-string", *(b"user-%d" % number for number in range(200))]
        with topics.writer() as writer:
            writer.append(name, records(keys, keys=keys))
            writer.flush()
        fetched = self.read(topics, dict.fromkeys(wanted, 0), len(keys))
        expected = partitions_of(pa.array(keys, pa.binary()), 5).tolist()
        for where in wanted:
            found = self.values(each for each in fetched if each.topic_partition == where)
            assert found == [key for key, number in zip(keys, expected, strict=True) if number == where.partition]

    def test_records_without_a_key_go_around(self, topics: Topics, name: str) -> None:
        wanted = topics.create(name, partitions=3).topic_partitions()
        with topics.writer() as writer:
            for step in range(12):
                writer.append(name, records([b"%d" % step] * 3))
            writer.flush()
        fetched = self.read(topics, dict.fromkeys(wanted, 0), 36)
        counts = {where: self.values(e for e in fetched if e.topic_partition == where) for where in wanted}
        assert [len(found) for found in counts.values()] == [12, 12, 12]
        for step in range(12):
            assert sum(b"%d" % step in found for found in counts.values()) == 1

    def test_a_partition_can_be_chosen(self, topics: Topics, name: str) -> None:
        wanted = topics.create(name, partitions=3).topic_partitions()
        with topics.writer() as writer:
            writer.append(name, records([b"a", b"b", b"c", b"d"]), partition=pa.array([2, 0, 2, 0], pa.int32()))
            writer.append(name, records([b"e"], keys=[b"k"]), partition=2)
            for bad in (3, -1, pa.array([0, 3], pa.int32()), pa.array([0], pa.int32())):
                with pytest.raises(InvalidError):
                    writer.append(name, records([b"x", b"y"]), partition=bad)
            writer.flush()
        fetched = self.read(topics, dict.fromkeys(wanted, 0), 5)
        found = {w.partition: self.values(e for e in fetched if e.topic_partition == w) for w in wanted}
        assert found == {0: [b"b", b"d"], 1: [], 2: [b"a", b"c", b"e"]}

    # ------------------------------------------------------------------------------------------------
    # Reading

    def test_both_bounds_of_a_read_are_kept(self, topics: Topics, name: str) -> None:
        where = topics.create(name).topic_partitions()[0]
        expected = [b"%04d" % number * 250 for number in range(200)]
        with topics.writer() as writer:
            for start in range(0, 200, 50):
                writer.append(name, records(expected[start : start + 50]))
            writer.flush()
        for bounds in ({"max_records": 7}, {"max_bytes": 5_000}, {"max_records": 3, "max_bytes": 2_000}):
            with topics.reader() as reader:
                reader.assign({where: 0})
                got: list[bytes | None] = []
                while len(got) < 200:
                    part = self.values(self.some(reader, **bounds))
                    assert len(part) <= bounds.get("max_records", 200)
                    assert len(part) <= max(1, bounds.get("max_bytes", 10**9) // 1000)
                    got.extend(part)
                assert got == expected

    def test_a_record_larger_than_a_read_comes_alone(self, topics: Topics, name: str) -> None:
        where = topics.create(name).topic_partitions()[0]
        with topics.writer() as writer:
            writer.append(name, records([b"a", b"b" * 500_000, b"c"]))
            writer.flush()
        with topics.reader() as reader:
            reader.assign({where: 0})
            sizes = [len(self.values(self.some(reader, max_bytes=1_000))) for _ in range(3)]
        assert sizes == [1, 1, 1]

    def test_one_partition_does_not_starve_another(self, topics: Topics, name: str) -> None:
        wanted = topics.create(name, partitions=2).topic_partitions()
        with topics.writer() as writer:
            for _ in range(20):
                writer.append(name, records([b"much"] * 500), partition=0)
            writer.append(name, records([b"little"]), partition=1)
            writer.flush()
        with topics.reader() as reader:
            reader.assign(dict.fromkeys(wanted, 0))
            read = 0
            while read < 5_000:
                values = self.values(self.some(reader, max_records=500))
                read += len(values)
                if b"little" in values:
                    return
        pytest.fail("a partition with much to read held up the other")

    def test_a_read_waits_for_news(self, topics: Topics, name: str) -> None:
        where = topics.create(name).topic_partitions()[0]
        with topics.reader() as reader, topics.writer() as writer:
            reader.assign({where: 0})
            assert list(reader.read(timeout=0.01)) == []
            assert list(reader.read()) == []

            def append() -> None:
                writer.append(name, records([b"1"]))
                writer.flush()

            appended = threading.Timer(0.05, append)
            appended.start()
            assert self.values(reader.read(timeout=self.patience)) == [b"1"]
            appended.join()

    def test_a_waiting_read_can_be_woken(self, topics: Topics, name: str) -> None:
        where = topics.create(name).topic_partitions()[0]
        with topics.reader() as reader:
            reader.assign({where: 0})
            clock = SystemClock()
            begun = clock.monotonic()
            waker = threading.Timer(0.05, reader.wake)
            waker.start()
            assert list(reader.read(timeout=self.patience)) == []
            assert clock.monotonic() - begun < self.patience
            waker.join()
            reader.wake()
            assert list(reader.read(timeout=self.patience)) == []
            assert clock.monotonic() - begun < self.patience

    def test_a_paused_partition_keeps_its_place(self, topics: Topics, name: str) -> None:
        one, other = topics.create(name, partitions=2).topic_partitions()
        with topics.reader() as reader, topics.writer() as writer:
            reader.assign({one: 0, other: 0})
            reader.pause([one])
            writer.append(name, records([b"one"]), partition=0)
            writer.append(name, records([b"other"]), partition=1)
            writer.flush()
            assert self.values(self.some(reader)) == [b"other"]
            assert list(reader.read(timeout=self.pause)) == []
            assert reader.positions()[one] == 0
            reader.resume([one])
            assert self.values(self.some(reader)) == [b"one"]
            with pytest.raises(InvalidError):
                reader.pause([TopicPartition(name, 7)])

    def test_positions_reach_the_end(self, topics: Topics, name: str) -> None:
        wanted = topics.create(name, partitions=2).topic_partitions()
        with topics.writer(transactional_id=name) as writer:
            for _ in range(3):
                writer.begin()
                writer.append(name, records([b"x"] * 10, keys=[b"%d" % each for each in range(10)]))
                writer.commit()
            writer.begin()
            writer.append(name, records([b"never"]))
            writer.abort()
        ends = topics.next_offsets(wanted)
        with topics.reader() as reader:
            reader.assign(dict.fromkeys(wanted, 0))
            got: list[Fetched] = []

            def reached() -> bool:
                got.extend(reader.read(timeout=0.1))
                return all(reader.positions()[each] >= ends[each] for each in wanted)

            assert self.until(reached)
        assert self.values(got) == [b"x"] * 30

    def test_a_partition_is_at_its_end_when_everything_was_given(self, topics: Topics, name: str) -> None:
        full, empty = wanted = topics.create(name, partitions=2).topic_partitions()
        with topics.writer() as writer, topics.reader() as reader:
            writer.append(name, records([b"x"] * 10), partition=full.partition)
            writer.flush()
            reader.assign(dict.fromkeys(wanted, 0))
            assert self.until(lambda: not reader.read(max_records=1, timeout=0.1) and empty in reader.at_end())
            assert reader.at_end() == reader.confirm_end(wanted) == set(wanted)
            assert reader.confirm_end([full]) == {full}
            writer.append(name, records([b"y"]), partition=full.partition)
            writer.flush()
            assert reader.confirm_end(wanted) == {empty}  # whatever the reader has heard of it
            assert self.until(lambda: reader.read(timeout=0.1))
            assert self.until(lambda: not reader.read(timeout=0.1) and reader.confirm_end(wanted) == set(wanted))

    def test_a_partition_of_which_something_is_left_is_not_at_its_end(self, topics: Topics, name: str) -> None:
        (only,) = topics.create(name).topic_partitions()
        with topics.writer() as writer, topics.reader() as reader:
            writer.append(name, records([b"x"] * 3))
            writer.flush()
            reader.assign({only: 0})
            for _ in range(2):
                assert self.until(lambda: reader.read(max_records=1, timeout=0.1))
                assert reader.at_end() == reader.confirm_end([only]) == set()

    def test_assigning_anew_forgets_the_old(self, topics: Topics, name: str) -> None:
        one, other = topics.create(name, partitions=2).topic_partitions()
        with topics.reader() as reader, topics.writer() as writer:
            for number in range(2):
                writer.append(name, records([b"%d" % number] * 2), partition=number)
            writer.flush()
            reader.assign({one: 0})
            assert self.values(self.some(reader)) == [b"0"] * 2
            reader.assign({other: 1})
            assert reader.positions() == {other: 1}
            assert self.values(self.some(reader)) == [b"1"]
            reader.assign({one: 0})
            assert self.values(self.some(reader)) == [b"0"] * 2

    def test_an_offset_that_is_not_there(self, topics: Topics, name: str) -> None:
        where = topics.create(name).topic_partitions()[0]
        with topics.writer() as writer:
            writer.append(name, records([b"1", b"2"]))
            writer.flush()
            with topics.reader() as failing, pytest.raises(OffsetOutOfRangeError) as raised:
                failing.assign({where: 1000})
                self.some(failing)
            assert raised.value.facts["offset"] == "1000"
            with topics.reader(reset=Reset.EARLIEST) as earliest:
                earliest.assign({where: 1000})
                assert self.values(self.some(earliest)) == [b"1", b"2"]
            with topics.reader(reset=Reset.LATEST) as latest:
                latest.assign({where: 1000})
                assert list(latest.read(timeout=self.pause)) == []
                assert self.until(lambda: not latest.read() and latest.positions()[where] == 2)
                writer.append(name, records([b"3"]))
                writer.flush()
                assert self.values(self.some(latest)) == [b"3"]


class TopicsSuite(RecordsSuite, TransactionsSuite, GroupsSuite):
    """Conformance of a backend of topics."""

    # ------------------------------------------------------------------------------------------------
    # Ends

    def test_closing_twice_is_closing_once(self, open_topics: Callable[[], Topics], name: str) -> None:
        topics = open_topics()
        topics.create(name)
        for closed in (topics.writer(), topics.reader(), topics.member(name, [name]), topics):
            closed.close()
            closed.close()

    def test_what_is_closed_is_of_no_use(self, open_topics: Callable[[], Topics], name: str) -> None:
        topics = open_topics()
        topics.create(name)
        writer, reader, member = topics.writer(), topics.reader(), topics.member(name, [name])
        topics.close()
        calls: list[Callable[[], object]] = [
            lambda: writer.append(name, records([b"x"])),
            reader.read,
            member.poll,
            topics.names,
            topics.writer,
        ]
        for call in calls:
            with pytest.raises(PreconditionError):
                call()
