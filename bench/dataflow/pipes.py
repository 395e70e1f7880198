"""From a topic of JSON through a filter to another topic, in Kafka: how many messages a second go through.

What runs is started as a process (ours or a peer's) and ended when it is through. It is timed from outside, the same
way for everyone: by how far its output topic has grown. So starting up does not count, and what is not written does not
either.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from bench.dataflow.peers import LOOP
from bench.peers import Peer
from shoal.core.errors import DeadlineError, UnavailableError
from shoal.dataflow.connectors.topics.brokers import topics_of

Start = Callable[[Path], subprocess.Popen[bytes]]

PARTITIONS = 2
#: Until so much of the output is there, a job is warming up.
WARM_SHARE = 0.15
#: When so much is there it is through: transactions leave marks that count as records.
DONE_SHARE = 0.999
_PATIENCE = 180.0
_LOOK_EVERY = 0.01
_ENDS_WITHIN = 20.0
_KNOWN_WITHIN = 30.0
_TAIL = 1500


@dataclass(slots=True)
class Pipe:
    """A broker with messages to read, and a place for what jobs leave behind."""

    broker: str
    home: Path
    #: Messages in each of the two input topics; a job of one process reads both halves from `whole`.
    count: int
    whole: str = "whole"
    halves: tuple[str, str] = ("half-0", "half-1")
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def fill(self) -> None:
        """Write the input topics."""
        for topic, first, count in (
            (self.whole, 0, self.count),
            (self.halves[0], 0, self.count // 2),
            (self.halves[1], self.count // 2, self.count // 2),
        ):
            self.create(topic)
            LOOP.run(["fill", self.broker, topic, str(first), str(count)], within=_PATIENCE)

    def next_number(self) -> int:
        """For names that nobody had before."""
        return next(self._numbers)

    def create(self, topic: str) -> None:
        """Make a topic."""
        from confluent_kafka.cimpl import NewTopic

        admin = self._admin()  # it has to outlive what it promised
        for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
            made.result(30)
        # Brokers answer before all of them know it, and who asks too early is told of fewer partitions.
        deadline = time.monotonic() + _KNOWN_WITHIN
        while not _is_known(admin, topic):
            if time.monotonic() > deadline:
                raise DeadlineError(f"the topic {topic} is not there {_KNOWN_WITHIN:g} s after it was made")
            time.sleep(_LOOK_EVERY)

    def delete(self, topic: str) -> None:
        """Remove a topic, so that the disk and the page cache hold no more than they must."""
        admin = self._admin()
        for gone in admin.delete_topics([topic]).values():
            gone.result(30)

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.broker, "log_level": 3})

    @contextmanager
    def watch(self, topic: str, *, committed: bool = False) -> Iterator[Callable[[], int]]:
        """How many records a topic has now; of transactions those that are committed."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        isolation = "read_committed" if committed else "read_uncommitted"
        consumer = Consumer({"bootstrap.servers": self.broker, "group.id": "watch", "isolation.level": isolation})
        seen = {TopicPartition(topic, number): 0 for number in range(PARTITIONS)}

        def look() -> int:
            for each in seen:
                # A broker that is busy with a new topic may say that it is not its leader; it is asked again soon.
                with contextlib.suppress(KafkaException):
                    seen[each] = consumer.get_watermark_offsets(each, 30)[1]
            return sum(seen.values())

        try:
            yield look
        finally:
            consumer.close()

    # -- jobs ------------------------------------------------------------------------------------------------

    def ours(
        self, source: str, target: str, *, codec: str = "json", exactly_once: bool = False, processes: int = 0
    ) -> Start:
        """Our own job, in a process of its own, or with child processes."""
        directory = self.home / f"app-{self.next_number()}"
        options = ["--processes", str(processes)] if processes else []
        return job_of(self.broker, source, target, directory, codec, exactly_once=exactly_once, options=options)

    def peer(self, peer: Peer, *arguments: str) -> Start:
        """A peer's job."""
        return lambda log: peer.start(arguments, log=log)

    def rate(self, starts: Sequence[Start], target: str, expected: int, *, committed: bool = False) -> Through:
        """How a job goes through, whose output has so many messages: every second of its input."""
        with self.jobs(starts) as running, self.watch(target, committed=committed) as grown:
            return running.through(grown, expected, per_output=2.0)

    @contextmanager
    def jobs(self, starts: Sequence[Start]) -> Iterator[Running]:
        """Processes that run for the length of a block."""
        with run_jobs(starts, self.home, self.next_number) as running:
            yield running


def _is_known(admin: Any, topic: str) -> bool:
    found = admin.list_topics(topic, 30).topics[topic].partitions
    return len(found) == PARTITIONS and all(each.leader >= 0 for each in found.values())


@contextmanager
def run_jobs(starts: Sequence[Start], home: Path, number: Callable[[], int]) -> Iterator[Running]:
    """Start processes, and end them."""
    logs = [home / f"job-{number()}.log" for _ in starts]
    running = Running([start(log) for start, log in zip(starts, logs, strict=True)], logs)
    try:
        yield running
    finally:
        for job in running.jobs:
            _kill(job)


