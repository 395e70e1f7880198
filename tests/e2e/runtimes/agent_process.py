"""A stand-in for an agent, to be killed: opens the runtime, starts what it is told, and waits.

    python agent_process.py DATA_DIR '[{"run_id": …, "script": …, "deadline": …}, …]'

Prints `ready` once everything was started. A run with `ends_once_up` gets its deadline, so many seconds later, only
once it has printed `up`.
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
from shoal.testing.suites.runtime import wait_output


async def main() -> None:
    runtime = ProcessRuntime(Path(sys.argv[1]), clock=SystemClock(), node_id=NodeId("n1"))
    await runtime.open()
    runs = json.loads(sys.argv[2])
    for run in runs:
        deadline = 600.0 if "ends_once_up" in run else run.get("deadline")
        await runtime.start(
            RunRequest(
                run_id=run["run_id"],
                workload_id=WorkloadId(run["run_id"].rpartition("-")[0]),
                spec=ProcessSpec(command=("/bin/sh", "-c", run["script"]), user=run.get("user", "")),
                deadline=None if deadline is None else SystemClock().monotonic() + deadline,
            )
        )
    for run in runs:
        if "ends_once_up" in run:
            await wait_output(runtime, b"up\n", workload_id=run["run_id"].rpartition("-")[0])
            await runtime.extend_deadlines((run["run_id"],), SystemClock().monotonic() + run["ends_once_up"])
    print("ready", runtime.limits(), flush=True)
    await asyncio.sleep(600)


asyncio.run(main())
