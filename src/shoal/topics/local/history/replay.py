"""What a journal means: fold its entries, one after the other, into a `State`.

Whether an entry counts is decided purely by those before it. So everybody who reads the same journal has the same
topics, the same offsets, the same owners of partitions, and the same opinion on which writer is fenced. Nothing here
knows a clock, a file or a process.

Called by `shoal.topics.local.history.view`; `shoal.topics.local.history.snapshots` writes a `State` down.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shoal.topics.local.history.entries import (
    CloseWriter,
    Commit,
    CreateTopic,
    DeleteTopic,
    EndSession,
    Entry,
    JoinGroup,
    LeaveGroup,
    OpenSession,
    OpenWriter,
    Roll,
    Trim,
)
from shoal.topics.local.history.groups import Partition, share


class Verdict(enum.Enum):
    """What became of an entry. All but the first mean: void."""

    VALID = "valid"
    SESSION_ENDED = "the session has ended"
    SUPERSEDED = "a newer writer has the same transactional id"
    REBALANCED = "the group has another generation"
    NO_TOPIC = "the topic does not exist"
    EXISTS = "the topic exists"
    NOTHING_TO_DO = "nothing to do"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict, and the number that goes with it.

    The number is that of a topic that was created, the epoch of a writer, or the generation of a group.
    """

    verdict: Verdict
    value: int = 0


VALID = Outcome(Verdict.VALID)
SESSION_ENDED = Outcome(Verdict.SESSION_ENDED)
NO_TOPIC = Outcome(Verdict.NO_TOPIC)
NOTHING_TO_DO = Outcome(Verdict.NOTHING_TO_DO)


class Chunk(NamedTuple):
    """Visible records of one partition that lie together in a segment."""

    start: int
    """The offset of the first."""
    rows: int
    segment: str
    position: int
    length: int
    checksum: int
    at_us: int
    """When it was committed, by the writer's wall clock."""

    @property
    def end(self) -> int:
        """The offset after the last."""
        return self.start + self.rows


class IndexPart(NamedTuple):
    """The chunks of one partition in the index file of an ended journal: rows `row` to `row + rows` of it."""

    number: int
    start: int
    end: int
    row: int
    rows: int


@dataclass(slots=True)
class PartitionState:
    """One partition: what can be read, and where it lies. Older chunks are in `index`, newer ones in `chunks`."""

    first: int = 0
    following: int = 0
    length: int = 0
    index: list[IndexPart] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        """Make the next records visible."""
        self.starts.append(chunk.start)
        self.chunks.append(chunk)
        self.following = chunk.end
        self.length += chunk.length

    def trim(self, first: int, freed: int) -> None:
        """Forget the records before `first`."""
        self.first = first
        self.length = max(0, self.length - freed)
        gone = bisect_right(self.starts, first)
        if gone and self.chunks[gone - 1].end > first:
            gone -= 1
        del self.starts[:gone]
        del self.chunks[:gone]
        self.index = [part for part in self.index if part.end > first]


@dataclass(slots=True)
class TopicState:
    """One topic."""

    number: int
    name: str
    retention_us: int | None
    retention_bytes: int | None
    partitions: list[PartitionState]


@dataclass(slots=True)
class WriterState:
    """Who holds a transactional id."""

    session: str
    epoch: int


@dataclass(slots=True)
class MemberState:
    """A member of a group."""

    session: str
    topics: tuple[str, ...]


@dataclass(slots=True)
class GroupState:
    """A consumer group."""

    generation: int = 0
    members: dict[str, MemberState] = field(default_factory=dict)
    owners: dict[Partition, str] = field(default_factory=dict)
    offsets: dict[Partition, int] = field(default_factory=dict)


