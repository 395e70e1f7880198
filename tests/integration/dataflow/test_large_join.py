"""A join with more state than memory: rows lie in RocksDB, checkpoints and restores take them by the piece."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.integration.dataflow.large_join_job import PAYLOAD, STEP, payload

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
ROWS = 600_000
#: What is freed goes back to the system at once, so that the greatest use is that of the job.
MALLOC = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "65536", "ARROW_DEFAULT_MEMORY_POOL": "system"}


def run(folder: Path, phase: str, status: int) -> tuple[int, int]:
    """Bytes of memory that a life of the job took at most, and the checkpoint that it went on from."""
    command = [sys.executable, "-m", "tests.integration.dataflow.large_join_job", str(folder), str(ROWS), phase]
    environment = os.environ | MALLOC | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == status
    before, most, restored = map(int, done.stdout.split())
    return most - before, restored


def test_a_join_larger_than_memory_is_killed_and_goes_on(tmp_path: Path) -> None:
    size = ROWS * PAYLOAD
    loading, restored = run(tmp_path, "load", -signal.SIGKILL)
    assert restored == 0
    assert sum(path.stat().st_size for path in tmp_path.glob("checkpoints/join/state/*")) > size
    matching, restored = run(tmp_path, "match", 0)
    assert restored > 0
    shutil.rmtree(tmp_path / "checkpoints")
    rows = pq.read_table(tmp_path / "out").sort_by("key").to_pylist()
    assert [row["key"] for row in rows] == list(range(0, ROWS, STEP))
    assert all(row["payload"] == payload(row["key"]) and row["right"] * STEP == row["key"] for row in rows)
    assert max(loading, matching) < size * 0.6
