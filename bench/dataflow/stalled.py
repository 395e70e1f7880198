"""How much memory grows when a sink stalls. Run as a program; prints one line of JSON.

An endless source, an exchange by key to two tasks, and a sink that takes rows for a while and then no more. What grows
may be the queues' bound: `queue_bytes` for each task that has a queue.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.dataflow.rows import make_batches
from shoal import FlowSettings, Stream
from shoal.dataflow.execution import engine

PARALLELISM = 2
FLOWS_FOR = 2.0
STALLED_FOR = 4.0
MB = 2**20


def measure() -> dict[str, float]:
    """Resident memory before and after the stall, in MB of 2^20 bytes."""
    stalled, ended = threading.Event(), threading.Event()
    settings = FlowSettings()

    def rows() -> Iterator[Any]:
        # Every batch has memory of its own, as rows from outside have.
        for number in itertools.count():
            yield from make_batches(settings.batch_rows // 4, keys=1000, rows_per_second=1000 + number % 7)

    def take(_batch: Any) -> None:
        if stalled.is_set():
            ended.wait()

    source = Stream.from_iterable(rows, bounded=False, schema=make_batches(1, keys=1, rows_per_second=1)[0].schema)
    output = source.key_by("key").to_callback(take)
    flow = engine.start([output.node], parallelism=PARALLELISM, settings=settings)
    time.sleep(FLOWS_FOR)
    before = _peak()
    stalled.set()
    time.sleep(STALLED_FOR)
    after = _peak()
    waiting = sum(flow.metrics().waiting_bytes.values())
    tasks = sum(1 for each in flow.metrics().waiting_bytes)
    ended.set()
    flow.abort()
    return {
        "growth": after - before,
        "waiting": waiting / MB,
        "bound": PARALLELISM * settings.queue_bytes / MB,
        "tasks": tasks,
    }


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * 4096 / MB


def _peak() -> float:
    """The most of a second: what is being worked on comes and goes."""
    highest = 0.0
    for _ in range(50):
        highest = max(highest, _resident())
        time.sleep(0.02)
    return highest


if __name__ == "__main__":
    print(json.dumps(measure()))