@dataclass(slots=True)
class SegmentState:
    """A segment that holds visible records: up to which offset of each partition."""

    topic: int
    ends: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class State:
    """What the entries so far mean."""

    topics: dict[int, TopicState] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    writers: dict[str, WriterState] = field(default_factory=dict)
    groups: dict[str, GroupState] = field(default_factory=dict)
    segments: dict[str, SegmentState] = field(default_factory=dict)
    last_topic: int = 0
    last_epoch: int = 0
    rolled: bool = False

    def apply(self, entry: Entry) -> Outcome:
        """Take in the next entry, and say what became of it."""
        return _STEPS[type(entry)](self, entry)

    def topic_named(self, name: str) -> TopicState | None:
        """The topic that has this name now."""
        number = self.numbers.get(name)
        return None if number is None else self.topics[number]

    def partition(self, topic: int, partition: int) -> PartitionState | None:
        """One partition, if there is such."""
        found = self.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]


def replay(entries: Iterable[Entry]) -> State:
    """The meaning of a whole journal."""
    state = State()
    for entry in entries:
        state.apply(entry)
        if state.rolled:
            break
    return state


# ---------------------------------------------------------------------------------------------------------
# One step for each kind of entry


def _create_topic(state: State, entry: CreateTopic) -> Outcome:
    if entry.name in state.numbers:
        return Outcome(Verdict.EXISTS, state.numbers[entry.name])
    state.last_topic += 1
    number = state.last_topic
    state.numbers[entry.name] = number
    state.topics[number] = TopicState(
        number=number,
        name=entry.name,
        retention_us=entry.retention_us,
        retention_bytes=entry.retention_bytes,
        partitions=[PartitionState() for _ in range(entry.partitions)],
    )
    _share_again(state, lambda group: any(entry.name in member.topics for member in group.members.values()))
    return Outcome(Verdict.VALID, number)


def _delete_topic(state: State, entry: DeleteTopic) -> Outcome:
    topic = state.topics.pop(entry.topic, None)
    if topic is None:
        return NO_TOPIC
    del state.numbers[topic.name]
    for name in [name for name, segment in state.segments.items() if segment.topic == entry.topic]:
        del state.segments[name]
    for group in state.groups.values():
        for partition in [each for each in group.offsets if each[0] == entry.topic]:
            del group.offsets[partition]
    _share_again(state, lambda group: any(topic.name in member.topics for member in group.members.values()))
    _forget_empty_groups(state)
    return VALID


def _open_session(state: State, entry: OpenSession) -> Outcome:
    state.sessions.add(entry.session)
    return VALID


def _end_session(state: State, entry: EndSession) -> Outcome:
    if entry.session not in state.sessions:
        return NOTHING_TO_DO
    state.sessions.remove(entry.session)
    for name in [name for name, writer in state.writers.items() if writer.session == entry.session]:
        del state.writers[name]
    touched: set[int] = set()
    for group in state.groups.values():
        dead = [name for name, member in group.members.items() if member.session == entry.session]
        for name in dead:
            del group.members[name]
        if dead:
            touched.add(id(group))
    _share_again(state, lambda group: id(group) in touched)
    _forget_empty_groups(state)
    return VALID


def _open_writer(state: State, entry: OpenWriter) -> Outcome:
    if entry.session not in state.sessions:
        return SESSION_ENDED
    state.last_epoch += 1
    state.writers[entry.writer] = WriterState(session=entry.session, epoch=state.last_epoch)
    return Outcome(Verdict.VALID, state.last_epoch)


def _close_writer(state: State, entry: CloseWriter) -> Outcome:
    if state.writers.get(entry.writer) != WriterState(session=entry.session, epoch=entry.epoch):
        return NOTHING_TO_DO
    del state.writers[entry.writer]
    return VALID


