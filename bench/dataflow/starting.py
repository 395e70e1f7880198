"""From `shoal run` to the first row that a reader of the output topic has, on a local log."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.dataflow.feeder import row
from bench.dataflow.pipes import cpu_seconds, end, peak_memory
from shoal.core.errors import UnavailableError
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.topics.base import ensure_topic, records

PROGRAM = """\
from shoal import App, Stream, col

app = App("first", exactly_once={exactly_once})
app.topic("orders", schema={{"id": "int64", "user": "string", "amount": "double", "ts": "int64", "note": "string"}})


@app.dataflow()
def large():
    return Stream.from_topic("orders").filter(col("amount") > 1000.0).to_topic("large")
"""
ROWS = 1000
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Started:
    """What it took to the first row."""

    seconds: float
    #: CPU time of the process, in seconds.
    cpu: float
    #: Its peak resident memory, in MB of 2^20 bytes.
    memory: float


def first_output(home: Path, *, exactly_once: bool) -> Started:
    """Start a program, and wait for its first row."""
    home.mkdir(parents=True)
    (home / "first_app.py").write_text(PROGRAM.format(exactly_once=exactly_once), encoding="utf-8")
    broker = str(home / ".shoal" / "first" / "topics")
    with topics_of(broker) as topics:
        for name in ("orders", "large"):
            ensure_topic(topics, name)
        with topics.writer() as writer:
            writer.append("orders", records([row(number, 0) for number in range(ROWS)]))
        with topics.reader() as reader:
            reader.assign(topics.first_offsets(topics.describe("large").topic_partitions()))
            began = time.monotonic()
            command = [str(Path(sys.executable).parent / "shoal"), "run", "first_app:app"]
            with (home / "log").open("wb") as log:
                job = subprocess.Popen(command, cwd=home, stdout=log, stderr=log)
            try:
                while not reader.read(timeout=0.05):
                    if job.poll() is not None or time.monotonic() - began > _PATIENCE:
                        raise UnavailableError(f"`shoal run` gave no row: {(home / 'log').read_text()}")
                return Started(time.monotonic() - began, cpu_seconds(job), peak_memory(job.pid))
            finally:
                end(job)
