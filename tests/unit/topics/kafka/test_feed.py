"""What a client gives, as columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, Message

from shoal.topics.base import FETCHED, TopicPartition
from shoal.topics.kafka.feed import Piece, Trouble, cut, has_errors, runs, to_batch


def message(offset: int, **given: Any) -> Message:
    return Message(**{"topic": "t", "partition": 0, "offset": offset, "value": b"v", "timestamp": (1, 5)} | given)


def test_messages_become_columns() -> None:
    batch = to_batch(
        [
            message(3, key=b"", value=None, headers=[("a", b"1"), ("a", None)]),
            message(4, key=None, value=b"", timestamp=(1, -1)),
            message(9, key=b"k", timestamp=(2, 1_700_000_000_123)),
        ]
    )
    assert batch.schema.equals(FETCHED)
    assert batch.to_pylist() == [
        {"offset": 3, "key": b"", "value": None, "timestamp": 5_000, "headers": [("a", b"1"), ("a", None)]},
        {"offset": 4, "key": None, "value": b"", "timestamp": 0, "headers": None},
        {"offset": 9, "key": b"k", "value": b"v", "timestamp": 1_700_000_000_123_000, "headers": None},
    ]


def test_what_nobody_has_is_null() -> None:
    batch = to_batch([message(0), message(1)])
    assert batch.column(1).null_count == batch.column(4).null_count == 2
    assert batch.column(0).equals(pa.array([0, 1]))


def test_runs_end_where_the_partition_changes() -> None:
    given = [("t", 0), ("t", 0), ("t", 1), ("u", 1), ("u", 1), ("t", 0)]
    messages = [message(at, topic=topic, partition=partition) for at, (topic, partition) in enumerate(given)]
    assert [[each.offset() for each in run] for run in runs(messages, one_topic=False)] == [[0, 1], [2], [3, 4], [5]]
    assert [len(run) for run in runs(messages[:3], one_topic=True)] == [2, 1]
    assert list(runs(messages[:2], one_topic=True)) == [messages[:2]]


def test_errors_are_found() -> None:
    assert has_errors([message(0), message(1, error=KafkaError(KafkaError._PARTITION_EOF))])
    assert not has_errors([message(0)])


def test_what_nobody_asks_for_is_left_out() -> None:
    batch = to_batch([message(0, headers=[("a", b"1")]), message(1)], ["offset", "key", "value"])
    assert batch.column(3).null_count == batch.column(4).null_count == 2
    # Who has headers is read for its times, too.
    batch = to_batch([message(0, headers=[("a", b"1")]), message(1)], ["offset", "key", "value", "headers"])
    assert batch.column(3).to_pylist() == [5_000, 5_000]


def test_what_is_no_record_comes_between_records_in_its_order() -> None:
    end = message(7, partition=1, error=KafkaError(KafkaError._PARTITION_EOF))
    found = list(cut([message(0), message(1), end, message(2), message(3, partition=2)], FETCHED.names, one_topic=True))
    assert [type(each) for each in found] == [Piece, Trouble, Piece, Piece]
    assert [each.place.partition for each in found] == [0, 1, 0, 2]
    assert isinstance(found[1], Trouble)
    assert (found[1].place, found[1].offset) == (TopicPartition("t", 1), 7)
    assert [each.batch.num_rows for each in found if isinstance(each, Piece)] == [2, 1, 1]
