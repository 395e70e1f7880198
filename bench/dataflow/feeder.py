"""Appends rows to a topic at a steady rate, whether or not anybody keeps up. Run as a program.

    python -m bench.dataflow.feeder BROKER TOPIC FIRST_ID RATE SECONDS

Every row carries the moment at which it was due, by the clock that all processes of a machine share (`ts`, in
microseconds). So a feeder that falls behind makes rows late, as it does for users.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from shoal.dataflow.connectors.topics.brokers import is_kafka, topics_of
from shoal.topics.base import records

#: Rows that are due are appended so often, in seconds.
TICK = 0.002

Append = Callable[[Sequence[bytes]], None]


def row(number: int, due: int) -> bytes:
    """A row that passes the filter."""
    return b'{"id":%d,"user":"user-%07d","amount":1500.25,"ts":%d,"note":"abcdefghijklmnop"}' % (
        number,
        number % 1000,
        due,
    )


def feed(append: Append, *, first: int, rate: float, seconds: float) -> None:
    """Append rows for a while."""
    begin = time.monotonic() + TICK
    sent, total = 0, round(rate * seconds)
    while sent < total:
        now = time.monotonic()
        due = min(total, int((now - begin) * rate) + 1) if now >= begin else 0
        if due > sent:
            append([row(first + each, round((begin + each / rate) * 1e6)) for each in range(sent, due)])
            sent = due
        # The next row may be due long after the next tick.
        time.sleep(max(0.0, max(now + TICK, begin + sent / rate) - time.monotonic()))


def main(broker: str, topic: str, first: int, rate: float, seconds: float) -> None:
    """Connect, and feed."""
    with ExitStack() as stack:
        if is_kafka(broker):
            from confluent_kafka import Producer

            producer = Producer({"bootstrap.servers": broker, "linger.ms": 1})
            stack.callback(producer.flush)

            def append(rows: Sequence[bytes]) -> None:
                for each in rows:
                    while True:
                        try:
                            producer.produce(topic, each)
                            break
                        except BufferError:  # the broker is behind: rows get late, and that is what is measured
                            producer.poll(0.01)
                producer.poll(0)
        else:
            writer = stack.enter_context(stack.enter_context(topics_of(broker)).writer())

            def append(rows: Sequence[bytes]) -> None:
                writer.append(topic, records(rows))
                writer.flush()

        gc.freeze()  # else it is the feeder that holds up rows
        feed(append, first=first, rate=rate, seconds=seconds)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]))
