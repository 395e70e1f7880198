"""Where the tasks of a job run, as its coordinator sees it: a protocol, and the simplest form of it, this process.

`shoal.dataflow.execution.hosts.processes` has the other one: child processes. Called by
`shoal.dataflow.execution.engine`.
"""

from __future__ import annotations

from typing import Protocol

from shoal.core.clock import Clock
from shoal.core.errors import UnavailableError
from shoal.dataflow.checkpoint.messages import Command, TaskId
from shoal.dataflow.checkpoint.records import Checkpoint
from shoal.dataflow.execution.hosts.control_messages import HostCounts, HostShare
from shoal.dataflow.execution.hosts.task_host import HostListener, TaskHost
from shoal.dataflow.plan.prepared import PreparedPlan


class HostLostError(UnavailableError):
    """A host was lost while its tasks were built."""


class Hosts(Protocol):
    """The task hosts of a job, for one epoch after the other."""

    @property
    def most_losses(self) -> int | None:
        """How often hosts may be lost within a minute: 0 when none can be begun anew, None without an end."""
        ...

    def begin(self, share: HostShare, found: Checkpoint | None, listener: HostListener) -> None:
        """Build every task of the job. Raises what prevents that, also `HostLostError`; then nothing is left of it."""
        ...

    def run(self) -> None:
        """Start them."""
        ...

    def send(self, task: TaskId, command: Command) -> None:
        """Send a command to a task."""
        ...

    def cancel(self) -> None:
        """End every task soon. The listener hears when the last one has ended."""
        ...

    def end(self) -> None:
        """End what is left of this epoch, and wait for it: nothing of it runs when this returns."""
        ...

    def counts(self) -> HostCounts:
        """What the tasks have done so far."""
        ...

    def close(self) -> None:
        """The job is over: let go of everything. Called by any thread, also by one of a task."""
        ...

    def join(self) -> None:
        """Wait until no thread of a task is left. Called after the end of the run."""
        ...


class LocalHosts:
    """All tasks in threads of this process."""

    def __init__(self, plan: PreparedPlan, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock
        self._host: TaskHost | None = None

    @property
    def most_losses(self) -> int:
        """None: what can be lost here is the process itself."""
        return 0

    def begin(self, share: HostShare, found: Checkpoint | None, listener: HostListener) -> None:
        """Build the tasks."""
        host = TaskHost(self._plan, share, listener, clock=self._clock)
        host.build(found=found)
        self._host = host

    def run(self) -> None:
        """Start them."""
        self._begun().run()

    def send(self, task: TaskId, command: Command) -> None:
        """Send a command to a task."""
        self._begun().send(task, command)

    def cancel(self) -> None:
        """End every task soon."""
        if self._host is not None:
            self._host.cancel()

    def end(self) -> None:
        """End what is left, and wait for it."""
        if self._host is not None:
            self._host.cancel()
            self._host.join()

    def counts(self) -> HostCounts:
        """What the tasks have done so far."""
        return HostCounts((), {}) if self._host is None else self._host.counts()

    def close(self) -> None:
        """Nothing to let go of."""

    def join(self) -> None:
        """Wait for the threads of the tasks."""
        if self._host is not None:
            self._host.join()

    def _begun(self) -> TaskHost:
        if self._host is None:
            raise RuntimeError("the tasks are not built")
        return self._host
