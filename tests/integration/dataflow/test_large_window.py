"""Windows with more state than memory: it lies in RocksDB, and is taken in and joined by the piece."""

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
from tests.integration.dataflow.test_large_join import MALLOC, ROOT

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

ROWS = 600_000


def run(kind: str, folder: Path, phase: str, status: int) -> tuple[int, int]:
    """Bytes of memory that a life of the job took at most, and the checkpoint that it went on from."""
    command = [sys.executable, "-m", "tests.integration.dataflow.large_window_job", kind, str(folder), str(ROWS), phase]
    environment = os.environ | MALLOC | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == status
    before, most, restored = map(int, done.stdout.split())
    return most - before, restored


@pytest.mark.parametrize(("kind", "step"), [("aggregate", 1), ("join", STEP)])
def test_a_window_larger_than_memory_is_killed_and_goes_on(tmp_path: Path, kind: str, step: int) -> None:
    size = ROWS * PAYLOAD
    loading, restored = run(kind, tmp_path, "load", -signal.SIGKILL)
    assert restored == 0
    assert sum(path.stat().st_size for path in tmp_path.glob("checkpoints/window/state/*")) > size
    finishing, restored = run(kind, tmp_path, "finish", 0)
    assert restored > 0
    shutil.rmtree(tmp_path / "checkpoints")
    rows = pq.read_table(tmp_path / "out").sort_by("key").select(["key", "payload"])
    assert rows.column("key").to_pylist() == list(range(0, ROWS, step))
    for key in range(0, ROWS, STEP):
        assert rows.column("payload")[key // step].as_py() == payload(key)
    assert max(loading, finishing) < size * 0.6
