"""A stand-in for an agent with containers, to be stopped or killed: starts what it is told, and waits.

    python container_agent.py DATA_DIR ADDRESS NODE '[{"run_id": …, "script": …, "deadline": …}, …]'

Prints `ready` once everything was started.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from shoal.core import faults
from shoal.core.clock import SystemClock
from shoal.core.ids import NodeId
from shoal.runtimes.container.api import EngineApi
from shoal.runtimes.container.creating import Owner
from shoal.runtimes.container.runtime import ContainerRuntime
from tests.e2e.runtimes.containers import request


async def main() -> None:
    faults.arm_from_environment()
    data_dir, address, node, runs = sys.argv[1:]

    async def connect() -> EngineApi:
        return EngineApi(address)

    owner = Owner("test", NodeId(node))
    runtime = ContainerRuntime(Path(data_dir), clock=SystemClock(), owner=owner, connect=connect)
    await runtime.open()
    for run in json.loads(runs):
        await runtime.start(request(run["script"], run_id=run["run_id"], deadline=run.get("deadline")))
    print("ready", flush=True)
    await asyncio.sleep(600)


asyncio.run(main())
