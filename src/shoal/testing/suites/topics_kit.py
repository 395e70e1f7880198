"""What the conformance suite of topics is made of: the fixtures to override, and how its tests wait and read.

`shoal.testing.suites.topics` has the suite; its parts derive from `TopicsKit`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from shoal.core.clock import SystemClock
from shoal.core.entropy import SystemEntropy
from shoal.topics.base import Assignment, Fetched, Member, Reader, TopicPartition, Topics


class TopicsKit:
    """Fixtures and tools."""

    __test__ = False

    patience: ClassVar[float] = 30.0
    """How long something may take that must happen, in seconds."""

    pause: ClassVar[float] = 0.2
    """How long is waited for something that must not happen, in seconds."""

    @pytest.fixture
    def open_topics(self) -> Callable[[], Topics]:
        """Opens a connection to a backend that is this test's own; closes them all at the end."""
        raise NotImplementedError

    @pytest.fixture
    def topics(self, open_topics: Callable[[], Topics]) -> Topics:
        return open_topics()

    @pytest.fixture
    def name(self) -> str:
        """The name of a topic, or of a group, that nobody has used."""
        return f"t-{SystemEntropy().token(8)}"

    def until(self, condition: Callable[[], object]) -> bool:
        """Whether it becomes true within our patience."""
        clock, pause = SystemClock(), threading.Event()
        deadline = clock.monotonic() + self.patience
        while not condition():
            if clock.monotonic() > deadline:
                return False
            pause.wait(0.02)
        return True

    def some(self, reader: Reader, **bounds: int) -> list[Fetched]:
        """What a read gives that must give something."""
        fetched: list[Fetched] = []

        def found() -> bool:
            fetched.extend(reader.read(timeout=1.0, **bounds))
            return bool(fetched)

        assert self.until(found)
        return fetched

    def collect(self, reader: Reader, count: int) -> list[Fetched]:
        """Read until there are so many records, or our patience ends."""
        fetched: list[Fetched] = []

        def enough() -> bool:
            fetched.extend(reader.read(timeout=0.2))
            return sum(map(_rows, fetched)) >= count

        self.until(enough)
        return fetched

    def read(self, topics: Topics, offsets: Mapping[TopicPartition, int], count: int) -> list[Fetched]:
        """So many records, and no more, from these offsets on."""
        with topics.reader() as reader:
            reader.assign(offsets)
            fetched = self.collect(reader, count)
            fetched.extend(reader.read(timeout=0.01))
        assert sum(map(_rows, fetched)) == count
        return _joined(fetched)

    def values(self, fetched: Iterable[Fetched]) -> list[bytes | None]:
        """The values, in the order of the batches."""
        return [value for each in fetched for value in each.batch["value"].to_pylist()]

    def offsets(self, fetched: Iterable[Fetched]) -> list[int]:
        """The offsets, in the order of the batches."""
        return [offset for each in fetched for offset in each.batch["offset"].to_pylist()]

    def assigned(self, member: Member, condition: Callable[[Assignment], bool]) -> Assignment:
        """Poll until the assignment is as expected."""
        found: list[Assignment] = []

        def settled() -> bool:
            found.append(member.poll(0.1))
            return condition(found[-1])

        assert self.until(settled)
        return found[-1]

    def both(
        self, one: Member, other: Member, condition: Callable[[frozenset[Any], frozenset[Any]], bool]
    ) -> tuple[Assignment, Assignment]:
        """Poll two members until they agree on a generation and have the expected partitions."""
        found: list[tuple[Assignment, Assignment]] = []

        def settled() -> bool:
            found.append((one.poll(0.05), other.poll(0.05)))
            first, second = found[-1]
            return first.generation == second.generation and condition(first.partitions, second.partitions)

        assert self.until(settled)
        return found[-1]

    def moved_on(self, old: Member, new: Member) -> None:
        """Bring the group to a generation that `old` does not know.

        A backend whose members wait for each other before a generation begins overrides this.
        """
        assert self.until(lambda: new.poll(0.1).partitions)


def _rows(fetched: Fetched) -> int:
    return int(fetched.batch.num_rows)


def _joined(fetched: list[Fetched]) -> list[Fetched]:
    """One for each partition."""
    parts: dict[TopicPartition, list[Any]] = {}
    for each in fetched:
        parts.setdefault(each.topic_partition, []).append(each.batch)
    return [Fetched(where.topic, where.partition, pa.concat_batches(batches)) for where, batches in parts.items()]
