"""The local log as a `shoal.topics.base.Topics`: opens the directory, and makes writers, readers and members.

For one host, and it says so: `spans_hosts` is False, and a directory on a network file system is refused.

    with LocalTopics("/var/lib/shoal/topics") as topics:
        topics.create("clicks", partitions=4)

Called by the engines and `shoal.cli`; calls everything else in `shoal.topics.local`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from shoal.core.entropy import Entropy, SystemEntropy
from shoal.core.errors import InvalidError, PreconditionError, Problem, problem
from shoal.core.host import boot_id
from shoal.core.ids import IDENTIFIER_RULE, is_identifier
from shoal.core.shape import check
from shoal.topics.base import FETCHED, Reset, Retention, TopicDescription, TopicPartition
from shoal.topics.local.drafts import Drafts, Holdings
from shoal.topics.local.history.entries import Commit, CreateTopic, DeleteTopic
from shoal.topics.local.history.replay import TopicState, Verdict
from shoal.topics.local.history.view import View
from shoal.topics.local.leases import HostClock, SystemHostClock
from shoal.topics.local.member import LocalMember, stored_offsets
from shoal.topics.local.places import Places
from shoal.topics.local.reader import LocalReader
from shoal.topics.local.segments import Segments
from shoal.topics.local.session import Session
from shoal.topics.local.settings import LocalLogSettings
from shoal.topics.local.upkeep import Upkeep
from shoal.topics.local.writer import LocalWriter

MAX_PARTITIONS = 1024
_MICROSECOND = timedelta(microseconds=1)

G = TypeVar("G", LocalWriter, LocalReader, LocalMember)


class LocalTopics:
    """A connection of this process to a local log.

    A process that only reads leaves no trace. The first writer or member begins a session: a lease, and threads that
    keep it, until `close`. A log that was opened before a fork cannot be used after it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        settings: LocalLogSettings | None = None,
        *,
        clock: HostClock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self._settings = settings or LocalLogSettings()
        check(self._settings)
        self._clock = clock or SystemHostClock()
        self._entropy = entropy or SystemEntropy()
        self._boot = boot_id().ljust(36)
        places = Places(Path(directory).absolute(), self._entropy)
        self._view = View(places, self._settings, self._entropy)
        self._segments = Segments(places, self._boot)
        self._holdings = Holdings()
        self._upkeep = Upkeep(self._view, self._holdings, self._clock)
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._lives = 0
        self._opened: list[LocalWriter | LocalReader | LocalMember] = []
        self._closed = False

    @property
    def spans_hosts(self) -> bool:
        """Never: a local log serves the processes of one host."""
        return False

    @property
    def directory(self) -> Path:
        """Where it lies."""
        return self._view.places.root

    # ------------------------------------------------------------------------------------------------
    # Topics

    def create(self, topic: str, *, partitions: int = 1, retention: Retention | None = None) -> TopicDescription:
        """Make a topic."""
        self._require_open()
        kept = retention or Retention()
        problems = _topic_problems(topic, partitions, kept)
        if problems:
            raise InvalidError(problems, what="topic")
        age = None if kept.age is None else kept.age // _MICROSECOND
        outcome = self._view.submit(CreateTopic(topic, partitions, age, kept.size))
        if outcome.verdict is Verdict.EXISTS:
            raise PreconditionError(f"topic {topic!r} exists", topic=topic)
        return TopicDescription(name=topic, partitions=partitions, retention=kept)

    def names(self) -> tuple[str, ...]:
        """The topics, sorted."""
        self._require_open()
        with self._view.lock:
            return tuple(sorted(self._view.refresh().numbers))

    def describe(self, topic: str) -> TopicDescription:
        """What a topic is."""
        return _description(self._fresh_topic(topic))

    def delete(self, topic: str) -> None:
        """Remove a topic."""
        self._view.submit(DeleteTopic(self._fresh_topic(topic).number))

    def first_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each that can still be read."""
        self._require_open()
        with self._view.lock:
            self._view.refresh()
            return {each: self._view.partition(each).first for each in partitions}

    def next_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last visible record of each."""
        self._require_open()
        with self._view.lock:
            self._view.refresh()
            return {each: self._view.partition(each).following for each in partitions}

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The offsets that are stored for a group."""
        self._require_open()
        with self._view.lock:
            state = self._view.refresh()
            found = state.groups.get(group)
            offsets = {} if found is None else found.offsets
            return {
                TopicPartition(state.topics[topic].name, partition): offset
                for (topic, partition), offset in sorted(offsets.items())
            }

    def store_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets of a group that has no members."""
        self._require_open()
        if not group:
            raise InvalidError([problem("group", group, "is required")], what="commit")
        with self._view.lock:
            found = self._view.refresh().groups.get(group)
        if found is not None and found.members:
            raise PreconditionError(f"group {group!r} has members, which commit its offsets themselves")
        entry = Commit(
            session=self._live_session().name,
            writer="",
            epoch=0,
            at_us=self._clock.wall_us(),
            chunks=(),
            offsets=tuple(stored_offsets(self._view, group, offsets)),
            fence=None,
        )
        outcome = self._view.submit(entry)
        if outcome.verdict is not Verdict.VALID:
            raise PreconditionError(f"offsets of group {group!r} are not stored: {outcome.verdict.value}")

    # ------------------------------------------------------------------------------------------------
    # Writers, readers, members

    def writer(self, *, transactional_id: str | None = None) -> LocalWriter:
        """A writer."""
        self._require_open()
        if transactional_id is not None and not transactional_id:
            raise InvalidError([problem("transactional_id", transactional_id, "must not be empty")], what="writer")
        session = self._live_session()
        drafts = Drafts(self._view.places, self._settings, self._clock, session, self._holdings)
        writer = LocalWriter(self._view, session, drafts, self._clock, transactional_id=transactional_id)
        return self._keep(writer)

    def reader(self, *, reset: Reset = Reset.FAIL, columns: Collection[str] = FETCHED.names) -> LocalReader:
        """A reader."""
        self._require_open()
        reader = LocalReader(self._view, self._segments, self._clock, reset=reset)
        return self._keep(reader)

    def member(self, group: str, topics: Sequence[str]) -> LocalMember:
        """Join a group."""
        self._require_open()
        problems = [problem("topic", each, IDENTIFIER_RULE) for each in topics if not is_identifier(each)]
        if not group:
            problems.append(problem("group", group, "must not be empty"))
        if isinstance(topics, str) or not topics:
            problems.append(problem("topics", topics, "must be a list with at least one name"))
        if problems:
            raise InvalidError(problems, what="member")
        name = f"{group}-{self._entropy.token(12)}"
        member = LocalMember(self._view, self._clock, self._live_session, group=group, topics=topics, name=name)
        return self._keep(member)

    def close(self) -> None:
        """Close everything that came from it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.ExitStack() as stack:
            stack.callback(self._segments.close)
            stack.callback(self._view.close)
            stack.callback(self._upkeep.close)
            if self._session is not None:
                stack.callback(self._session.close)
            for each in self._opened:
                stack.callback(each.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------

    def _live_session(self) -> Session:
        """The session in use; a new one when the last was taken for dead."""
        with self._lock:
            if self._session is not None and self._session.is_alive():
                return self._session
            old = self._session
            self._lives += 1
            name = f"{self._view.author}.{self._lives}"
            self._session = Session(self._view, self._clock, name=name, boot=self._boot)
            self._session.each_round(self._find_hung_members)
            self._upkeep.start()
        if old is not None:
            old.close()
        return self._session

    def _keep(self, opened: G) -> G:
        """Remember what to close at the end."""
        with self._lock:
            self._opened = [each for each in self._opened if not each.closed]
            self._opened.append(opened)
        return opened

    def _find_hung_members(self) -> None:
        limit = self._settings.poll_limit.total_seconds()
        for each in list(self._opened):
            if isinstance(each, LocalMember):
                each.give_up_if_hung(limit)

    def _fresh_topic(self, name: str) -> TopicState:
        self._require_open()
        with self._view.lock:
            self._view.refresh()
            return self._view.topic(name)

    def _require_open(self) -> None:
        if self._closed:
            raise PreconditionError("the log is closed")


def _description(topic: TopicState) -> TopicDescription:
    age = None if topic.retention_us is None else timedelta(microseconds=topic.retention_us)
    return TopicDescription(
        name=topic.name,
        partitions=len(topic.partitions),
        retention=Retention(age=age, size=topic.retention_bytes),
    )


def _topic_problems(topic: str, partitions: int, retention: Retention) -> list[Problem]:
    problems: list[Problem] = []
    if not is_identifier(topic):
        problems.append(problem("name", topic, IDENTIFIER_RULE))
    if not 1 <= partitions <= MAX_PARTITIONS:
        problems.append(problem("partitions", partitions, f"must be between 1 and {MAX_PARTITIONS}"))
    if retention.age is not None and retention.age <= timedelta(0):
        problems.append(problem("retention.age", retention.age, "must be more than nothing"))
    if retention.size is not None and retention.size <= 0:
        problems.append(problem("retention.size", retention.size, "must be more than nothing"))
    return problems
