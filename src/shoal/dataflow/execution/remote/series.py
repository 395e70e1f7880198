"""Leaves the series of a job's process in its work directory, for its agent to serve. Called each second or so.

A file is replaced whole. That it cannot be written, on a full disk, is no error of the job.
"""

from __future__ import annotations

import logging
from pathlib import Path

from shoal.core.clock import Clock
from shoal.core.telemetry import MetricRegistry
from shoal.dataflow.checkpoint.coordinator import CheckpointCounts
from shoal.dataflow.execution.coordinator.running import FlowMetrics
from shoal.dataflow.execution.hosts.control_messages import HostCounts
from shoal.dataflow.execution.progress import FlowSeries
from shoal.model.series import JOB_FILE, MOST_BYTES, OWN_FILE, head_line

log = logging.getLogger(__name__)


class SeriesFile:
    """One file of series."""

    def __init__(self, path: Path, job_id: str, clock: Clock) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.new")
        self._job_id = job_id
        self._clock = clock
        self.series = FlowSeries(MetricRegistry())

    @property
    def now(self) -> int:
        """The time of day in microseconds."""
        return int(self._clock.wall().timestamp() * 1e6)

    def write(self) -> None:
        """Write the series as they are now. Nothing at all where they are more than a reader takes."""
        content = head_line(self._job_id) + self.series.registry.render()
        try:
            if len(content) <= MOST_BYTES:
                self._partial.write_bytes(content)
                self._partial.replace(self._path)
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            log.debug("the series are not written: %s", error)


class HostSeries:
    """The series of a task host: of its own tasks."""

    def __init__(self, folder: Path, job_id: str, name: str, clock: Clock) -> None:
        self._own = SeriesFile(folder / OWN_FILE, job_id, clock)
        self._name = name

    def write(self, counts: HostCounts, queue_bytes: int) -> None:
        """Write what its tasks have done so far."""
        metrics = FlowMetrics(counts.steps, counts.waiting_bytes, CheckpointCounts(), queue_bytes=queue_bytes)
        self._own.series.update_steps(self._name, metrics, self._own.now)
        self._own.write()


class CoordinatorSeries:
    """The series of a coordinator: checkpoints and recoveries as its own, and those of all tasks as the job's."""

    def __init__(self, folder: Path, job_id: str, name: str, clock: Clock) -> None:
        self._own = SeriesFile(folder / OWN_FILE, job_id, clock)
        self._job = SeriesFile(folder / JOB_FILE, job_id, clock)
        self._name = name

    def write(self, metrics: FlowMetrics) -> None:
        """Write what the job has done so far."""
        self._own.series.update_checkpoints(self._name, metrics)
        self._own.write()
        self._job.series.update(self._name, metrics, self._job.now)
        self._job.write()
