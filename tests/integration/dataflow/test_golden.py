"""Killed with -9 at every fault point, twice, and started again at other widths: the results are one golden file.

Windows, sessions, an interval join and a process function with timers, from topics to files and to a topic.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.core import faults
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.topics.base import records
from tests.integration.dataflow.golden_job import BUCKET, GAP, NEAR, events
from tests.integration.dataflow.test_topics import read

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "dataflow" / "crash.jsonl"
#: What a sink that is exact never comes to: it appends within transactions, and those are visible when committed. And
#: what a log comes to only now and then, and a short life never: the tests of its upkeep do.
OUTSIDE = {"topics.append.after", "topics.collect.looked"}
POINTS = [name for name in faults.POINTS if name.startswith(("dataflow.", "topics.")) and name not in OUTSIDE]
#: What a life of the job comes to once at least, and on a busy machine no more often.
ONCE = ("manifest", "publish", "record")
STARTS = {"dataflow.start.claimed", "dataflow.start.fenced", "dataflow.recover.before", "dataflow.recover.after"}
RARE = {"topics.roll.before", *(f"dataflow.{each}.{when}" for each in ONCE for when in ("before", "after"))} | STARTS
DEADLY = -signal.SIGKILL

Life = Callable[..., int]


@pytest.fixture(scope="module")
def nursery() -> Iterator[subprocess.Popen[str]]:
    """A process that forks the lives of the job."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.integration.dataflow.golden_job"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
    ) as process:
        yield process


@pytest.fixture
def live(nursery: subprocess.Popen[str], tmp_path: Path) -> Life:
    """Runs the job once, in a process of its own; gives how that ended."""
    fill(str(tmp_path / "log"))

    def run(**order: Any) -> int:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        nursery.stdin.write(json.dumps({"root": str(tmp_path), **order}) + "\n")
        nursery.stdin.flush()
        return int(nursery.stdout.readline())

    return run


def fill(broker: str) -> None:
    """By user, so that what one user did is in one partition, in order."""
    with topics_of(broker) as topics:
        for topic, partitions in (("views", 3), ("clicks", 2)):
            topics.create(topic, partitions=partitions)
            rows = events(topic)
            values = [json.dumps(row).encode() for row in rows]
            with topics.writer() as writer:
                writer.append(topic, records(values, keys=[row["user"].encode() for row in rows]))
                writer.flush()
        topics.create("out", partitions=2)


def in_files(root: Path) -> list[str]:
    """What a reader of the directory sees, in order."""
    files = [path for path in (root / "files").rglob("*.jsonl") if ".pending" not in path.parts]
    return sorted(line_of(json.loads(line)) for path in files for line in path.read_text().splitlines())


def in_topic(root: Path) -> list[str]:
    return sorted(map(line_of, read(str(root / "log"))))


def line_of(row: dict[str, Any]) -> str:
    return json.dumps({name: row[name] for name in ("what", "user", "at", "a", "b")})


def golden() -> list[str]:
    return GOLDEN.read_text().splitlines()


# ---------------------------------------------------------------------------------------------------------
# What the golden file has to be


def naive() -> list[dict[str, Any]]:
    """The results, read row by row from what the program says."""
    views, clicks = events("views"), events("clicks")
    return [
        *_windows(views),
        *_totals(views),
        *_sessions(clicks),
        *_near(views, clicks),
        *_buckets(clicks),
        *_users(clicks),
        *_alone(views, clicks),
    ]


def _row(what: str, user: str, at: int, a: int, b: int) -> dict[str, Any]:
    return {"what": what, "user": user, "at": at, "a": a, "b": b}


def _windows(views: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    found: dict[tuple[str, int], list[int]] = {}
    for view in views:
        first = view["at"] // BUCKET * BUCKET + BUCKET
        for end in (first, first + BUCKET):
            found.setdefault((view["user"], end), []).append(view["value"])
    return (_row("window", user, end, sum(values), len(values)) for (user, end), values in found.items())


def _totals(views: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    found: dict[int, list[int]] = {}
    for view in views:
        found.setdefault(view["at"] // BUCKET * BUCKET + BUCKET, []).append(view["value"])
    return (_row("total", "all", end, sum(values), len(values)) for end, values in found.items())


def _sessions(clicks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for user in {click["user"] for click in clicks}:
        mine = sorted((click["at"], click["value"]) for click in clicks if click["user"] == user)
        values: list[int] = []
        for place, (at, value) in enumerate(mine):
            values.append(value)
            if place + 1 == len(mine) or mine[place + 1][0] - at >= GAP:
                yield _row("session", user, at + GAP, len(values), max(values))
                values = []


def _near(views: list[dict[str, Any]], clicks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (
        _row("near", view["user"], view["at"], view["value"], click["value"] * 10_000 + click["at"])
        for view in views
        for click in clicks
        if view["user"] == click["user"] and 0 <= click["at"] - view["at"] <= NEAR
    )


def _buckets(clicks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for user in {click["user"] for click in clicks}:
        totals: dict[int, int] = {}
        for click in clicks:
            if click["user"] == user:
                end = click["at"] // BUCKET * BUCKET + BUCKET
                totals[end] = totals.get(end, 0) + click["value"]
        for count, end in enumerate(sorted(totals), start=1):
            greatest = max(total for other, total in totals.items() if other <= end)
            yield _row("bucket", user, end, totals[end], greatest * 1000 + count)


def _users(clicks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for user in {click["user"] for click in clicks}:
        values = [click["value"] for click in clicks if click["user"] == user]
        yield _row("user", user, 0, sum(values), len(values))


def _alone(views: list[dict[str, Any]], clicks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    there = {click["user"] for click in clicks if click["value"] > 98}
    return (_row("alone", view["user"], view["at"], view["value"], 0) for view in views if view["user"] not in there)


def test_the_golden_file_is_what_the_program_says() -> None:
    expected = sorted(map(line_of, naive()))
    assert golden() == expected
    assert {json.loads(line)["what"] for line in expected} == {
        *("window", "total", "session", "near", "bucket", "user", "alone")
    }


# ---------------------------------------------------------------------------------------------------------
# Lives


@pytest.mark.parametrize(("width", "state"), [(1, "memory"), (3, "memory"), (2, "rocks")])
def test_one_life(live: Life, tmp_path: Path, width: int, state: str) -> None:
    assert live(width=width, state=state) == 0
    assert in_files(tmp_path) == golden()
    assert in_topic(tmp_path) == golden()


@pytest.mark.parametrize(
    "point", [pytest.param(each, marks=() if at % 2 else pytest.mark.long) for at, each in enumerate(POINTS)]
)
def test_killed_twice_and_started_again_at_another_width(live: Life, tmp_path: Path, point: str) -> None:
    turns = (1, 1) if point in RARE else (3, 2)  # the later, the more there is to lose and to double
    ends = [live(width=width, fault=f"{point}=kill@{turn}") for width, turn in zip((2, 3), turns, strict=True)]
    assert ends[0] == DEADLY
    assert set(ends) <= {DEADLY, 0}
    assert live(width=1, state="rocks") == 0
    assert in_files(tmp_path) == golden()
    assert in_topic(tmp_path) == golden()
