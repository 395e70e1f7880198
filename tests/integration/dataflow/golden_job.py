"""A job with windows, joins and a process function, from topics to files and a topic; and a nursery for its lives.

`python -m tests.integration.dataflow.golden_job` is the nursery: it has everything imported, and for each line that it
reads (a JSON object with the arguments of `run_job`) it forks a process that runs the job, waits for its end, and
writes its exit status. So a life costs what the job costs, and `kill -9` kills a real process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from shoal.core import faults
from shoal.dataflow.api.process_function import ProcessFunction
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import session, sliding, tumbling
from shoal.dataflow.connectors.files.sinks import JsonLinesSink
from shoal.dataflow.connectors.topics import brokers
from shoal.dataflow.connectors.topics.endpoints import TopicSink, TopicSource
from shoal.dataflow.execution import engine
from shoal.dataflow.language.expressions.trees import col, lit
from shoal.dataflow.language.logical import Node
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from shoal.topics.local import LocalLogSettings, LocalTopics

SCHEMA = pa.schema([("user", pa.string()), ("value", pa.int64()), ("at", pa.int64())])
#: One schema for all results: what it is, of whom, when, and two numbers.
RESULT = pa.schema(
    [("what", pa.string()), ("user", pa.string()), ("at", pa.int64()), ("a", pa.int64()), ("b", pa.int64())]
)
#: Microseconds. Rows are no further out of order than the disorder.
DISORDER, NEAR, GAP, BUCKET = 40, 30, 90, 100


def events(topic: str) -> list[dict[str, Any]]:
    """The rows of a topic: always the same ones, a little out of order."""
    step, shift = (7, 3) if topic == "views" else (11, 5)
    return [
        {
            "user": f"u{(each * shift) % 8}",
            "value": (each * 37) % 100,
            "at": each * step + (each * 13) % DISORDER,
        }
        for each in range(240)
    ]


class Buckets(ProcessFunction):
    """The sum and the greatest value of each stretch of time, put out by a timer; uses state of several kinds."""

    def open(self, context: Any) -> None:
        self.waiting = context.map_state("waiting")
        self.greatest = context.reducing_state("greatest", max)
        self.count = context.value_state("count")

    def process(self, record: Any, context: Any) -> None:
        end = record.at // BUCKET * BUCKET + BUCKET
        self.waiting.put(end, self.waiting.get(end, 0) + record.value)
        context.set_timer(end)

    def on_timer(self, time: int, context: Any) -> Iterator[dict[str, Any]]:
        total = self.waiting.get(time)
        self.waiting.remove(time)
        self.greatest.add(total)
        self.count.set(self.count.get(0) + 1)
        yield {
            "what": "bucket",
            "user": context.key,
            "at": time,
            "a": total,
            "b": self.greatest.get() * 1000 + self.count.get(),
        }


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Take some time, so that there are several checkpoints before the end."""
    time.sleep(0.004)
    return batch


def source(broker: str, topic: str) -> Stream:
    connector = TopicSource(topic, broker, schema=SCHEMA, bounded=True)
    stream = Stream.from_source(
        connector, schema=SCHEMA, event_time="at", time_unit="us", disorder=DISORDER / 1_000_000
    ).uid(topic)
    return stream.map(slowly, schema=SCHEMA)


def result(stream: Stream, what: str, *, at: Any, a: Any, b: Any) -> Stream:
    return stream.select(what=lit(what), user=col("user"), at=at, a=a, b=b)


def program(broker: str, directory: str) -> list[Node]:
    views, clicks = source(broker, "views"), source(broker, "clicks")
    end = col("window_end").cast("int64")
    windows = views.key_by("user").window(
        sliding(size_milliseconds=2 * BUCKET / 1000, slide_milliseconds=BUCKET / 1000)
    )
    sums = windows.aggregate(total=("value", "sum"), n=("*", "count")).uid("windows")
    visits = (
        clicks.key_by("user")
        .window(session(gap_milliseconds=GAP / 1000))
        .aggregate(n=("*", "count"), most=("value", "max"))
        .uid("sessions")
    )
    everyone = views.window(tumbling(milliseconds=BUCKET / 1000)).aggregate(total=("value", "sum"), n=("*", "count"))
    near = views.join(clicks, on="user", within=(0, NEAR / 1_000_000)).uid("near")
    # What comes at the very end: results without a window, and rows that never had a partner.
    whole = {"at": lit(0), "a": col("total"), "b": col("n")}
    some = clicks.filter(col("value") > 98).select("user", there=col("value"))
    alone = views.join(some, on="user", how="left").uid("alone").filter(col("there").is_null())
    buckets = clicks.key_by("user").process(Buckets, schema=RESULT).uid("buckets")
    found = result(sums, "window", at=end, a=col("total"), b=col("n")).union(
        result(visits, "session", at=end, a=col("n"), b=col("most")),
        result(everyone.uid("everyone").with_columns(user=lit("all")), "total", at=end, a=col("total"), b=col("n")),
        result(near, "near", at=col("at"), a=col("value"), b=col("value_right") * 10_000 + col("at_right")),
        result(
            clicks.group_by("user").aggregate(total=("value", "sum"), n=("*", "count")).uid("users"), "user", **whole
        ),
        result(alone, "alone", at=col("at"), a=col("value"), b=lit(0)),
        buckets,
    )
    return [
        found.to_sink(JsonLinesSink(directory)).uid("files").node,
        found.to_sink(TopicSink("out", broker, key="user")).uid("topic").node,
    ]


def run_job(root: str, *, width: int, state: str = "memory", fault: str = "") -> None:
    """Run it to its end, in this process."""
    faults.arm_from_environment(fault)
    broker = str(Path(root) / "log")
    # A small journal ends often enough for what happens at its end to happen.
    topics = LocalTopics(broker, LocalLogSettings(journal_bytes=4096))
    brokers._open[broker] = brokers._Shared(topics, 1)
    checkpoint = CheckpointSettings(directory=str(Path(root) / "checkpoints"), interval=0.02, min_pause=0.0)
    settings = FlowSettings(batch_rows=16, checkpoint=checkpoint, state=state)
    engine.run(program(broker, str(Path(root) / "files")), name="golden", parallelism=width, settings=settings)
    brokers.return_topics(broker)


def serve() -> None:
    """Fork a process for every order."""
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run_job(order.pop("root"), **order)
                code = 0
            except BaseException as error:
                sys.stderr.write(f"{type(error).__name__}: {error}\n")
            finally:
                sys.stderr.flush()
                os._exit(code)
        _pid, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
