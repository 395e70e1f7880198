"""Agent processes of ours that no control plane of ours knows, for foreign schedulers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest

from shoal.runtimes.process import find_run_pids, read_keeper_pid
from tests.peers.contract import agent
from tests.peers.foreign import ForeignScheduler, until
from tests.services.lifetime import WITH_US


@asynccontextmanager
async def scheduled_agent(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[ForeignScheduler]:
    """A foreign scheduler, connected to an agent process. Whatever the keeper runs is ended with it."""
    ready, data = folder / "ready.json", folder / "data"
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(*WITH_US, sys.executable, "-m", "shoal", "agent", "--insecure", "--standalone", "--node-id", "n1"),
            *("--data-dir", str(data), "--grpc-port", "0", "--cpu", "2", "--memory", "1024MB"),
            *("--ready-file", str(ready), *arguments),
            env={**os.environ, **(env or {})},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=log,
        )
    made = None
    try:
        await until(lambda: process.returncode is not None or ready.exists(), "the agent")
        assert ready.exists(), (folder / "log").read_text()
        made = ForeignScheduler(json.loads(ready.read_text())["grpc"])
        yield made
    finally:
        if made is not None:
            await made.close()
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        keeper = read_keeper_pid(data)
        for pid in (*([keeper] if keeper is not None else []), *find_run_pids(data)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def expect_not_found(scheduler: ForeignScheduler, workload_id: str = "web") -> None:
    """A scheduler asks for the status first, and applies only when the words are these."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await scheduler.call("GetWorkloadStatus", id=workload_id)
    assert "not found" in (caught.value.details() or "")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def wait_state(scheduler: ForeignScheduler, state: int, revision: str = "r1"):
    """The status, once it has a state and a revision."""
    seen = None

    async def reached():
        nonlocal seen
        seen = (await scheduler.call("GetWorkloadStatus", id="web")).status
        return seen if (seen.actual_state, seen.revision_id) == (state, revision) else None

    try:
        return await until(reached, f"state {state} of {revision}")
    except AssertionError as error:
        raise AssertionError(f"{error}; last seen: {seen}") from None


async def delete(scheduler: ForeignScheduler) -> None:
    """Delete the workload, and wait for the one reliable sign of it."""

    async def actions() -> dict[str, str]:
        listed = await scheduler.call("ListActions", workload_id="web", action_type="delete_workload")
        return {each.task_id: each.status for each in listed.actions}

    before = await actions()
    assert (await scheduler.call("DeleteWorkload", id="web")).success

    async def deleted() -> bool:
        return [status for task, status in (await actions()).items() if task not in before] == ["completed"]

    await until(deleted, "the action completed")
    await expect_not_found(scheduler)


#: What the states of the contract are called here.
RUNNING, STOPPED, FAILED = agent.ACTUAL_STATE_RUNNING, agent.ACTUAL_STATE_STOPPED, agent.ACTUAL_STATE_FAILED
