"""Torn tails, garbage, lost bytes, ended journals that come back: readers go on, and agree."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from shoal.core import faults
from shoal.core.errors import DamagedError, InternalError, InvalidError, NotFoundError, UnsupportedError
from shoal.topics.base import TopicPartition, Topics, records
from shoal.topics.local import Fsync, LocalLogSettings, LocalTopics
from shoal.topics.local.history.watch import Watch
from shoal.topics.local.places import file_system_of, refuse_remote

WHERE = TopicPartition("t", 0)
SMALL = LocalLogSettings(fsync=Fsync.NEVER, segment_bytes=4096, journal_bytes=4096)


def read_all(topics: Topics) -> tuple[list[bytes], list[int]]:
    values, offsets = [], []
    with topics.reader() as reader:
        reader.assign({WHERE: topics.first_offsets([WHERE])[WHERE]})
        while True:
            fetched = reader.read()
            if not fetched:
                return values, offsets
            for each in fetched:
                values += each.batch["value"].to_pylist()
                offsets += each.batch["offset"].to_pylist()


def newest_journal(directory: Path) -> Path:
    return max((directory / "journal").iterdir())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with LocalTopics(tmp_path) as topics:
        topics.create("t")
        with topics.writer() as writer:
            for number in range(5):
                writer.append("t", records([b"%d" % number]))
    return tmp_path


def test_a_torn_tail_costs_only_what_was_torn(log: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = newest_journal(log).read_bytes()
    first = len(content)
    with LocalTopics(log) as topics:
        writer = topics.writer()
        writer.append("t", records([b"5"]))
        whole = newest_journal(log).read_bytes()
        for cut in range(first, len(whole), 7):
            copy = tmp_path_factory.mktemp("copy") / "log"
            shutil.copytree(log, copy)
            os.truncate(newest_journal(copy), cut)
            with LocalTopics(copy) as torn:
                assert read_all(torn)[0] == [b"0", b"1", b"2", b"3", b"4"]
                with torn.writer() as again:
                    again.append("t", records([b"again"]))
                expected = ([b"0", b"1", b"2", b"3", b"4", b"again"], [0, 1, 2, 3, 4, 5])
                assert read_all(torn) == expected
            with LocalTopics(copy) as reopened:
                assert read_all(reopened) == expected


def test_a_reader_that_met_half_an_entry_reads_on(log: Path) -> None:
    with LocalTopics(log) as topics, LocalTopics(log) as others:
        assert len(read_all(topics)[0]) == 5
        path = newest_journal(log)
        with path.open("ab") as file:
            file.write(b"\xf5SHOAL\xf6\n\x00\x10\x00\x00half of an entry that nobody will ever fin")
        assert len(read_all(topics)[0]) == 5
        with others.writer() as writer:
            writer.append("t", records([b"5"]))
        assert read_all(topics) == read_all(others)
        assert read_all(topics)[0][-1] == b"5"


def test_records_that_a_power_cut_took_are_a_hole(log: Path) -> None:
    with LocalTopics(log) as topics:
        (name,) = (path.name for path in (log / "segments").iterdir())
        chunk = topics._view.state.topic_named("t").partitions[0].chunks[2]
    # What was written in this boot is believed; what was written before the machine started again is checked.
    old = f"00000000-{name.split('-', 1)[1]}"
    path = log / "segments" / name
    content = bytearray(path.read_bytes())
    content[chunk.position + chunk.length - 8] ^= 0xFF
    (log / "segments" / old).write_bytes(content)
    journal = newest_journal(log)
    replaced = _renamed(journal.read_bytes(), name.removesuffix(".arrow"), old.removesuffix(".arrow"))
    journal.write_bytes(replaced)
    with LocalTopics(log) as topics:
        assert read_all(topics) == ([b"0", b"1", b"3", b"4"], [0, 1, 3, 4])
    os.truncate(log / "segments" / old, chunk.position + 10)
    with LocalTopics(log) as topics:
        assert read_all(topics) == ([b"0", b"1"], [0, 1])
    # Its entry in the directory may be lost, too.
    (log / "segments" / old).unlink()
    with LocalTopics(log) as topics:
        with topics.writer() as writer:
            writer.append("t", records([b"5"]))
        assert read_all(topics) == ([b"5"], [5])


def test_a_file_that_somebody_removed_is_an_error(log: Path) -> None:
    (segment,) = (log / "segments").iterdir()
    segment.unlink()
    with LocalTopics(log) as topics, pytest.raises(DamagedError, match=f"records 0…0 are gone: .*{segment.name}"):
        read_all(topics)


def _renamed(journal: bytes, old: str, new: str) -> bytes:
    from shoal.topics.local.history.framing import frame, scan

    return b"".join(frame(each.replace(old.encode(), new.encode())) for each in scan(journal).payloads)


class TestEndedJournals:
    def test_everything_is_found_again(self, tmp_path: Path) -> None:
        expected = [b"%d" % number for number in range(300)]
        with LocalTopics(tmp_path, SMALL) as topics, LocalTopics(tmp_path, SMALL) as sleeper:
            topics.create("t")
            assert sleeper.names() == ("t",)
            with topics.writer() as writer:
                for value in expected:
                    writer.append("t", records([value]))
            topics._upkeep.collect()
            assert topics._view.journal_number > 5
            assert len(list((tmp_path / "journal").iterdir())) == 1
            assert read_all(topics) == read_all(sleeper) == (expected, list(range(300)))
            with sleeper.reader() as reader:
                for begin in (0, 1, 149, 298, 299):
                    reader.assign({WHERE: begin})
                    got = [value for each in reader.read(max_records=7) for value in each.batch["value"].to_pylist()]
                    assert got == expected[begin : begin + 7]
        with LocalTopics(tmp_path, SMALL) as reopened:
            assert read_all(reopened) == (expected, list(range(300)))

    def test_one_whose_index_somebody_removed_is_an_error(self, tmp_path: Path) -> None:
        with LocalTopics(tmp_path, SMALL) as topics:
            topics.create("t")
            with topics.writer() as writer:
                for number in range(300):
                    writer.append("t", records([b"%d" % number]))
        for path in (tmp_path / "index").iterdir():
            path.unlink()
        with (
            LocalTopics(tmp_path, SMALL) as reopened,
            pytest.raises(DamagedError, match=r"the records from 0 on lie is not known: .*/index/"),
        ):
            read_all(reopened)

    def test_whoever_ends_one_need_not_begin_the_next(self, tmp_path: Path) -> None:
        with LocalTopics(tmp_path, SMALL) as topics, LocalTopics(tmp_path, SMALL) as others:
            topics.create("t")
            writer, other = topics.writer(), others.writer()

            def fail(name: str) -> None:
                raise InternalError(name)

            faults.arm("topics.roll.before", fail)
            written = 0
            with pytest.raises(InternalError):  # noqa: PT012 - which of them ends the journal is not told
                for written in range(1000):
                    writer.append("t", records([b"%d" % written]))
            faults.disarm_all()
            other.append("t", records([b"other"]))
            writer.append("t", records([b"mine"]))
            values, offsets = read_all(others)
            assert values == [b"%d" % number for number in range(written + 1)] + [b"other", b"mine"]
            assert offsets == list(range(len(values)))
            assert read_all(topics) == (values, offsets)

    def test_one_that_comes_back_is_not_believed(self, tmp_path: Path) -> None:
        with LocalTopics(tmp_path, SMALL) as topics:
            topics.create("t")
            (first,) = (tmp_path / "journal").iterdir()
            old = first.read_bytes()
            with topics.writer() as writer:
                for _ in range(100):
                    writer.append("t", records([b"x"]))
            topics._upkeep.collect()
            first.write_bytes(old)
            with LocalTopics(tmp_path, SMALL) as reopened:
                assert reopened.next_offsets([WHERE]) == {WHERE: 100}
            topics._upkeep.collect()
            assert not first.exists()

    def test_a_fence_survives_them(self, tmp_path: Path) -> None:
        from shoal.topics.errors import FencedError

        with LocalTopics(tmp_path, SMALL) as topics, LocalTopics(tmp_path, SMALL) as others:
            topics.create("t")
            older = topics.writer(transactional_id="x")
            older.begin()
            older.append("t", records([b"old"]))
            with others.writer(transactional_id="x") as newer:
                for _ in range(100):
                    newer.begin()
                    newer.append("t", records([b"new"]))
                    newer.commit()
            others._upkeep.collect()
            with pytest.raises(FencedError):
                older.commit()
            assert set(read_all(topics)[0]) == {b"new"}


class TestDirectories:
    def test_another_format_is_refused(self, tmp_path: Path) -> None:
        LocalTopics(tmp_path).close()
        (tmp_path / "format.json").write_text('{"format": 99}')
        with pytest.raises(UnsupportedError) as raised:
            LocalTopics(tmp_path)
        assert raised.value.facts["found"] == "99"
        (tmp_path / "format.json").write_text("nonsense")
        with pytest.raises(InvalidError):
            LocalTopics(tmp_path)

    def test_a_file_is_no_directory(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(InvalidError):
            LocalTopics(tmp_path / "file")

    def test_one_host_and_it_says_so(self, tmp_path: Path) -> None:
        with LocalTopics(tmp_path / "a" / "b") as topics:
            assert not topics.spans_hosts
            assert topics.directory == tmp_path / "a" / "b"

    def test_a_network_file_system_is_refused(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        mounts = "\n".join(
            [
                "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw",
                "30 22 0:30 / /mnt/nfs rw - nfs4 server:/x rw",
                "31 30 0:31 / /mnt/nfs/inner rw shared:1 - tmpfs none rw",
                "32 22 0:32 / /mnt/with\\040space rw - 9p host rw",
                "nonsense",
            ]
        )
        assert file_system_of(Path("/var/lib"), mounts) == "ext4"
        assert file_system_of(Path("/mnt/nfs/logs"), mounts) == "nfs4"
        assert file_system_of(Path("/mnt/nfs/inner/x"), mounts) == "tmpfs"
        assert file_system_of(Path("/mnt/with space/x"), mounts) == "9p"
        with pytest.raises(InvalidError) as raised:
            refuse_remote(tmp_path, "nfs4")
        assert "one host" in str(raised.value)
        refuse_remote(tmp_path, "ext4")
        assert not caplog.records
        refuse_remote(tmp_path, "9p")
        assert "one host" in caplog.text

    def test_bad_settings_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidError):
            LocalTopics(tmp_path, LocalLogSettings(segment_bytes=1))


def test_without_inotify_a_watch_looks_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.topics.local import kernel

    def refuse(_directory: Path) -> int:
        raise OSError("too many watches")

    monkeypatch.setattr(kernel, "watch_directory", refuse)
    watch = Watch(tmp_path)
    for _ in range(3):
        watch.settle()
        watch.wait(60.0)
    assert not watch.woken()
    watch.wake()
    watch.wait(60.0)
    assert watch.woken()
    watch.found()
    watch.close()
    watch.close()
    with LocalTopics(tmp_path) as topics:
        topics.create("t")
        with topics.reader() as reader, topics.writer() as writer:
            reader.assign({WHERE: 0})
            assert reader.read(timeout=0.01) == []
            writer.append("t", records([b"1"]))
            assert len(reader.read(timeout=5.0)) == 1


def test_a_topic_that_vanished_is_not_found(tmp_path: Path) -> None:
    with LocalTopics(tmp_path) as topics, LocalTopics(tmp_path) as others:
        topics.create("t")
        writer, reader = topics.writer(), topics.reader()
        writer.append("t", records([b"1"]))
        reader.assign({WHERE: 0})
        faults.arm("topics.append.written", lambda _: others.delete("t"))
        with pytest.raises(NotFoundError):
            writer.append("t", records([b"2"]))
        faults.disarm_all()
        with pytest.raises(NotFoundError):
            reader.read()
