"""The peer Bytewax: rows in memory, and JSON from a topic to another.

bytewax_jobs.py map_filter ROWS BATCH[,BATCH...]      rows per second, the best of the batch sizes
bytewax_jobs.py tumbling ROWS BATCH[,BATCH...]        the sum of 1,000 keys in windows of 10 s
bytewax_jobs.py kafka BROKER INPUT OUTPUT             until it is killed
"""

# Its packages are installed in an environment of its own, so that here nothing is known of their types.
# mypy: ignore-errors

from __future__ import annotations

import json
import operator
import random
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

LIMIT = 1000.0
FEE = 0.03
KEYS = 1000
START = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


class _Part(StatelessSourcePartition[Any]):
    def __init__(self, batches: Iterator[list[Any]]) -> None:
        self._batches = batches

    def next_batch(self) -> list[Any]:
        return next(self._batches)  # its StopIteration is the end


class Rows(DynamicSource[Any]):
    """Lists that are there already."""

    def __init__(self, batches: list[list[Any]]) -> None:
        self._batches = batches

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Part:
        """For one worker."""
        return _Part(iter(self._batches))


class _Count(StatelessSinkPartition[Any]):
    def __init__(self, seen: list[int]) -> None:
        self._seen = seen

    def write_batch(self, items: list[Any]) -> None:
        self._seen[0] += len(items)


class Counted(DynamicSink[Any]):
    """Takes rows and counts them."""

    def __init__(self) -> None:
        self.seen = [0]

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Count:
        """For one worker."""
        return _Count(self.seen)


def cut(rows: list[Any], size: int) -> list[list[Any]]:
    """In lists of a size."""
    return [rows[begin : begin + size] for begin in range(0, len(rows), size)]


def map_filter(rows: list[Any], size: int) -> tuple[float, int]:
    """Rows above a limit, with one column more."""
    flow, sink = Dataflow("map_filter"), Counted()
    stream = op.input("rows", flow, Rows(cut(rows, size)))
    kept = op.filter("filter", stream, lambda row: row[3] > LIMIT)
    made = op.map("map", kept, lambda row: (*row, row[3] * FEE))
    op.output("count", made, sink)
    began = time.perf_counter()
    run_main(flow)
    return len(rows) / (time.perf_counter() - began), sink.seen[0]


def tumbling(rows: list[Any], size: int) -> tuple[float, int]:
    """The sum of each key in windows of 10 s."""
    flow, sink = Dataflow("tumbling"), Counted()
    stream = op.input("rows", flow, Rows(cut([(row[2], (row[1], row[3])) for row in rows], size)))
    clock = win.EventClock(lambda row: row[0], wait_for_system_duration=timedelta(0))
    windower = win.TumblingWindower(length=timedelta(seconds=10), align_to=START)
    summed = win.fold_window(
        "sum", stream, clock, windower, builder=float, folder=lambda total, row: total + row[1], merger=operator.add
    )
    op.output("count", summed.down, sink)
    began = time.perf_counter()
    run_main(flow)
    return len(rows) / (time.perf_counter() - began), sink.seen[0]


def make_rows(count: int) -> list[Any]:
    """An id, a moment (a row a millisecond), one of the keys and a value from 0 to 2,000."""
    chance = random.Random(7)
    return [
        (
            number,
            START + timedelta(milliseconds=number),
            f"key-{chance.randrange(KEYS):07d}",
            chance.random() * 2 * LIMIT,
        )
        for number in range(count)
    ]


def kafka(broker: str, source: str, target: str) -> None:
    """JSON to JSON, until it is killed."""
    import orjson
    from bytewax.connectors.kafka import KafkaSinkMessage
    from bytewax.connectors.kafka import operators as kop
    from confluent_kafka import OFFSET_BEGINNING

    reading = {"fetch.queue.backoff.ms": "5", "queued.min.messages": "500000", "queued.max.messages.kbytes": "262144"}
    flow = Dataflow("kafka")
    read = kop.input(
        "in",
        flow,
        brokers=[broker],
        topics=[source],
        starting_offset=OFFSET_BEGINNING,
        add_config=reading,
        batch_size=1000,
    )
    rows = op.map("loads", read.oks, lambda each: orjson.loads(each.value))
    kept = op.filter("filter", rows, lambda row: row["amount"] > LIMIT)
    made = op.map("dumps", kept, lambda row: KafkaSinkMessage(None, orjson.dumps(row)))
    kop.output("out", made, brokers=[broker], topic=target, add_config={"linger.ms": "5"})
    run_main(flow)


def main(arguments: list[str]) -> None:
    """Measure, or run."""
    if arguments[0] == "kafka":
        kafka(*arguments[1:])
        return
    job = {"map_filter": map_filter, "tumbling": tumbling}[arguments[0]]
    rows = make_rows(int(arguments[1]))
    rates = {size: job(rows, int(size)) for size in arguments[2].split(",")}
    best = max(rates, key=lambda size: rates[size][0])
    print(json.dumps({"rate": rates[best][0], "batch": int(best), "rows": rates[best][1]}))


if __name__ == "__main__":
    main(sys.argv[1:])
