"""Writes rows into a topic in our own codec, many in a message. Run as a program; prints one line of JSON.

python -m bench.dataflow.arrow_fill BROKER TOPIC ROWS
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from bench.dataflow.kafka_job import SCHEMA
from shoal import Stream

_BATCH = 10_000


def rows(count: int) -> Iterator[Any]:
    """As the messages of JSON: every second row passes the filter."""
    for begin in range(0, count, _BATCH):
        ids = np.arange(begin, min(begin + _BATCH, count))
        users = pa.array([f"user-{number:07d}" for number in range(1000)]).take(pa.array(ids % 1000))
        columns = [
            pa.array(ids),
            users,
            pa.array(ids * 7919 % 2000 + 0.25),
            pa.array(ids + 1_700_000_000_000),
            pa.array(["abcdefghijklmnop"] * len(ids)),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


if __name__ == "__main__":
    broker, topic, count = sys.argv[1:]
    stream = Stream.from_iterable(lambda: rows(int(count)), schema=SCHEMA)
    stream.to_kafka(bootstrap_servers=broker, topic=topic, codec_type="arrow").run()
    print("true")
