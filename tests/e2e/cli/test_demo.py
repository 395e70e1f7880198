"""`shoal demo` from its first line to its report: everything that it promises is kept, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.runtimes.container.engine.finding import PodmanService
from tests.services.engine import IMAGE, private_engine

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
async def engine():
    """A Podman of the test's own, and where it listens."""
    with private_engine() as made:
        service = PodmanService(made.folder / "demo", clock=SystemClock(), arguments=made.arguments)
        api = await service.open()
        yield made, api.address
        await api.close()
        await service.close()


@pytest.mark.timeout(300)
async def test_the_demo_keeps_its_promises(tmp_path: Path, engine) -> None:
    podman, address = engine
    surroundings = {
        **os.environ,
        "TMPDIR": str(tmp_path),
        "NO_COLOR": "1",
        "COLUMNS": "200",
        "DOCKER_HOST": address,
    }
    answer = subprocess.run(
        [sys.executable, "-m", "shoal", "demo"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=surroundings,
        timeout=240,
        check=False,
    )
    report = answer.stderr.partition("\nSummary\n")[2]
    assert answer.returncode == 0, answer.stderr[-4000:]
    assert "FAIL" not in report
    for promise in (
        "work spread over three nodes",
        "a container was Running",
        "the container ran through all of it",
        "a stream job on the fleet emitted its first rows",
        "none lost, none twice",
        "windows add up over",
        "from a click's append to its joined row",
        "the job was Stopped",
        "the container and its image were removed from the engine",
        "nothing was left running",
    ):
        assert promise in report
    assert list(tmp_path.iterdir()) == []
    assert podman.containers() == []
    assert podman.podman("images", "--all", "--format", "{{.Repository}}:{{.Tag}}").split() == [IMAGE]
    assert podman.podman("volume", "ls", "--quiet") == ""
