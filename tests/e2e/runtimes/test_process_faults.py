"""What the process runtime does when agent, keeper, disk and workloads fail, on real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import DeadlineError
from shoal.core.ids import NodeId, RunId, WorkloadId
from shoal.model.workloads import FailureReason, ProcessSpec, StopPolicy
from shoal.runtimes.base import RunError, RunInfo, RunPhase, RunRequest
from shoal.runtimes.keeper.files import KeeperFiles
from shoal.runtimes.keeper.records import SPARES
from shoal.runtimes.log_files import FILE_SIZE, FILES, last_output
from shoal.runtimes.process import ProcessRuntime, find_run_pids, read_keeper_pid, read_run_records
from shoal.testing.machines import kill_machine
from shoal.testing.suites.runtime import read_all, wait_ended, wait_output
from tests.e2e.runtimes.conftest import OpenRuntime, StartAgent
from tests.e2e.runtimes.processes import child_pid_in, is_alive, keeper_of, kill_keeper, wait_until

pytestmark = pytest.mark.e2e

QUICK = StopPolicy(grace=timedelta(milliseconds=200))


def request(script: str, *, run_id: str = "web-1", deadline: float | None = None, **options: object) -> RunRequest:
    spec = ProcessSpec(command=("/bin/sh", "-c", script), **options)
    workload_id = WorkloadId(run_id.rpartition("-")[0])
    ends_at = None if deadline is None else SystemClock().monotonic() + deadline
    return RunRequest(run_id=run_id, workload_id=workload_id, spec=spec, deadline=ends_at)


def logged(data_dir: Path, workload_id: str) -> bytes:
    """What a workload has printed, read from its files."""
    return last_output(KeeperFiles(data_dir).logs(workload_id), run_id=RunId(f"{workload_id}-1"), limit=4096)


async def running(runtime: ProcessRuntime, run_id: str) -> RunInfo:
    info = await runtime.inspect(run_id)
    assert info is not None
    assert info.phase is RunPhase.RUNNING
    return info


# ---------------------------------------------------------------------------------------------------------
# The agent dies


async def test_work_goes_on_without_the_agent_and_its_end_is_known(
    start_agent: StartAgent, open_runtime: OpenRuntime, data_dir: Path
) -> None:
    agent = start_agent(
        {"run_id": "long-1", "script": "echo up; exec sleep 1000"},
        {"run_id": "short-1", "script": "while test ! -e ../go; do sleep 0.02; done; echo done; exit 7"},
    )
    keeper = keeper_of(data_dir)
    before = {record.run_id: record.pid for record in read_run_records(data_dir)}
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    (KeeperFiles(data_dir).workload("short") / "go").touch()
    await wait_until(lambda: not is_alive(before["short-1"]))
    runtime = await open_runtime()
    assert keeper_of(data_dir) == keeper
    assert (await running(runtime, "long-1")).pid == before["long-1"]
    ended = await wait_ended(runtime, "short-1")
    assert ended.exit is not None
    assert (ended.exit.code, ended.exit.unknown, ended.last_output) == (7, False, "done\n")


async def test_the_death_of_the_agents_process_group_spares_the_keeper(
    start_agent: StartAgent, open_runtime: OpenRuntime, data_dir: Path
) -> None:
    agent = start_agent({"run_id": "web-1", "script": "exec sleep 1000"})
    os.killpg(agent.pid, signal.SIGKILL)
    agent.wait()
    await running(await open_runtime(), "web-1")


async def test_a_deadline_passes_with_nobody_there(
    start_agent: StartAgent, open_runtime: OpenRuntime, data_dir: Path
) -> None:
    agent = start_agent(
        {"run_id": "one-1", "script": 'trap "exit 3" TERM; echo up; while :; do sleep 0.02; done', "ends_once_up": 1.0},
        {"run_id": "deaf-1", "script": 'trap "" TERM; echo up; while :; do sleep 0.02; done', "ends_once_up": 1.0},
        {"run_id": "free-1", "script": "exec sleep 1000"},
    )
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    await wait_until(lambda: sum(record.exit is not None for record in read_run_records(data_dir)) == 2)
    runtime = await open_runtime()
    one, deaf = await wait_ended(runtime, "one-1"), await wait_ended(runtime, "deaf-1")
    assert one.exit is not None
    assert deaf.exit is not None
    assert (one.ended_by, one.exit.code, one.exit.unknown) == ("deadline", 3, False)
    assert (deaf.ended_by, deaf.exit.signal, deaf.exit.unknown) == ("deadline", 9, False)
    await running(runtime, "free-1")


# ---------------------------------------------------------------------------------------------------------
# The keeper dies


async def test_what_outlives_the_keeper_is_adopted(
    open_runtime: OpenRuntime, data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = await open_runtime()
    script = "echo one; while test ! -e go; do sleep 0.02; done; echo two; while test ! -e end; do sleep 0.02; done"
    work = KeeperFiles(data_dir).work("web")
    before = await runtime.start(request(script))
    await runtime.start(request("exec sleep 1000", run_id="gone-1"))
    gone = (await running(runtime, "gone-1")).pid
    await wait_output(runtime, b"one\n")
    first = kill_keeper(data_dir)
    os.kill(gone, signal.SIGKILL)
    (work / "go").touch()
    # The runtime notices by itself, and starts another keeper.
    await wait_until(lambda: read_keeper_pid(data_dir) not in (None, first))
    assert (await wait_ended(runtime, "gone-1")).exit.unknown
    assert f"the keeper (pid {first}) is gone" in caplog.text
    assert "1 runs ended with it" in caplog.text
    assert (await running(runtime, "web-1")).pid == before.pid
    # What it prints still arrives, though the keeper that made the pipe is gone.
    assert await wait_output(runtime, b"two\n") == b"one\ntwo\n"
    (work / "end").touch()
    ended = await wait_ended(runtime, "web-1")
    assert ended.exit is not None
    assert ended.exit.unknown
    assert ended.last_output == "one\ntwo\n"


async def test_an_adopted_run_can_be_stopped_with_all_it_started(open_runtime: OpenRuntime, data_dir: Path) -> None:
    runtime = await open_runtime()
    await runtime.start(request("setsid sleep 1000 & echo far=$!; sleep 1000 & echo near=$!; wait", stop=QUICK))
    printed = await wait_output(runtime, b"near=")
    kill_keeper(data_dir)
    ended = await runtime.stop("web-1")
    assert ended is not None
    assert ended.exit is not None
    assert ended.exit.unknown
    assert ended.ended_by == "stop"
    assert not is_alive(child_pid_in(printed, "far"))
    assert not is_alive(child_pid_in(printed, "near"))


async def test_an_end_is_not_lost_while_the_keeper_dies(open_runtime: OpenRuntime, data_dir: Path) -> None:
    runtime = await open_runtime()
    told: list[RunInfo] = []

    async def watch() -> None:
        async for info in runtime.watch():
            told.append(info)

    watching = asyncio.create_task(watch())
    await runtime.start(request("exit 1", run_id="a-1"))
    await wait_ended(runtime, "a-1")
    await runtime.start(request("sleep 0.2", run_id="b-1"))
    kill_keeper(data_dir)
    await wait_until(lambda: {info.run_id for info in told} == {"a-1", "b-1"})
    assert next(info for info in told if info.run_id == "a-1").exit.code == 1
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_an_at_most_one_run_dies_with_the_keeper(open_runtime: OpenRuntime, data_dir: Path) -> None:
    runtime = await open_runtime()
    script = "setsid sleep 1000 & echo far=$!; trap '' TERM; while :; do sleep 0.02; done"
    one = await runtime.start(request(script, deadline=600.0))
    far = child_pid_in(await wait_output(runtime, b"far="), "far")
    kill_keeper(data_dir)
    await wait_until(lambda: not is_alive(one.pid))
    ended = await wait_ended(runtime, "web-1")
    assert ended.exit is not None
    assert ended.exit.unknown
    # What it had started goes when the next keeper comes up, before the end is told.
    assert not is_alive(far)


async def test_an_at_most_one_run_that_outlived_its_keeper_is_killed(open_runtime: OpenRuntime, data_dir: Path) -> None:
    """A set-uid program is beyond the death signal of its parent; here it is cleared by hand."""
    runtime = await open_runtime()
    take_back = "import ctypes, time; ctypes.CDLL(None).prctl(1, 0, 0, 0, 0); print('up', flush=True); time.sleep(1000)"
    one = await runtime.start(request(f'exec python3 -c "{take_back}"', deadline=600.0))
    await wait_output(runtime, b"up\n")
    kill_keeper(data_dir)
    ended = await wait_ended(runtime, "web-1")
    assert (ended.ended_by, ended.exit.unknown) == ("deadline", True)
    assert not is_alive(one.pid)


async def test_a_whole_machine_dies_and_comes_back(
    start_agent: StartAgent, open_runtime: OpenRuntime, data_dir: Path
) -> None:
    agent = start_agent({"run_id": "web-1", "script": "echo up; exec sleep 1000"})
    await wait_until(lambda: logged(data_dir, "web") == b"up\n")
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    kill_machine(data_dir)
    runtime = await open_runtime()
    ended = await wait_ended(runtime, "web-1")
    assert ended.exit is not None
    assert ended.exit.unknown
    assert ended.last_output == "up\n"
    # The same run is not started again under the same name, and a new one is.
    assert (await runtime.start(request("exec sleep 1000"))).phase is RunPhase.ENDED
    assert (await runtime.start(request("exec sleep 1000", run_id="web-2"))).phase is RunPhase.RUNNING


@pytest.mark.parametrize("deadline", [None, 600.0])
async def test_no_child_is_lost_when_the_keeper_dies_while_starting_it(
    open_runtime: OpenRuntime, data_dir: Path, monkeypatch: pytest.MonkeyPatch, deadline: float | None
) -> None:
    monkeypatch.setenv("SHOAL_FAULTS", "keeper.spawn.after=kill")
    runtime = await open_runtime()
    first = keeper_of(data_dir)
    monkeypatch.delenv("SHOAL_FAULTS")
    # The answer never came; the runtime asks the next keeper, which knows the run from its record.
    info = await runtime.start(request("echo up; exec sleep 1000", deadline=deadline))
    assert keeper_of(data_dir) != first
    assert await read_all(runtime) in (b"up\n", b"")
    if deadline is None:
        assert info.phase is RunPhase.RUNNING
        assert find_run_pids(data_dir) == (info.pid,)
    else:
        assert info.phase is RunPhase.ENDED
        assert find_run_pids(data_dir) == ()


async def test_an_exit_that_was_not_written_down_is_unknown(
    open_runtime: OpenRuntime, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_FAULTS", "keeper.exit.before=kill")
    runtime = await open_runtime()
    monkeypatch.delenv("SHOAL_FAULTS")
    await runtime.start(request("sleep 0.1; exit 5"))
    ended = await wait_ended(runtime, "web-1")
    assert ended.exit is not None
    assert ended.exit.unknown


async def test_a_keeper_that_is_stopped_does_not_hang_the_agent(open_runtime: OpenRuntime, data_dir: Path) -> None:
    runtime = await open_runtime()
    await runtime.start(request("echo up; exec sleep 1000"))
    await wait_output(runtime, b"up\n")
    keeper = keeper_of(data_dir)
    os.kill(keeper, signal.SIGSTOP)
    try:
        other = ProcessRuntime(data_dir, clock=SystemClock(), node_id=NodeId("n1"))
        health, inspecting, opening = await asyncio.gather(
            runtime.health(), runtime.inspect("web-1"), other.open(), return_exceptions=True
        )
        await other.close()
        assert health.startswith("unhealthy: ")
        assert str(keeper) in health
        assert isinstance(inspecting, DeadlineError)
        assert isinstance(opening, DeadlineError)
        # What needs no keeper still works.
        assert await read_all(runtime) == b"up\n"
        assert await runtime.usage("web-1") is not None
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert await runtime.health() == "healthy"
    await running(runtime, "web-1")


# ---------------------------------------------------------------------------------------------------------
# Nothing of a run is left

FAMILY = """
sleep 1000 & echo near=$!
setsid sleep 1000 & echo far=$!
setsid sh -c 'sleep 1000 & echo farther=$!; wait' &
(trap "" TERM; exec sleep 1000) & echo deaf=$!
"""


async def _family(runtime: ProcessRuntime) -> list[int]:
    for name in (b"near=", b"far=", b"farther=", b"deaf="):
        printed = await wait_output(runtime, name)
    return [child_pid_in(printed, name) for name in ("near", "far", "farther", "deaf")]


async def _no_family_is_left(runtime: ProcessRuntime) -> None:
    await runtime.start(request(f"{FAMILY} while :; do sleep 0.02; done", stop=QUICK))
    family = await _family(runtime)
    assert all(is_alive(pid) for pid in family)
    await runtime.stop("web-1")
    assert [pid for pid in family if is_alive(pid)] == []
    # The same when the main process ends by itself.
    script = f"{FAMILY} while test ! -e go; do sleep 0.02; done; exit 4"
    await runtime.start(request(script, run_id="other-1"))
    for name in (b"near=", b"far=", b"farther=", b"deaf="):
        printed = await wait_output(runtime, name, workload_id="other")
    family = [child_pid_in(printed, name) for name in ("near", "far", "farther", "deaf")]
    (runtime._files.work("other") / "go").touch()
    ended = await wait_ended(runtime, "other-1")
    assert ended.exit.code == 4
    assert [pid for pid in family if is_alive(pid)] == []


async def test_what_a_run_started_ends_with_it(open_runtime: OpenRuntime) -> None:
    await _no_family_is_left(await open_runtime())


async def test_what_a_run_started_ends_with_it_without_cgroups(
    without_cgroups: None, open_runtime: OpenRuntime
) -> None:
    runtime = await open_runtime()
    assert runtime.limits().startswith("none: ")
    await _no_family_is_left(runtime)
    await runtime.start(request("while :; do :; done", run_id="busy-1"))
    async with asyncio.timeout(30):
        while (usage := await runtime.usage("busy-1")) is None or not usage.memory_bytes or not usage.cpu_percent:
            await asyncio.sleep(0.1)
    assert usage.source == "proc"


async def test_a_group_that_was_asked_to_end_has_the_rest_of_the_grace_period(open_runtime: OpenRuntime) -> None:
    runtime = await open_runtime()
    child = """trap 'sleep 0.4; echo tidy' TERM; echo up; while :; do sleep 0.02; done"""
    script = f'sh -c "{child}" & exec sleep 1000'.replace("while :; do sleep 0.02; done", "wait; sleep 1000 & wait")
    await runtime.start(request(script, stop=StopPolicy(grace=timedelta(seconds=20))))
    await wait_output(runtime, b"up\n")
    ended = await runtime.stop("web-1")
    assert ended is not None
    assert b"tidy" in await read_all(runtime)


# ---------------------------------------------------------------------------------------------------------
# Output


async def test_a_fast_logger_is_bounded_on_disk(open_runtime: OpenRuntime, data_dir: Path) -> None:
    runtime = await open_runtime()
    await runtime.start(request("head -c 40000000 /dev/zero | tr '\\0' 'x' | fold -w 79; echo; echo the end"))
    ended = await wait_ended(runtime, "web-1")
    assert ended.exit.code == 0
    assert ended.last_output.endswith("the end\n")
    sizes = [path.stat().st_size for path in KeeperFiles(data_dir).logs("web").iterdir()]
    assert len(sizes) == FILES
    assert max(sizes) <= FILE_SIZE
    assert await read_all(runtime, tail_lines=1) == b"the end\n"
    kept = await read_all(runtime)
    assert 2 * FILE_SIZE < len(kept) < FILES * FILE_SIZE
    assert set(kept.splitlines()[1:-2]) == {b"x" * 79}
    status = (Path("/proc") / str(keeper_of(data_dir)) / "status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak < 40 * 1024, f"{peak} kB"


@pytest.fixture
def small_disk(data_dir: Path) -> Path:
    """The data directory on a file system of 2 MiB."""
    data_dir.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "shoal-test", str(data_dir)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small disk takes root and the right to mount a tmpfs")
    yield data_dir
    kill_machine(data_dir)
    subprocess.run(["umount", "-l", str(data_dir)], check=True)


def _fill(path: Path) -> None:
    """Write until the disk is full."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while True:
            os.write(handle, b"x" * 4096)
    os.close(handle)
    free = os.statvfs(path)
    assert free.f_bavail == 0