def _commit(state: State, entry: Commit) -> Outcome:
    refusal = _refusal(state, entry)
    if refusal is not None:
        return refusal
    for draft in entry.chunks:
        partition = state.topics[draft.topic].partitions[draft.partition]
        chunk = Chunk(
            partition.following, draft.rows, draft.segment, draft.position, draft.length, draft.checksum, entry.at_us
        )
        partition.add(chunk)
        segment = state.segments.get(draft.segment)
        if segment is None:
            segment = state.segments[draft.segment] = SegmentState(draft.topic)
        segment.ends[draft.partition] = chunk.end
    for group, topic, number, offset in entry.offsets:
        state.groups.setdefault(group, GroupState()).offsets[topic, number] = offset
    return VALID


def _refusal(state: State, entry: Commit) -> Outcome | None:
    if entry.session not in state.sessions:
        return SESSION_ENDED
    if entry.writer:
        holder = state.writers.get(entry.writer)
        if holder is None or holder.epoch != entry.epoch or holder.session != entry.session:
            return Outcome(Verdict.SUPERSEDED, holder.epoch if holder else 0)
    if any(state.partition(draft.topic, draft.partition) is None for draft in entry.chunks):
        return NO_TOPIC
    if any(state.partition(topic, number) is None for _, topic, number, _ in entry.offsets):
        return NO_TOPIC
    fence = entry.fence
    if fence is not None:
        group = state.groups.get(fence.group)
        if group is None or fence.member not in group.members or group.generation != fence.generation:
            return Outcome(Verdict.REBALANCED, 0 if group is None else group.generation)
    return None


def _join_group(state: State, entry: JoinGroup) -> Outcome:
    if entry.session not in state.sessions:
        return SESSION_ENDED
    group = state.groups.setdefault(entry.group, GroupState())
    group.members[entry.member] = MemberState(session=entry.session, topics=entry.topics)
    _share_again(state, lambda each: each is group)
    return Outcome(Verdict.VALID, group.generation)


def _leave_group(state: State, entry: LeaveGroup) -> Outcome:
    group = state.groups.get(entry.group)
    member = None if group is None else group.members.get(entry.member)
    if group is None or member is None or member.session != entry.session:
        return NOTHING_TO_DO
    del group.members[entry.member]
    _share_again(state, lambda each: each is group)
    _forget_empty_groups(state)
    return VALID


def _trim(state: State, entry: Trim) -> Outcome:
    partition = state.partition(entry.topic, entry.partition)
    if partition is None or partition.first != entry.since or not entry.since < entry.first <= partition.following:
        return NOTHING_TO_DO
    partition.trim(entry.first, entry.freed)
    for name, segment in list(state.segments.items()):
        if segment.topic == entry.topic and segment.ends.get(entry.partition, entry.first + 1) <= entry.first:
            del segment.ends[entry.partition]
            if not segment.ends:
                del state.segments[name]
    return VALID


def _roll(state: State, _entry: Roll) -> Outcome:
    state.rolled = True
    return VALID


def _share_again(state: State, chosen: Callable[[GroupState], bool]) -> None:
    counts = {number: len(topic.partitions) for number, topic in state.topics.items()}
    for group in state.groups.values():
        if chosen(group):
            subscriptions = {
                name: frozenset(state.numbers[topic] for topic in member.topics if topic in state.numbers)
                for name, member in group.members.items()
            }
            group.generation += 1
            group.owners = share(subscriptions, counts, group.owners)


def _forget_empty_groups(state: State) -> None:
    # An old member's fence names the member as well, so the numbers of a forgotten group may begin again.
    for name in [name for name, group in state.groups.items() if not group.members and not group.offsets]:
        del state.groups[name]


_STEPS: dict[type[Any], Callable[[State, Any], Outcome]] = {
    CreateTopic: _create_topic,
    DeleteTopic: _delete_topic,
    OpenSession: _open_session,
    EndSession: _end_session,
    OpenWriter: _open_writer,
    CloseWriter: _close_writer,
    Commit: _commit,
    JoinGroup: _join_group,
    LeaveGroup: _leave_group,
    Trim: _trim,
    Roll: _roll,
}
