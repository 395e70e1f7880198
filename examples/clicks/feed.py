"""Sends traffic to the topics of `clicks.clicks`: `python -m clicks.feed [FOLDER]`.

The folder is the program's data directory, where its log is, `.shoal/clicks` by default.

It writes down only now and then how far it has come. Killed and started again, it sends everything since then again:
that is how events come to be there twice. Asked to end it writes down exactly where it is.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from clicks.traffic import CHUNK, Click, Impression, chunks
from shoal.core.clock import Clock, SystemClock, epoch_ms
from shoal.core.errors import InvalidError, problem
from shoal.core.shape import build
from shoal.topics.base import Writer, ensure_topic, records
from shoal.topics.codecs import JsonCodec
from shoal.topics.local import LocalTopics

PARTITIONS = 2
#: The folder of the log, below the data directory of an app.
LOG = "topics"
#: Traffic begins at a whole one of these, in milliseconds, so that the first window of results is a full one.
_BEGINS_AT = 2000
#: Chunks between two notes of the progress.
_NOTE_EVERY = 10
#: How much later than all others the last events are, in milliseconds.
_LONG_AFTER = 60_000
_PROGRESS = "feed.json"
_JSON = JsonCodec()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far traffic has come: when it began, in milliseconds, and the next chunk."""

    start: int
    next: int


def read_progress(folder: Path) -> Progress | None:
    """What the last life of the feed wrote down. Raises `InvalidError` if that is no progress."""
    path = folder / _PROGRESS
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        hint = "without it, the feed starts again from the beginning"
        raise InvalidError([problem(str(path), None, "must be JSON")], hint=hint) from error
    return build(Progress, found, what=str(path))


def write_progress(folder: Path, progress: Progress) -> None:
    """Write it down, whole or not at all."""
    new = folder / f"{_PROGRESS}.new"
    new.write_text(json.dumps(asdict(progress)), encoding="utf-8")
    new.replace(folder / _PROGRESS)


def make_topics(topics: LocalTopics) -> None:
    """The topics that traffic goes to."""
    for name in ("impressions", "clicks"):
        ensure_topic(topics, name, partitions=PARTITIONS)


def append_impressions(writer: Writer, impressions: list[Impression], *, partition: int | None = None) -> None:
    """Append some. Without a partition, the number decides."""
    rows = [{"impression": each.impression, "ad": each.ad, "shown_at": each.shown_at} for each in impressions]
    _append(writer, "impressions", rows, partition)


def append_clicks(writer: Writer, clicks: list[Click], clock: Clock, *, partition: int | None = None) -> None:
    """Append some, with the time of this in microseconds: freshness is counted from it."""
    now = int(clock.wall().timestamp() * 1_000_000)
    rows = [
        {"click": each.click, "impression": each.impression, "clicked_at": each.clicked_at, "sent_at": now}
        for each in clicks
    ]
    _append(writer, "clicks", rows, partition)


def _append(writer: Writer, topic: str, rows: list[dict[str, Any]], partition: int | None) -> None:
    if rows:
        values = _JSON.encode(pa.RecordBatch.from_pylist(rows)).values
        keys = [str(row["impression"]).encode() for row in rows]
        writer.append(topic, records(values, keys=keys), partition=partition)


def run(folder: Path, topics: LocalTopics, asked_to_end: threading.Event, clock: Clock) -> None:
    """Send what is due, until asked to end."""
    make_topics(topics)
    progress = read_progress(folder) or Progress(epoch_ms(clock.wall()) // _BEGINS_AT * _BEGINS_AT, 0)
    write_progress(folder, progress)
    with topics.writer() as writer:
        for number, (impressions, clicks) in enumerate(chunks(progress.start, progress.next), progress.next):
            due = progress.start + (number + 1) * CHUNK
            if asked_to_end.wait(max(0.0, (due - epoch_ms(clock.wall())) / 1000)):
                write_progress(folder, Progress(progress.start, number))
                return
            append_impressions(writer, impressions)
            append_clicks(writer, clicks, clock)
            writer.flush()
            if number % _NOTE_EVERY == 0:
                write_progress(folder, Progress(progress.start, number))


def close_windows(folder: Path, progress: Progress, clock: Clock) -> None:
    """Let event time pass the end of every window, when the feed has ended.

    Event time is what events say: one for each partition, long after all others, moves it on. They have numbers below
    0, so that they are not taken for traffic.
    """
    time = progress.start + progress.next * CHUNK + _LONG_AFTER
    with LocalTopics(folder / LOG) as topics, topics.writer() as writer:
        for partition in range(PARTITIONS):
            last = -1 - partition
            append_impressions(writer, [Impression(last, "", time, time)], partition=partition)
            append_clicks(writer, [Click(last, last, time, time)], clock, partition=partition)
        writer.flush()


def main() -> None:
    """The process."""
    asked_to_end = threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: asked_to_end.set())
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".shoal/clicks")
    folder.mkdir(parents=True, exist_ok=True)
    with LocalTopics(folder / LOG) as topics:
        run(folder, topics, asked_to_end, SystemClock())


if __name__ == "__main__":
    main()
