"""Measures the health of the agent and the usage of its node, for heartbeats, `HealthCheck`, `/health` and `/metrics`.

Slow measurements are made in the background, so that no caller waits for one. Started by `shoal.agent.server`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from shoal.agent.facts import HealthReport, WorkloadReport
from shoal.agent.node.disk import disk_pressure, disk_space
from shoal.agent.node.probes import MIB, Probe, Reading
from shoal.agent.store import intents
from shoal.agent.store.database import AgentDatabase
from shoal.agent.workloads.executor import Executor
from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.core.ids import WorkloadId
from shoal.model.nodes import ConditionType, NodeCondition, NodeUsage
from shoal.model.workloads import Usage
from shoal.runtimes.base import HEALTHY

log = logging.getLogger(__name__)

LOOK_EVERY = 5.0
#: After so many bad looks in a row a runtime is not offered.
BAD_LOOKS = 2


class NodeWatch:
    """Measures the node and keeps the results. The `Reports` of `shoal.agent.contact.registration`."""

    def __init__(
        self,
        *,
        executor: Executor,
        database: AgentDatabase,
        probes: Mapping[str, Probe],
        data_dir: Path,
        clock: Clock,
        whole_machine: bool,
        control_trouble: Callable[[], str],
        changed: Callable[[], None],
        standing: Mapping[ConditionType, str] | None = None,
    ) -> None:
        self._executor = executor
        self._database = database
        self._probes = probes
        self._data_dir = data_dir
        self._clock = clock
        #: Whether the node is the whole machine. If not, only the usage of its own workloads counts.
        self._whole_machine = whole_machine
        self._control_trouble = control_trouble
        self._changed = changed
        #: What is wrong with the node as long as this agent runs.
        self._standing = dict(standing or {})
        self._conditions: dict[str, NodeCondition] = {
            kind: NodeCondition(kind, message, clock.wall()) for kind, message in self._standing.items()
        }
        for kind, message in self._standing.items():
            log.warning("%s: %s", kind, message)
        self._readings: dict[str, Reading] = {name: Reading() for name in probes}
        self._usages: dict[WorkloadId, Usage] = {}
        self._runtimes: dict[str, str] = {kind.value: "unhealthy: not looked at yet" for kind in executor.types}
        #: Looks in a row at which each runtime was not healthy.
        self._bad_looks: dict[str, int] = {}

    async def run(self) -> None:
        """Measure until cancelled. The caller makes the first measurement."""
        while True:
            await self._clock.sleep(LOOK_EVERY)
            await self.look()

    async def look(self) -> None:
        """Check the health of every runtime, and measure."""
        self._note_runtimes(await self._executor.health())
        await self._executor.look_at_services()
        self._readings = {name: probe.read() for name, probe in self._probes.items()}
        if self._database.trouble:
            # There may be nothing to write for a long time: try whether the disk takes writes again.
            with contextlib.suppress(ShoalError):
                await self._database.write(partial(intents.put_meta, key="last_trouble", value=self._database.trouble))
        pressure = self._find_disk_pressure()
        if not pressure:
            with contextlib.suppress(ShoalError):
                await self._database.keep_room()
        self._executor.roster.disk_pressure = pressure
        self._note_conditions(
            {
                **self._standing,
                **self._executor.conditions(),
                **self._find_missing_runtimes(),
                **({ConditionType.DISK_PRESSURE: pressure} if pressure else {}),
            }
        )

    def _note_runtimes(self, found: dict[str, str]) -> None:
        """Keep how each runtime is. One that is down at two looks in a row is not offered until it is well again."""
        before, first = self.offered_types, not self._bad_looks
        self._runtimes = found
        self._bad_looks = {
            kind: 0 if words == HEALTHY else BAD_LOOKS if first else self._bad_looks.get(kind, 0) + 1
            for kind, words in found.items()
        }
        if self.offered_types != before:
            self._changed()

    @property
    def offered_types(self) -> tuple[str, ...]:
        """The kinds of workload that can run here now."""
        return tuple(kind.value for kind in self._executor.types if self._bad_looks.get(kind.value, 0) < BAD_LOOKS)

    def _find_missing_runtimes(self) -> dict[ConditionType, str]:
        missing = [f"{kind} is {words}" for kind, words in self._runtimes.items() if words != HEALTHY]
        return {ConditionType.RUNTIME_UNAVAILABLE: "; ".join(missing)} if missing else {}

    def _find_disk_pressure(self) -> str:
        if self._database.full:
            return self._database.trouble
        space = disk_space(self._data_dir)
        before = ConditionType.DISK_PRESSURE in self._conditions
        return disk_pressure(space, before=before) if space is not None else ""

    def _note_conditions(self, found: Mapping[ConditionType, str]) -> None:
        """Note when each condition began, and report at once when one begins or ends."""
        before, now = self._conditions, self._clock.wall()
        self._conditions = {
            kind: NodeCondition(kind, message, before[kind].since if kind in before else now)
            for kind, message in found.items()
        }
        for kind in self._conditions.keys() - before.keys():
            log.warning("%s: %s", kind, self._conditions[kind].message)
        for kind in before.keys() - self._conditions.keys():
            log.info("%s is over", kind)
        if before.keys() != self._conditions.keys():
            self._changed()

    def conditions(self) -> tuple[NodeCondition, ...]:
        """What was wrong with the node when it was last measured."""
        return tuple(self._conditions.values())

    @property
    def runtimes(self) -> dict[str, str]:
        """The health of each runtime at the last check."""
        return self._runtimes

    def report(self) -> HealthReport:
        """The health of the agent: healthy if every runtime is, its disk takes writes, and it owns its node id."""
        parts = dict(self._runtimes)
        if self._database.trouble:
            parts["store"] = f"unhealthy: {self._database.trouble}"
        trouble = self._control_trouble()
        if trouble:
            parts["control"] = f"unhealthy: {trouble}"
        healthy = all(words == HEALTHY for words in parts.values())
        orphans = self._executor.roster.orphans
        if orphans:
            parts["orphans"] = (
                f"{len(orphans)} runs belong to no workload known here: {', '.join(sorted(orphans)[:10])}"
            )
        return HealthReport(
            healthy=healthy,
            parts=parts,
            cpu_percent=self._reading("cpu").percent,
            memory_percent=self._reading("memory").percent,
            disk_percent=self._reading("disk").percent,
        )

    # The parts of a heartbeat.

    def statuses(self) -> tuple[WorkloadReport, ...]:
        """Every workload of the node."""
        return self._executor.roster.reports()

    async def measure(self) -> None:
        """Measure what workloads use."""
        self._usages = await self._executor.usages()

    def usages(self) -> dict[WorkloadId, Usage]:
        """What workloads used when it was last measured."""
        return self._usages

    def node_usage(self) -> NodeUsage:
        """What is reserved now, and what was used when it was last measured."""
        reserved = self._executor.roster.reserved()
        cpu, memory = self._reading("cpu").used, self._reading("memory").used
        if not self._whole_machine:
            cpu = round(sum(usage.cpu_percent for usage in self._usages.values()) * 10)
            memory = sum(usage.memory_bytes for usage in self._usages.values()) // MIB
        return NodeUsage(
            cpu_allocated_millicores=reserved.cpu_millicores,
            cpu_used_millicores=cpu,
            memory_allocated_mb=reserved.memory_mb,
            memory_used_mb=memory,
            disk_allocated_gb=reserved.disk_gb,
            disk_used_gb=self._reading("disk").used,
            slots_used=reserved.slots,
        )

    def set_draining(self, draining: bool) -> None:
        """Set by the control plane."""
        self._executor.roster.set_draining(draining)

    async def extend_deadlines(self, silence: float) -> None:
        """There is contact again after so long."""
        await self._executor.extend_deadlines(silence)

    def lose_contact(self, silence: float) -> None:
        """There was no contact for so long."""
        self._executor.lose_contact(silence)

    def _reading(self, name: str) -> Reading:
        return self._readings.get(name, Reading())
