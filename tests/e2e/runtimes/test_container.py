"""The container runtime passes the suite of every runtime, on a real Podman."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.ids import WorkloadId
from shoal.model.resources import Resources
from shoal.model.workloads import ContainerSpec, StopPolicy
from shoal.runtimes.base import RunRequest, Runtime
from shoal.runtimes.container.creating import Owner
from shoal.runtimes.container.runtime import ContainerRuntime
from shoal.testing.suites.runtime import RuntimeSuite
from tests.e2e.runtimes.containers import connect_to, engine, owner, registry
from tests.services.engine import IMAGE, Engine, engine_service

__all__ = ["engine", "owner", "registry"]

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def address(engine: Engine) -> Iterator[str]:
    """Of the API of the engine, which no test of the suite stops."""
    with engine_service(engine) as served:
        yield served


class TestContainer(RuntimeSuite):
    __test__ = True

    @pytest.fixture
    def make_runtime(self, tmp_path: Path, owner: Owner, address: str) -> Callable[[], Runtime]:
        connect = partial(connect_to, address)
        return lambda: ContainerRuntime(tmp_path, clock=SystemClock(), owner=owner, connect=connect)

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
        spec = ContainerSpec(
            image=IMAGE, command=("sh", "-c", script), env=env or {}, stop=stop or StopPolicy(), init=True
        )
        return RunRequest(
            run_id=run_id,
            workload_id=WorkloadId(workload_id),
            spec=spec,
            limits=limits or Resources(),
            ports=ports or {},
            identity={"SHOAL_TEST_IDENTITY": "this one"},
            deadline=None if deadline is None else SystemClock().monotonic() + deadline,
        )

    def make_missing_program(self, run_id: str) -> RunRequest:
        spec = ContainerSpec(image=IMAGE, command=("/nowhere/no-such-program",))
        return RunRequest(run_id=run_id, workload_id=WorkloadId("web"), spec=spec)
