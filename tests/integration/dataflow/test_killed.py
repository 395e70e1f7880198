"""A windowed job on Kafka, killed with -9 at every fault point: none lost, none doubled, at any width.

The same on the local log, with more in the job, is `test_golden`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.core import faults
from shoal.core.entropy import SystemEntropy
from tests.integration.dataflow.test_topics import EXPECTED, fill, read, sums
from tests.services.kafka import KafkaBroker, kafka_broker

pytestmark = pytest.mark.integration

__all__ = ["kafka_broker"]

ROOT = Path(__file__).parents[3]
POINTS = [name for name in faults.POINTS if name.startswith("dataflow.")]
#: The points that `make test` has: a checkpoint is complete, and what belongs to it is not visible.
FEW = {"dataflow.commit.before"}
DEADLY = -signal.SIGKILL


def run(broker: str, checkpoints: Path, width: int, *, fault: str = "", suffix: str = "") -> int:
    environment = os.environ | {"SHOAL_FAULTS": fault, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    command = [sys.executable, "-m", "tests.integration.dataflow.windowed_job"]
    return subprocess.run(
        [*command, broker, str(checkpoints), str(width), suffix], env=environment, cwd=ROOT, timeout=100, check=False
    ).returncode


def test_the_few_points_exist():
    assert set(POINTS) >= FEW


@pytest.mark.parametrize(
    "point", [pytest.param(each, marks=() if each in FEW else pytest.mark.long) for each in POINTS]
)
def test_killed_on_kafka_and_started_again_until_it_is_done(tmp_path, kafka_broker: KafkaBroker, point):
    # One broker serves all workers, and each of them counts its folders from 0.
    broker, suffix = kafka_broker.address, f"-{SystemEntropy().token(8)}"
    fill(broker, f"in{suffix}")
    first = run(broker, tmp_path / "checkpoints", 3, fault=f"{point}=kill@1", suffix=suffix)
    assert first == DEADLY
    assert run(broker, tmp_path / "checkpoints", 1, fault=f"{point}=kill@3", suffix=suffix) in {DEADLY, 0}
    assert run(broker, tmp_path / "checkpoints", 2, suffix=suffix) == 0
    assert sums(read(broker, f"out{suffix}")) == EXPECTED
