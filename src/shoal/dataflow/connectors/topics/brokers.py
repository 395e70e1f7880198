"""Connections to topics, by what users call a broker: one for each, shared by all tasks of the process.

`host:port` (several with commas between them, or `kafka://…`) is Kafka; a path is a local log. What a user says about a
cluster beside its address may be secret, and plans are written down: so settings stay in this process, under a name,
and plans have `kafka://name@host:port`. Called by `shoal.dataflow.connectors.topics.endpoints`, and by
`shoal.dataflow.api.context` for such names; calls `shoal.topics`.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from shoal.core.errors import PreconditionError
from shoal.dataflow.connectors.abilities import TopicConnector
from shoal.dataflow.language.logical import Node, Sink, Source
from shoal.topics.base import Topics

if TYPE_CHECKING:
    from shoal.topics.kafka import KafkaSettings

_KAFKA = re.compile(r"[A-Za-z0-9_.\-]+:[0-9]{1,5}(,[A-Za-z0-9_.\-]+:[0-9]{1,5})*")
_SCHEME = "kafka://"
_FILE = "file://"


@dataclass(slots=True)
class _Shared:
    topics: Topics
    users: int


_open: dict[str, _Shared] = {}
#: Settings that users gave, by what plans call the broker.
_settings: dict[str, KafkaSettings] = {}
_lock = threading.Lock()


def is_kafka(broker: str) -> bool:
    """Whether a broker is Kafka; else it is the directory of a local log."""
    return broker.startswith(_SCHEME) or _KAFKA.fullmatch(broker) is not None


def name_settings(settings: KafkaSettings, name: str) -> str:
    """What plans call a cluster that is used with these settings. Other settings under one name get a number more."""
    kept = replace(settings, client=dict(settings.client))  # whatever becomes of the user's
    hosts = settings.brokers.replace(" ", "")
    with _lock:
        for number in count(1):
            broker = f"{_SCHEME}{name}{f'-{number}' if number > 1 else ''}@{hosts}"
            if _settings.setdefault(broker, kept) == kept:
                return broker
    raise AssertionError("numbers do not end")


def has_settings(broker: str) -> bool:
    """Whether this is the name of a cluster whose settings were given here."""
    with _lock:
        return broker in _settings


def named_settings() -> dict[str, KafkaSettings]:
    """Settings of clusters that were given here, by name, for task hosts of the same job only."""
    with _lock:
        return dict(_settings)


def add_settings(settings: Mapping[str, KafkaSettings]) -> None:
    """Settings that the process which wrote the plan was given."""
    with _lock:
        _settings.update(settings)


def address_of(broker: str) -> str:
    """The address alone, without the name of settings."""
    return broker.rpartition("@")[2] if broker.startswith(_SCHEME) else broker


def take_topics(broker: str) -> Topics:
    """Borrow a connection; `return_topics` returns it."""
    with _lock:
        shared = _open.get(broker)
        if shared is None:
            shared = _open[broker] = _Shared(_connect(broker), 0)
        shared.users += 1
        return shared.topics


def return_topics(broker: str) -> None:
    """Give a connection back. The last one closes it."""
    with _lock:
        shared = _open[broker]
        shared.users -= 1
        if shared.users:
            return
        del _open[broker]
    shared.topics.close()


@contextlib.contextmanager
def topics_of(broker: str) -> Iterator[Topics]:
    """A connection for the length of a block."""
    topics = take_topics(broker)
    try:
        yield topics
    finally:
        return_topics(broker)


def settings_of(broker: str) -> KafkaSettings:
    """The settings of a Kafka cluster: those registered here, else only its address."""
    from shoal.topics.kafka import KafkaSettings

    settings = _settings.get(broker)
    if settings is None and "@" in broker:
        raise PreconditionError(
            f"the settings of {broker} are not known in this process",
            hint="make the App with broker=KafkaSettings(…) in the process that runs the plan",
            broker=broker,
        )
    return settings or KafkaSettings(brokers=broker.removeprefix(_SCHEME))


def transaction_timeout(broker: str) -> float | None:
    """Seconds after which a transaction that is open is aborted by the broker; None where none is."""
    return settings_of(broker).transaction_timeout if is_kafka(broker) else None


def kafka_interface(broker: str) -> str:
    """How this process talks to a broker of Kafka, in words; empty for a local log."""
    if not is_kafka(broker):
        return ""
    from shoal.topics.kafka.interface import interface

    return interface().text if settings_of(broker).native else "Python interface, as the settings say"


def find_kafka_interface(nodes: Iterable[Node]) -> str:
    """How this process talks to Kafka for the connectors of some nodes; empty when none of them does."""
    connectors = [node.connector for node in nodes if isinstance(node, Source | Sink)]
    brokers = {each.broker for each in connectors if isinstance(each, TopicConnector)}
    found = sorted({text for broker in brokers if broker and (text := kafka_interface(broker))})
    return "; ".join(found)


def _connect(broker: str) -> Topics:
    if is_kafka(broker):
        from shoal.topics.kafka import KafkaTopics

        return KafkaTopics(settings_of(broker))
    from shoal.topics.local import LocalTopics

    return LocalTopics(broker.removeprefix(_FILE))
