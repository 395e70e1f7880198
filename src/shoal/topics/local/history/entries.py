"""The entries of the journal. One process writes an entry, every process reads it.

An entry is a request. Whether it counts is decided by `shoal.topics.local.history.replay` from what stands before
it. Each carries a `Stamp`, by which its author finds it again when reading on.

Pure. Called by `replay`, `view` and the modules that submit entries.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from shoal.core.errors import InternalError

_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True)


class Stamp(NamedTuple):
    """Who wrote an entry, and the author's running number of it."""

    author: str
    number: int


class ChunkDraft(NamedTuple):
    """Records of one partition that lie in a segment; they have no offsets yet."""

    topic: int
    """The number of the topic; a name that is deleted and made again has another number."""
    partition: int
    segment: str
    position: int
    length: int
    rows: int
    checksum: int


@dataclass(frozen=True, slots=True)
class MemberFence:
    """A commit counts only if the group has this generation and this member."""

    group: str
    member: str
    generation: int


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """A new topic; void when the name is taken."""

    name: str
    partitions: int
    retention_us: int | None
    retention_bytes: int | None


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """No more topic of this number."""

    topic: int


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A process begins to write and to be a member."""

    session: str


@dataclass(frozen=True, slots=True)
class EndSession:
    """It ended, or it was found dead. Everything it says from now on is void."""

    session: str


@dataclass(frozen=True, slots=True)
class OpenWriter:
    """A session takes a transactional id over from its previous owner."""

    session: str
    writer: str


@dataclass(frozen=True, slots=True)
class CloseWriter:
    """A transactional id is let go."""

    session: str
    writer: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Records become visible and offsets of groups are stored, all or nothing.

    `writer` is empty for a writer without a transactional id, which only its session fences.
    """

    session: str
    writer: str
    epoch: int
    at_us: int
    chunks: tuple[ChunkDraft, ...]
    offsets: tuple[tuple[str, int, int, int], ...]
    """(group, topic, partition, offset)."""
    fence: MemberFence | None


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """A new member; the group gets a new generation."""

    session: str
    group: str
    member: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """One member fewer; the group gets a new generation."""

    session: str
    group: str
    member: str


@dataclass(frozen=True, slots=True)
class Trim:
    """Records before `first` of a partition are gone, if it begins with `since` still. They had `freed` bytes."""

    topic: int
    partition: int
    since: int
    first: int
    freed: int


@dataclass(frozen=True, slots=True)
class Roll:
    """This journal ends here. What follows in this file is void, and has to be written again to the next one."""


Entry = (
    CreateTopic
    | DeleteTopic
    | OpenSession
    | EndSession
    | OpenWriter
    | CloseWriter
    | Commit
    | JoinGroup
    | LeaveGroup
    | Trim
    | Roll
)

_KINDS: dict[str, type[Any]] = {
    "create-topic": CreateTopic,
    "delete-topic": DeleteTopic,
    "open-session": OpenSession,
    "end-session": EndSession,
    "open-writer": OpenWriter,
    "close-writer": CloseWriter,
    "leave-group": LeaveGroup,
    "trim": Trim,
    "roll": Roll,
}
_NAMES: dict[type[Any], str] = {kind: name for name, kind in _KINDS.items()}


def encode(entry: Entry, stamp: Stamp) -> bytes:
    """An entry as the payload of a frame."""
    return _ENCODER.encode([*stamp, *_body(entry)]).encode("ascii")


def decode(payload: bytes) -> tuple[Stamp, Entry]:
    """The inverse of `encode`. What has a right checksum and cannot be read is a bug, or a newer program's."""
    try:
        author, number, kind, *fields = json.loads(payload)
        return Stamp(author, number), _entry(kind, fields)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise InternalError(f"an entry of the journal cannot be read: {payload[:200]!r}") from error


def _body(entry: Entry) -> list[Any]:
    if isinstance(entry, Commit):
        return _commit_body(entry)
    if isinstance(entry, JoinGroup):
        return ["join-group", entry.session, entry.group, entry.member, list(entry.topics)]
    return [_NAMES[type(entry)], *(getattr(entry, name) for name in type(entry).__slots__)]


def _commit_body(entry: Commit) -> list[Any]:
    # Names of segments are long and the same for many chunks: they are written once.
    segments: dict[str, int] = {}
    chunks = [
        (
            chunk.topic,
            chunk.partition,
            segments.setdefault(chunk.segment, len(segments)),
            chunk.position,
            chunk.length,
            chunk.rows,
            chunk.checksum,
        )
        for chunk in entry.chunks
    ]
    fence = entry.fence and (entry.fence.group, entry.fence.member, entry.fence.generation)
    return [
        "commit",
        entry.session,
        entry.writer,
        entry.epoch,
        entry.at_us,
        list(segments),
        chunks,
        entry.offsets,
        fence,
    ]


def _entry(kind: str, fields: list[Any]) -> Entry:
    if kind == "commit":
        session, writer, epoch, at_us, segments, chunks, offsets, fence = fields
        return Commit(
            session=session,
            writer=writer,
            epoch=epoch,
            at_us=at_us,
            chunks=tuple(
                ChunkDraft(topic, partition, segments[segment], position, length, rows, checksum)
                for topic, partition, segment, position, length, rows, checksum in chunks
            ),
            offsets=tuple((group, topic, partition, offset) for group, topic, partition, offset in offsets),
            fence=MemberFence(*fence) if fence else None,
        )
    if kind == "join-group":
        session, group, member, topics = fields
        return JoinGroup(session, group, member, tuple(topics))
    entry: Entry = _KINDS[kind](*fields)
    return entry
