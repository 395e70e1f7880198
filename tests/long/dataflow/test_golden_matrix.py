"""The golden job killed at every point, at many turns and widths, on both kinds of state; and killed at any moment.

A case is three or four lives of the job, so not all combinations are run: each point comes with every pair of turns and
widths, on one kind of state or the other in turn; and with every second other point, before it and after it.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.dataflow.test_golden import (
    DEADLY,
    POINTS,
    ROOT,
    Life,
    fill,
    golden,
    in_files,
    in_topic,
    live,
    nursery,
)

pytestmark = pytest.mark.e2e

__all__ = ["live", "nursery"]


def check(root: Path) -> None:
    assert in_files(root) == golden()
    assert in_topic(root) == golden()


STATES = ("memory", "rocks")
WIDTHS = ((1, 4, 2), (4, 1, 3), (3, 3, 3))
TURNS = ((1, 1), (2, 6), (9, 4))


@pytest.mark.parametrize(
    ("point", "turns", "widths", "state"),
    [
        (point, turns, widths, STATES[number % 2])
        for number, (point, turns, widths) in enumerate(itertools.product(POINTS, TURNS, WIDTHS))
    ],
)
def test_killed_at_every_point(
    live: Life, tmp_path: Path, *, point: str, turns: tuple[int, int], widths: tuple[int, int, int], state: str
) -> None:
    for width, turn in zip(widths[:2], turns, strict=True):
        assert live(width=width, state=state, fault=f"{point}=kill@{turn}") in {DEADLY, 0}
    assert live(width=widths[2], state="memory" if state == "rocks" else "rocks") == 0
    check(tmp_path)


@pytest.mark.parametrize(
    ("one", "other"),
    [(one, other) for (at, one), (to, other) in itertools.product(enumerate(POINTS), repeat=2) if (at + to) % 2],
)
def test_killed_at_one_point_and_then_at_another(live: Life, tmp_path: Path, one: str, other: str) -> None:
    for width, point, turn in ((2, one, 4), (3, other, 1), (1, one, 1)):
        assert live(width=width, fault=f"{point}=kill@{turn}") in {DEADLY, 0}
    assert live(width=2) == 0
    check(tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    """Not where somebody thought of it: by the clock, up to eight times."""
    chance = random.Random(seed)
    fill(str(tmp_path / "log"))
    for _life in range(8):
        order: dict[str, Any] = {"width": chance.randint(1, 4), "state": chance.choice(["memory", "rocks"])}
        if _killed(tmp_path, order, after=chance.uniform(0.9, 2.2)):
            continue
        break
    else:
        assert not _killed(tmp_path, {"width": 2}, after=60)
    check(tmp_path)


def _killed(root: Path, order: dict[str, Any], *, after: float) -> bool:
    """Run the job in a process; whether it was killed before its end."""
    program = (
        "import json, sys; from tests.integration.dataflow.golden_job import run_job; "
        "order = json.loads(sys.argv[1]); run_job(order.pop('root'), **order)"
    )
    command = [sys.executable, "-c", program, json.dumps({"root": str(root), **order})]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    with subprocess.Popen(command, env=environment, cwd=ROOT) as process:
        try:
            assert process.wait(after) == 0
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
    return False
