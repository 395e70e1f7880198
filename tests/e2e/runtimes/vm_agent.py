"""A stand-in for an agent that runs VMs, to be killed: starts one guest and waits.

    python vm_agent.py DATA_DIR RUN_ID SECONDS IMAGE SHA256 [SUCCESSOR]

Arms what SHOAL_FAULTS asks for. Prints `ready` once the guest was started. 0 seconds: without a deadline. With a
successor, the guest has written to its disk by then, and is replaced by this run, which has one disk more.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from shoal.core import faults
from shoal.core.clock import SystemClock
from shoal.core.ids import NodeId, RunId
from shoal.model.workloads import VmDisk
from shoal.runtimes.vm.runtime import VmRuntime
from shoal.testing.suites.runtime import wait_output
from tests.e2e.runtimes.vms import FOREVER, MORE, READS, WRITES, request, small_guest


async def main() -> None:
    faults.arm_from_environment()
    data_dir, run_id, seconds, image, sha256, *successor = sys.argv[1:]
    runtime = VmRuntime(Path(data_dir), clock=SystemClock(), node_id=NodeId("n1"))
    await runtime.open()
    disks = (VmDisk(image=image, sha256=sha256),) if image else ()
    spec = small_guest(WRITES if successor else FOREVER, disks=disks)
    await runtime.start(request(spec, run_id=run_id, deadline=float(seconds) or None))
    if successor:
        await wait_output(runtime, b"written\n")
        newer = request(small_guest(READS, disks=(*disks, MORE)), run_id=successor[0])
        await runtime.prepare(newer)
        await runtime.stop(RunId(run_id))
        await runtime.start(newer)
    print("ready", flush=True)
    await asyncio.sleep(600)


asyncio.run(main())
