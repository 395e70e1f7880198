"""Measures work directories, and has runs stopped that use more than `resources.disk_gb`.

Only directories that the runtime made for a workload are measured: one that a spec names may be shared, so nobody can
say whose files it holds. Started by `shoal.agent.workloads.executor`; posts `DiskExceeded` to the actors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from shoal.agent.facts import RUNNING_STAGES, DiskExceeded, WorkloadState
from shoal.agent.workloads.roster import Roster
from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.core.ids import WorkloadId
from shoal.core.tasks import TaskScope
from shoal.model.workloads import WorkloadType
from shoal.runtimes.base import Runtime, SupportsDiskUsage

log = logging.getLogger(__name__)

MEASURE_EVERY = 10.0
#: Directories that are measured at once. Each takes a thread for as long as it takes.
AT_ONCE = 4
GIB = 1024**3


class DiskWatch:
    """Measures the work directories of one agent. A large one, or one that hangs, does not delay the others."""

    def __init__(
        self, roster: Roster, runtimes: Mapping[WorkloadType, Runtime], clock: Clock, *, scope: TaskScope
    ) -> None:
        self._roster = roster
        self._runtimes = runtimes
        self._clock = clock
        self._scope = scope
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._measuring: set[WorkloadId] = set()

    async def run(self) -> None:
        """Begin to measure every directory that has a limit, each again once the last time has ended."""
        while True:
            await self._clock.sleep(MEASURE_EVERY)
            for workload_id, actor in self._roster.actors.items():
                if limit_of(actor.state) is not None and workload_id not in self._measuring:
                    self._measuring.add(workload_id)
                    self._scope.start(self._measure(workload_id), name=f"disk of {workload_id}")

    async def _measure(self, workload_id: WorkloadId) -> None:
        try:
            async with self._turns:
                await self._look_at(workload_id)
        finally:
            self._measuring.discard(workload_id)

    async def _look_at(self, workload_id: WorkloadId) -> None:
        actor = self._roster.actors.get(workload_id)
        if actor is None:
            return
        state = actor.state
        limit = limit_of(state)
        runtime = self._runtimes.get(state.intent.type)
        if limit is None or not isinstance(runtime, SupportsDiskUsage):
            return
        try:
            used = await runtime.disk_usage(workload_id, at_most=limit)
        except (ShoalError, OSError) as error:
            log.warning("the work directory of workload %s cannot be measured: %s", workload_id, error)
            return
        if used > limit:
            words = f"its work directory uses more than the {limit // GIB} GB of resources.disk_gb"
            actor.post(DiskExceeded(state.progress.run_id, words))


def limit_of(state: WorkloadState) -> int | None:
    """The bytes that the work directory of a running workload may use; None when nothing limits it."""
    spec = state.spec
    if spec is None or state.stage not in RUNNING_STAGES or (spec.process is not None and spec.process.working_dir):
        return None
    return spec.request.disk_gb * GIB or None
