"""A `State` written down, so that a journal may end and the next one begin with what it came to.

The chunks that a journal made visible go to an index file of the same number (`shoal.topics.local.history.index`),
which is read only for reads of such old records. The rest is a document of a size that does not grow with the number of
appends: the first entry of the next journal. Both follow from the state alone, so it does not matter who writes them,
nor how many do at once.

Pure. Called by `shoal.topics.local.history.view`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import InternalError
from shoal.topics.local.history.replay import (
    Chunk,
    GroupState,
    IndexPart,
    MemberState,
    PartitionState,
    SegmentState,
    State,
    TopicState,
    WriterState,
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What to write when the journal `number` ends."""

    document: bytes
    """The first payload of the next journal."""

    chunks: list[Chunk]
    """The rows of the index file, in order."""


def take(state: State, number: int) -> Snapshot:
    """Write a state down, with the chunks of the journal `number` moved to its index file."""
    rows: list[Chunk] = []
    topics = [_topic_document(topic, number, rows) for topic in state.topics.values()]
    document = {
        "topics": topics,
        "sessions": sorted(state.sessions),
        "writers": [(name, writer.session, writer.epoch) for name, writer in state.writers.items()],
        "groups": [_group_document(name, group) for name, group in state.groups.items()],
        "segments": [
            (name, segment.topic, list(segment.ends.items())) for name, segment in sorted(state.segments.items())
        ],
        "last": (state.last_topic, state.last_epoch),
    }
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True)
    return Snapshot(document=text.encode("ascii"), chunks=rows)


def load(document: bytes) -> State:
    """The state that was written down. Raises `InternalError` for what is none."""
    try:
        found = json.loads(document)
        return _state(found)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise InternalError("the first entry of a journal is no snapshot") from error


def _topic_document(topic: TopicState, number: int, rows: list[Chunk]) -> list[Any]:
    partitions: list[Any] = []
    for partition in topic.partitions:
        parts = list(partition.index)
        if partition.chunks:
            start, end = partition.chunks[0].start, partition.chunks[-1].end
            parts.append(IndexPart(number, start, end, len(rows), len(partition.chunks)))
            rows.extend(partition.chunks)
        partitions.append((partition.first, partition.following, partition.length, parts))
    return [topic.number, topic.name, topic.retention_us, topic.retention_bytes, partitions]


def _group_document(name: str, group: GroupState) -> list[Any]:
    return [
        name,
        group.generation,
        [(member, each.session, each.topics) for member, each in group.members.items()],
        [(*partition, member) for partition, member in sorted(group.owners.items())],
        [(*partition, offset) for partition, offset in sorted(group.offsets.items())],
    ]


def _state(found: dict[str, Any]) -> State:
    state = State()
    for number, name, retention_us, retention_bytes, partitions in found["topics"]:
        state.numbers[name] = number
        state.topics[number] = TopicState(
            number=number,
            name=name,
            retention_us=retention_us,
            retention_bytes=retention_bytes,
            partitions=[
                PartitionState(
                    first=first, following=following, length=length, index=[IndexPart(*part) for part in parts]
                )
                for first, following, length, parts in partitions
            ],
        )
    state.sessions = set(found["sessions"])
    state.writers = {name: WriterState(session=session, epoch=epoch) for name, session, epoch in found["writers"]}
    state.groups = {
        name: GroupState(
            generation=generation,
            members={member: MemberState(session, tuple(topics)) for member, session, topics in members},
            owners={(topic, partition): member for topic, partition, member in owners},
            offsets={(topic, partition): offset for topic, partition, offset in offsets},
        )
        for name, generation, members, owners, offsets in found["groups"]
    }
    state.segments = {name: SegmentState(topic, dict(ends)) for name, topic, ends in found["segments"]}
    state.last_topic, state.last_epoch = found["last"]
    return state
