"""A stand-in for an agent, to be killed: opens the runtime, starts what it is told, and waits.

    python agent_process.py DATA_DIR '[{"run_id": …, "script": …, "deadline": …}, …]'

Prints `ready` once everything was started.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from shoal.core.clock import SystemClock
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.workloads import ProcessSpec
from shoal.runtimes.base import RunRequest
from shoal.runtimes.process import ProcessRuntime


async def main() -> None:
    runtime = ProcessRuntime(Path(sys.argv[1]), clock=SystemClock(), node_id=NodeId("n1"))
    await runtime.open()
    for run in json.loads(sys.argv[2]):
        await runtime.start(
            RunRequest(
                run_id=run["run_id"],
                workload_id=WorkloadId(run["run_id"].rpartition("-")[0]),
                spec=ProcessSpec(command=("/bin/sh", "-c", run["script"]), user=run.get("user", "")),
                deadline=SystemClock().monotonic() + run["deadline"] if "deadline" in run else None,
            )
        )
    print("ready", runtime.limits(), flush=True)
    await asyncio.sleep(600)


asyncio.run(main())
