"""Workloads that fit on no node: why, and when each is tried again.

Filled by `shoal.control.workloads.placing`; shown by `shoal.control.api.views`.
"""

from __future__ import annotations

import asyncio

from shoal.control.state.lifecycle.phases import Waiting
from shoal.control.workloads.commands import CommandLog
from shoal.control.workloads.work_queue import WorkQueue
from shoal.core.clock import Clock
from shoal.core.ids import WorkloadId
from shoal.model.workloads import Rejection

#: An unplaceable workload is tried again after this long even if nothing was seen to change.
PENDING_RETRY_SECONDS = 15.0
#: However much changes, everything that waits for room is tried at most this often.
CAPACITY_SETTLE_SECONDS = 0.05


class Pending:
    """The workloads that wait for room."""

    def __init__(self, queue: WorkQueue, commands: CommandLog, *, clock: Clock) -> None:
        self._queue = queue
        self._commands = commands
        self._clock = clock
        self._not_before: dict[WorkloadId, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.rejections: dict[WorkloadId, tuple[Rejection, ...]] = {}

    @property
    def waiting(self) -> Waiting:
        """Why workloads do not start, beside what their records say."""
        return Waiting(self.rejections.keys(), self._commands.without_secret, self._commands.invalid)

    def not_before(self, workload_id: WorkloadId) -> float:
        """Monotonic time before which no placement is tried; 0 when nothing stands against it."""
        return self._not_before.get(workload_id, 0.0)

    def note(self, workload_id: WorkloadId, rejections: tuple[Rejection, ...]) -> bool:
        """A workload fits nowhere. True if that is news."""
        is_news = workload_id not in self.rejections
        self.rejections[workload_id] = rejections
        self._not_before[workload_id] = self._clock.monotonic() + PENDING_RETRY_SECONDS
        self._queue.look_again_in(workload_id, PENDING_RETRY_SECONDS)
        return is_news

    def forget(self, workload_id: WorkloadId) -> None:
        """A workload has a place, or needs none."""
        self.rejections.pop(workload_id, None)
        self._not_before.pop(workload_id, None)

    def start_over(self, workload_id: WorkloadId) -> None:
        """A user asked for a change: no backoff from before counts."""
        self._commands.forget(workload_id)
        self._not_before.pop(workload_id, None)
        self._queue.enqueue(workload_id)

    def capacity_changed(self) -> None:
        """Something was freed or became ready: what waits for room is tried again, soon and together."""
        if self._not_before and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CAPACITY_SETTLE_SECONDS, self._try_all)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _try_all(self) -> None:
        self._timer = None
        waiting = list(self._not_before)
        self._not_before.clear()
        self._queue.enqueue_all(waiting)
