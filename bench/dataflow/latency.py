"""How long a row takes from when it was due to when a reader of the output topic has it, under a steady load.

A feeder, the job and this watcher are three processes: rows go through two topics, in Kafka or in a local log.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.dataflow.kafka_job import SCHEMA
from bench.dataflow.pipes import cpu_seconds, end, peak_memory
from bench.figures import percentile
from shoal.core.errors import UnavailableError
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.topics.base import ensure_topic
from shoal.topics.codecs import codec

#: Ids of the rows of a trickle begin here.
TRICKLE = 1_000_000_000
_SETTLES = 3.0
_LAST_ROW_WITHIN = 60.0


@dataclass(frozen=True, slots=True)
class Delays:
    """What was seen, in milliseconds."""

    p50: float
    p99: float
    #: The slowest row of the trickle.
    trickle: float
    #: The most memory that the job had, in MB of 2^20 bytes; 0 without a job.
    memory: float
    #: What the job used while rows came, as a share of a core; 0 without a job.
    cpu: float


class Watcher:
    """Reads a topic to its end and notes when what came."""

    def __init__(self, broker: str, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self._stopped = threading.Event()
        #: When which records came.
        self.seen: list[tuple[float, Any]] = []
        self.rows = 0
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # noqa: BLE001 - it is raised where rows are awaited
            self.error = error

    def _watch(self) -> None:
        with topics_of(self._broker) as topics, topics.reader() as reader:
            reader.assign(topics.next_offsets(topics.describe(self._topic).topic_partitions()))
            gc.freeze()  # else it is the watcher that sees rows late
            while not self._stopped.is_set():
                for fetched in reader.read(timeout=0.05):
                    self.seen.append((time.monotonic(), fetched.batch))
                    self.rows += fetched.batch.num_rows

    def stop_reading(self) -> None:
        """Read no more."""
        self._stopped.set()
        self._thread.join()

    def stop(self) -> list[tuple[int, float]]:
        """The id of each row, and how long it took in milliseconds."""
        self.stop_reading()
        decode = codec("json").decode
        found: list[tuple[int, float]] = []
        for moment, batch in self.seen:
            rows = decode(batch, SCHEMA).rows
            due = rows.column("ts").to_numpy()
            found += zip(rows.column("id").to_pylist(), (1000 * moment - due / 1000).tolist(), strict=True)
        return found


def measure(
    broker: str,
    home: Path,
    *,
    name: str,
    rate: float,
    seconds: float,
    trickle: int,
    has_job: bool = True,
    options: Sequence[str] = (),
) -> Delays:
    """Feed rows at a rate, then one a second. Without a job the watcher reads what was fed: one hop.

    The watcher reads what is committed; `options` are of the job.
    """
    source, target = f"{name}-in", f"{name}-out" if has_job else f"{name}-in"
    with topics_of(broker) as topics:
        for topic in {source, target}:
            ensure_topic(topics, topic)
    job = _start_job(broker, source, target, home / name, options) if has_job else None
    watcher = Watcher(broker, target)
    try:
        time.sleep(_SETTLES if has_job else 0.5)
        total = round(rate * seconds)
        began, used = time.monotonic(), cpu_seconds(job)
        _feed(broker, source, 0, rate, seconds)
        cpu = (cpu_seconds(job) - used) / (time.monotonic() - began)
        _feed(broker, source, TRICKLE, 1, trickle)
        _wait(watcher, total + trickle, job)
        memory = peak_memory(job.pid) if job is not None else 0.0
        delays = watcher.stop()
    finally:
        if job is not None:
            end(job)
    # The first quarter is left out: connections, caches and the interpreter warm up.
    steady = [delay for number, delay in delays if total // 4 <= number < TRICKLE]
    # Without the first of the trickle: its feeder connects with it.
    slow = [delay for number, delay in delays if number > TRICKLE]
    return Delays(percentile(steady, 0.5), percentile(steady, 0.99), max(slow), memory, cpu)


def _start_job(
    broker: str, source: str, target: str, directory: Path, options: Sequence[str]
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.dataflow.kafka_job", broker, source, target, str(directory), "json"]
    return subprocess.Popen([*command, *options])


def _feed(broker: str, topic: str, first: int, rate: float, seconds: float) -> None:
    command = [sys.executable, "-m", "bench.dataflow.feeder", broker, topic, str(first), str(rate), str(seconds)]
    subprocess.run(command, check=True, timeout=seconds + 60)


def _wait(watcher: Watcher, rows: int, job: subprocess.Popen[bytes] | None) -> None:
    deadline = time.monotonic() + _LAST_ROW_WITHIN
    while watcher.rows < rows:
        if watcher.error is not None:
            raise watcher.error
        if time.monotonic() > deadline or (job is not None and job.poll() is not None):
            raise UnavailableError(f"{watcher.rows} of {rows} rows came through")
        time.sleep(0.05)
