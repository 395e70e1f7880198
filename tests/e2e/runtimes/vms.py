"""Small guests for tests of the VM runtime."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from shoal.core.clock import SystemClock
from shoal.core.ids import RunId, WorkloadId
from shoal.model.workloads import CloudInit, StopPolicy, VmDisk, VmSpec
from shoal.runtimes.base import RunRequest
from tests.services.guests import KERNEL_ARGS, find_guests

FOREVER = "echo up; exec sleep 1000"
#: Leaves something on its first disk, and says what is there.
WRITES = "echo from the first run | dd of=/dev/vda conv=fsync 2>/dev/null; echo written; exec sleep 1000"
READS = "head -c 18 /dev/vda; echo; exec sleep 1000"
MORE = VmDisk(size_gb=1, name="more")
QUICK = StopPolicy(grace=timedelta(milliseconds=100))


def small_guest(script: str = FOREVER, **fields: Any) -> VmSpec:
    """A guest that runs a script and powers off."""
    guests = find_guests()
    spec = VmSpec(
        memory_mb=128,
        kernel=guests.kernel,
        initrd=guests.initrd,
        kernel_args=KERNEL_ARGS,
        cloud_init=CloudInit(user_data=f"#!/bin/sh\n{script}\n"),
        acceleration="tcg",
        stop=QUICK,
    )
    return replace(spec, **fields)


def request(spec: VmSpec, *, run_id: str = "web-1", deadline: float | None = None, **fields: Any) -> RunRequest:
    """A run of a guest."""
    return RunRequest(
        run_id=RunId(run_id),
        workload_id=WorkloadId(run_id.rpartition("-")[0]),
        spec=spec,
        deadline=None if deadline is None else SystemClock().monotonic() + deadline,
        **fields,
    )
