"""Appends to Kafka: nothing twice, and with a transactional id exactly once. Made by `shoal.topics.kafka.topics`.

Kafka keeps milliseconds, and none before 1970. Its client takes a timestamp of 0 for none at all, so 0 is written as
Kafka's own mark for "no timestamp", which `shoal.topics.kafka.reader` reads as 0.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NoReturn, Self

import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from shoal.core.clock import Clock
from shoal.core.errors import (
    ExhaustedError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    ShoalError,
    UnavailableError,
    problem,
)
from shoal.topics.base import Member, TopicPartition, check_records
from shoal.topics.errors import FencedError
from shoal.topics.kafka import interface
from shoal.topics.kafka.connection import Connection
from shoal.topics.kafka.member import KafkaMember
from shoal.topics.kafka.native_outbox import NativeOutbox
from shoal.topics.kafka.outbox import MessageOutbox, Outbox
from shoal.topics.kafka.settings import KafkaSettings
from shoal.topics.kafka.translate import FENCED, PURGED, REBALANCED, code_of, connect, error_of, to_error
from shoal.topics.partitioning import split

log = logging.getLogger(__name__)

#: How long to wait at a time for room in the queue, or for the rest of a flush.
_STEP_SECONDS = 0.05
#: How long to wait before a step of a transaction is tried again.
_RETRY_SECONDS = 0.01


class KafkaWriter:
    """One producer. Belongs to one thread."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        transactional_id: str | None,
        partition_count: Callable[[str], int],
        group_proof: Callable[[str], bytes],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._id = transactional_id
        self._partition_count = partition_count
        self._group_proof = group_proof
        self._clock = clock
        self._final: ShoalError | None = None
        self._turn = 0
        self._appended = False
        self._open = False
        self._closed = False
        self._connection = Connection(settings.redaction, clock)
        options = settings.for_writer(transactional_id) | {"error_cb": self._connection.on_error}
        self._producer = connect(lambda: Producer(options), settings.redaction)
        self._outbox = _outbox(self._producer, options, is_native=settings.native)
        if transactional_id is not None:
            self._begin_life()

    def append(self, topic: str, batch: Any, *, partition: int | Any | None = None) -> None:
        """Append records; see `shoal.topics.base.Writer`."""
        self._check_usable()
        records = check_records(batch)
        if self._id is not None and not self._open:
            raise PreconditionError("no transaction is open", hint="call begin() first")
        if not records.num_rows:
            return
        # What is heard of earlier records is told before any of these is taken.
        self._listen("append")
        _check_stamps(records.column(2))
        count = self._partition_count(topic)
        # All shares at once: a partition that is none is refused before anything is written.
        shares = list(split(records, count=count, partition=partition, without_key=self._turn % count))
        self._appended = True
        for share in shares:
            self._produce(topic, share.partition, share.batch)
        self._turn += 1

    def flush(self) -> None:
        """Wait until the brokers have acknowledged everything."""
        self._check_usable()
        self._flush()

    def begin(self) -> None:
        """Open a transaction."""
        self._check_usable()
        if self._id is None:
            raise PreconditionError("this writer has no transactional id")
        if self._open:
            raise PreconditionError("a transaction is open already")
        self._transact("begin", lambda _left: self._producer.begin_transaction())
        self._open = True

    def commit(
        self,
        *,
        offsets: Mapping[str, Mapping[TopicPartition, int]] | None = None,
        member: Member | None = None,
    ) -> None:
        """Make the transaction visible, and with it store the offsets of groups; all of it or nothing.

        Waits up to `patience` for each group, and for the transaction itself.
        """
        self._check_usable()
        if not self._open:
            raise PreconditionError("no transaction is open")
        for place in {each for places in (offsets or {}).values() for each in places}:
            # The client would try again and again until patience ends.
            if not 0 <= place.partition < self._partition_count(place.topic):
                raise NotFoundError("partition", str(place))
        for group, places in (offsets or {}).items():
            ours = isinstance(member, KafkaMember) and member.group == group
            self._send_offsets(group, places, member if isinstance(member, KafkaMember) and ours else None)
        self._transact("commit", self._producer.commit_transaction)
        self._open = False
        self._outbox.forget()

    def abort(self) -> None:
        """Throw the open transaction away."""
        if self._open and self._final is None:
            self._transact("abort", self._producer.abort_transaction)
        self._open = False
        self._outbox.forget()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Flush, abort an open transaction, and let go."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._open:
                self._abort_at_last()
            elif self._final is None:
                self._flush()
        finally:
            self._outbox.close()
            # One that was fenced says so again, as an error or as a warning.
            with contextlib.suppress(KafkaException, RuntimeError), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                self._producer.purge()
                self._producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -----------------------------------------------------------------------------------------------------

    def _begin_life(self) -> None:
        """Fence older writers of the same id, and abort what they left open."""
        try:
            self._transact("init", self._producer.init_transactions)
        except BaseException:
            self._outbox.close()
            raise

    def _produce(self, topic: str, partition: int, batch: Any) -> None:
        """Hand records over; wait for room in the client's queue for as long as we have patience."""
        deadline = self._clock.monotonic() + self._settings.patience
        is_known = True
        while True:
            taken = 0
            try:
                taken = self._outbox.send(topic, partition, batch)
            except KafkaException as error:
                if code_of(error) != KafkaError._UNKNOWN_PARTITION or not is_known:  # noqa: SLF001 the library's own name
                    self._raise(error, "append", topic)
                # It was added, and the client has not heard of it.
                is_known = False
                self._ask("append", lambda: self._producer.list_topics(topic, self._settings.patience))
                continue
            if taken == batch.num_rows:
                return
            batch = batch.slice(taken)
            if taken:
                deadline = self._clock.monotonic() + self._settings.patience
            self._listen("append", _STEP_SECONDS)
            if self._clock.monotonic() > deadline:
                words = f"append: the queue to the brokers is full and does not empty{self._connection.last}"
                raise ExhaustedError(words)

    def _flush(self) -> None:
        deadline = self._clock.monotonic() + self._settings.patience
        # Reports and lines to be logged count as well; without records there is nothing to wait for.
        while (left := self._ask("flush", self._outbox.waiting)) and self._appended:
            self._listen("flush", _STEP_SECONDS)
            if self._clock.monotonic() > deadline:
                words = f"flush: the brokers have not acknowledged {left} records in time{self._connection.last}"
                raise UnavailableError(words)
        self._appended = False
        self._raise_failure()

    def _listen(self, doing: str, timeout: float = 0.0) -> None:
        """Hear what became of records, and raise what went wrong."""
        self._ask(doing, lambda: self._outbox.poll(timeout))
        self._connection.raise_if_denied()
        self._raise_failure()

    def _abort_at_last(self) -> None:
        try:
            self.abort()
        except FencedError:
            log.debug("writer %r was fenced with a transaction open", self._id)
        except ShoalError as error:
            # Nothing more can be done: brokers abort it themselves after the transaction's time-out.
            log.warning("writer %r left a transaction open: %s", self._id, error)

    def _send_offsets(self, group: str, places: Mapping[TopicPartition, int], member: KafkaMember | None) -> None:
        listed = [KafkaPartition(each.topic, each.partition, offset) for each, offset in places.items()]
        if not listed:
            return
        try:
            if member is not None:
                member.check_current()
            proof = self._group_proof(group) if member is None else member.proof()
            send = self._producer.send_offsets_to_transaction
            self._transact("commit", lambda left: send(listed, proof, left), topic=listed[0].topic)
        except _GenerationOverError as error:
            self.abort()
            raise (PreconditionError(str(error)) if member is None else member.rebalanced()) from error
        except PreconditionError:  # the group has moved on, or this writer was fenced
            self.abort()
            raise

    def _transact(self, doing: str, step: Callable[[float], Any], *, topic: str = "") -> None:
        """Carry out a step of a transaction; what may be tried again is, until patience ends."""
        deadline = self._clock.monotonic() + self._settings.patience
        while True:
            left = deadline - self._clock.monotonic()
            try:
                step(max(0.1, left))
                return
            except KafkaException as error:
                first = error_of(error)
                if first is None or not first.retriable() or left <= 0:
                    self._raise(error, doing, topic)
            threading.Event().wait(_RETRY_SECONDS)

    def _ask(self, doing: str, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except KafkaException as error:  # it also reports that the writer is unusable
            self._raise(error, doing, "")

    def _raise(self, error: Exception, doing: str, topic: str) -> NoReturn:
        first = error_of(error)
        if first is None:
            raise UnavailableError(f"{doing}: {error}") from error
        if first.code() in REBALANCED:
            raise _GenerationOverError(first.str()) from error
        self._note_end(first, doing)
        raise self._final or to_error(first, doing=doing, topic=topic) from error

    def _note_end(self, error: KafkaError, doing: str) -> None:
        """After some errors a writer is of no more use."""
        if error.code() in FENCED:
            reason = "a newer writer has its transactional id, or its transaction took too long"
            self._final = FencedError(self._id or "", epoch=0, reason=reason)
        elif error.fatal():
            self._final = UnavailableError(f"{doing}: {error.str()}", hint="open a new writer")

    def _raise_failure(self) -> None:
        failure = self._outbox.take_failure()
        if failure is not None:
            error, topic = failure
            if error.code() in PURGED and self._open and self._final is None:
                # Thrown away when the transaction ended. Whether the writer was fenced, its end says.
                self.abort()
            self._note_end(error, "append")
            raise self._final or to_error(error, doing="append", topic=topic)

    def _check_usable(self) -> None:
        if self._closed:
            raise PreconditionError("the writer is closed")
        if self._final is not None:
            raise self._final


class _GenerationOverError(Exception):
    """The brokers say that a group has moved on; who knows the group says it better."""


def _check_stamps(column: Any) -> None:
    if column.null_count < len(column):
        lowest = pc.min(column).as_py()
        if lowest < 0:
            raise InvalidError([problem("timestamp", lowest, "must not be before 1970 on Kafka")], what="append")


def _outbox(producer: Any, options: Mapping[str, Any], *, is_native: bool) -> Outbox:
    """The quickest way to hand records to a producer."""
    library = interface.find() if is_native else None
    handle = None if library is None else library.handle_of(producer)
    if library is None or handle is None:
        return MessageOutbox(producer)
    return NativeOutbox(
        producer,
        library,
        handle,
        most_records=int(options["queue.buffering.max.messages"]),
        most_bytes=int(options["queue.buffering.max.kbytes"]) * 1024,
        on_error=options["error_cb"],
        lines=options["logger"],
    )
