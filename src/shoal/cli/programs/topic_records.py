"""Reads some records of a topic, and shows them to people and programs. Called by `shoal topic peek`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from shoal.cli import output
from shoal.cli.programs.topic_lines import no_constant
from shoal.core.clock import Clock
from shoal.core.errors import DeadlineError
from shoal.topics.base import Reset, TopicPartition, Topics

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_READ_SECONDS = 0.25
_READ_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Record:
    """One record, as it was read."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    def row(self) -> list[str]:
        """For people."""
        moment = time_of(self.timestamp)
        when = "" if moment is None else output.local_time(moment)
        return [str(self.partition), str(self.offset), when, shown(self.key), shown(self.value)]

    def document(self, topic: str) -> dict[str, Any]:
        """For programs."""
        return {
            "topic": topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp": time_of(self.timestamp),
            **document_of("key", self.key),
            **document_of("value", self.value),
            "headers": [{"name": name, **document_of("value", value)} for name, value in self.headers],
        }


class Look:
    """Reads the newest or the oldest records of some partitions, up to what is there at the beginning."""

    def __init__(self, count: int, *, oldest: bool, clock: Clock) -> None:
        self._clock = clock
        self._count = count
        self._oldest = oldest
        self._found: dict[TopicPartition, list[Record]] = {}

    def read(
        self, topics: Topics, partitions: Sequence[TopicPartition], offset: int | None, seconds: float
    ) -> list[Record]:
        """The records in the order of their times. Raises `DeadlineError`."""
        first, ends = topics.first_offsets(partitions), topics.next_offsets(partitions)
        starts = first if self._oldest else {each: max(first[each], ends[each] - self._count) for each in partitions}
        if offset is not None:
            starts = {each: max(first[each], offset) for each in partitions}
        left = {each for each in partitions if starts[each] < ends[each]}
        self._found = {each: [] for each in partitions}
        until = self._clock.monotonic() + seconds
        with topics.reader(reset=Reset.EARLIEST) as reader:
            reader.assign({each: starts[each] for each in left})
            while left:
                if self._clock.monotonic() >= until:
                    names = ", ".join(str(each) for each in sorted(left))
                    raise DeadlineError(f"{names} could not be read within {seconds:g} s", hint="--timeout gives more")
                for fetched in reader.read(max_records=self._count, max_bytes=_READ_BYTES, timeout=_READ_SECONDS):
                    self._take(fetched, ends[fetched.topic_partition])
                here = reader.positions()
                done = {each for each in left if here[each] >= ends[each] or len(self._found[each]) >= self._count}
                reader.pause(done)
                left -= done
        return self._chosen()

    def _take(self, fetched: Any, end: int) -> None:
        found = self._found[fetched.topic_partition]
        for each in fetched.batch.slice(0, self._count - len(found)).to_pylist():
            if each["offset"] < end:
                headers = tuple(each["headers"] or ())
                found.append(
                    Record(fetched.partition, each["offset"], each["timestamp"], each["key"], each["value"], headers)
                )

    def _chosen(self) -> list[Record]:
        everything = [record for records in self._found.values() for record in records]
        everything.sort(key=lambda each: (each.timestamp, each.partition, each.offset))
        return everything[: self._count] if self._oldest else everything[-self._count :]


def time_of(microseconds: int) -> datetime | None:
    """The time of a record; None where no calendar has it."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return None


def shown(content: bytes | None) -> str:
    """A key or a value for people: its text, or how many bytes it has."""
    if content is None:
        return "null"
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"({len(content)} bytes)"


def document_of(field: str, content: bytes | None) -> dict[str, Any]:
    """A key or a value for programs: objects and lists of JSON as they are, else text, else hexadecimal digits.

    What is in digits has another name, `value_hex`: nobody takes it for a text.
    """
    if content is None:
        return {field: None}
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return {f"{field}_hex": content.hex()}
    if field == "value" and text[:1] in ("{", "["):
        try:
            return {field: json.loads(text, parse_constant=no_constant)}
        except (ValueError, RecursionError):
            pass
    return {field: text}
