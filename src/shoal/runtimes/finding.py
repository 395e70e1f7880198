"""Finds out which runtimes this machine has, and makes them.

The agent asks once, when it starts; from then on it knows runtimes only by their protocols. Processes always run. An
engine is looked for by `DOCKER_HOST`, the usual sockets and the `podman` binary, QEMU by its programs. A runtime that
was asked for by name is made also when what it needs is missing: it is unhealthy, and so not offered, until that is
there. Called by `shoal.agent.server`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from shoal.core.clock import Clock
from shoal.core.ids import NodeId
from shoal.model.workloads import WorkloadType
from shoal.runtimes.base import Runtime
from shoal.runtimes.compose.command import ComposeCommand, find_command
from shoal.runtimes.compose.runtime import ComposeRuntime
from shoal.runtimes.compose.source import PROJECTS
from shoal.runtimes.container.choice import CHOICE_FILE, EngineChoice
from shoal.runtimes.container.creating import Owner
from shoal.runtimes.container.finding import PODMAN_DIRECTORY, EngineFinder
from shoal.runtimes.container.records import is_in_use
from shoal.runtimes.container.runtime import ContainerRuntime
from shoal.runtimes.process import ProcessRuntime
from shoal.runtimes.vm.programs import has_programs

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """What runtimes need to know of the agent that has them."""

    data_dir: Path
    node_id: NodeId
    cluster_id: str = ""
    pass_env: tuple[str, ...] = ()
    default_user: str = ""
    allow_privileged: bool = False
    #: The directories of the node's storage pools by name, and the names of those on the network.
    pools: Mapping[str, Path] = field(default_factory=dict)
    exports: frozenset[str] = frozenset()
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


def has_runs(data_dir: Path) -> bool:
    """Whether an agent has anything in its engine that it would miss in another one: runs, projects. Blocks."""
    records = (ContainerRuntime.DIRECTORY, ComposeRuntime.DIRECTORY)
    return any(is_in_use(data_dir / name) for name in records) or any((data_dir / PROJECTS).glob("*/"))


class FoundRuntimes:
    """The runtimes of one machine, and what they share."""

    def __init__(self, settings: RuntimeSettings, *, clock: Clock, wanted: Iterable[WorkloadType] = ()) -> None:
        """`wanted` restricts the kinds; empty: all that this machine has."""
        self._settings = settings
        self._clock = clock
        self._wanted = frozenset(wanted)
        self._engines = EngineFinder(
            settings.data_dir / PODMAN_DIRECTORY,
            settings.environ,
            clock=clock,
            choice=EngineChoice(settings.data_dir / CHOICE_FILE, is_binding=partial(has_runs, settings.data_dir)),
        )

    async def find(self) -> dict[WorkloadType, Runtime]:
        """One runtime for each kind of workload that can run here."""
        found: dict[WorkloadType, Runtime] = {}
        if self._looks_for(WorkloadType.PROCESS):
            found[WorkloadType.PROCESS] = self._process()
        if self._looks_for(WorkloadType.CONTAINER, is_here=self._engines.is_here()):
            found[WorkloadType.CONTAINER] = self._container()
        if self._looks_for(WorkloadType.COMPOSE, is_here=self._engines.is_here()):
            command = await find_command()
            if command is not None:
                found[WorkloadType.COMPOSE] = self._compose(command)
        if self._looks_for(WorkloadType.VM, is_here=has_programs()):
            found[WorkloadType.VM] = self._vm()
        for kind in self._wanted - found.keys():
            log.warning("this machine cannot run %s workloads: what they need is not installed", kind.value)
        return found

    def _looks_for(self, kind: WorkloadType, *, is_here: bool = True) -> bool:
        """Whether a runtime is made: it was asked for by name, or nothing was and what it needs is here."""
        return kind in self._wanted if self._wanted else is_here

    async def close(self) -> None:
        """Let go of what the runtimes shared. They are closed already; what they run goes on."""
        await self._engines.close()

    def _process(self) -> Runtime:
        settings = self._settings
        return ProcessRuntime(
            settings.data_dir,
            clock=self._clock,
            node_id=settings.node_id,
            pass_env=settings.pass_env,
            default_user=settings.default_user,
        )

    def _container(self) -> Runtime:
        settings = self._settings
        return ContainerRuntime(
            settings.data_dir,
            clock=self._clock,
            owner=Owner(settings.cluster_id, settings.node_id),
            connect=self._engines.connect,
            allow_privileged=settings.allow_privileged,
        )

    def _compose(self, command: ComposeCommand) -> Runtime:
        settings = self._settings
        return ComposeRuntime(
            settings.data_dir,
            clock=self._clock,
            owner=Owner(settings.cluster_id, settings.node_id),
            connect=self._engines.connect,
            command=command,
            allow_privileged=settings.allow_privileged,
        )

    def _vm(self) -> Runtime:
        from shoal.runtimes.vm.runtime import VmRuntime  # an agent without QEMU has no use for its libraries

        settings = self._settings
        return VmRuntime(
            settings.data_dir,
            clock=self._clock,
            node_id=settings.node_id,
            pools=settings.pools,
            exports=settings.exports,
        )
