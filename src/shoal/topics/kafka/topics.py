"""Kafka as a backend of `shoal.topics.base`: topics, writers, readers and members of one cluster.

Made by the composition roots with `KafkaTopics(KafkaSettings("host:port"))`. Kafka keeps timestamps as milliseconds.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from shoal.core.clock import Clock, SystemClock
from shoal.core.entropy import Entropy, SystemEntropy
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, Problem, UnavailableError, problem
from shoal.topics.base import FETCHED, Reset, Retention, TopicDescription, TopicPartition
from shoal.topics.kafka.member import KafkaMember
from shoal.topics.kafka.reader import KafkaReader
from shoal.topics.kafka.settings import KafkaSettings
from shoal.topics.kafka.translate import (
    PASSING,
    REBALANCED,
    UNKNOWN_TOPIC,
    check_topic,
    code_of,
    connect,
    error_of,
    to_error,
    topic_problems,
    translated,
)
from shoal.topics.kafka.writer import KafkaWriter

_EARLIEST, _LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
_STEP_SECONDS = 0.05
#: A retention beyond it is none.
_LONGEST_MS = timedelta.max // timedelta(milliseconds=1)
#: For how long a topic is taken to have as many partitions as it had. Java's clients ask after five minutes.
_COUNT_SECONDS = 60.0
#: How long is waited for a newer number when an older one is known.
_RECOUNT_SECONDS = 1.0
#: How long brokers are waited for that have never answered: often it is the address that is wrong.
_FIRST_SECONDS = 10.0

_Opened = TypeVar("_Opened", KafkaWriter, KafkaReader, KafkaMember)


class KafkaTopics:
    """One cluster. May be shared between threads. Connects when it is first asked something."""

    def __init__(self, settings: KafkaSettings, *, clock: Clock | None = None, entropy: Entropy | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self._lock = threading.Lock()
        #: How many partitions a topic has, and when that was found out.
        self._counts: dict[str, tuple[int, float]] = {}
        self._has_answered = False
        self._proofs: dict[str, bytes] = {}
        #: Consumers that store offsets of groups without joining them, and the lock of that.
        self._stores: dict[str, Consumer] = {}
        self._storing = threading.Lock()
        self._opened: list[KafkaWriter | KafkaReader | KafkaMember] = []
        self._closed = False
        self._client = connect(lambda: AdminClient(settings.for_admin()), settings.redaction)

    @property
    def spans_hosts(self) -> bool:
        """Processes on other machines reach the same topics."""
        return True

    # -----------------------------------------------------------------------------------------------------
    # Topics

    def create(self, topic: str, *, partitions: int = 1, retention: Retention | None = None) -> TopicDescription:
        """Make a topic, and wait until it can be used."""
        problems = [*topic_problems([topic]), *_retention_problems(retention)]
        if partitions < 1:
            problems.append(problem("partitions", partitions, "must be 1 or more"))
        if problems:
            raise InvalidError(problems, what="create")
        wanted = NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=self._settings.replication or -1,
            config=_retention_settings(retention),
        )
        awaited = f"topic {topic} to be there"
        try:
            self._administer("create", topic, lambda: self._admin.create_topics([wanted])[topic])
        except PreconditionError:
            # Another client made it just now. The brokers may not all know it yet, and the caller is about to use it.
            self._wait_until(lambda: self._is_usable(topic), awaited)
            raise
        self._wait_until(lambda: self._is_usable(topic, partitions), awaited)
        return self.describe(topic)

    def names(self) -> tuple[str, ...]:
        """The topics, sorted, without those that Kafka keeps for itself."""
        return tuple(sorted(self._all_counts()))

    def describe(self, topic: str) -> TopicDescription:
        """What a topic is."""
        check_topic(topic, what="describe")
        count = self._fresh_count(topic)
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = self._administer("describe", topic, lambda: self._admin.describe_configs([resource])[resource])
        age, size = int(entries["retention.ms"].value), int(entries["retention.bytes"].value)
        # Some say "for ever" by the largest number there is, which is no duration.
        kept_for_age = timedelta(milliseconds=age) if 0 <= age <= _LONGEST_MS else None
        retention = Retention(age=kept_for_age, size=size if size >= 0 else None)
        return TopicDescription(topic, count, retention)

    def delete(self, topic: str) -> None:
        """Remove a topic, its records and every group's offsets of it."""
        check_topic(topic, what="delete")
        self._administer("delete", topic, lambda: self._admin.delete_topics([topic])[topic])
        self._counts.pop(topic, None)
        self._wait_until(lambda: topic not in self.names(), f"topic {topic} to be gone")

    def first_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each that can still be read."""
        return self._find_offsets(partitions, _EARLIEST)

    def next_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last visible record of each."""
        return self._find_offsets(partitions, _LATEST)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The offsets that are stored for a group."""
        # Each partition is asked for by name: what a transaction has just committed is waited for only then.
        asked = [KafkaPartition(topic, at) for topic, count in self._all_counts().items() for at in range(count)]
        if not asked:
            return {}
        self._require_open()
        # The call that the admin client has for this brings the process down when the group's coordinator has moved,
        # or is not there yet, as on a new cluster. A consumer waits for it, and asks for stable offsets, too.
        consumer = connect(lambda: Consumer(self._settings.for_reader(group)), self._settings.redaction)
        try:
            found = self._ask_offsets(consumer, asked)
        finally:
            with contextlib.suppress(KafkaException, RuntimeError):  # it has nothing to lose
                consumer.close()
        return {
            TopicPartition(each.topic, each.partition): each.offset
            for each in found
            if each.error is None and each.offset >= 0
        }

    def store_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets of a group that has no members."""
        self._require_open()
        bad = {each: offset for each, offset in offsets.items() if not 0 <= offset < 2**63}
        if bad or not group:
            rules = [problem(str(each), offset, "must be an offset, from 0 on") for each, offset in bad.items()]
            raise InvalidError(rules or [problem("group", group, "is required")], what="commit")
        for topic, last in _greatest_partitions(offsets).items():  # brokers take offsets of what is not there
            if last >= self._count(topic):
                raise NotFoundError("partition", f"{topic}/{last}")
        listed = [KafkaPartition(each.topic, each.partition, offset) for each, offset in offsets.items()]
        deadline = self._clock.monotonic() + self._settings.patience
        while listed and (error := self._store(group, listed)) is not None:
            if error.code() in REBALANCED:
                raise PreconditionError(f"group {group!r} has members, which commit its offsets themselves")
            if error.code() not in PASSING or self._clock.monotonic() > deadline:
                raise to_error(error, doing=f"commit of group {group}", topic=listed[0].topic)
            self._pause()

    def _store(self, group: str, listed: list[Any]) -> KafkaError | None:
        """Commit offsets once; the first error."""
        with self._storing:
            consumer = self._stores.get(group)
            if consumer is None:
                options = self._settings.for_reader(group)
                consumer = self._stores[group] = connect(lambda: Consumer(options), self._settings.redaction)
            try:
                results = consumer.commit(offsets=listed, asynchronous=False) or ()
            except KafkaException as raised:
                return error_of(raised)
            except RuntimeError as error:  # it was closed by another thread
                raise PreconditionError("the connection is closed") from error
        return next((each.error for each in results if each.error is not None), None)

    # -----------------------------------------------------------------------------------------------------
    # Writers, readers, members

    def writer(self, *, transactional_id: str | None = None) -> KafkaWriter:
        """A writer."""
        self._require_open()
        return self._keep(
            KafkaWriter(
                self._settings,
                transactional_id=transactional_id,
                partition_count=self._count,
                group_proof=self._proof_of,
                clock=self._clock,
            )
        )

    def reader(self, *, reset: Reset = Reset.FAIL, columns: Collection[str] = FETCHED.names) -> KafkaReader:
        """A reader, with nothing assigned."""
        self._require_open()
        return self._keep(
            KafkaReader(self._settings, reset=reset, name=self._name(), clock=self._clock, columns=columns)
        )

    def member(self, group: str, topics: Sequence[str]) -> KafkaMember:
        """Join a group."""
        self._require_open()
        problems = topic_problems(topics)
        if not group:
            problems.append(problem("group", group, "is required"))
        if problems:
            raise InvalidError(problems, what="join")
        return self._keep(KafkaMember(self._settings, group, topics, name=self._name(), clock=self._clock))

    def close(self) -> None:
        """Close everything that came from it, and let go."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            opened, self._opened = self._opened, []
        with contextlib.ExitStack() as stack:
            for consumer in self._stores.values():
                stack.callback(_close_quietly, consumer)
            for each in opened:
                stack.callback(each.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -----------------------------------------------------------------------------------------------------

    @property
    def _admin(self) -> Any:
        self._require_open()
        return self._client

    def _keep(self, each: _Opened) -> _Opened:
        with self._lock:
            if not self._closed:
                self._opened = [*(other for other in self._opened if not other.closed), each]
                return each
        each.close()  # closed by another thread meanwhile
        self._require_open()
        return each

    def _name(self) -> str:
        """The name of a member, or of a group without members."""
        return f"shoal-{self._entropy.token()}"

    def _proof_of(self, group: str) -> bytes:
        """What a transaction needs to store offsets of a group that is not joined."""
        found = self._proofs.get(group)
        if found is None:
            options = self._settings.for_reader(group)
            consumer = connect(lambda: Consumer(options), self._settings.redaction)
            try:
                found = self._proofs[group] = bytes(consumer.consumer_group_metadata())
            finally:
                consumer.close()
        return found

    def _find_offsets(self, partitions: Iterable[TopicPartition], spec: Any) -> dict[TopicPartition, int]:
        wanted = set(partitions)
        found: dict[TopicPartition, int] = {}
        deadline = self._clock.monotonic() + self._settings.patience
        while True:
            self._check_there(wanted - found.keys())
            failed = self._ask_ends(wanted - found.keys(), spec, found)
            if not failed:
                return found
            # The leader may just have moved. Of a topic that is gone the next round says so.
            passing = error_of(failed[1]) is not None and code_of(failed[1]) in PASSING | UNKNOWN_TOPIC
            if not passing or self._clock.monotonic() > deadline:
                with translated("find offsets", topic=failed[0].topic):
                    raise failed[1]
            self._pause()

    def _ask_ends(
        self, wanted: set[TopicPartition], spec: Any, found: dict[TopicPartition, int]
    ) -> tuple[TopicPartition, KafkaException] | None:
        """Ask for the ends of partitions, and put them into `found`; what went wrong with one of the others."""
        if not wanted:
            return None
        asked = {KafkaPartition(each.topic, each.partition): spec for each in wanted}
        failed: tuple[TopicPartition, KafkaException] | None = None
        patience = self._settings.patience
        futures = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=patience
        )
        for partition, future in futures.items():
            each = TopicPartition(partition.topic, partition.partition)
            try:
                found[each] = int(future.result(timeout=patience + _RECOUNT_SECONDS).offset)
            except KafkaException as error:
                failed = (each, error)
            except TimeoutError as error:
                raise UnavailableError("find offsets: the brokers did not answer in time") from error
        return failed

    def _check_there(self, wanted: Iterable[TopicPartition]) -> None:
        for topic in sorted({each.topic for each in wanted}):
            check_topic(topic, what="find offsets")
            count = self._fresh_count(topic)
            for each in wanted:
                if each.topic == topic and not 0 <= each.partition < count:
                    raise NotFoundError("partition", str(each))

    def _ask_offsets(self, consumer: Consumer, asked: list[Any]) -> list[Any]:
        """The offsets of a consumer's group, tried again while the trouble may pass."""
        deadline = self._clock.monotonic() + self._settings.patience
        while True:
            left = max(_STEP_SECONDS, deadline - self._clock.monotonic())
            error: Any
            try:
                found = consumer.committed(asked, timeout=left)
                failed = [each for each in found if each.error is not None and each.error.code() not in UNKNOWN_TOPIC]
                if not failed:
                    return found
                error, topic = failed[0].error, failed[0].topic
            except KafkaException as raised:
                error, topic = raised.args[0], ""
            if error.code() not in PASSING or self._clock.monotonic() > deadline:
                raise to_error(error, doing="read offsets", topic=topic)
            self._pause()

    def _all_counts(self) -> dict[str, int]:
        """How many partitions each topic has, without the topics that Kafka keeps for itself."""
        found = self._ask_for_topics("list topics")
        return {name: len(topic.partitions) for name, topic in found.items() if not name.startswith("__")}

    def _count(self, topic: str) -> int:
        """How many partitions a topic has. Asked for again from time to time: some may have been added."""
        count, found_at = self._counts.get(topic, (0, 0.0))
        if count and self._clock.monotonic() - found_at < _COUNT_SECONDS:
            return count
        check_topic(topic, what="append")
        if not count:
            return self._fresh_count(topic)
        try:
            return self._fresh_count(topic, patience=_RECOUNT_SECONDS)
        except UnavailableError:  # the number is known, so the call need not wait
            self._counts[topic] = (count, self._clock.monotonic())
            return count

    def _fresh_count(self, topic: str, *, patience: float | None = None) -> int:
        count = len(self._metadata(topic, patience=patience).partitions)
        self._counts[topic] = (count, self._clock.monotonic())
        return count

    def _metadata(self, topic: str, *, patience: float | None = None) -> Any:
        found = self._ask_for_topics("describe", topic, patience=patience).get(topic)
        if found is not None and found.error is None and found.partitions:
            return found
        self._counts.pop(topic, None)
        if found is None or found.error is None:
            raise NotFoundError("topic", topic, hint="create it first")
        raise to_error(found.error, doing="describe", topic=topic)

    def _ask_for_topics(self, doing: str, topic: str | None = None, *, patience: float | None = None) -> Any:
        """What the brokers know of topics. Who has never answered is not waited for as long as who has."""
        most = self._settings.patience if self._has_answered else min(self._settings.patience, _FIRST_SECONDS)
        given = () if topic is None else (topic,)
        try:
            with translated(doing, topic=topic or ""):
                found = self._admin.list_topics(*given, timeout=patience or most).topics
        except UnavailableError as error:
            raise UnavailableError(
                f"no Kafka broker at {self._settings.brokers} has answered",
                hint="is it running, and is this the address that it listens at?",
                brokers=self._settings.brokers,
            ) from error
        self._has_answered = True
        return found

    def _is_usable(self, topic: str, partitions: int | None = None) -> bool:
        """Whether every partition has a leader, and there are as many as that."""
        try:
            found = self._metadata(topic).partitions
        except (NotFoundError, UnavailableError):
            return False
        return partitions in (None, len(found)) and all(each.leader >= 0 for each in found.values())

    def _administer(self, doing: str, name: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask().result(timeout=self._settings.patience)
        except KafkaException as error:
            raise to_error(error.args[0], doing=doing, topic=name) from error
        except TimeoutError as error:
            raise UnavailableError(f"{doing} {name}: the brokers did not answer in time") from error

    def _wait_until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = self._clock.monotonic() + self._settings.patience
        while not holds():
            if self._clock.monotonic() > deadline:
                raise UnavailableError(f"waited in vain for {what}")
            self._pause()

    def _pause(self) -> None:
        threading.Event().wait(_STEP_SECONDS)

    def _require_open(self) -> None:
        if self._closed:
            raise PreconditionError("the topics are closed")


def _retention_settings(retention: Retention | None) -> dict[str, str]:
    """The brokers' defaults."""
    if retention is None:
        return {}
    age = -1 if retention.age is None else max(1, round(retention.age.total_seconds() * 1000))
    return {"retention.ms": str(age), "retention.bytes": str(-1 if retention.size is None else retention.size)}


def _retention_problems(retention: Retention | None) -> list[Problem]:
    problems: list[Problem] = []
    if retention is not None and retention.age is not None and retention.age <= timedelta(0):
        problems.append(problem("retention.age", retention.age, "must be above 0"))
    if retention is not None and retention.size is not None and retention.size <= 0:
        problems.append(problem("retention.size", retention.size, "must be above 0"))
    return problems


def _close_quietly(consumer: Consumer) -> None:
    """It has nothing to lose."""
    with contextlib.suppress(KafkaException, RuntimeError):
        consumer.close()


def _greatest_partitions(offsets: Mapping[TopicPartition, int]) -> dict[str, int]:
    """The greatest partition of each topic."""
    found: dict[str, int] = {}
    for each in offsets:
        found[each.topic] = max(each.partition, found.get(each.topic, 0))
    return found
