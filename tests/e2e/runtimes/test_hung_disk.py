"""A disk under the agent and its keeper that no longer answers: at-most-one runs end at their deadline all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.runtimes.keeper import procfs
from shoal.runtimes.process import read_run_records
from shoal.testing.machines import kill_machine
from tests.e2e.runtimes.conftest import StartAgent
from tests.e2e.runtimes.processes import is_alive, keeper_of, wait_until
from tests.services.disks import FreezableDisk, freezable_disk

pytestmark = pytest.mark.e2e

#: It prints without end, so its keeper writes into its log, and does not end by itself.
NOISY = 'trap "" TERM; echo up; while :; do echo noise; sleep 0.02; done'


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FreezableDisk]:
    with freezable_disk(tmp_path) as made:
        yield made


@pytest.fixture
def data_dir(disk: FreezableDisk) -> Iterator[Path]:
    directory = disk.path / "agent"
    yield directory
    kill_machine(directory)


def hangs(pid: int) -> bool:
    """Whether a process waits for its disk."""
    status = (procfs.PROC / str(pid) / "status").read_text()
    return "\nState:\tD" in status


async def test_a_run_ends_at_its_deadline_while_the_disk_of_agent_and_keeper_hangs(
    start_agent: StartAgent, data_dir: Path, disk: FreezableDisk
) -> None:
    start_agent({"run_id": "one-1", "script": NOISY, "ends_once_up": 5.0})
    (record,) = read_run_records(data_dir)
    keeper = keeper_of(data_dir)
    disk.freeze()
    try:
        await wait_until(lambda: hangs(keeper))
        assert is_alive(record.pid)
        await wait_until(lambda: not is_alive(record.pid))
        assert hangs(keeper)
    finally:
        disk.thaw()

    def is_known() -> bool:
        (after,) = read_run_records(data_dir)
        return after.exit is not None and after.ended_by == "deadline"

    await wait_until(is_known)
