"""Measures work directories, and has runs stopped that use more than `resources.disk_gb`.

Only directories that the runtime made for a workload are measured; a directory that a spec names may be shared. Started
by `shoal.agent.workloads.executor`; posts `DiskExceeded` to the actors.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from shoal.agent.facts import RUNNING_STAGES, DiskExceeded, WorkloadState
from shoal.agent.workloads.roster import Roster
from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.model.workloads import WorkloadType
from shoal.runtimes.base import Runtime, SupportsDiskUsage

log = logging.getLogger(__name__)

MEASURE_EVERY = 10.0
GIB = 1024**3


class DiskWatch:
    """Measures the work directories of one agent, one after another."""

    def __init__(self, roster: Roster, runtimes: Mapping[WorkloadType, Runtime], clock: Clock) -> None:
        self._roster = roster
        self._runtimes = runtimes
        self._clock = clock

    async def run(self) -> None:
        """Measure again and again."""
        while True:
            await self._clock.sleep(MEASURE_EVERY)
            await self.measure()

    async def measure(self) -> None:
        """Measure every work directory that has a limit."""
        for workload_id, actor in list(self._roster.actors.items()):
            state = actor.state
            limit = limit_of(state)
            runtime = self._runtimes.get(state.intent.type)
            if limit is None or not isinstance(runtime, SupportsDiskUsage):
                continue
            try:
                used = await runtime.disk_usage(workload_id, at_most=limit)
            except (ShoalError, OSError) as error:
                log.warning("the work directory of workload %s cannot be measured: %s", workload_id, error)
                continue
            if used > limit:
                words = f"its work directory uses more than the {limit // GIB} GB of resources.disk_gb"
                actor.post(DiskExceeded(state.progress.run_id, words))


def limit_of(state: WorkloadState) -> int | None:
    """The bytes that the work directory of a running workload may use; None when nothing limits it."""
    spec = state.spec
    if spec is None or state.stage not in RUNNING_STAGES or (spec.process is not None and spec.process.working_dir):
        return None
    return spec.request.disk_gb * GIB or None
