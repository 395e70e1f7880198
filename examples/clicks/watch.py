"""Reads what the program writes, as it becomes readable, and measures how fresh it is.

A thread follows the topics; callers get what has come so far. Called by `shoal.cli.local.demo_stream`.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from clicks.audit import Came, Total
from shoal.core.clock import Clock
from shoal.core.errors import NotFoundError
from shoal.topics.base import Reader, Topics
from shoal.topics.local import LocalTopics

_TOPICS = ("joined", "rates", "late")
_LOOK_EVERY = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """One joined click: when it was appended, and when its row was read, in seconds since 1970."""

    appended: float
    readable: float

    @property
    def seconds(self) -> float:
        """How old it was."""
        return self.readable - self.appended


@dataclass(slots=True)
class Harvest:
    """What has come."""

    joined: list[int] = field(default_factory=list)
    totals: list[Total] = field(default_factory=list)
    late: set[int] = field(default_factory=set)
    samples: list[Sample] = field(default_factory=list)

    def add(self, topic: str, row: dict[str, Any], readable: float) -> None:
        """A row more; not those that only moved event time on."""
        if topic == "joined" and row["click"] >= 0:
            self.joined.append(row["click"])
            self.samples.append(Sample(row["sent_at"] / 1e6, readable))
        elif topic == "rates" and row["ad"]:
            start = datetime.fromisoformat(row["window_start"]).replace(tzinfo=UTC)
            self.totals.append(Total(row["ad"], round(start.timestamp() * 1000), row["shown"], row["clicked"]))
        elif topic == "late" and row["topic"] == "clicks":
            self.late.add(row["event"])


class Watch:
    """Follows the results of the program in a log."""

    def __init__(self, broker: str, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._lock = threading.Lock()
        self._harvest = Harvest()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="clicks-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def joined(self) -> int:
        """How many rows `joined` has."""
        with self._lock:
            return len(self._harvest.joined)

    def totals(self, since: int = 0) -> Sequence[Total]:
        """The rows of `rates`, from this one on."""
        with self._lock:
            return self._harvest.totals[since:]

    def samples(self, since: int = 0) -> Sequence[Sample]:
        """How fresh each joined row was, from this one on."""
        with self._lock:
            return self._harvest.samples[since:]

    def came(self) -> Came:
        """Everything so far, for `audit`."""
        with self._lock:
            harvest = self._harvest
            return Came(tuple(harvest.joined), tuple(harvest.totals), frozenset(harvest.late))

    def _follow(self) -> None:
        with LocalTopics(self._broker) as topics, topics.reader() as reader:
            followed: set[str] = set()
            while not self._closed.is_set():
                if len(followed) < len(_TOPICS):
                    followed |= self._begin(topics, reader, followed)
                self._read(reader)

    def _begin(self, topics: Topics, reader: Reader, followed: set[str]) -> set[str]:
        """Read topics that are there now, too; the program makes them when it starts."""
        found: set[str] = set()
        for name in set(_TOPICS) - followed:
            with contextlib.suppress(NotFoundError):
                partitions = topics.describe(name).topic_partitions()
                reader.assign(reader.positions() | topics.first_offsets(partitions))
                found.add(name)
        return found

    def _read(self, reader: Reader) -> None:
        fetched = reader.read(timeout=_LOOK_EVERY)
        if not fetched and not reader.positions():
            self._closed.wait(_LOOK_EVERY)
        now = self._clock.wall().timestamp()
        with self._lock:
            for each in fetched:
                for row in _rows(each.batch):
                    self._harvest.add(each.topic, row, now)


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    return (json.loads(value) for value in batch.column("value").to_pylist())


def quantile(samples: Sequence[Sample], share: float) -> float:
    """The age below which so many of them lie; not a number when there is none."""
    ordered = sorted(each.seconds for each in samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def calm(samples: Sequence[Sample], kills: Sequence[float]) -> list[Sample]:
    """Those that no kill held up: which were not on their way between a kill and the first row behind it."""
    silences = [(kill, _first_behind(samples, kill)) for kill in kills]
    return [each for each in samples if not any(each.appended < end and each.readable > kill for kill, end in silences)]


def longest_silence(samples: Sequence[Sample], kills: Sequence[float]) -> float:
    """The longest time from a kill to the first row of a click that was appended behind it."""
    return max((_first_behind(samples, kill) - kill for kill in kills), default=0.0)


def _first_behind(samples: Sequence[Sample], kill: float) -> float:
    return min((each.readable for each in samples if each.appended > kill), default=float("inf"))
