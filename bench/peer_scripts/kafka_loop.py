"""The peer without an engine: a loop of the client and orjson, tuned, from one topic of JSON to another.

    kafka_loop.py run BROKER INPUT OUTPUT GROUP [exactly-once]     until it is killed
    kafka_loop.py fill BROKER TOPIC FIRST COUNT                    writes COUNT messages, of which every second passes

Nothing of ours is imported. Offsets are committed every second, after what they stand for is written.
"""

# Its packages are installed in an environment of its own, so that here nothing is known of their types.
# mypy: ignore-errors

from __future__ import annotations

import sys
import time
from typing import Any

import orjson
from confluent_kafka import Consumer, Producer

LIMIT = 1000
#: More at a time is slower: a list of so many messages no longer fits into the caches.
AT_ONCE = 1000
COMMIT_SECONDS = 1.0

#: Without these the client stops fetching whenever its queue is full, and takes long to begin again.
READING = {
    "fetch.queue.backoff.ms": 5,
    "queued.min.messages": 500_000,
    "queued.max.messages.kbytes": 262_144,
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
}
WRITING = {
    "linger.ms": 5,
    "batch.num.messages": 100_000,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 2_000_000,
}


def message(number: int) -> bytes:
    """One of the messages: 97 bytes."""
    return orjson.dumps(
        {
            "id": 10_000_000 + number,
            "user": f"user-{number % 1000:07d}",
            "amount": (number * 7919) % 2000 + 0.25,
            "ts": 1_700_000_000_000 + number,
            "note": "abcdefghijklmnop",
        }
    )


def fill(broker: str, topic: str, first: int, count: int) -> None:
    """Write messages, round robin over the partitions."""
    producer = Producer({"bootstrap.servers": broker, **WRITING})
    partitions = len(producer.list_topics(topic).topics[topic].partitions)
    for number in range(first, first + count):
        producer.produce(topic, message(number), partition=number // 1000 % partitions)
        if number % 10_000 == 0:
            producer.poll(0)
            while len(producer) > 1_000_000:
                producer.poll(0.05)
    producer.flush()


def run(broker: str, source: str, target: str, group: str, *, exactly_once: bool) -> None:
    """Until it is killed."""
    isolation = {"isolation.level": "read_committed"} if exactly_once else {}
    consumer = Consumer({"bootstrap.servers": broker, "group.id": group, **READING, **isolation})
    consumer.subscribe([source])
    producer = Producer(
        {"bootstrap.servers": broker, **WRITING, **({"transactional.id": group} if exactly_once else {})}
    )
    if exactly_once:
        producer.init_transactions()
        producer.begin_transaction()
    due = time.monotonic() + COMMIT_SECONDS
    loads, dumps, produce = orjson.loads, orjson.dumps, producer.produce
    while True:
        for each in consumer.consume(AT_ONCE, 0.05):
            row = loads(each.value())
            if row["amount"] > LIMIT:
                produce(target, dumps(row))
        producer.poll(0)
        if time.monotonic() >= due:
            commit(consumer, producer, exactly_once=exactly_once)
            due = time.monotonic() + COMMIT_SECONDS


def commit(consumer: Any, producer: Any, *, exactly_once: bool) -> None:
    """Everything that was read is written: say so."""
    here = [each for each in consumer.position(consumer.assignment()) if each.offset >= 0]
    if exactly_once:
        if here:
            producer.send_offsets_to_transaction(here, consumer.consumer_group_metadata())
        producer.commit_transaction()
        producer.begin_transaction()
    else:
        producer.flush()
        if here:
            consumer.commit(offsets=here, asynchronous=False)


def main(arguments: list[str]) -> None:
    """Fill a topic, or run the loop."""
    if arguments[0] == "fill":
        broker, topic, first, count = arguments[1:]
        fill(broker, topic, int(first), int(count))
        print("true")
        return
    broker, source, target, group, *rest = arguments[1:]
    run(broker, source, target, group, exactly_once=rest == ["exactly-once"])


if __name__ == "__main__":
    main(sys.argv[1:])
