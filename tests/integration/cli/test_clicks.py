"""The stream of the demo without its fleet: program and feed as processes, killed with -9, and every row checked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clicks import audit
from clicks.feed import LOG, close_windows, read_progress
from clicks.watch import Watch
from shoal.core.clock import SystemClock
from shoal.topics.base import records
from shoal.topics.local import LocalTopics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[3] / "examples"
RULES = audit.Rules()
PROGRAM = ("-m", "shoal", "run", "clicks.clicks:app", "--data-dir")
FEED = ("-m", "clicks.feed")


class Processes:
    """Processes of a test, none of which outlives it."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        variables = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
        started = subprocess.Popen([sys.executable, *arguments], stderr=subprocess.DEVNULL, env=variables)
        self._started.append(started)
        return started

    def end(self) -> None:
        for each in self._started:
            each.kill()
            each.wait()


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.end()


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_killed_twice_nothing_is_lost_and_nothing_counted_twice(tmp_path: Path, processes: Processes) -> None:
    feed, program = processes.start(*FEED, str(tmp_path)), processes.start(*PROGRAM, str(tmp_path))
    with Watch(str(tmp_path / LOG), SystemClock()) as watch:
        until(lambda: watch.joined() > 100, "the first rows")
        for _ in range(2):
            program.kill()
            feed.kill()
            feed.wait()
            before = watch.joined()
            feed, program = processes.start(*FEED, str(tmp_path)), processes.start(*PROGRAM, str(tmp_path))
            until(lambda before=before: watch.joined() > before + 100, "rows after a kill")
        feed.send_signal(signal.SIGTERM)
        assert feed.wait(timeout=30) == 0
        progress = read_progress(tmp_path)
        assert progress is not None
        close_windows(tmp_path, progress, SystemClock())
        sent = audit.sent(progress.start, progress.next)
        until(lambda: audit.audit(sent, watch.came(), RULES).good, str(audit.audit(sent, watch.came(), RULES)))
        program.send_signal(signal.SIGTERM)
        assert program.wait(timeout=30) == 0
        assert audit.audit(sent, watch.came(), RULES).good
        assert set(watch.came().late), "some were late"

        # And were a row there twice, it would be found.
        doubled = watch.came().joined[0]
        with LocalTopics(tmp_path / LOG) as topics, topics.writer() as writer:
            row = {"click": doubled, "impression": doubled, "sent_at": 0}
            writer.append("joined", records([json.dumps(row).encode()]))
            writer.flush()
        until(lambda: len(watch.came().joined) > len(set(watch.came().joined)), "the row that is there twice")
        assert audit.audit(sent, watch.came(), RULES).doubled == (doubled,)
