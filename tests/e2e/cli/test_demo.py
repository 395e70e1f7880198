"""`shoal demo` from its first line to its report: everything that it promises is kept, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.timeout(300)
def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    surroundings = {**os.environ, "TMPDIR": str(tmp_path), "NO_COLOR": "1", "COLUMNS": "200"}
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
        "none lost, none twice",
        "windows add up over",
        "from a click's append to its joined row",
        "nothing was left running",
    ):
        assert promise in report
    assert list(tmp_path.iterdir()) == []
