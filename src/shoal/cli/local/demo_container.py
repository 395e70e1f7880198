"""The container of `shoal demo`: it runs beside the processes where the agents have found an engine.

The image is made on this machine, so no registry is needed. Image and container are removed at the end. Called by
`shoal.cli.local.demo`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli import output
from shoal.cli.local.demo_image import PROGRAM, image_archive
from shoal.cli.local.demo_stage import Report, until, workload_document
from shoal.core.clock import Clock
from shoal.core.entropy import SystemEntropy
from shoal.core.errors import ShoalError
from shoal.model.documents import WorkloadDocument
from shoal.model.phases import ContractStatus
from shoal.model.workloads import WorkloadType
from shoal.runtimes.container.engine.api import EngineApi
from shoal.runtimes.container.engine.finding import EngineFinder

if TYPE_CHECKING:
    from shoal.client import ControlPlane
    from shoal.model.views import WorkloadView

#: The workload, by its id.
CONTAINER = "hello"

_NO_ENGINE = "no container engine was found: with Docker or Podman, the demo also runs a container"
_LABEL = "shoal.demo"


@contextlib.asynccontextmanager
async def container_on_show(folder: Path, clock: Clock) -> AsyncIterator[ContainerOnShow]:
    """The acts of the container. What they made in the engine is removed at the end of the block."""
    engines = EngineFinder(folder / "engine", os.environ, clock=clock)
    shown = ContainerOnShow(engines, clock)
    try:
        yield shown
    finally:
        await shown.close()
        await engines.close()


class ContainerOnShow:
    """A container on the fleet: started, seen to outlive what is killed, and removed."""

    def __init__(self, engines: EngineFinder, clock: Clock) -> None:
        self._engines = engines
        self._clock = clock
        self._api: EngineApi | None = None
        #: Tells this demo apart from others that use the same engine.
        self._mark = SystemEntropy().token(6).lower()
        self._started: tuple[object, ...] | None = None

    @property
    def image(self) -> str:
        """The name of the image."""
        return f"localhost/shoal-demo:{self._mark}"

    async def act_start(self, control: ControlPlane, report: Report, *, away_from: str) -> None:
        """Apply the container, and wait until it runs. It is not put on the node that dies later."""
        nodes = await control.list_nodes()
        if not any(WorkloadType.CONTAINER.value in node.supported_workload_types for node in nodes):
            report.leave_out(_NO_ENGINE)
            return
        report.act("a container beside the processes; its image is made here, without a registry")
        if problem := await self._make_image():
            report.leave_out(f"no container was run: {problem}")
            return
        began = self._clock.monotonic()
        await control.apply(self._document(away_from))
        view = await self._settled(control)
        if view.status != ContractStatus.RUNNING:
            await control.delete(CONTAINER)
            message = view.run.message if view.run is not None else view.failure_reason
            report.leave_out(f"no container was run, because the engine cannot start one: {message}")
            return
        seconds = self._clock.monotonic() - began
        self._started = _identity(view)
        output.words(f"{CONTAINER} is {view.state} on {view.assigned_node_id}, {seconds:.1f} s after apply")
        report.note(True, f"a container was {view.state} {seconds:.1f} s after apply, beside the processes")

    async def act_check(self, control: ControlPlane, report: Report) -> None:
        """See that it is still the same one."""
        if self._started is not None:
            view = await control.get_workload(CONTAINER)
            same = view.status == ContractStatus.RUNNING and _identity(view) == self._started
            report.note(same, "the container ran through all of it: same process, no restart")

    async def act_gone(self, report: Report) -> None:
        """Remove the image, and see that the engine has nothing of the demo left. The fleet has ended."""
        if self._api is None or self._started is None:
            return
        left = len(await self._api.containers(self._labels))
        await self._api.remove_image(self.image)
        gone = not left and await self._api.image(self.image) is None
        report.note(gone, "the container and its image were removed from the engine")

    async def close(self) -> None:
        """Remove everything that is still there, also after a failure."""
        api, self._api = self._api, None
        if api is None:
            return
        with contextlib.suppress(ShoalError):
            for each in await api.containers(self._labels):
                await api.remove(str(each["Id"]))
            await api.remove_image(self.image)
        await api.close()

    @property
    def _labels(self) -> dict[str, str]:
        return {_LABEL: self._mark}

    async def _make_image(self) -> str:
        """Put the image into the engine. Returns why that is not possible; empty when it was done."""
        try:
            self._api = await self._engines.connect()
            architecture = str((await self._api.version()).get("Arch") or "")
            archive = image_archive(architecture)
            if archive is None:
                return f"the demo has no program for {architecture or 'the architecture of the engine'}"
            await self._api.import_image(self.image, archive)
        except ShoalError as error:
            return error.message
        return ""

    def _document(self, away_from: str) -> WorkloadDocument:
        container = {
            "image": self.image,
            "pull_policy": "never",
            "command": [PROGRAM],
            "labels": self._labels,
            "stop": {"signal": "KILL", "grace": "1s"},
        }
        elsewhere = {"constraints": [{"key": "node_id", "operator": "not_in", "values": [away_from]}]}
        return workload_document(
            CONTAINER, WorkloadType.CONTAINER, {"container": container, "placement": elsewhere}, cpu=100, memory=32
        )

    async def _settled(self, control: ControlPlane) -> WorkloadView:
        """The workload when it runs, or when its start has failed."""
        seen: list[WorkloadView] = []

        async def settled() -> bool:
            seen[:] = [await control.get_workload(CONTAINER)]
            return seen[0].status == ContractStatus.RUNNING or bool(seen[0].failure_reason)

        await until(self._clock, f"{CONTAINER} runs", settled)
        return seen[0]


def _identity(view: WorkloadView) -> tuple[object, ...]:
    """What changes when a workload is started again."""
    return (view.generation, view.run.restarts, view.run.pid) if view.run is not None else (view.generation,)
