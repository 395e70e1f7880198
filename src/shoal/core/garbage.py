"""Collects garbage in a process that keeps very much for long: each object is looked at once, while it is young.

Python's collector looks at what survives again and again, and a process that holds a whole fleet stands still for that:
for seconds with 20,000 workloads. Here what survives a collection is set aside (`gc.freeze`), so a collection costs by
what is new. Cycles among what was set aside stay until memory has grown by half: then everything is looked at, once. A
look that found next to nothing was not worth its pause, so the next one waits until memory has grown threefold. So at
most a third of the memory is garbage where there was any before, and at most two thirds where there was none.

Used by `shoal control`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from shoal.core.clock import Clock

EVERY_SECONDS = 1.0
"""Seconds between two collections. Python counts new objects less freed ones: where old ones are replaced by new ones,
it would collect seldom, and very many at once."""

NEW_OBJECTS = 20_000
"""So many new objects are collected at once, without waiting."""

GROWTH = 1.5
"""Everything is looked at when there is so much more in memory than after the last time."""

WORTHWHILE = 0.1
"""After a look that freed less of the memory than this, it may grow twice as much."""


class Collections:
    """The collections of this process, while `instead_of_pythons` lasts."""

    def __init__(self, *, growth: float = GROWTH) -> None:
        self._least_growth = self._growth = growth
        self._blocks = 0

    @contextmanager
    def instead_of_pythons(self) -> Iterator[None]:
        """Set aside what survives each collection, for the length of the block."""
        thresholds = gc.get_threshold()
        gc.callbacks.append(self._set_aside)
        self.collect_all()
        gc.set_threshold(NEW_OBJECTS, *thresholds[1:])
        try:
            yield
        finally:
            gc.set_threshold(*thresholds)
            gc.callbacks.remove(self._set_aside)
            gc.unfreeze()

    async def run(self, clock: Clock) -> None:
        """Collect every now and then, until cancelled."""
        while True:
            await clock.sleep(EVERY_SECONDS)
            self.collect()

    def collect(self) -> None:
        """Collect what is new, or everything when memory has grown very much since that was last done."""
        if sys.getallocatedblocks() > self._growth * self._blocks:
            self.collect_all()
        else:
            gc.collect(0)

    def collect_all(self) -> None:
        """Collect everything."""
        gc.unfreeze()
        before = sys.getallocatedblocks()
        gc.collect()
        self._blocks = sys.getallocatedblocks()
        worthwhile = before - self._blocks >= WORTHWHILE * before
        self._growth = self._least_growth if worthwhile else 2 * self._least_growth

    def _set_aside(self, phase: str, _facts: dict[str, int]) -> None:
        if phase == "stop":
            gc.freeze()
