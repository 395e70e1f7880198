"""The processes of a test end with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[3]
A_TEST = """
import sys
from pathlib import Path
from shoal.topics.local import LocalTopics
from tests.e2e.topics.actors import Actor
directory = Path(sys.argv[1])
with LocalTopics(directory) as topics:
    topics.create("t", partitions=2)
actor = Actor("count_up", directory, "writer", 10**9)
print(actor.process.pid, flush=True)
actor.wait(3600)
"""


def test_an_actor_ends_when_the_worker_of_its_test_is_killed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", A_TEST, str(tmp_path / "log")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as worker:
        assert worker.stdout is not None
        actor = psutil.Process(int(worker.stdout.readline()))
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    deadline = time.monotonic() + 60
    while _lives(actor):
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.02)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
