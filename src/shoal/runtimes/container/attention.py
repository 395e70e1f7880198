"""Work on single containers, so that one that hangs or cannot be removed delays no other.

Each container is worked on by one task at a time. What fails is tried again later and later. Owned by the runtimes
whose runs live in an engine; they call it each time they compare their records with the engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.core.retry import Backoff
from shoal.core.tasks import TaskScope

log = logging.getLogger(__name__)

_AGAIN = Backoff(first=0.2, cap=60.0)


class Attention:
    """What is being done about each of many things, by name."""

    def __init__(self, scope: TaskScope, clock: Clock) -> None:
        self._scope = scope
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        #: Those that nobody has waited for yet.
        self._begun: set[asyncio.Task[Any]] = set()
        self._failures: dict[str, int] = {}
        self._again_at: dict[str, float] = {}

    def give(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Begin `work`, unless something is being done about `name` already, or failed a moment ago."""
        if name in self._tasks or self._clock.monotonic() < self._again_at.get(name, 0.0):
            return
        task = self._scope.start(self._carry(name, work), name=f"attention {name[:12]}")
        self._tasks[name] = task
        self._begun.add(task)

    def forget_others(self, names: Collection[str]) -> None:
        """Forget the failures of everything that is not among `names`."""
        for name in self._failures.keys() - set(names):
            self._failures.pop(name, None)
            self._again_at.pop(name, None)

    async def settle(self, seconds: float) -> float | None:
        """Wait for what was begun since the last call, at most for so long; what takes longer goes on.

        In how many seconds something is to be tried again, or None.
        """
        begun, self._begun = self._begun, set()
        if begun:
            await asyncio.wait(begun, timeout=seconds)
        soonest = min((moment for name, moment in self._again_at.items() if name not in self._tasks), default=None)
        return None if soonest is None else max(0.0, soonest - self._clock.monotonic())

    async def _carry(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except (ShoalError, OSError) as error:
            failures = self._failures[name] = self._failures.get(name, 0) + 1
            delay = _AGAIN.plain_delay(failures)
            self._again_at[name] = self._clock.monotonic() + delay
            log.warning("container %s is tried again in %.1f s: %s", name[:12], delay, error)
        else:
            self._failures.pop(name, None)
            self._again_at.pop(name, None)
        finally:
            del self._tasks[name]
