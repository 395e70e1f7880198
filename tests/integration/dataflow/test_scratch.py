"""What a run that was killed with -9 left on disk is gone after the next one; that of a live run stays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]


@contextmanager
def job(data_dir: Path, temporary: Path, *said: str) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "tests.integration.dataflow.rocks_job", str(data_dir), *said]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            yield process
        finally:
            process.kill()


def test_a_killed_run_leaves_nothing_behind_for_long(tmp_path: Path) -> None:
    data_dir, temporary = tmp_path / "data", tmp_path / "tmp"
    temporary.mkdir()
    scratch = data_dir / "scratch"
    with job(data_dir, temporary, "forever") as killed:
        killed.kill()
        killed.wait(10)
    (left,) = scratch.glob("run-*/")
    assert list(left.rglob("CURRENT")), "a database was there"
    with job(data_dir, temporary, "forever") as alive:
        (held,) = scratch.glob("run-*/")
        assert held != left
        with job(data_dir, temporary) as other:
            assert other.wait(30) == 0
        assert list(scratch.glob("run-*/")) == [held]
        assert list(held.rglob("CURRENT"))
        alive.terminate()
        assert alive.wait(30) == 0
    assert not scratch.exists()
    assert list(temporary.iterdir()) == []
