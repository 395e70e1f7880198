"""Runs whose records are damaged or gone are found by their processes, on real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.core.ids import WorkloadId
from shoal.model.nodes import ConditionType
from shoal.model.workloads import ProcessSpec, StopPolicy
from shoal.runtimes.base import RunPhase, RunRequest
from shoal.runtimes.keeper.files import KeeperFiles
from shoal.runtimes.process import ProcessRuntime, find_run_pids, read_keeper_pid, read_run_records
from shoal.testing.suites.runtime import wait_output
from tests.e2e.runtimes.conftest import OpenRuntime
from tests.e2e.runtimes.processes import child_pid_in, is_alive, keeper_of, kill_keeper, wait_until

pytestmark = pytest.mark.e2e

FAMILY = "setsid sleep 1000 & echo far=$!; sleep 1000 & echo near=$!; wait"
DAMAGES: dict[str, Callable[[Path], object]] = {
    "emptied": lambda path: path.write_bytes(b""),
    "cut": lambda path: os.truncate(path, 30),
    "zeros": lambda path: path.write_bytes(b"\0" * 4096),
    "another kind": lambda path: path.write_text('{"run_id": 7}'),
    "deleted": lambda path: path.unlink(),
}


def request(script: str = FAMILY, *, run_id: str = "web-1", env: dict[str, str] | None = None) -> RunRequest:
    stop = StopPolicy(grace=timedelta(milliseconds=200))
    spec = ProcessSpec(command=("/bin/sh", "-c", script), env=env or {}, stop=stop)
    return RunRequest(run_id=run_id, workload_id=WorkloadId(run_id.rpartition("-")[0]), spec=spec)


async def damage(runtime: ProcessRuntime, data_dir: Path, how: str) -> None:
    """Damage the record of the run, kill the keeper, and wait for the next one."""
    keeper = keeper_of(data_dir)
    os.kill(keeper, signal.SIGSTOP)  # so that it does not write the record again
    DAMAGES[how](KeeperFiles(data_dir).record("web-1"))
    kill_keeper(data_dir)
    await wait_until(lambda: read_keeper_pid(data_dir) not in (None, keeper))
    await wait_until(lambda: runtime._link.hello.get("pid") == read_keeper_pid(data_dir))


@pytest.mark.parametrize("how", DAMAGES)
async def test_it_is_found_reported_and_not_started_twice(open_runtime: OpenRuntime, data_dir: Path, how: str) -> None:
    runtime = await open_runtime()
    before = await runtime.start(request())
    await wait_output(runtime, b"near=")
    pids = find_run_pids(data_dir)
    await damage(runtime, data_dir, how)
    (found,) = await runtime.list_runs()
    assert (found.run_id, found.workload_id, found.pid, found.phase) == ("web-1", "web", before.pid, RunPhase.RUNNING)
    assert abs(found.started_at - before.started_at) < timedelta(seconds=10)
    assert "web-1" in runtime.conditions()[ConditionType.ORPHANED_PROCESSES]
    assert (await runtime.start(request())).pid == before.pid
    assert find_run_pids(data_dir) == pids
    (record,) = read_run_records(data_dir)
    assert (record.pid, record.found) == (before.pid, True)


@pytest.mark.parametrize("how", ["zeros", "deleted"])
async def test_it_is_stopped_with_all_it_started(open_runtime: OpenRuntime, data_dir: Path, how: str) -> None:
    runtime = await open_runtime()
    await runtime.start(request())
    printed = await wait_output(runtime, b"near=")
    await damage(runtime, data_dir, how)
    ended = await runtime.stop("web-1")
    assert ended is not None
    assert ended.phase is RunPhase.ENDED
    assert not is_alive(child_pid_in(printed, "far"))
    assert not is_alive(child_pid_in(printed, "near"))
    assert find_run_pids(data_dir) == ()
    assert runtime.conditions() == {}
    await runtime.forget_workload(WorkloadId("web"), delete_data=False)
    assert not KeeperFiles(data_dir).workload("web").exists()


async def test_it_is_found_by_its_cgroup_when_it_cleared_its_environment(
    open_runtime: OpenRuntime, data_dir: Path
) -> None:
    runtime = await open_runtime()
    if runtime.limits().startswith("none"):
        pytest.skip("there are no cgroups here to find it by")
    info = await runtime.start(request("exec env -i sleep 1000"))
    await wait_until(lambda: find_run_pids(data_dir) == (info.pid,))
    await damage(runtime, data_dir, "deleted")
    (found,) = await runtime.list_runs()
    assert (found.run_id, found.workload_id, found.pid) == ("web-1", "web", info.pid)
    await runtime.stop("web-1")
    assert not is_alive(info.pid)


async def test_without_cgroups_it_is_found_by_its_environment(
    without_cgroups: None, open_runtime: OpenRuntime, data_dir: Path
) -> None:
    runtime = await open_runtime()
    info = await runtime.start(request())
    await damage(runtime, data_dir, "deleted")
    (found,) = await runtime.list_runs()
    assert found.pid == info.pid
    await runtime.stop("web-1")
    assert find_run_pids(data_dir) == ()
