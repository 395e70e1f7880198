"""The log files of containers: what their lines say, and how they are followed to their end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.tasks import TaskScope
from shoal.runtimes.container.log_tails import LogLines, LogTail, LogTails

FIRST = b"2026-11-16T22:25:47.123456789+00:00 stdout F hello there\n"
OPEN = b"2026-11-16T22:25:48.000000000+00:00 stderr P no end\n"
AT = 1794867947123


def test_a_line_is_its_stream_its_text_and_its_time() -> None:
    assert list(LogLines().feed(FIRST + OPEN)) == [
        ("stdout", b"hello there\n", AT),
        ("stderr", b"no end", AT + 877),
    ]


@pytest.mark.parametrize("cut", range(1, len(FIRST)))
def test_a_line_may_come_in_pieces(cut: int) -> None:
    lines = LogLines()
    assert [*lines.feed(FIRST[:cut]), *lines.feed(FIRST[cut:])] == [("stdout", b"hello there\n", AT)]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"2026-11-16T22:25:47.1+00:00 stdout F \n", b"\n"),
        (b"2026-11-16T22:25:47.1+00:00 stdout F  two  spaces \n", b" two  spaces \n"),
        (b"2026-11-16T22:25:47.1+00:00 stdout F \xff\x00\r\n", b"\xff\x00\r\n"),
    ],
    ids=["empty", "spaces", "no text"],
)
def test_every_byte_is_kept(line: bytes, text: bytes) -> None:
    assert [printed for _, printed, _ in LogLines().feed(line)] == [text]


@pytest.mark.parametrize("line", [b"\n", b"something else\n", b"a b c d\n", b"2026 stdout F\n"])
def test_a_line_that_is_none_is_left_out(line: bytes) -> None:
    assert list(LogLines().feed(line)) == []


def test_a_line_without_an_end_is_not_kept_in_memory() -> None:
    lines = LogLines()
    assert list(lines.feed(b"x" * 3_000_000)) == []
    assert list(lines.feed(b"\n" + FIRST)) == [("stdout", b"hello there\n", AT)]


class Follower:
    """Follows one file, and keeps what it reads."""

    def __init__(self, path: Path, scope: TaskScope) -> None:
        self.tail: LogTail = LogTails(scope, SystemClock()).new()
        self.seen: list[bytes] = []
        self._more = asyncio.Condition()
        self.task = asyncio.create_task(self._follow(path))

    async def _follow(self, path: Path) -> None:
        async for _, text, _ in self.tail._read_file(str(path)):
            async with self._more:
                self.seen.append(text)
                self._more.notify_all()

    async def until(self, *texts: bytes) -> None:
        async with asyncio.timeout(30), self._more:
            await self._more.wait_for(lambda: self.seen == list(texts))


def line(text: str) -> bytes:
    return f"2026-11-16T22:25:47.1+00:00 stdout F {text}\n".encode()


async def test_a_file_that_does_not_change_is_looked_at_rarely_until_it_does(tmp_path: Path) -> None:
    scope = TaskScope("test")
    tail = LogTails(scope, SystemClock()).new()
    assert all(tail.is_due() for _ in range(25))
    assert sum(tail.is_due() for _ in range(100)) == 20
    tail.wake()
    assert all(tail.is_due() for _ in range(25))
    await scope.close()


async def test_a_file_is_followed_until_its_container_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "ctr.log"
    path.write_bytes(line("one"))
    scope = TaskScope("test")
    follower = Follower(path, scope)
    await follower.until(b"one\n")
    with path.open("ab") as log:
        log.write(line("two"))
    await follower.until(b"one\n", b"two\n")
    with path.open("ab") as log:
        log.write(line("last"))
    follower.tail.end()
    await asyncio.wait_for(follower.task, 30)
    assert follower.seen == [b"one\n", b"two\n", b"last\n"]
    await scope.close()


async def test_a_file_that_is_replaced_is_read_to_its_end_first(tmp_path: Path) -> None:
    path, newer = tmp_path / "ctr.log", tmp_path / "ctr.log.tmp"
    path.write_bytes(line("one"))
    scope = TaskScope("test")
    follower = Follower(path, scope)
    await follower.until(b"one\n")
    with path.open("ab") as log:
        log.write(line("two"))
    newer.write_bytes(line("three"))
    newer.rename(path)
    await follower.until(b"one\n", b"two\n", b"three\n")
    follower.tail.end()
    await asyncio.wait_for(follower.task, 30)
    await scope.close()


async def test_a_file_that_is_removed_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "ctr.log"
    path.write_bytes(line("one"))
    scope = TaskScope("test")
    follower = Follower(path, scope)
    await follower.until(b"one\n")
    path.unlink()
    await asyncio.wait_for(follower.task, 30)
    await scope.close()
