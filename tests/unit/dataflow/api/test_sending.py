"""Connections that `topic.send` writes through: kept for Kafka, closed for a local log, none used after a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.errors import InvalidError, NotFoundError
from shoal.dataflow.api.apps import sending
from shoal.dataflow.api.apps.sending import Sender, Senders
from shoal.dataflow.connectors.topics import brokers
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.topics.base import TopicPartition, records


class Now:
    """A clock that stands where the test puts it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def count(broker: str) -> int:
    place = TopicPartition("orders", 0)
    with topics_of(broker) as topics:
        return topics.next_offsets([place])[place]


def test_a_local_log_is_let_go_at_once(tmp_path: Path) -> None:
    senders = Senders()
    for _ in range(3):
        senders.append(str(tmp_path), "orders", records([b"{}"]), partitions=1)
    assert str(tmp_path) not in brokers._open
    assert count(str(tmp_path)) == 3
    senders.close()


def test_a_connection_is_kept_and_closed_when_nobody_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "is_kafka", lambda _broker: True)
    now = Now()
    senders = Senders(now, idle_seconds=60)  # type: ignore[arg-type]  nobody sleeps here
    broker = str(tmp_path)
    senders.append(broker, "orders", records([b"{}"]), partitions=1)
    kept = senders._open[broker][0]
    now.seconds = 59.0
    senders.append(broker, "orders", records([b"{}"]), partitions=1)
    assert senders._open[broker][0] is kept
    now.seconds = 100.0
    senders.close_idle()
    assert senders._open[broker][0] is kept
    now.seconds = 119.0
    senders.close_idle()
    assert senders._open == {}
    assert broker not in brokers._open
    senders.append(broker, "orders", records([b"{}"]), partitions=1)
    assert count(broker) == 3
    senders.close()
    assert broker not in brokers._open


def test_a_connection_that_was_closed_meanwhile_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "is_kafka", lambda _broker: True)
    senders = Senders()
    broker = str(tmp_path)
    senders.append(broker, "orders", records([b"{}"]), partitions=1)
    taken = senders._open[broker][0]
    del senders._open[broker]
    taken.close()
    taken.close()
    assert not taken.append("orders", records([b"{}"]), partitions=1)
    senders.append(broker, "orders", records([b"{}"]), partitions=1)
    senders.close()
    assert count(broker) == 2


def test_one_that_fails_is_not_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "is_kafka", lambda _broker: True)
    senders = Senders()
    with pytest.raises((InvalidError, NotFoundError)):
        senders.append(str(tmp_path), "no such/name", records([b"{}"]), partitions=1)
    assert senders._open == {}
    assert str(tmp_path) not in brokers._open
    assert isinstance(senders._take(str(tmp_path)), Sender)
    senders.close()