async def test_a_full_disk_costs_output_and_nothing_else(small_disk: Path, open_runtime: OpenRuntime) -> None:
    runtime = await open_runtime()
    work = KeeperFiles(small_disk).workload("web") / "work"
    script = "while test ! -e go; do sleep 0.02; done; head -c 300000 /dev/zero | tr '\\0' x; while test ! -e end; do"
    await runtime.start(request(f"{script} sleep 0.02; done; echo last words; exit 6"))
    filling = small_disk / "filling"
    _fill(filling)
    # A file in the work directory takes no block.
    (work / "go").touch()

    async def is_unhealthy() -> bool:
        return "No space left" in await runtime.health()

    async with asyncio.timeout(30):
        while not await is_unhealthy():
            await asyncio.sleep(0.02)
    await running(runtime, "web-1")
    # Some runs can still be started, so that other workloads are restarted.
    for number in range(SPARES):
        await runtime.start(request("exit 0", run_id=f"more-{number}"))
    with pytest.raises(RunError) as raised:
        await runtime.start(request("exit 0", run_id="more-too"))
    assert raised.value.failure is FailureReason.STORAGE_ERROR
    assert raised.value.transient
    # One that was forgotten makes room for another, for ever.
    for _ in range(2 * SPARES):
        await runtime.stop("more-0")
        await runtime.forget("more-0")
        _fill(filling)
        await runtime.start(request("exit 0", run_id="more-0"))
    await runtime.start(request("exit 0", run_id="web-1"))
    filling.unlink()
    (work / "end").touch()
    ended = await wait_ended(runtime, "web-1")
    assert ended.exit is not None
    assert (ended.exit.code, ended.exit.unknown) == (6, False)
    assert ended.last_output.endswith("last words\n")
    kept = await read_all(runtime)
    assert b"bytes of output were lost here: No space left on device" in kept
    assert kept.endswith(b"last words\n")
    assert await runtime.health() == "healthy"


async def test_an_exit_is_written_down_on_a_full_disk(small_disk: Path, open_runtime: OpenRuntime) -> None:
    runtime = await open_runtime()
    work = KeeperFiles(small_disk).workload("web") / "work"
    await runtime.start(request("while test ! -e go; do sleep 0.02; done; exit 6"))
    _fill(small_disk / "filling")
    (work / "go").touch()
    ended = await wait_ended(runtime, "web-1")
    assert ended.exit is not None
    assert ended.exit.code == 6
    (record,) = read_run_records(small_disk)
    assert record.exit is not None
    assert record.exit.code == 6
