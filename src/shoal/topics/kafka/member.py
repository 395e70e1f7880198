"""Membership of a consumer group on Kafka: a consumer that joins and commits, and fetches nothing.

Made by `shoal.topics.kafka.topics`. What is assigned is read by a `shoal.topics.kafka.reader`. All members revoke
their partitions before a new generation begins, so each of them has to poll.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from shoal.core.clock import Clock
from shoal.core.errors import InvalidError, PreconditionError, problem
from shoal.topics.base import Assignment, TopicPartition
from shoal.topics.errors import RebalancedError
from shoal.topics.kafka.settings import KafkaSettings
from shoal.topics.kafka.translate import PASSING, REBALANCED, connect, error_of, generation_of, to_error, translated

_STEP_SECONDS = 0.05
#: One delivers an assignment, the next revokes it.
_LAST_POLLS = 3


@dataclass(frozen=True, slots=True)
class _Membership:
    """What a member has, and what proves it to the brokers."""

    assignment: Assignment
    proof: bytes


class KafkaMember:
    """One member. Belongs to one thread; the client library keeps it alive in the background."""

    def __init__(self, settings: KafkaSettings, group: str, topics: Sequence[str], *, name: str, clock: Clock) -> None:
        self._settings = settings
        self._group = group
        self._name = name
        self._clock = clock
        self._current = _Membership(Assignment(0, frozenset()), b"")
        self._told = self._current
        self._polling = threading.Lock()
        self._closed = False
        options = settings.for_member(group, name)
        self._consumer = connect(lambda: Consumer(options), settings.redaction)
        with translated("join"):
            self._consumer.subscribe(
                list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
            )

    @property
    def group(self) -> str:
        """The group's name."""
        return self._group

    @property
    def member_id(self) -> str:
        """Its own name. Brokers add to it when they list members."""
        return self._name

    def poll(self, timeout: float = 0.0) -> Assignment:
        """The assignment as it is now."""
        deadline = self._clock.monotonic() + timeout
        with self._polling:
            while True:
                self._require_open()
                left = deadline - self._clock.monotonic()
                with translated("poll"):
                    self._consumer.poll(max(0.0, min(_STEP_SECONDS, left)))
                if self._current != self._told or left <= 0:
                    self._told = self._current
                    return self._told.assignment

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store the group's offsets under the generation of the last `poll`."""
        self._require_open()
        bad = {each: offset for each, offset in offsets.items() if not isinstance(offset, int) or offset < 0}
        if bad:
            rules = [problem(str(each), offset, "must be an offset, from 0 on") for each, offset in bad.items()]
            raise InvalidError(rules, what="commit")
        foreign = sorted(offsets.keys() - self._told.assignment.partitions)
        if foreign and self._told == self._current:
            rules = [problem("partition", str(each), "must be one that this member has") for each in foreign]
            raise InvalidError(rules, what="commit")
        listed = [KafkaPartition(each.topic, each.partition, offset) for each, offset in offsets.items()]
        deadline = self._clock.monotonic() + self._settings.patience
        while listed and not self._try_commit(listed, last=self._clock.monotonic() >= deadline):
            threading.Event().wait(_STEP_SECONDS)

    def check_current(self) -> None:
        """Raise `RebalancedError` when the group has moved on since the last `poll`, as far as is known here."""
        # One that was declared dead commits from outside of the group, which the brokers allow once the
        # group is empty: so it is noticed here.
        generation = generation_of(self._consumer.consumer_group_metadata())
        told = self._told
        if told != self._current or not told.proof or generation != told.assignment.generation or generation < 0:
            raise self.rebalanced()

    def proof(self) -> bytes:
        """What a transaction needs to store offsets under the generation of the last `poll`."""
        return self._told.proof

    def rebalanced(self) -> RebalancedError:
        """What to raise when the brokers say that the generation of the last `poll` is over."""
        offered = self._told.assignment.generation
        return RebalancedError(
            self._group, offered=offered, current=max(self._current.assignment.generation, offered + 1)
        )

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Leave. A poll that waits in another thread ends with `PreconditionError`."""
        if not self._closed:
            self._closed = True
            with self._polling:
                # A pending assignment is delivered now: within its close the client hangs over it.
                with contextlib.suppress(KafkaException, RuntimeError):
                    self._consumer.unsubscribe()
                    for _ in range(_LAST_POLLS):
                        self._consumer.poll(0)
                self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -----------------------------------------------------------------------------------------------------

    def _try_commit(self, listed: list[Any], *, last: bool) -> bool:
        """Whether it is done; False when it may be tried again."""
        self.check_current()
        failed: list[KafkaError] = []
        with translated(f"commit of group {self._group}"):
            try:
                results = self._consumer.commit(offsets=listed, asynchronous=False) or ()
                failed.extend(each.error for each in results if each.error is not None)
            except KafkaException as error:
                first = error_of(error)
                if first is None:
                    raise
                failed.append(first)
        if any(error.code() in REBALANCED for error in failed):
            raise self.rebalanced()
        if failed and (last or failed[0].code() not in PASSING):
            raise to_error(failed[0], doing=f"commit of group {self._group}", topic=listed[0].topic)
        return not failed

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        # At the end and paused: membership is all that is wanted of this consumer.
        consumer.assign([KafkaPartition(each.topic, each.partition, OFFSET_END) for each in partitions])
        consumer.pause(partitions)
        proof = bytes(consumer.consumer_group_metadata())
        own = frozenset(TopicPartition(each.topic, each.partition) for each in partitions)
        self._current = _Membership(Assignment(generation_of(proof), own), proof)

    def _on_revoke(self, _consumer: Any, _partitions: list[Any]) -> None:
        self._current = _Membership(Assignment(self._current.assignment.generation, frozenset()), b"")

    def _require_open(self) -> None:
        if self._closed:
            raise PreconditionError("the member has left")
