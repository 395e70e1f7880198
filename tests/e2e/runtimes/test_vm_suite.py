"""The VM runtime passes the suite of every runtime, with a small guest on a real QEMU."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.ids import NodeId, RunId, WorkloadId
from shoal.model.resources import Resources
from shoal.model.workloads import CloudInit, FailureReason, StopPolicy, VmSpec
from shoal.runtimes.base import RunRequest, Runtime
from shoal.runtimes.vm.runtime import VmRuntime
from shoal.testing.machines import kill_machine
from shoal.testing.suites.runtime import RuntimeSuite
from tests.services.guests import KERNEL_ARGS, find_guests

pytestmark = pytest.mark.e2e


class TestVm(RuntimeSuite):
    __test__ = True

    limits_memory = "a guest has the memory that its spec gives it"
    exit_codes = "a guest has no exit code"
    stop_signals = "a guest has a power button"
    streams = "a guest has one console"
    runs_commands = "the small guest has no guest agent"
    missing_program = FailureReason.IMAGE_NOT_FOUND
    exits = (0,)

    @pytest.fixture
    def make_runtime(self, tmp_path: Path) -> Iterator[Callable[[], Runtime]]:
        yield lambda: VmRuntime(tmp_path, clock=SystemClock(), node_id=NodeId("n1"))
        kill_machine(tmp_path)

    def make_request(
        self,
        script: str,
        *,
        run_id: str = "web-1",
        workload_id: str = "web",
        env: Mapping[str, str] | None = None,
        stop: StopPolicy | None = None,
        ports: Mapping[str, int] | None = None,
        limits: Resources | None = None,
        deadline: float | None = None,
    ) -> RunRequest:
        guests = find_guests()
        variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in (env or {}).items())
        spec = VmSpec(
            vcpus=1,
            memory_mb=128,
            kernel=guests.kernel,
            initrd=guests.initrd,
            kernel_args=KERNEL_ARGS,
            cloud_init=CloudInit(user_data=f"#!/bin/sh\n{variables}{script}\n"),
            acceleration="tcg",
            stop=stop or StopPolicy(grace=timedelta(seconds=1)),
        )
        return RunRequest(
            run_id=RunId(run_id),
            workload_id=WorkloadId(workload_id),
            spec=spec,
            limits=limits or Resources(),
            ports=ports or {},
            identity={"SHOAL_TEST_IDENTITY": "this one"},
            deadline=None if deadline is None else SystemClock().monotonic() + deadline,
        )

    def make_missing_program(self, run_id: str) -> RunRequest:
        find_guests()
        spec = VmSpec(kernel="/nowhere/no-such-program", acceleration="tcg")
        return RunRequest(run_id=RunId(run_id), workload_id=WorkloadId("web"), spec=spec)
