"""Finds runs that belong to no workload of the agent after it came up, and drops those that are gone.

A runtime whose engine was away when the agent came up learns of runs without a record only later. Started by
`shoal.agent.workloads.executor`, which takes in what the runtimes know from the start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from shoal.agent.workloads.roster import Roster
from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.model.workloads import WorkloadType
from shoal.runtimes.base import RunInfo, RunPhase, Runtime

log = logging.getLogger(__name__)

LIST_EVERY = 30.0
#: A runtime that does not list its runs within this time is asked again later.
LIST_TIMEOUT = 10.0


class OrphanWatch:
    """Compares the runs of every runtime with the workloads of one agent."""

    def __init__(self, roster: Roster, runtimes: Mapping[WorkloadType, Runtime], clock: Clock) -> None:
        self._roster = roster
        self._runtimes = runtimes
        self._clock = clock

    async def run(self) -> None:
        """Compare again and again."""
        while True:
            await self._clock.sleep(LIST_EVERY)
            await self.compare()

    async def compare(self) -> None:
        """Note running runs of unknown workloads, and drop noted ones that no runtime has any longer."""
        # A workload that is deleted meanwhile may have been listed with a run that has ended since.
        known, noted = set(self._roster.actors), set(self._roster.orphans)
        listed: dict[str, RunInfo] = {}
        is_complete = True
        for kind, runtime in self._runtimes.items():
            try:
                async with asyncio.timeout(LIST_TIMEOUT):
                    listed |= {info.run_id: info for info in await runtime.list_runs()}
            except (ShoalError, OSError, TimeoutError) as error:
                log.info("the %s runtime does not list its runs: %s", kind.value, error)
                is_complete = False
        known |= self._roster.actors.keys()
        for run_id, info in listed.items():
            if info.phase is RunPhase.RUNNING and info.workload_id not in known and run_id not in self._roster.orphans:
                self._roster.add_orphan(info)
        if is_complete:
            for run_id in noted - listed.keys():
                self._roster.orphans.pop(run_id, None)
