"""A stand-in for an agent with containers or projects, to be stopped or killed: starts what it is told, and waits.

    python container_agent.py KIND DATA_DIR ADDRESS NODE '[{"run_id": …, "script": …, "deadline": …}, …]'

Prints `ready` once everything was started. A run with `ends_once_up` gets its deadline, so many seconds later, only
then. A run with `update` is updated before: a project in place to these scripts of its services, a container by the run
of that name.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from shoal.core import faults
from shoal.core.clock import SystemClock
from shoal.core.ids import NodeId, RunId
from shoal.runtimes.compose.runtime import ComposeRuntime
from shoal.runtimes.container.creating import Owner
from shoal.runtimes.container.engine.api import EngineApi
from shoal.runtimes.container.runtime import ContainerRuntime
from tests.e2e.runtimes.containers import RUNTIMES, project, request


async def update(runtime: ContainerRuntime | ComposeRuntime, run: dict[str, Any]) -> None:
    """What an agent does when a newer revision comes."""
    old, deadline = RunId(run["run_id"]), run.get("deadline")
    if isinstance(runtime, ComposeRuntime):
        newer = project(services=run["update"], run_id=old, deadline=deadline)
        await runtime.prepare(newer)
        await runtime.update(old, newer)
    else:
        newer = request(run_id=run["update"], deadline=deadline)
        await runtime.prepare(newer)
        await runtime.stop(old)
        await runtime.start(newer)


async def main() -> None:
    faults.arm_from_environment()
    kind, data_dir, address, node, runs = sys.argv[1:]

    async def connect() -> EngineApi:
        return EngineApi(address)

    owner = Owner("test", NodeId(node))
    clock = SystemClock()
    runtime = RUNTIMES[kind](Path(data_dir), clock=clock, owner=owner, connect=connect)
    await runtime.open()
    make_request = project if kind == "compose" else request
    for run in (wanted := json.loads(runs)):
        deadline = 600.0 if "ends_once_up" in run else run.get("deadline")
        what = {"services": run["services"]} if "services" in run else {"script": run["script"]}
        await runtime.start(make_request(**what, run_id=run["run_id"], deadline=deadline))
    for run in wanted:
        if "update" in run:
            await update(runtime, run)
        if "ends_once_up" in run:
            await runtime.extend_deadlines((RunId(run["run_id"]),), clock.monotonic() + run["ends_once_up"])
    print("ready", flush=True)
    await asyncio.sleep(600)


asyncio.run(main())
