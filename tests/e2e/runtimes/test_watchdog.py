"""At-most-one runs end at their deadline whatever is stopped or killed, on real processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.ids import WorkloadId
from shoal.model.nodes import ConditionType
from shoal.model.workloads import ProcessSpec
from shoal.runtimes.base import RunPhase, RunRequest
from shoal.runtimes.keeper import procfs
from shoal.runtimes.kept import LATE_SECONDS
from shoal.runtimes.process import ProcessRuntime, read_run_records
from shoal.testing.suites.runtime import wait_ended, wait_output
from tests.e2e.runtimes.conftest import OpenRuntime, StartAgent
from tests.e2e.runtimes.processes import child_pid_in, is_alive, keeper_of, wait_until

pytestmark = pytest.mark.e2e

DEAF = 'trap "" TERM; setsid sleep 1000 & echo far=$!; while :; do sleep 0.02; done'


def in_seconds(seconds: float) -> float:
    return SystemClock().monotonic() + seconds


def once(script: str, *, seconds: float, user: str = "") -> RunRequest:
    spec = ProcessSpec(command=("/bin/sh", "-c", script), user=user)
    return RunRequest(run_id="one-1", workload_id=WorkloadId("one"), spec=spec, deadline=in_seconds(seconds))


def parent_of(pid: int) -> int:
    stat = procfs.read_stat(pid)
    assert stat is not None
    return stat.parent


def name_of(pid: int) -> str:
    return (procfs.PROC / str(pid) / "comm").read_text().strip()


def waits(pid: int) -> bool:
    """Whether a process has taken up every SIGCHLD that was sent to it, and sleeps again."""
    status = dict(line.split(":\t", 1) for line in (procfs.PROC / str(pid) / "status").read_text().splitlines())
    pending = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
    return status["State"].startswith("S") and not pending & 1 << (signal.SIGCHLD - 1)


@pytest.fixture
def stop_process() -> Iterator[object]:
    """Stops processes with SIGSTOP, and lets them go on after the test."""
    stopped: list[int] = []

    def stop(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        stopped.append(pid)

    yield stop
    for pid in stopped:
        if is_alive(pid):
            os.kill(pid, signal.SIGCONT)


async def passed(moment: float) -> None:
    await wait_until(lambda: SystemClock().monotonic() > moment)


@pytest.mark.parametrize(
    "who",
    [
        pytest.param(("agent",), marks=pytest.mark.long),
        pytest.param(("keeper",), marks=pytest.mark.long),
        ("watchdog",),
        ("agent", "keeper"),
        pytest.param(("agent", "watchdog"), marks=pytest.mark.long),
        ("agent", "keeper", "watchdog"),
    ],
    ids="+".join,
)
async def test_a_run_ends_at_its_deadline_whoever_is_stopped(
    start_agent: StartAgent, data_dir: Path, stop_process, who: tuple[str, ...]
) -> None:
    agent = start_agent({"run_id": "one-1", "script": f"echo up; {DEAF}", "ends_once_up": 3.0})
    (record,) = read_run_records(data_dir)
    pids = {"agent": agent.pid, "keeper": keeper_of(data_dir), "watchdog": parent_of(record.pid)}
    # The deadline came nearer a moment ago: the watchdog was told, and may not have set its timer yet.
    await wait_until(lambda: waits(pids["watchdog"]))
    for each in who:
        stop_process(pids[each])
    await wait_until(lambda: not is_alive(record.pid))


async def test_everything_below_a_run_ends_while_agent_and_keeper_are_stopped(
    open_runtime: OpenRuntime, data_dir: Path, stop_process
) -> None:
    runtime = await open_runtime()
    info = await runtime.start(once(DEAF, seconds=3.0))
    far = child_pid_in(await wait_output(runtime, b"far=", workload_id="one"), "far")
    keeper = keeper_of(data_dir)
    stop_process(keeper)
    await wait_until(lambda: not is_alive(info.pid) and not is_alive(far))
    os.kill(keeper, signal.SIGCONT)
    ended = await wait_ended(runtime, "one-1")
    assert (ended.ended_by, ended.exit.signal, ended.exit.unknown) == ("deadline", signal.SIGKILL, False)


async def test_an_agent_extends_deadlines_while_the_keeper_is_stopped(
    open_runtime: OpenRuntime, data_dir: Path, stop_process
) -> None:
    runtime = await open_runtime()
    first = once("exec sleep 1000", seconds=4.0)
    info = await runtime.start(first)
    keeper = keeper_of(data_dir)
    stop_process(keeper)
    await runtime.extend_deadlines(("one-1",), in_seconds(600))
    await passed(first.deadline + 1.0)
    assert is_alive(info.pid)
    os.kill(keeper, signal.SIGCONT)
    assert await runtime.health() == "healthy"
    assert (await runtime.inspect("one-1")).phase is RunPhase.RUNNING
    assert is_alive(info.pid)


async def test_the_next_agent_extends_the_deadlines_of_the_one_before(
    start_agent: StartAgent, open_runtime: OpenRuntime, data_dir: Path, stop_process
) -> None:
    agent = start_agent({"run_id": "one-1", "script": "exec sleep 1000", "deadline": 5.0})
    first = in_seconds(5.0)
    agent.kill()
    agent.wait()
    (record,) = read_run_records(data_dir)
    runtime = await open_runtime()
    stop_process(keeper_of(data_dir))
    await runtime.extend_deadlines(("one-1",), in_seconds(600))
    await passed(first + 1.0)
    assert is_alive(record.pid)


async def test_a_deadline_that_has_passed_is_not_taken_back(
    open_runtime: OpenRuntime, data_dir: Path, stop_process
) -> None:
    runtime = await open_runtime()
    request = once("exec sleep 1000", seconds=3.0)
    info = await runtime.start(request)
    stop_process(keeper_of(data_dir))
    stop_process(parent_of(info.pid))
    await passed(request.deadline)
    await runtime.extend_deadlines(("one-1",), in_seconds(600))
    await wait_until(lambda: not is_alive(info.pid))


async def test_a_run_dies_with_its_watchdog_and_its_end_is_known(open_runtime: OpenRuntime) -> None:
    runtime = await open_runtime()
    info = await runtime.start(once(DEAF, seconds=600))
    far = child_pid_in(await wait_output(runtime, b"far=", workload_id="one"), "far")
    os.kill(parent_of(info.pid), signal.SIGKILL)
    ended = await wait_ended(runtime, "one-1")
    assert (ended.ended_by, ended.exit.signal, ended.exit.unknown) == ("", signal.SIGKILL, False)
    assert not is_alive(far)


async def test_a_run_beyond_the_death_signal_dies_with_its_watchdog(open_runtime: OpenRuntime) -> None:
    """A set-uid program clears the death signal of its parent; here it is cleared by hand."""
    runtime = await open_runtime()
    clear = "import ctypes, time; ctypes.CDLL(None).prctl(1, 0, 0, 0, 0); print('up', flush=True); time.sleep(1000)"
    info = await runtime.start(once(f'exec python3 -c "{clear}"', seconds=600))
    await wait_output(runtime, b"up\n", workload_id="one")
    os.kill(parent_of(info.pid), signal.SIGKILL)
    ended = await wait_ended(runtime, "one-1")
    assert (ended.exit.signal, ended.exit.unknown) == (signal.SIGKILL, False)


async def test_the_pid_of_a_run_is_the_workloads_own(open_runtime: OpenRuntime, data_dir: Path) -> None:
    runtime = await open_runtime()
    info = await runtime.start(once("echo pid=$$; echo user=$(id -un); sleep 1000", seconds=600, user="nobody"))
    printed = await wait_output(runtime, b"user=nobody\n", workload_id="one")
    assert child_pid_in(printed, "pid") == info.pid
    watchdog = parent_of(info.pid)
    assert (name_of(watchdog), parent_of(watchdog)) == ("shoal-watchdog", keeper_of(data_dir))


@pytest.mark.parametrize(("script", "code", "number"), [("exit 7", 7, 0), ("kill -USR1 $$; sleep 10", 0, 10)])
async def test_how_a_guarded_run_ends_is_known(open_runtime: OpenRuntime, script: str, code: int, number: int) -> None:
    runtime = await open_runtime()
    await runtime.start(once(script, seconds=600))
    ended = await wait_ended(runtime, "one-1")
    assert (ended.exit.code, ended.exit.signal, ended.exit.unknown, ended.ended_by) == (code, number, False, "")


async def test_a_watchdog_goes_with_its_run(open_runtime: OpenRuntime) -> None:
    runtime = await open_runtime()
    info = await runtime.start(once("sleep 1000 & wait", seconds=600))
    watchdog = parent_of(info.pid)
    await runtime.stop("one-1")
    await wait_until(lambda: not (procfs.PROC / str(watchdog)).exists())


async def test_a_watchdog_is_small(open_runtime: OpenRuntime) -> None:
    runtime: ProcessRuntime = await open_runtime()
    info = await runtime.start(once("sleep 1000", seconds=600))
    rollup = (procfs.PROC / str(parent_of(info.pid)) / "smaps_rollup").read_text()
    private = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private"))
    assert private < 4096, rollup


async def test_an_agent_that_cannot_open_the_table_extends_through_the_keeper(open_runtime: OpenRuntime) -> None:
    runtime = await open_runtime()
    runtime._link._close_table()  # as with a keeper of an earlier version, which has none
    first = once("exec sleep 1000", seconds=4.0)
    info = await runtime.start(first)
    await runtime.extend_deadlines(("one-1",), in_seconds(600))
    await passed(first.deadline + 1.0)
    assert is_alive(info.pid)


async def test_a_keeper_that_is_late_is_noticed(open_runtime: OpenRuntime, data_dir: Path, stop_process) -> None:
    runtime = await open_runtime()
    assert await runtime.health() == "healthy"
    assert (runtime.lateness(), runtime.conditions()) == (0.0, {})
    keeper = keeper_of(data_dir)
    stop_process(keeper)
    assert (await runtime.health()).startswith("unhealthy: ")
    assert runtime.lateness() >= LATE_SECONDS
    assert f"pid {keeper}" in runtime.conditions()[ConditionType.KEEPER_LATE]
    os.kill(keeper, signal.SIGCONT)
    # It says itself how late it was, for a while.
    assert await runtime.health() == "healthy"
    assert runtime.lateness() >= LATE_SECONDS
    async with asyncio.timeout(60):
        while runtime.conditions():
            await asyncio.sleep(0.1)
            await runtime.health()
