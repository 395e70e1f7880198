"""When a journal has ended somebody makes the next one: the one that ended it, or one that notices that nobody did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.core import faults
from shoal.core.errors import InternalError
from shoal.topics.base import TopicPartition, records
from shoal.topics.errors import LogFullError
from shoal.topics.local import Fsync, LocalLogSettings, LocalTopics

WHERE = TopicPartition("t", 0)
SMALL = LocalLogSettings(fsync=Fsync.NEVER, segment_bytes=4096, journal_bytes=4096)
POINT = "topics.roll.before"
#: Long enough for any machine; what is awaited comes at once.
PATIENCE = 60

#: Writes until it is at the end of a journal, and says how far it came.
WRITES_ON = """
import sys
from shoal.core import faults
from shoal.topics.base import records
from shoal.topics.local import Fsync, LocalLogSettings, LocalTopics

settings = LocalLogSettings(fsync=Fsync.NEVER, segment_bytes=4096, journal_bytes=4096)
with LocalTopics(sys.argv[1], settings) as topics, topics.writer() as writer:
    faults.arm_from_environment()
    for number in range(300):
        print(number, flush=True)
        writer.append("t", records([b"%d" % number]))
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "log"
    faults.disarm_all()


@pytest.fixture
def topics(log: Path) -> Iterator[LocalTopics]:
    with LocalTopics(log, SMALL) as opened:
        opened.create("t")
        yield opened


@pytest.fixture
def others(log: Path, topics: LocalTopics) -> Iterator[LocalTopics]:
    with LocalTopics(log, SMALL) as opened:
        yield opened


def read_all(topics: LocalTopics) -> list[bytes]:
    with topics.reader() as reader:
        reader.assign({WHERE: 0})
        values: list[bytes] = []
        while fetched := reader.read():
            values += [value for each in fetched for value in each.batch["value"].to_pylist()]
    return values


def write_until_rolled(topics: LocalTopics) -> list[bytes]:
    """Append until a journal ends; what was appended."""
    written: list[bytes] = []
    before = topics._view.journal_number
    with topics.writer() as writer:
        while topics._view.journal_number == before:
            written.append(b"%d" % len(written))
            writer.append("t", records([written[-1]]))
    return written


def start_writing(log: Path, fault: str) -> subprocess.Popen[str]:
    environment = os.environ | {"SHOAL_FAULTS": f"{POINT}={fault}"}
    return subprocess.Popen(
        [sys.executable, "-c", WRITES_ON, str(log)], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_who_ended_it_is_killed(log: Path, topics: LocalTopics) -> None:
    ender = start_writing(log, "kill")
    said, _ = ender.communicate(timeout=PATIENCE)
    assert ender.returncode == -signal.SIGKILL
    written = [b"%s" % each.encode() for each in said.split()]
    assert len(written) < 300
    with topics.writer() as writer:
        writer.append("t", records([b"more"]))
    assert topics._view.journal_number > 1
    assert read_all(topics) == [*written, b"more"]
    with LocalTopics(log, SMALL) as opened:
        assert read_all(opened) == [*written, b"more"]


def test_who_ended_it_is_stopped_and_goes_on_when_others_have_gone_on(log: Path, topics: LocalTopics) -> None:
    ender = start_writing(log, "stop")
    try:
        _pid, status = os.waitpid(ender.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        mine = write_until_rolled(topics)  # past the one that it was about to make
    finally:
        os.kill(ender.pid, signal.SIGCONT)
    ender.communicate(timeout=PATIENCE)
    assert ender.returncode == 0
    found = read_all(topics)
    assert sorted(found) == sorted([*mine, *(b"%d" % number for number in range(300))])
    with LocalTopics(log, SMALL) as opened:
        assert read_all(opened) == found


def test_who_ended_it_fails(topics: LocalTopics, others: LocalTopics) -> None:
    def fail(name: str) -> None:
        faults.disarm_all()
        raise InternalError(name)

    faults.arm(POINT, fail)
    with topics.writer() as writer:
        number = 0
        with pytest.raises(InternalError):  # noqa: PT012 - which of them ends the journal is not told
            for number in range(1000):
                writer.append("t", records([b"%d" % number]))
        expected = [b"%d" % each for each in range(number + 1)]
        assert read_all(others) == expected
        writer.append("t", records([b"mine"]))
    assert read_all(others) == read_all(topics) == [*expected, b"mine"]


def test_others_go_on_while_who_ended_it_is_about_to(topics: LocalTopics, others: LocalTopics) -> None:
    """Both make the next one; it is one."""
    seen: list[int] = []

    def overtake(_name: str) -> None:
        if not seen:
            seen.append(0)
            others._view.refresh()
            seen[0] = others._view.journal_number

    faults.arm(POINT, overtake)
    written = write_until_rolled(topics)
    assert seen == [topics._view.journal_number]
    assert read_all(others) == read_all(topics) == written


class Pause(threading.Event):
    """Between two looks: says that somebody looks, and lasts until it is told otherwise."""

    def __init__(self, during: Callable[[], object]) -> None:
        super().__init__()
        self._during = during
        self.count = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.count += 1
        self._during()
        return False


def test_others_wait_for_who_ended_it(topics: LocalTopics, others: LocalTopics) -> None:
    looks, made = threading.Event(), threading.Event()

    def look() -> None:
        looks.set()
        assert made.wait(PATIENCE)

    pause = others._view._pause = Pause(look)
    reached: list[int] = []
    with ThreadPoolExecutor() as pool:
        refreshing = []

        def let_others_look(_name: str) -> None:
            reached.append(threading.get_ident())
            refreshing.append(pool.submit(others._view.refresh))
            assert looks.wait(PATIENCE)

        faults.arm(POINT, let_others_look)
        try:
            write_until_rolled(topics)
        finally:
            made.set()
        refreshing[0].result(PATIENCE)
    assert reached == [threading.get_ident()]  # the other made none
    assert pause.count == 1
    assert others._view.journal_number == topics._view.journal_number


def test_while_there_is_no_room_nobody_waits_again(topics: LocalTopics, others: LocalTopics) -> None:
    def full(_name: str) -> None:
        raise LogFullError("no room")

    faults.arm(POINT, full)
    with topics.writer() as writer:
        expected: list[bytes] = []
        with pytest.raises(LogFullError):  # noqa: PT012 - which of them ends the journal is not told
            for number in range(1000):
                writer.append("t", records([b"%d" % number]))
                expected.append(b"%d" % number)
        pause = others._view._pause = Pause(lambda: None)
        assert read_all(others) == expected
        waited = pause.count
        assert waited > 0
        assert read_all(others) == expected
        assert pause.count == waited
        faults.disarm_all()
        writer.append("t", records([b"more"]))
    assert read_all(others) == read_all(topics) == [*expected, b"more"]
