"""Reads partitions of Kafka from explicit offsets, committed records only. Made by `shoal.topics.kafka.topics`.

The client fetches ahead in the background into one queue for all partitions. A read takes from that queue by a feed
(`shoal.topics.kafka.feed`), keeps the surplus in one fetch buffer per partition (`fetch_buffer`), and returns batches.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from shoal.core.clock import Clock
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, ShoalError, UnavailableError, problem
from shoal.topics.base import DEFAULT_MAX_BYTES, DEFAULT_MAX_RECORDS, FETCHED, Fetched, Reset, TopicPartition
from shoal.topics.errors import OffsetOutOfRangeError
from shoal.topics.kafka import interface
from shoal.topics.kafka.connection import Connection
from shoal.topics.kafka.feed import Feed, MessageFeed, Piece, Trouble
from shoal.topics.kafka.fetch_buffer import FetchBuffer
from shoal.topics.kafka.native_feed import NativeFeed
from shoal.topics.kafka.settings import KafkaSettings
from shoal.topics.kafka.translate import PASSING, UNKNOWN_TOPIC, connect, to_error, translated

log = logging.getLogger(__name__)

#: Messages that are taken from the client at a time.
_CHUNK = 4096
#: How many times more is taken than was asked for, in search of partitions that have returned nothing.
_SEARCHES = 4
#: How long a waiting read does not see that it was woken.
_STEP_SECONDS = 0.05
#: After an assignment that returns nothing, and then from time to time, a reader checks that its topics exist: the
#: client waits for topics that are gone and says nothing. How long it may take to be told.
_FIRST_LOOK_SECONDS = 1.0
_LOOK_SECONDS = 5.0
_LOOK_PATIENCE = 0.5
#: How long the leaders of partitions may take, together, to confirm that these are at their end.
_CONFIRM_SECONDS = 0.5
#: Arrow's binary columns end at 2 GiB.
_MOST_BYTES = 1024**3
#: The size that the first message is taken to have.
_FIRST_GUESS = 16_384


class KafkaReader:
    """One consumer that is in no group. Belongs to one thread, except for `wake` and `close`."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        reset: Reset,
        name: str,
        clock: Clock,
        columns: Collection[str] = FETCHED.names,
    ) -> None:
        self._settings = settings
        self._reset = reset
        self._clock = clock
        self._buffers: dict[TopicPartition, FetchBuffer] = {}
        self._message_size = _FIRST_GUESS
        self._complaint: tuple[KafkaError, str] | None = None
        self._look_at = 0.0
        self._woken = threading.Event()
        self._reading = threading.Lock()
        self._closed = False
        self._connection = Connection(settings.redaction, clock)
        self._consumer, self._feed = self._connect(settings.for_reader(name), frozenset(columns))

    def _connect(self, options: Mapping[str, Any], columns: frozenset[str]) -> tuple[Any, Feed]:
        """A consumer, and the quickest way to what it fetches."""
        library = interface.find() if self._settings.native else None
        on_error = self._connection.on_error
        if library is not None:
            consumer = connect(lambda: Consumer(dict(options)), self._settings.redaction)
            handle = library.handle_of(consumer)
            if handle is not None:
                return consumer, NativeFeed(columns, library, handle, on_error=on_error, lines=options["logger"])
            consumer.close()
        consumer = connect(lambda: Consumer({**options, "error_cb": on_error}), self._settings.redaction)
        return consumer, MessageFeed(consumer, columns)

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, each from its offset."""
        self._require_open()
        bad = {each: offset for each, offset in offsets.items() if not isinstance(offset, int) or offset < 0}
        if bad:
            rules = [problem(str(each), offset, "must be an offset, from 0 on") for each, offset in bad.items()]
            raise InvalidError(rules, what="assign")
        self._buffers = {each: FetchBuffer(offset) for each, offset in offsets.items()}
        self._complaint = None
        self._look_at = self._clock.monotonic() + _FIRST_LOOK_SECONDS
        with translated("assign"):
            self._feed.attach(offsets)
            self._consumer.assign([KafkaPartition(each.topic, each.partition, at) for each, at in offsets.items()])

    def read(
        self,
        *,
        max_records: int = DEFAULT_MAX_RECORDS,
        max_bytes: int = DEFAULT_MAX_BYTES,
        timeout: float = 0.0,
    ) -> Sequence[Fetched]:
        """What there is; if there is nothing, wait up to `timeout` seconds for something."""
        deadline = self._clock.monotonic() + timeout
        max_bytes = min(max_bytes, _MOST_BYTES)
        with self._reading:
            while True:
                self._require_open()
                self._fill(max_records, max_bytes)
                self._raise_complaint()
                self._mend()
                taken = self._take(max_records, max_bytes)
                if not taken:
                    self._look_for_topics()
                left = deadline - self._clock.monotonic()
                if taken or left <= 0:
                    return taken
                if self._woken.is_set():  # not before: a wake is for a read that waits
                    self._woken.clear()
                    return []
                self._check_connection()
                self._keep(self._take_in(1, min(left, _STEP_SECONDS)))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Give nothing of these until they are resumed."""
        fresh = [each for each in self._assigned(partitions) if not self._buffers[each].paused]
        with translated("pause"):
            self._consumer.pause([KafkaPartition(each.topic, each.partition) for each in fresh])
        for each in fresh:
            self._buffers[each].paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Give what these have, again."""
        back = [each for each in self._assigned(partitions) if self._buffers[each].paused]
        with translated("resume"):
            self._consumer.resume([KafkaPartition(each.topic, each.partition) for each in back])
        for each in back:
            self._buffers[each].paused = False

    def positions(self) -> dict[TopicPartition, int]:
        """The offset that each assigned partition goes on with."""
        return {each: buffer.position for each, buffer in self._buffers.items()}

    def at_end(self) -> set[TopicPartition]:
        """The partitions whose end the client has seen, and whose fetch buffer is empty."""
        return {each for each, buffer in self._buffers.items() if buffer.is_at_end}

    def confirm_end(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Those at whose end their leader says that nothing follows."""
        self._require_open()
        asked = self.at_end() & set(partitions)
        deadline = self._clock.monotonic() + _CONFIRM_SECONDS
        found: set[TopicPartition] = set()
        for each in sorted(asked):
            left = deadline - self._clock.monotonic()
            if left <= 0:
                break
            try:
                with translated("read", topic=each.topic):
                    ends = self._consumer.get_watermark_offsets(KafkaPartition(each.topic, each.partition), left)
            except ShoalError as error:
                log.debug("%s: its end cannot be confirmed: %s", each, error)
                continue
            if ends is not None and ends[1] <= self._buffers[each].position:
                found.add(each)
        return found

    def wake(self) -> None:
        """End a `read` that waits, or the next one that would."""
        self._woken.set()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Let go. A read that waits in another thread ends with `PreconditionError`."""
        if not self._closed:
            self._closed = True
            with self._reading:
                self._buffers.clear()
                self._feed.close()
                self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -----------------------------------------------------------------------------------------------------
    # From the client

    def _fill(self, max_records: int, max_bytes: int) -> None:
        """Take what the client has fetched, about as much as is asked for."""
        searches = _SEARCHES
        while self._buffers:
            records = sum(buffer.records for buffer in self._buffers.values() if not buffer.paused)
            size = sum(buffer.size for buffer in self._buffers.values() if not buffer.paused)
            wanted = min(_CHUNK, max_records - records, 1 + (max_bytes - size) // self._message_size)
            if wanted <= 0 or size >= max_bytes:
                # One partition may have filled the client's queue; what others have comes after that.
                if not searches or size >= self._settings.fetch_ahead or not self._someone_is_silent():
                    return
                searches -= 1
                wanted = _CHUNK
            taken = self._take_in(wanted, 0.0)
            if not taken:
                return
            self._keep(taken)

    def _take_in(self, most: int, timeout: float) -> Sequence[Piece | Trouble]:
        with translated("read"):
            return self._feed.take(most, timeout)

    def _someone_is_silent(self) -> bool:
        """Whether nothing is known of a partition: neither a buffered record, nor that there is none."""
        if len(self._buffers) < 2:
            return False
        return any(
            not buffer.records and buffer.end is None and not buffer.paused and buffer.failure is None
            for buffer in self._buffers.values()
        )

    def _keep(self, taken: Iterable[Piece | Trouble]) -> None:
        """Buffer it all. What follows an error is kept, too: the client returns it only once."""
        for each in taken:
            buffer = self._buffers.get(each.place)
            if isinstance(each, Trouble):
                self._keep_error(each, buffer)
                continue
            self._connection.is_up()
            if buffer is not None:  # else it is no longer assigned
                before = buffer.size
                buffer.add(each.batch)
                self._message_size = 1 + (buffer.size - before) // each.batch.num_rows

    def _keep_error(self, trouble: Trouble, buffer: FetchBuffer | None) -> None:
        error, code = trouble.error, trouble.error.code()
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001 the library's own name
            self._connection.is_up()
            if buffer is not None:
                buffer.reach_end(trouble.offset)
        elif buffer is not None and (code in UNKNOWN_TOPIC or code == KafkaError._AUTO_OFFSET_RESET):  # noqa: SLF001
            buffer.failure = error
        elif code in PASSING:
            log.debug("%s: %s", trouble.place, error.str())
        else:
            self._complaint = (error, trouble.place.topic)

    # -----------------------------------------------------------------------------------------------------
    # To the caller

    def _take(self, max_records: int, max_bytes: int) -> list[Fetched]:
        ready = [each for each, buffer in self._buffers.items() if buffer.records and not buffer.paused]
        taken: list[Fetched] = []
        for index, place in enumerate(ready):
            buffer, share = self._buffers[place], len(ready) - index
            records, size = buffer.records, buffer.size
            batches = buffer.take(max(1, max_records // share), max(1, max_bytes // share), at_least_one=not taken)
            taken.extend(Fetched(place.topic, place.partition, batch) for batch in batches)
            max_records -= records - buffer.records
            max_bytes -= size - buffer.size
            if max_records <= 0 or max_bytes <= 0:
                break
        if len(ready) > 1:  # who came first this time comes last the next
            self._buffers[ready[0]] = self._buffers.pop(ready[0])
        return taken

    # -----------------------------------------------------------------------------------------------------
    # When something is wrong

    def _mend(self) -> None:
        """Handle partitions that the client has stopped fetching, once their buffers are empty."""
        for place, buffer in self._buffers.items():
            if buffer.failure is None or buffer.records:
                continue
            if buffer.failure.code() in UNKNOWN_TOPIC:
                self._check_there(place)
                offset = buffer.position
            else:
                offset = self._start_of(place, buffer.position)
            # In this state the client refuses to seek.
            partition = KafkaPartition(place.topic, place.partition, offset)
            with translated("read", topic=place.topic):
                self._consumer.incremental_unassign([partition])
                self._feed.attach([place])
                self._consumer.incremental_assign([partition])
                if buffer.paused:
                    self._consumer.pause([partition])
            buffer.move(offset)

    def _look_for_topics(self) -> None:
        """Take note of partitions that are gone."""
        is_time = self._clock.monotonic() >= self._look_at or self._feed.has_complained()
        if not is_time or self._connection.down_for() > 0:
            return
        self._look_at = self._clock.monotonic() + _LOOK_SECONDS
        for topic in sorted({each.topic for each in self._buffers}):
            try:
                there = self._partitions_of(topic, _LOOK_PATIENCE)
            except UnavailableError as error:
                log.debug("looking for topic %s: %s", topic, error)
                self._connection.is_down()
                return
            for each, buffer in self._buffers.items():
                if each.topic == topic and each.partition not in there:
                    buffer.failure = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)

    def _check_there(self, place: TopicPartition) -> None:
        """Raise `NotFoundError` unless it is back: brokers that have just started may not know all topics yet."""
        if place.partition not in self._partitions_of(place.topic, self._settings.patience):
            raise NotFoundError("topic", str(place), hint="create it first")

    def _partitions_of(self, topic: str, patience: float) -> Container[int]:
        with translated("read", topic=topic):
            found = self._consumer.list_topics(topic, patience).topics.get(topic)
        if found is None or (found.error is not None and found.error.code() in UNKNOWN_TOPIC):
            return ()
        if found.error is not None:
            raise to_error(found.error, doing="read", topic=topic)
        partitions: Container[int] = found.partitions
        return partitions

    def _start_of(self, place: TopicPartition, offset: int) -> int:
        """Where to go on when the brokers say that there is no such offset."""
        partition = KafkaPartition(place.topic, place.partition)
        with translated("read", topic=place.topic):
            first, following = self._consumer.get_watermark_offsets(partition, self._settings.patience)
        if first <= offset <= following:
            return offset
        if self._reset is Reset.FAIL:
            raise OffsetOutOfRangeError(place.topic, place.partition, offset=offset, first=first, following=following)
        chosen = int(first if self._reset is Reset.EARLIEST else following)
        log.warning("%s: offset %d is outside %d…%d; going on with %d", place, offset, first, following, chosen)
        return chosen

    def _raise_complaint(self) -> None:
        self._connection.raise_if_denied()
        if self._complaint is not None:
            (error, topic), self._complaint = self._complaint, None
            raise to_error(error, doing="read", topic=topic)

    def _check_connection(self) -> None:
        """Raise `UnavailableError` when there has been no broker for longer than we have patience."""
        if self._connection.down_for() < self._settings.patience:
            return
        # It may be back and have had nothing to say.
        try:
            with translated("read"):
                self._consumer.list_topics(timeout=1.0)
        except UnavailableError as error:
            raise UnavailableError(f"read: no broker can be reached{self._connection.last}") from error
        self._connection.is_up()

    def _assigned(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        self._require_open()
        wanted = list(dict.fromkeys(partitions))
        unknown = sorted(set(wanted) - self._buffers.keys())
        if unknown:
            raise InvalidError([problem("partition", str(each), "must be assigned") for each in unknown])
        return wanted

    def _require_open(self) -> None:
        if self._closed:
            raise PreconditionError("the reader is closed")
