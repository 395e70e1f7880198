"""Processes for the tests of the local log: each is this file, run with a role, a directory and words of its own.

What an actor has done it prints, one line at a time, so that a test knows how far it came before it died.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import Empty, Queue

from tests.services.lifetime import WITH_US

HERE = Path(__file__).resolve()


class Actor:
    """The test's side of such a process."""

    def __init__(
        self, role: str, directory: Path, *words: object, fault: str = "", prefix: tuple[str, ...] = ()
    ) -> None:
        environment = {**os.environ, "SHOAL_FAULTS": fault, "PYTHONPATH": str(HERE.parents[3])}
        self.process = subprocess.Popen(
            [*prefix, *WITH_US, sys.executable, str(HERE), role, str(directory), *map(str, words)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.lines: list[str] = []
        self._fresh: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def expect(self, text: str, seconds: float = 60.0) -> str:
        """The first line from now on that begins so."""
        while True:
            try:
                line = self._fresh.get(timeout=seconds)
            except Empty:
                raise AssertionError(f"no {text!r} came; only {self.lines}") from None
            if line.startswith(text):
                return line

    def wait(self, seconds: float = 60.0) -> int:
        """How it ended."""
        code = self.process.wait(seconds)
        self._reader.join()
        return code

    def wait_stopped(self) -> None:
        """Until it has stopped itself."""
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def wake(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        self.process.stdout.close()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line.strip())
            self._fresh.put(line.strip())


def say(*words: object) -> None:
    print(*words, flush=True)


def append(directory: str, name: str, count: str, size: str) -> None:
    """Append numbered records, one append after the other, and say each that was acknowledged."""
    with _open(directory) as topics, topics.writer() as writer:
        for step in range(int(count)):
            values = [b"%s:%d:%d" % (name.encode(), step, each) for each in range(int(size))]
            writer.append("t", records(values), partition=step % topics.describe("t").partitions)
            say("done", step)
    say("end")


def refused(directory: str, name: str, transactional: str) -> None:
    """Append again and again until it is refused."""
    with _open(directory) as topics:
        writer = topics.writer(transactional_id=name if transactional == "yes" else None)
        member = topics.member("g", ["t"])
        member.poll()
        say("member", len(member.poll().partitions))
        for step in range(10**6):
            try:
                if transactional == "yes":
                    writer.begin()
                writer.append("t", records([b"%s:%d" % (name.encode(), step)]), partition=0)
                if transactional == "yes":
                    writer.commit(offsets={"marker": {TopicPartition("t", 0): step}})
            except FencedError as error:
                say("refused", step, type(error).__name__)
                break
            say("done", step)
        try:
            member.commit(dict.fromkeys(member._last.partitions, 10**6))
            say("committed")
        except RebalancedError as error:
            say("commit refused", type(error).__name__)
        with topics.writer() as again:
            again.append("t", records([b"%s:again" % name.encode()]), partition=0)
        say("again")


def count_up(directory: str, name: str, count: str) -> None:
    """Write numbers, exactly once each, in transactions that say how far it came; go on from where it was."""
    where = TopicPartition("t", 0)
    with _open(directory) as topics, topics.writer(transactional_id=name) as writer:
        step = topics.committed(name).get(where, 0)
        say("from", step)
        while step < int(count):
            writer.begin()
            for part in range(2):
                writer.append("t", records([b"%s:%d:%d" % (name.encode(), step, part)] * 2), partition=part)
            step += 1
            writer.commit(offsets={name: {where: step}})
    say("end")


def belong(directory: str, group: str) -> None:
    """Be a member, and say what it has."""
    with _open(directory) as topics, topics.member(group, ["t"]) as member:
        while True:
            found = member.poll(1.0)
            say("has", found.generation, *sorted(each.partition for each in found.partitions))


def fill(directory: str, how: str) -> None:
    """Write until there is no room; then make room, and write again."""
    small = LocalLogSettings(segment_bytes=256 * 1024, journal_bytes=32 * 1024)
    if how == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", directory], check=True)
    with LocalTopics(directory, small) as topics:
        topics.create("keep")
        topics.create("t")
        writer, other = topics.writer(), topics.writer(transactional_id="x")
        writer.append("keep", records([b"kept"]))
        other.begin()
        other.append("keep", records([b"in a transaction"]))
        if how == "limit":
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        written = 0
        failures = 0
        while failures < 3:
            try:
                writer.append("t", records([b"%07d" % written * 1000]))
                written += 1
            except LogFullError:
                failures += 1
        say("full", written)
        assert topics.next_offsets([TopicPartition("t", 0)]) == {TopicPartition("t", 0): written}
        with topics.reader() as reader:
            reader.assign({TopicPartition("t", 0): 0})
            seen = 0
            while seen < written:
                for fetched in reader.read():
                    for value in fetched.batch["value"].to_pylist():
                        assert value == b"%07d" % seen * 1000, seen
                        seen += 1
            assert reader.read() == []
        say("read", seen)
        # What frees space needs none: the topic goes although the disk is full.
        topics.delete("t")
        topics._upkeep.collect()
        if how == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        topics.create("u")
        writer.append("u", records([b"x" * 50_000]))
        other.append("keep", records([b"and more"]))
        other.commit()
        with topics.reader() as reader:
            reader.assign({TopicPartition("keep", 0): 0, TopicPartition("u", 0): 0})
            values = [value for each in reader.read() for value in each.batch["value"].to_pylist()]
        assert sorted(values) == sorted([b"kept", b"in a transaction", b"and more", b"x" * 50_000]), values
    say("works again")


def _open(directory: str) -> LocalTopics:
    return LocalTopics(directory, LocalLogSettings(segment_bytes=8192, journal_bytes=8192))


if __name__ == "__main__":
    from shoal.core import faults
    from shoal.topics.base import TopicPartition, records
    from shoal.topics.errors import FencedError, LogFullError, RebalancedError
    from shoal.topics.local import LocalLogSettings, LocalTopics

    faults.arm_from_environment()
    roles = {"append": append, "refused": refused, "count_up": count_up, "belong": belong, "fill": fill}
    roles[sys.argv[1]](*sys.argv[2:])
