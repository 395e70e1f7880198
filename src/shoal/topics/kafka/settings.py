"""How the Kafka backend talks to a cluster, and the bounds of what it holds in memory.

Made by the caller of `shoal.topics.kafka.topics.KafkaTopics`. `client` may hold secrets: it is in no `repr`,
and what the client library logs goes through `shoal.topics.kafka.secrecy` first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.core.clock import SystemClock
from shoal.core.errors import InvalidError, Problem, problem
from shoal.topics.kafka.secrecy import ClientLog, Redaction

Setting = str | int | float | bool

#: What this package sets itself, because its promises rest on it, or because it is a field here.
_OURS = frozenset(
    {
        "acks",
        "auto.offset.reset",
        "bootstrap.servers",
        "delivery.report.only.error",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "group.protocol",
        "isolation.level",
        "max.poll.interval.ms",
        "metadata.broker.list",
        "partition.assignment.strategy",
        "partitioner",
        "request.required.acks",
        "session.timeout.ms",
        "transaction.timeout.ms",
        "transactional.id",
    }
)
#: What one kind of client knows alone: the other would warn of it. Beginnings of names.
_OF_READERS = (
    "auto.commit",
    "check.crcs",
    "fetch.",
    "heartbeat.",
    "max.partition.",
    "max.poll.",
    "queued.",
    "session.",
)
_OF_WRITERS = (
    "batch.",
    "compression.",
    "delivery.",
    "linger.",
    "message.send.",
    "message.timeout.",
    "queue.buffering.",
    "queuing.",
    "request.timeout.",
    "retries",
    "sticky.",
    "transaction.",
)

#: The memory that a small record takes in the client, and the part of it that may be records' own bytes.
_RECORD_MEMORY = 1024
_FETCHED_SHARE = 4
#: What brokers take as they come: a record with everything around it may have 1,048,588 bytes.
_MAX_RECORD = 1_048_000


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """One cluster, and how to use it."""

    #: host:port, or several with commas between them.
    brokers: str
    #: How many bytes of memory a reader takes for records that it has fetched ahead, about, with all that the client
    #: keeps of each: small records take several times their size. More than this made no reader faster.
    fetch_ahead: int = 64 * 1024 * 1024
    #: How many bytes a writer holds that the brokers have not acknowledged; then `append` waits.
    unacknowledged: int = 32 * 1024 * 1024
    #: How long a call waits for the brokers before it gives up, in seconds.
    patience: float = 30.0
    #: How long brokers let a transaction stay open before they abort it, in seconds.
    transaction_timeout: float = 60.0
    #: How long a member of a group may be silent, in seconds; brokers allow 6 and more by default.
    session_timeout: float = 6.0
    #: How long a member of a group may go without a `poll` before it is taken for hung, in seconds. The others wait for
    #: it that long when the group changes.
    poll_timeout: float = 300.0
    #: Copies of each partition of the topics that are made here. 0: as the brokers are set.
    replication: int = 0
    #: Read and write through the client library's C interface where that can be: twice as fast. What is read and
    #: written is the same.
    native: bool = True
    #: Anything else for the client library, such as its security settings, under its own names.
    client: Mapping[str, Setting] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        problems = [*self._field_problems(), *self._client_problems()]
        if problems:
            raise InvalidError(problems, what="Kafka")

    @property
    def redaction(self) -> Redaction:
        """Takes what is secret out of a text."""
        return Redaction.of(self.client)

    def for_admin(self) -> dict[str, Any]:
        """A client that asks and orders."""
        return self._defaults() | self._client_for() | self._common()

    def for_reader(self, name: str) -> dict[str, Any]:
        """A consumer that commits nothing by itself and sees committed records only.

        `name` is a group without members: the client library requires one of every consumer.
        """
        return self._consumer_defaults() | self._client_for(*_OF_READERS) | self._consumer(name)

    def for_member(self, group: str, name: str) -> dict[str, Any]:
        """A consumer that joins a group under its own name, and fetches nothing."""
        return (
            self._consumer_defaults()
            | self._client_for(*_OF_READERS)
            | self._consumer(group)
            | {"client.id": name, "partition.assignment.strategy": "range,roundrobin"}
        )

    def for_writer(self, transactional_id: str | None) -> dict[str, Any]:
        """A producer that keeps order, writes nothing twice and reports failures only."""
        patience = self.patience
        settings: dict[str, Any] = {
            "linger.ms": 2,
            "batch.num.messages": 100_000,
            "batch.size": 1_000_000,
            "compression.type": "lz4",
            "message.max.bytes": _MAX_RECORD,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": max(1, self.unacknowledged // 1024),
        }
        ours: dict[str, Any] = {"enable.idempotence": True, "delivery.report.only.error": True}
        if transactional_id is not None:
            patience = min(patience, self.transaction_timeout)
            ours |= {"transactional.id": transactional_id}
            settings |= {"transaction.timeout.ms": round(self.transaction_timeout * 1000)}
        settings |= {"message.timeout.ms": round(patience * 1000)}
        return self._defaults() | settings | self._client_for(*_OF_WRITERS) | self._common() | ours

    # -----------------------------------------------------------------------------------------------------

    def _defaults(self) -> dict[str, Any]:
        """What `client` may change."""
        return {
            "socket.nagle.disable": True,
            "socket.keepalive.enable": True,
            # A broker that comes back is noticed within a second, not within ten.
            "reconnect.backoff.max.ms": 1000,
            # The next transaction waits for the end of the last by trying again: by default after 100 milliseconds.
            "retry.backoff.ms": 10,
        }

    def _common(self) -> dict[str, Any]:
        """What `client` may not change."""
        return {"bootstrap.servers": self.brokers, "logger": ClientLog(self.redaction, SystemClock())}

    def _consumer_defaults(self) -> dict[str, Any]:
        return self._defaults() | {
            # The client stalls when its queue fills: it looks again after this many milliseconds, by default a second.
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 20,
            "queued.min.messages": max(1000, self.fetch_ahead // _RECORD_MEMORY),
            "queued.max.messages.kbytes": max(1, self.fetch_ahead // _FETCHED_SHARE // 1024),
            # Of each partition; as they are on the brokers' disks, several times smaller than in memory.
            "fetch.message.max.bytes": min(max(self.fetch_ahead // 256, 64 * 1024), 1024 * 1024),
            "heartbeat.interval.ms": max(100, round(self.session_timeout * 1000 / 6)),
        }

    def _consumer(self, group: str) -> dict[str, Any]:
        return self._common() | {
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "session.timeout.ms": round(self.session_timeout * 1000),
            "max.poll.interval.ms": round(self.poll_timeout * 1000),
        }

    def _client_for(self, *own: str) -> dict[str, Setting]:
        """What `client` says, without what only other kinds of clients know."""
        foreign = tuple(each for each in (*_OF_READERS, *_OF_WRITERS) if each not in own)
        return {name: value for name, value in self.client.items() if not name.startswith(foreign)}

    def _field_problems(self) -> list[Problem]:
        problems = [] if self.brokers else [problem("brokers", self.brokers, "is required: host:port")]
        problems.extend(
            problem(name, getattr(self, name), "must be above 0")
            for name in (
                "fetch_ahead",
                "unacknowledged",
                "patience",
                "transaction_timeout",
                "session_timeout",
                "poll_timeout",
            )
            if not 0 < getattr(self, name) < math.inf
        )
        if self.poll_timeout < self.session_timeout:
            problems.append(problem("poll_timeout", self.poll_timeout, "must not be below session_timeout"))
        if self.replication < 0:
            problems.append(problem("replication", self.replication, "must be 0 or more"))
        return problems

    def _client_problems(self) -> list[Problem]:
        """Says no value of `client`: it may be a password under a wrong name."""
        problems = [
            problem(f"client.{name}", None, "is set by Shoal and may not be changed")
            for name in sorted(_OURS & self.client.keys())
        ]
        problems.extend(
            problem(f"client.{name}", None, f"must be text, a number or a truth value, and is a {type(value).__name__}")
            for name, value in self.client.items()
            if not isinstance(value, str | int | float)
        )
        return problems
