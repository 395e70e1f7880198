"""Finds out which runtimes this machine has, and makes them.

The agent asks when it starts, and then again and again for what was not there; it knows runtimes only by their
protocols. Processes always run. An engine is looked for by `DOCKER_HOST`, the usual sockets and the `podman` binary,
QEMU by its programs. A runtime that was asked for by name is made also when what it needs is missing: it is unhealthy,
and so not offered, until that is there. Called by `shoal.agent.server`.
"""

from __future__ import annotations

import asyncio
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
from shoal.runtimes.container.creating import Owner
from shoal.runtimes.container.engine.choice import CHOICE_FILE, EngineChoice
from shoal.runtimes.container.engine.finding import PODMAN_DIRECTORY, EngineFinder
from shoal.runtimes.container.records import is_in_use
from shoal.runtimes.container.runtime import ContainerRuntime
from shoal.runtimes.process import ProcessRuntime
from shoal.runtimes.vm.programs import has_programs

#: A compose command is asked for its version, so not at every look.
_COMMAND_SECONDS = 60.0


#: What a machine lacks that cannot run a kind.
_MISSING = {
    WorkloadType.CONTAINER: "there is no container engine on this machine",
    WorkloadType.COMPOSE: "there is no container engine or no compose command on this machine",
    WorkloadType.VM: "there is no QEMU on this machine",
}


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
        self._made: set[WorkloadType] = set()
        self._command: ComposeCommand | None = None
        self._ask_again_at = 0.0
        self._engines = EngineFinder(
            settings.data_dir / PODMAN_DIRECTORY,
            settings.environ,
            clock=clock,
            choice=EngineChoice(settings.data_dir / CHOICE_FILE, is_binding=partial(has_runs, settings.data_dir)),
        )

    async def find(self) -> dict[WorkloadType, Runtime]:
        """A runtime for each kind of workload that can run here and was not found by an earlier call."""
        found: dict[WorkloadType, Runtime] = {}
        has_engine = await asyncio.to_thread(self._engines.is_here)
        if self._looks_for(WorkloadType.PROCESS):
            found[WorkloadType.PROCESS] = self._process()
        if self._looks_for(WorkloadType.CONTAINER, is_here=has_engine):
            found[WorkloadType.CONTAINER] = self._container()
        if self._looks_for(WorkloadType.COMPOSE, is_here=has_engine and await self._has_compose()):
            found[WorkloadType.COMPOSE] = self._compose()
        if self._looks_for(WorkloadType.VM, is_here=await asyncio.to_thread(has_programs)):
            found[WorkloadType.VM] = self._vm()
        self._made |= found.keys()
        return found

    @property
    def absent(self) -> dict[WorkloadType, str]:
        """What is missing for each kind that nobody asked for and that was not found."""
        return {kind: words for kind, words in _MISSING.items() if not self._wanted and kind not in self._made}

    def _looks_for(self, kind: WorkloadType, *, is_here: bool = True) -> bool:
        """Whether a runtime is made: it was asked for by name, or nothing was and what it needs is here."""
        return kind not in self._made and (kind in self._wanted if self._wanted else is_here)

    async def _has_compose(self) -> bool:
        """Whether there is a compose command, or a project that one has started."""
        if self._wanted or WorkloadType.COMPOSE in self._made or self._clock.monotonic() < self._ask_again_at:
            return False
        self._command = await find_command()
        self._ask_again_at = self._clock.monotonic() + _COMMAND_SECONDS
        records = self._settings.data_dir / ComposeRuntime.DIRECTORY
        return self._command is not None or await asyncio.to_thread(is_in_use, records)

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

    def _compose(self) -> Runtime:
        settings = self._settings
        return ComposeRuntime(
            settings.data_dir,
            clock=self._clock,
            owner=Owner(settings.cluster_id, settings.node_id),
            connect=self._engines.connect,
            command=self._command,
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
