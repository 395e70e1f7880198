"""A real disk for checkpoints that fills up under a running job, and gets room again."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.dataflow.execution.flows import Recording, Tap, expected_sums
from tests.unit.dataflow.execution.test_full_disk import start, until
from tests.unit.dataflow.execution.test_recovery import batches, feed, visible

pytestmark = pytest.mark.integration


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "shoal-test", str(disk)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode:
        said = f"a small disk takes root and the right to mount a tmpfs: {made.stderr.strip()}"
        if os.environ.get("CI") == "true":
            pytest.fail(said)
        pytest.skip(said)
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Leave no room at all."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


def test_a_job_goes_on_over_a_full_disk(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    tap, recording = Tap(), Recording()
    flow = start(tap, recording, str(small_disk))
    feed(tap, batches(3))
    until(lambda: flow.metrics().checkpoints.completed >= 1)
    filler = fill(small_disk)
    until(lambda: flow.metrics().checkpoints.failed_in_a_row >= 10)
    full = flow.metrics().checkpoints
    assert not flow.is_done
    assert full.age is not None
    assert full.age > 0
    assert "No space left" in full.reason
    assert any("The job goes on" in each.message for each in caplog.records)
    feed(tap, batches(3, start=3))
    tap.wait_fetched(6)
    filler.unlink()
    until(lambda: flow.metrics().checkpoints.completed > full.completed)
    tap.close()
    flow.stop(finish=True, timeout=20)
    assert visible(recording) == expected_sums(batches(6))


def test_a_job_starts_again_on_a_full_disk(small_disk: Path) -> None:
    tap, recording = Tap(), Recording()
    feed(tap, batches(3))
    flow = start(tap, recording, str(small_disk))
    until(lambda: flow.metrics().checkpoints.completed >= 1)
    stopped = flow.stop(timeout=20)
    filler = fill(small_disk)
    flow = start(tap, recording, str(small_disk))
    assert flow.restored == stopped.checkpoints.last_number
    until(lambda: flow.metrics().checkpoints.failed_in_a_row >= 5)
    filler.unlink()
    tap.close()
    flow.stop(finish=True, timeout=20)
    assert visible(recording) == expected_sums(batches(3))
