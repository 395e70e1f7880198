"""Asks at-most-one runs to end a little before their guards kill them. Owned by each runtime that has guards."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.core.ids import RunId
from shoal.core.tasks import Signal, TaskScope
from shoal.runtimes.keeper.lives.lifecycle import deadline_at

#: Between two looks while no deadline is near.
_LOOK_SECONDS = 60.0


class DeadlineWarnings:
    """When each run is asked. An extended deadline is planned anew."""

    def __init__(self, scope: TaskScope, clock: Clock, ask: Callable[[RunId], Awaitable[None]]) -> None:
        """`ask` has a task of its own for each run. What it cannot do, the guard does without it."""
        self._scope = scope
        self._clock = clock
        self._ask = ask
        #: On the clock's `monotonic()`.
        self._moments: dict[RunId, float] = {}
        self._moved = Signal()

    def plan(self, run_id: RunId, until: float, *, grace: float) -> None:
        """Ask a run whose guard kills it at `until`; not earlier than its grace period before."""
        self._moments[run_id] = deadline_at(until, grace=grace, now=self._clock.monotonic()).ask_at
        self._moved.set()

    def drop(self, run_id: RunId) -> None:
        """The run has ended."""
        self._moments.pop(run_id, None)

    async def follow(self) -> None:
        """Ask each run at its moment, for ever."""
        while True:
            now = self._clock.monotonic()
            for run_id in [run_id for run_id, moment in self._moments.items() if moment <= now]:
                del self._moments[run_id]
                self._scope.start(self._warn(run_id), name=f"deadline of {run_id}")
            wait = min((moment - now for moment in self._moments.values()), default=_LOOK_SECONDS)
            await self._moved.wait(max(0.0, wait))

    async def _warn(self, run_id: RunId) -> None:
        with contextlib.suppress(ShoalError):
            await self._ask(run_id)
