"""The same job through the local log: what exactly once costs there, and how quick it is."""

from __future__ import annotations

import itertools
from pathlib import Path

from bench.dataflow.pipes import Through, job_of, run_jobs, watch_topic
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.topics.base import ensure_topic, records

_AT_ONCE = 10_000


def message(number: int) -> bytes:
    """As the messages that go through Kafka: 97 bytes, of which every second passes."""
    return b'{"id":%d,"user":"user-%07d","amount":%d.25,"ts":%d,"note":"abcdefghijklmnop"}' % (
        10_000_000 + number,
        number % 1000,
        number * 7919 % 2000,
        1_700_000_000_000 + number,
    )


def measure(home: Path, count: int, *, exactly_once: bool) -> Through:
    """Messages a second from one topic of a local log to another."""
    broker = str(home / "log")
    numbers = itertools.count()
    with topics_of(broker) as topics:
        for name in ("in", "out"):
            ensure_topic(topics, name, partitions=1)
        with topics.writer() as writer:
            for first in range(0, count, _AT_ONCE):
                writer.append("in", records([message(number) for number in range(first, first + _AT_ONCE)]))
    start = job_of(broker, "in", "out", home / "app", "json", exactly_once=exactly_once)
    with watch_topic(broker, "out") as grown, run_jobs([start], home, lambda: next(numbers)) as running:
        return running.through(grown, count // 2, per_output=2.0)