@dataclass(frozen=True, slots=True)
class Through:
    """How a job went through."""

    per_second: float
    #: CPU seconds of its processes for a million messages, from start to end.
    cpu_per_million: float
    #: The most memory that one of its processes had, in MB of 2^20 bytes.
    memory: float


@dataclass(frozen=True, slots=True)
class Running:
    """Processes of a job, and what they print."""

    jobs: list[subprocess.Popen[bytes]]
    logs: list[Path]

    def through(self, grown: Callable[[], int], expected: int, *, per_output: float = 1.0) -> Through:
        """Wait until the output is complete, and tell what was read for it: `per_output` for each."""
        sightings = self._watch(grown, expected)
        steady = [each for each in sightings if each[1] >= WARM_SHARE * expected]
        # What comes with the last transaction may have waited for it when there was no more input.
        if len(steady) > 2:
            steady.pop()
        # All of it came with one transaction: then what came before counts, starting up included.
        (began, first), (ended, last) = (steady[0] if len(steady) > 1 else sightings[0]), steady[-1]
        return Through(
            per_second=per_output * (last - first) / (ended - began),
            cpu_per_million=1e6 * sum(map(cpu_seconds, self.jobs)) / (per_output * expected),
            memory=max(map(_peak_memory, self.jobs)),
        )

    def _watch(self, grown: Callable[[], int], expected: int) -> list[tuple[float, int]]:
        """When the output was seen to have how many messages: the beginning, and each time that it had more."""
        deadline = time.monotonic() + _PATIENCE
        sightings = [(time.monotonic(), 0)]
        while sightings[-1][1] < DONE_SHARE * expected:
            count, now = grown(), time.monotonic()
            if count > sightings[-1][1]:
                sightings.append((now, count))
            for job, log in zip(self.jobs, self.logs, strict=True):
                if job.poll() not in (None, 0):
                    raise UnavailableError(f"a job ended with {job.returncode}: {log.read_text()[-_TAIL:]}")
            if now > deadline:
                told = " ".join(log.read_text()[-_TAIL:] for log in self.logs)
                raise DeadlineError(f"{count} of {expected:.0f} records after {_PATIENCE:g} s: {told}")
            time.sleep(_LOOK_EVERY)
        return sightings


def cpu_seconds(job: subprocess.Popen[bytes] | None) -> float:
    """Of a process and its children; 0 without one."""
    if job is None:
        return 0.0
    try:
        process = psutil.Process(job.pid)
        return sum(sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True)))
    except psutil.Error:  # it has ended
        return 0.0


def _peak_memory(job: subprocess.Popen[bytes]) -> float:
    try:
        return peak_memory(job.pid)
    except OSError:
        return 0.0


def peak_memory(pid: int) -> float:
    """The most resident memory that a process had so far, in MB of 2^20 bytes."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0  # it has ended, and nobody has asked how


@contextmanager
def watch_topic(broker: str, topic: str) -> Iterator[Callable[[], int]]:
    """How many records a topic of a local log has now."""
    with topics_of(broker) as topics:
        partitions = topics.describe(topic).topic_partitions()
        yield lambda: sum(topics.next_offsets(partitions).values())


@contextmanager
def watch_rows(broker: str, topic: str) -> Iterator[Callable[[], int]]:
    """How many rows the records of a topic have so far, each of which is a stream of Arrow batches."""
    rows = [0]
    errors: list[Exception] = []
    ended = threading.Event()

    def count() -> None:
        try:
            follow()
        except Exception as error:  # noqa: BLE001 - it is raised where the result is read
            errors.append(error)

    def look() -> int:
        if errors:
            raise errors[0]
        return rows[0]

    def follow() -> None:
        with topics_of(broker) as topics, topics.reader() as reader:
            reader.assign(topics.first_offsets(topics.describe(topic).topic_partitions()))
            while not ended.is_set():
                for fetched in reader.read(timeout=0.05):
                    for value in fetched.batch.column("value"):
                        rows[0] += pa.ipc.open_stream(value.as_buffer()).read_all().num_rows

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    try:
        yield look
    finally:
        ended.set()
        thread.join()


def job_of(
    broker: str,
    source: str,
    target: str,
    directory: Path,
    codec: str,
    *,
    exactly_once: bool = False,
    options: Sequence[str] = (),
) -> Start:
    """Our own job, in a process of its own."""
    arguments = [broker, source, target, str(directory), codec, *(["--exactly-once"] if exactly_once else []), *options]
    command = [sys.executable, "-m", "bench.dataflow.kafka_job", *arguments]

    def start(log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as out:
            return subprocess.Popen(command, stdout=out, stderr=out)

    return start


def _kill(job: subprocess.Popen[bytes]) -> None:
    """End a process and its children at once: what they wrote has been counted, and nobody needs the rest."""
    try:
        processes = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
    except psutil.Error:  # it has ended
        processes = []
    for each in processes:
        with contextlib.suppress(psutil.Error):
            each.kill()
    job.wait(_ENDS_WITHIN)


def end(job: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and see to it that it does."""
    if job.poll() is None:
        job.terminate()
        try:
            job.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait(_ENDS_WITHIN)
