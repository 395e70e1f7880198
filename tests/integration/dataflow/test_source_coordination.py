"""Source tasks of one job: splits that appear are assigned by the coordinator, and event time stays together.

Also over child processes, which see nothing of each other but what the coordinator tells them.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from shoal import Stream, col
from shoal.dataflow.connectors.files.sinks import JsonLinesSink
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.dataflow.execution import engine
from shoal.dataflow.language.logical import Sink, Source
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from shoal.topics.base import records
from tests.integration.dataflow.growing_topic import GrowingTopic
from tests.integration.dataflow.slow_topic import CountedTopic, SlowTopic
from tests.unit.dataflow.execution.flows import MICROS, SCHEMA, window_sums

pytestmark = pytest.mark.integration

SECOND = 1_000_000
LONG = 120.0


def append(broker: str, partition: int, rows: list[dict[str, Any]]) -> None:
    with topics_of(broker) as topics, topics.writer() as writer:
        writer.append("in", records([json.dumps(row).encode() for row in rows]), partition=partition)
        writer.flush()


def create(broker: str, partitions: int) -> None:
    with topics_of(broker) as topics:
        topics.create("in", partitions=partitions)


def wait_until(condition, flow) -> None:
    ends = time.monotonic() + LONG
    while not condition():
        assert flow.failed is None, flow.failed
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.02)


def row(key: str, at: int) -> dict[str, Any]:
    return {"key": key, "value": 1, "time": at * SECOND}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("processes", [0, 2])
def test_partitions_that_appear_are_read_once_and_after_a_restart_too(tmp_path: Path, processes):
    broker = str(tmp_path / "log")
    create(broker, 5)
    (tmp_path / "log.found").write_text("2")
    source = Source(connector=GrowingTopic("in", broker, schema=SCHEMA), schema=SCHEMA, uid="in")
    sink = Sink(inputs=(source,), connector=JsonLinesSink(str(tmp_path / "out")), uid="out")
    checkpoint = CheckpointSettings(directory=str(tmp_path / "checkpoints"), interval=0.1, min_pause=0.0)
    settings = FlowSettings(discovery=0.05, checkpoint=checkpoint)

    def written() -> list[str]:
        paths = sorted((tmp_path / "out").glob("*.jsonl"))
        return sorted(json.loads(line)["key"] for path in paths for line in path.read_text().splitlines())

    def start() -> engine.RunningFlow:
        return engine.start([sink], name="job", parallelism=2, settings=settings, processes=processes)

    flow = start()
    append(broker, 0, [row("0a", 1)])
    wait_until(lambda: written() == ["0a"], flow)
    (tmp_path / "log.found").write_text("5")
    for partition in range(1, 5):
        append(broker, partition, [row(f"{partition}a", 1)])
    wait_until(lambda: written() == ["0a", "1a", "2a", "3a", "4a"], flow)
    flow.stop(timeout=LONG)
    again = start()
    for partition in range(5):
        append(broker, partition, [row(f"{partition}b", 2)])
    wait_until(lambda: len(written()) >= 10, again)
    again.stop(timeout=LONG)
    assert written() == sorted(f"{partition}{run}" for partition in range(5) for run in "ab")


@pytest.mark.parametrize("processes", [0, 2])
def test_a_task_waits_for_a_slower_one(tmp_path: Path, processes):
    """One task reads a partition, the other one stands still in its own. The first does not get far ahead."""
    broker = str(tmp_path / "log")
    create(broker, 2)
    for partition in range(2):
        append(broker, partition, [row("a", at) for at in range(4000)])
    source = Source(connector=SlowTopic("in", broker, schema=SCHEMA, bounded=True), schema=SCHEMA, time=MICROS)
    timed = window_sums(source)  # something that needs event time
    sink = Sink(inputs=(timed,), connector=JsonLinesSink(str(tmp_path / "out")))
    flow = engine.start([sink], parallelism=2, settings=FlowSettings(split_drift=60.0), processes=processes)
    wait_until((tmp_path / "log.held").exists, flow)

    def read() -> int:
        return sum(each.rows for each in flow.metrics().steps if each.name.startswith("source"))

    wait_until(lambda: read() > 60, flow)  # processes report what they have read from time to time
    assert read() < 4000
    (tmp_path / "log.go").touch()
    flow.wait(LONG)
    assert read() == 8000


def test_no_task_looks_at_a_topic_again_for_its_columns(tmp_path: Path):
    broker = str(tmp_path / "log")
    create(broker, 2)
    for partition in range(2):
        append(broker, partition, [row("a", at) for at in range(10)])
    stream = Stream.from_source(CountedTopic("in", broker, bounded=True)).filter(col("value") == 1)
    report = engine.run([stream.to_json(str(tmp_path / "out")).node], parallelism=2, processes=2)
    assert sum(each.rows for each in report.steps if each.name.startswith("source")) == 20
    assert set((tmp_path / "log.sampled").read_text().split()) == {str(os.getpid())}
