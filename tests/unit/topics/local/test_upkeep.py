"""Retention removes what it should and nothing else; garbage goes, and what might still be wanted stays."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from shoal.core import faults
from shoal.topics.base import Fetched, Reset, Retention, TopicPartition, records
from shoal.topics.errors import OffsetOutOfRangeError
from shoal.topics.local import Fsync, LocalLogSettings, LocalTopics
from tests.unit.topics.local.clocks import StoppedClock

SMALL = LocalLogSettings(fsync=Fsync.NEVER, segment_bytes=4096, journal_bytes=4096)
WHERE = TopicPartition("t", 0)


def values(fetched: list[Fetched]) -> list[bytes]:
    return [value for each in fetched for value in each.batch["value"].to_pylist()]


def segments(directory: Path) -> set[str]:
    return names(directory / "segments")


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.mark.parametrize(
    "settings", [SMALL, LocalLogSettings(segment_bytes=4096)], ids=["many-journals", "one-journal"]
)
def test_retention_by_age(tmp_path: Path, settings: LocalLogSettings) -> None:
    clock = StoppedClock()
    with LocalTopics(tmp_path, settings, clock=clock) as topics:
        topics.create("t", retention=Retention(age=timedelta(seconds=60)))
        with topics.writer() as writer:
            for number in range(100):
                writer.append("t", records([b"%02d" % number * 100]))
                clock.seconds += 1
        before = segments(tmp_path)
        topics._upkeep.retain()
        topics._upkeep.collect()
        assert topics.first_offsets([WHERE]) == {WHERE: 40}
        assert topics.next_offsets([WHERE]) == {WHERE: 100}
        left = segments(tmp_path)
        assert left < before
        with topics.reader() as reader:
            reader.assign({WHERE: 40})
            assert [value[:2] for value in values(reader.read())] == [b"%02d" % number for number in range(40, 100)]
        clock.seconds += 1000
        topics._upkeep.retain()
        topics._upkeep.collect()
        assert topics.first_offsets([WHERE]) == {WHERE: 100} == topics.next_offsets([WHERE])
        assert segments(tmp_path) == set()
        assert names(tmp_path / "index") == set()
        assert len(names(tmp_path / "journal")) == 1


@pytest.mark.parametrize(
    "settings", [SMALL, LocalLogSettings(segment_bytes=4096)], ids=["many-journals", "one-journal"]
)
def test_retention_by_size(tmp_path: Path, settings: LocalLogSettings) -> None:
    with LocalTopics(tmp_path, settings) as topics:
        topics.create("t", partitions=2, retention=Retention(size=50_000))
        other = TopicPartition("t", 1)
        with topics.writer() as writer:
            for number in range(200):
                writer.append("t", records([b"x" * 1000]), partition=0)
                if number % 50 == 0:
                    writer.append("t", records([b"y" * 1000]), partition=1)
                    topics._upkeep.retain()
        topics._upkeep.retain()
        first = topics.first_offsets([WHERE, other])
        assert first[other] == 0
        kept = 200 - first[WHERE]
        assert 25 <= kept <= 50
        topics._upkeep.retain()
        assert topics.first_offsets([WHERE, other]) == first
        with topics.reader() as reader:
            reader.assign(first)
            assert len(values(reader.read())) == kept + 4
        with topics.reader() as late:
            late.assign({WHERE: 0})
            with pytest.raises(OffsetOutOfRangeError) as raised:
                late.read()
        assert raised.value.facts["first"] == str(first[WHERE])
        with topics.reader(reset=Reset.EARLIEST) as reader:
            reader.assign({WHERE: 0})
            assert reader.read()[0].batch["offset"][0].as_py() == first[WHERE]


def test_what_is_read_stays_while_the_files_go(tmp_path: Path) -> None:
    clock = StoppedClock()
    with LocalTopics(tmp_path, SMALL, clock=clock) as topics:
        topics.create("t", retention=Retention(age=timedelta(seconds=60)))
        reader = topics.reader()
        with topics.writer() as writer:
            for number in range(20):
                writer.append("t", records([b"%d" % number * 400_000]))
        reader.assign({WHERE: 0})
        held = reader.read(max_records=3)
        clock.seconds += 100
        with LocalTopics(tmp_path, SMALL, clock=clock) as others:
            others.writer().close()
            others._upkeep.retain()
            others._upkeep.collect()
        topics._upkeep.collect()
        assert segments(tmp_path) == set()
        assert [value[:1] for value in values(held)] == [b"0", b"1", b"2"]
        with pytest.raises(OffsetOutOfRangeError):
            reader.read()
        assert reader.positions() == {WHERE: 3}


def test_open_transactions_keep_their_files_and_dead_ones_do_not(tmp_path: Path) -> None:
    with LocalTopics(tmp_path, SMALL) as topics:
        topics.create("t")
        with LocalTopics(tmp_path, SMALL) as others:
            writer = others.writer(transactional_id="x")
            writer.begin()
            for _ in range(10):
                writer.append("t", records([b"x" * 3000]))
            count = len(segments(tmp_path))
            assert count >= 5
            topics.writer().close()
            for each in (topics, others):
                each._upkeep.collect()
            assert len(segments(tmp_path)) == count
            writer.commit()
            for each in (topics, others):
                each._upkeep.collect()
            assert len(segments(tmp_path)) == count
            writer.begin()
            for _ in range(10):
                writer.append("t", records([b"y" * 3000]))
            writer.abort()
            others._upkeep.collect()
            assert len(segments(tmp_path)) <= count + 2
            writer.begin()
            writer.append("t", records([b"z" * 3000]))
        topics._upkeep.collect()
        assert len(segments(tmp_path)) == count
        with topics.reader() as reader:
            reader.assign({WHERE: 0})
            assert values(reader.read()) == [b"x" * 3000] * 10


def test_what_is_committed_while_garbage_is_looked_for_stays(tmp_path: Path) -> None:
    with LocalTopics(tmp_path, SMALL) as topics:
        topics.create("t")
        writer = topics.writer(transactional_id="x")

        def finish(_name: str) -> None:
            writer.commit()
            writer.close()

        writer.begin()
        writer.append("t", records([b"x"]))
        before = segments(tmp_path)
        faults.arm("topics.collect.looked", finish)
        topics._upkeep.collect()
        assert writer.closed
        assert segments(tmp_path) == before
        with topics.reader() as reader:
            reader.assign({WHERE: 0})
            assert values(reader.read()) == [b"x"]


def test_a_deleted_topic_leaves_nothing_behind(tmp_path: Path) -> None:
    with LocalTopics(tmp_path, SMALL) as topics:
        for _ in range(3):
            topics.create("t", partitions=2)
            with topics.writer() as writer:
                for _ in range(30):
                    writer.append("t", records([b"x" * 500]))
            topics.delete("t")
        topics._upkeep.collect()
        assert segments(tmp_path) == set()
        assert names(tmp_path / "index") == set()
        assert topics.names() == ()


def test_neither_disk_nor_start_grows_for_ever(tmp_path: Path) -> None:
    clock = StoppedClock()
    sizes = []
    with LocalTopics(tmp_path, SMALL, clock=clock) as topics:
        topics.create("t", partitions=2, retention=Retention(age=timedelta(seconds=20)))
        for _ in range(6):
            with topics.writer(transactional_id="x") as writer:
                for _ in range(100):
                    writer.begin()
                    writer.append("t", records([b"x"] * 2, keys=[b"1", b"2"]))
                    writer.commit(offsets={"g": {WHERE: 1}})
                    clock.seconds += 0.5
            topics._upkeep.retain()
            topics._upkeep.collect()
            files = [path for path in tmp_path.rglob("*") if path.is_file()]
            sizes.append((sum(path.stat().st_size for path in files), len(files)))
    assert sizes[-1][0] < 1.5 * sizes[1][0]
    assert sizes[-1][1] < 1.5 * sizes[1][1]


@pytest.mark.parametrize("fsync", list(Fsync))
def test_every_policy_of_syncing_keeps_what_was_written(tmp_path: Path, fsync: Fsync) -> None:
    settings = LocalLogSettings(fsync=fsync)
    with LocalTopics(tmp_path, settings) as topics:
        topics.create("t")
        with topics.writer() as writer:
            writer.append("t", records([b"1"]))
            topics._upkeep.sync()
            writer.append("t", records([b"2"]))
    with LocalTopics(tmp_path, settings) as topics, topics.reader() as reader:
        reader.assign({WHERE: 0})
        assert values(reader.read()) == [b"1", b"2"]
