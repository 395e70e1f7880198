"""The journal as this process has read it, shared by its threads: every look at the log goes through here.

`refresh` reads on. `submit` appends an entry and reads on to it, so that its author knows whether it counts. When the
journal has ended, the process that ended it makes the next one, and after a while any process that notices. Which one
does not matter: the next journal follows from the state.

Called by everything else in `shoal.topics.local`; calls `journal`, `replay`, `snapshots` and `index`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from bisect import bisect_right

from shoal.core.entropy import Entropy
from shoal.core.errors import InternalError, NotFoundError, PreconditionError
from shoal.core.faults import reach
from shoal.topics.base import TopicPartition
from shoal.topics.errors import LogFullError
from shoal.topics.local.history import index, snapshots
from shoal.topics.local.history.entries import Entry, Roll, Stamp, decode, encode
from shoal.topics.local.history.journal import Journal, make_journal, open_newest, read_snapshot
from shoal.topics.local.history.replay import Chunk, Outcome, PartitionState, State, TopicState
from shoal.topics.local.places import Places, typed_errors
from shoal.topics.local.settings import Fsync, LocalLogSettings

log = logging.getLogger(__name__)

#: Looks, and seconds between them, for the process that ended a journal to make the next one. Then any process does.
_LOOKS, _LOOK_EVERY = 100, 0.001


class View:
    """One process's copy of what the journal means.

    Attributes:
        lock: held while the state is read or changed. Only threads of this process ever wait for it.
        state: what the journal means, as far as it was read. Look at it under the lock.
        author: the name under which this process submits entries.
    """

    def __init__(self, places: Places, settings: LocalLogSettings, entropy: Entropy) -> None:
        self.places = places
        self.settings = settings
        self.lock = threading.RLock()
        self.author = entropy.token(12)
        self.index = index.Index(places)
        self.state = State()
        self._process = os.getpid()
        self._count = 0
        self._awaited: Stamp | None = None
        self._outcome: Outcome | None = None
        self._stuck: LogFullError | None = None
        self._snapshot_length = 0
        self._pause = threading.Event()  # never set
        #: Whether it is this process that ends the journal now.
        self._ends_journal = False
        self._journal = self._open()

    # ------------------------------------------------------------------------------------------------
    # Reading on

    def refresh(self) -> State:
        """Read what was appended since the last time."""
        with self.lock:
            self._take(self._journal.read())
            while self.state.rolled and self._advance():
                pass
            return self.state

    def _take(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            if self.state.rolled:  # what follows the end of a journal is void
                return
            stamp, entry = decode(payload)
            outcome = self.state.apply(entry)
            if stamp == self._awaited:
                self._outcome = outcome

    # ------------------------------------------------------------------------------------------------
    # Writing

    def submit(self, entry: Entry) -> Outcome:
        """Append an entry and learn what became of it.

        Raises `LogFullError` when there was no room for it; then it is void.
        """
        if os.getpid() != self._process:
            raise PreconditionError("a local log that was opened before a fork cannot be used after it")
        with self.lock:
            outcome = self._submit(entry)
            self._roll_if_due()
        if self.settings.fsync is Fsync.ALWAYS:
            # If the journal has ended since, the next one began durably with what the entry came to.
            self.sync()
        return outcome

    def _submit(self, entry: Entry) -> Outcome:
        while True:
            self.refresh()
            if self._stuck is not None:
                raise self._stuck
            self._count += 1
            self._awaited, self._outcome = Stamp(self.author, self._count), None
            journal = self._journal
            journal.append(encode(entry, self._awaited))
            reach("topics.entry.appended")
            self.refresh()
            if self._outcome is not None:
                return self._outcome
            # The journal ended just before the entry: it is void, and is written again to the next one.
            if self._journal is journal and self._stuck is None:
                raise InternalError("an entry that was appended to the journal cannot be found in it")

    def sync(self) -> None:
        """Wait until the journal is on disk."""
        with self.lock:
            journal = self._journal
            descriptor = journal.duplicate()
        # Outside the lock: a slow disk must not hold up readers and leases.
        try:
            with typed_errors(journal.path):
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Let go of the files."""
        with self.lock:
            self._journal.close()
            self.index.close()

    # ------------------------------------------------------------------------------------------------
    # From one journal to the next

    def _open(self) -> Journal:
        journal = open_newest(self.places)
        if journal is None:
            self._make_next(0)
            journal = open_newest(self.places)
        if journal is None:
            raise InternalError(f"{self.places.journals} has no journal", path=self.places.journals)
        self._begin(journal)
        return journal

    def _begin(self, journal: Journal) -> None:
        document, payloads = read_snapshot(journal)
        self._snapshot_length = len(document)
        self.state = snapshots.load(document)
        self._take(payloads)

    def _roll_if_due(self) -> None:
        # In proportion to the snapshot, so that a large one is not written for a few entries.
        entries = self._journal.position - self._snapshot_length
        if entries > self._room() and self._has_space(self._journal.position):
            self._ends_journal = True
            try:
                with contextlib.suppress(LogFullError):
                    self._submit(Roll())
            finally:
                self._ends_journal = False

    def _room(self) -> int:
        return max(self.settings.journal_bytes, 2 * self._snapshot_length)

    def _has_space(self, length: int) -> bool:
        """Whether the disk has room for the next journal, its index and more.

        Where it has not, the journal continues in the space set aside for it: otherwise no process could write the
        entries that free space.
        """
        usage = os.statvfs(self.places.root)
        return usage.f_bavail * usage.f_frsize > 4 * (self._room() + length)

    def _advance(self) -> bool:
        """Go on from a journal that has ended to the next. False when there is no room to make one."""
        number = self._journal.number
        try:
            journal = self._next_of_others(number)
            if journal is None:
                reach("topics.roll.before")
                self._make_next(number)
                journal = open_newest(self.places, after=number)
        except LogFullError as error:
            self._stuck = error
            return False
        if journal is None:
            raise InternalError(f"journal {number} has ended and there is no next one", number=number)
        self._stuck = None
        self._journal.close()
        self._journal = journal
        self._begin(journal)
        return True

    def _next_of_others(self, number: int) -> Journal | None:
        """The journal after this one, if another process has made it. Waits for the process that ended this one.

        Once: while there is no room for one, every look at the log comes here.
        """
        for _ in range(0 if self._ends_journal or self._stuck is not None else _LOOKS):
            journal = open_newest(self.places, after=number)
            if journal is not None:
                return journal
            self._pause.wait(_LOOK_EVERY)
        return open_newest(self.places, after=number)

    def _make_next(self, number: int) -> None:
        snapshot = snapshots.take(self.state, number)
        durable = self.settings.fsync is not Fsync.NEVER
        if snapshot.chunks:
            path = self.places.index(number)
            with typed_errors(path), self.places.making(path, durable=durable) as part:
                index.write(part, snapshot.chunks)
        set_aside = 2 * max(self.settings.journal_bytes, 2 * len(snapshot.document))
        make_journal(self.places, number + 1, snapshot.document, set_aside=set_aside, durable=durable)

    @property
    def journal_number(self) -> int:
        """The number of the journal in use."""
        return self._journal.number

    # ------------------------------------------------------------------------------------------------
    # Looking things up

    def topic(self, name: str) -> TopicState:
        """The topic of this name. Raises `NotFoundError`."""
        with self.lock:
            found = self.state.topic_named(name) or self.refresh().topic_named(name)
        if found is None:
            raise NotFoundError("topic", name, hint="create it first")
        return found

    def partition(self, wanted: TopicPartition) -> PartitionState:
        """One partition. Raises `NotFoundError`."""
        topic = self.topic(wanted.topic)
        if not 0 <= wanted.partition < len(topic.partitions):
            raise NotFoundError("partition", str(wanted), hint=f"the topic has {len(topic.partitions)}")
        return topic.partitions[wanted.partition]

    def chunks(self, partition: PartitionState, offset: int, *, max_rows: int, max_length: int) -> list[Chunk]:
        """The chunks that hold the records from `offset` on, up to these bounds and at least one; none at the end.

        Under the lock. `offset` must lie in the partition. Raises `FileNotFoundError` for an index that is gone.
        """
        found: list[Chunk] = []
        rows, length = 0, 0
        while partition.index and offset < partition.index[-1].end and rows < max_rows and length < max_length:
            at = bisect_right(partition.index, offset, key=lambda part: part.start) - 1
            some = self.index.find(
                partition.index[at], offset, max_rows=max_rows - rows, max_length=max_length - length
            )
            found += some
            rows += some[-1].end - offset
            length += sum(chunk.length for chunk in some)
            offset = some[-1].end
        for at in range(max(bisect_right(partition.starts, offset) - 1, 0), len(partition.chunks)):
            if found and (rows >= max_rows or length >= max_length):
                break
            chunk = partition.chunks[at]
            found.append(chunk)
            rows += chunk.end - max(chunk.start, offset)
            length += chunk.length
        return found
