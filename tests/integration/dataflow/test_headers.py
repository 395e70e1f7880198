"""Trace and event time of records go with their rows, from topic to topic, through every step that keeps rows apart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shoal.dataflow.api.process_function import ProcessFunction
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import tumbling
from shoal.dataflow.connectors.memory import BatchesSource
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.dataflow.connectors.topics.endpoints import TopicSink, TopicSource
from shoal.dataflow.execution import engine
from shoal.dataflow.language.expressions.trees import col
from shoal.topics.base import TopicPartition
from shoal.topics.headers import make_headers, trace_ids
from tests.integration.dataflow.test_topics import fill
from tests.unit.dataflow.execution.flows import SCHEMA, rows

pytestmark = pytest.mark.integration

LEFT = [(b"L0", 0), (b"L1", 1), (b"L2", 2)]
FIRST = [LEFT[0]]


class Twice(ProcessFunction):
    """Rows of a record have its trace, what a timer gives has none."""

    def process(self, record: Any, context: Any) -> Iterator[dict[str, Any]]:
        if record.value == 0:
            context.set_timer(5)
        yield {"value": record.value}

    def on_timer(self, time: int, context: Any) -> dict[str, Any]:
        return {"value": -1}


def plain() -> Stream:
    """Rows that have no headers."""
    return Stream.from_source(
        BatchesSource((rows(("k9", 9, 9)),)), schema=SCHEMA, event_time="time", time_unit="us", disorder=1
    )


Program = Callable[[Stream, Stream], Stream]

PROGRAMS: dict[str, tuple[Program, list[tuple[bytes | None, int]]]] = {
    "nothing": (lambda a, _b: a, LEFT),
    "map": (lambda a, _b: a.map(lambda batch: batch, schema=SCHEMA), LEFT),
    "filter and select": (lambda a, _b: a.filter(col("value") < 1).select(twice=col("value") * 2), FIRST),
    "records": (lambda a, _b: a.records().map(lambda record: {"v": record.value}).batches(), LEFT),
    "distinct": (lambda a, _b: a.distinct("key"), LEFT),
    "process function": (lambda a, _b: a.key_by("key").process(Twice), [*LEFT, (None, 5)]),
    "regular join": (lambda a, b: a.join(b, on="key"), LEFT),
    "interval join": (lambda a, b: a.join(b, on="key", within=1), LEFT),
    "window join": (
        lambda a, b: a.join(b, on="key", window=tumbling(milliseconds=0.01)),
        [(trace, 9) for trace, _time in LEFT],
    ),
    "broadcast join": (lambda a, b: a.join(b, on="key", broadcast=True), LEFT),
    "as-of join": (lambda a, b: a.asof_join(b, on="key"), LEFT),
    "rows of both kinds": (lambda a, _b: a.union(plain()), [*LEFT, (None, 9)]),
    "rows of both kinds, joined": (
        lambda a, b: a.union(plain()).join(b, on="key", how="left", within=1),
        [*LEFT, (None, 9)],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_headers_go_along(tmp_path: Path, name: str) -> None:
    broker = str(tmp_path / "log")
    values = [json.dumps({"key": f"k{each}", "value": each, "time": each}).encode() for each in range(3)]
    for topic, letter in (("a", "L"), ("b", "R")):
        traces = pa.array([f"{letter}{each}".encode() for each in range(3)])
        fill(broker, topic, partitions=1, values=values, headers=make_headers({"x-shoal-trace-id": traces}, 3))
    program, expected = PROGRAMS[name]
    stream = program(source(broker, "a"), source(broker, "b"))
    engine.run([stream.to_sink(TopicSink("out", broker)).node], parallelism=2)
    with topics_of(broker) as topics, topics.reader() as reader:
        reader.assign({TopicPartition("out", 0): 0})
        found: list[tuple[bytes | None, int]] = []
        while fetched_now := reader.read(timeout=0.05):
            for fetched in fetched_now:
                found += zip(trace_ids(fetched.batch).to_pylist(), fetched.batch["timestamp"].to_pylist(), strict=True)
    assert sorted(found, key=str) == sorted(expected, key=str)


def source(broker: str, topic: str) -> Stream:
    connector = TopicSource(topic, broker, schema=SCHEMA, bounded=True)
    return Stream.from_source(connector, schema=SCHEMA, event_time="time", time_unit="us", disorder=1)
