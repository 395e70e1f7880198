"""Reads the series that processes of jobs leave in their work directories. Called for each scrape of an agent.

Files are read in threads, a few at once; one that is large, old or no plain file is left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.core.ids import WorkloadId
from shoal.model.series import FRESH, JOB_FILE, MOST_BYTES, OWN_FILE, merge_series
from shoal.runtimes.base import SupportsWorkFiles

log = logging.getLogger(__name__)

_AT_ONCE = 8


class JobSeries:
    """The series of the jobs whose processes run on one node."""

    def __init__(self, runtime: SupportsWorkFiles, workloads: Callable[[], Iterable[WorkloadId]], clock: Clock) -> None:
        self._runtime = runtime
        self._workloads = workloads
        self._clock = clock
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def own(self) -> bytes:
        """What the processes here have done, as Prometheus' text."""
        return await self._read([(each, OWN_FILE) for each in self._workloads()])

    async def of_job(self, job_id: str) -> bytes:
        """What all processes of a job have done, if its coordinator is here; else nothing."""
        return await self._read([(each, JOB_FILE) for each in self._workloads() if each.startswith(f"{job_id}-")])

    async def _read(self, places: list[tuple[WorkloadId, str]]) -> bytes:
        found = await asyncio.gather(*(self._content(*each) for each in places))
        return merge_series(
            (workload_id, content)
            for (workload_id, _name), content in zip(places, found, strict=True)
            if content is not None
        )

    async def _content(self, workload_id: WorkloadId, name: str) -> bytes | None:
        async with self._turns:
            try:
                found = await self._runtime.read_work_file(workload_id, name, at_most=MOST_BYTES)
            except (ShoalError, OSError) as error:
                log.debug("%s of workload %s cannot be read: %s", name, workload_id, error)
                return None
        if found is None or self._clock.wall().timestamp() - found[1] > FRESH:
            return None
        return found[0]
