"""Counts the lease of this node as the agent sees it.

The lease is counted from the *sending* of the last acknowledged heartbeat, and ends a tenth early. The control plane
counts from the receipt. So the agent's lease ends first, whatever the wall clocks show, while both clocks run at nearly
the same rate. At-most-one work depends on it: it is started only within the lease, and only if the control plane has
confirmed the ownership.

Renewed by `shoal.agent.contact.registration`, read by `shoal.agent.workloads.actor`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from shoal.core.clock import Clock
from shoal.core.ids import WorkloadId
from shoal.model.nodes import LEASE_MARGIN


@dataclass(frozen=True, slots=True)
class Ownership:
    """Which node owns a workload, as the control plane says."""

    node_id: str
    generation: int
    #: Whether it is to run.
    wanted: bool = True


Question = Callable[[WorkloadId], Awaitable[Ownership]]
"""Asks the control plane which node owns a workload. Raises the error of the call."""


class Contact:
    """The lease, and the control plane that gave it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent_at: float | None = None
        self._lease = 0.0
        self._renewed = asyncio.Event()
        #: Where the control plane is that acknowledged the last heartbeat and is certain to lead; else empty.
        self.leader = ""

    @property
    def sent_at(self) -> float | None:
        """When the last acknowledged heartbeat was sent, on the monotonic clock; None before there was one."""
        return self._sent_at

    def ends_at(self, stop_after: float = 0.0) -> float | None:
        """When the lease ends, on the monotonic clock; None before there was one.

        With `stop_after`: when a run that may go on for so long without contact has to end, never before the lease.
        """
        return None if self._sent_at is None else self._sent_at + self.allowance(stop_after)

    def time_left(self, stop_after: float = 0.0) -> float:
        """Seconds until then; 0 when it has passed, or when there was no lease."""
        ends_at = self.ends_at(stop_after)
        return 0.0 if ends_at is None else max(0.0, ends_at - self._clock.monotonic())

    def allowance(self, stop_after: float = 0.0) -> float:
        """How long the last acknowledged heartbeat is good for, as the agent counts."""
        return max(self._lease, stop_after) * (1.0 - LEASE_MARGIN)

    def silence(self) -> float:
        """Seconds since the last acknowledged heartbeat was sent; 0 before there was one."""
        return 0.0 if self._sent_at is None else self._clock.monotonic() - self._sent_at

    def has_lapsed(self) -> bool:
        """Whether there was a lease and it has ended."""
        return self._sent_at is not None and self.time_left() <= 0

    def renew(self, *, sent_at: float, lease: float, leader: str = "") -> None:
        """A heartbeat sent at `sent_at` was acknowledged by the leader."""
        self.leader = leader
        self._sent_at = sent_at if self._sent_at is None else max(self._sent_at, sent_at)
        self._lease = lease
        self._renewed.set()

    async def wait_for_lease(self) -> None:
        """Wait until there is time left."""
        while self.time_left() <= 0:
            self._renewed.clear()
            await self._renewed.wait()
