"""Topics: ordered, partitioned, replayable logs of records with headers.

    from shoal.topics import LocalTopics, records

`base` is the protocol, `local` the embedded log of one host, `kafka` the same over Kafka, `codecs` turns the values of
records into columns and back. Public names are looked up when they are asked for, so a reader of a local log
needs no Kafka client. `__init__.pyi` beside it tells type checkers the same; a test freezes it.
"""

from __future__ import annotations

#: Where each public name lives.
_HOMES: dict[str, str] = {
    "FencedError": "shoal.topics.errors",
    "Fsync": "shoal.topics.local",
    "KafkaSettings": "shoal.topics.kafka",
    "KafkaTopics": "shoal.topics.kafka",
    "LocalLogSettings": "shoal.topics.local",
    "LocalTopics": "shoal.topics.local",
    "LogFullError": "shoal.topics.errors",
    "Member": "shoal.topics.base",
    "OffsetOutOfRangeError": "shoal.topics.errors",
    "Reader": "shoal.topics.base",
    "RebalancedError": "shoal.topics.errors",
    "Reset": "shoal.topics.base",
    "Retention": "shoal.topics.base",
    "TopicPartition": "shoal.topics.base",
    "Topics": "shoal.topics.base",
    "Writer": "shoal.topics.base",
    "codec": "shoal.topics.codecs",
    "ensure_topic": "shoal.topics.base",
    "records": "shoal.topics.base",
    "start_offsets": "shoal.topics.base",
}

__all__ = [*_HOMES]  # noqa: PLE0604  the names are in the table above


def __getattr__(name: str) -> object:
    if name in _HOMES:
        import importlib

        globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
