"""Results of overlapping windows from panes, at a cost for each window that does not grow with the overlap.

`RunningCombination` adds the pane that enters and subtracts the one that leaves; only for what can be subtracted
exactly, such as counts and sums of whole numbers. `StackedCombination` keeps, for the older half of the panes, the
combination of each with all later ones of that half, and one combination of the newer half: any window is two of them,
and each pane is combined about three times in all.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Protocol

from shoal.dataflow.operators.aggregates.plan import AccumulatorSpec, AggregatePlan
from shoal.dataflow.operators.aggregates.sparse import Sparse
from shoal.dataflow.operators.aggregates.store import Store, combine

#: Gives a pane in its compressed form.
Freeze = Callable[[int], Sparse]


class Combination(Protocol):
    """The combination of the panes of one window, moved from window to window."""

    def result(self, panes: Sequence[int], first: int, end: int, freeze: Freeze, capacity: int) -> Sparse:
        """Panes `first` up to, not including, `end`. `panes` are all that there are, in order."""
        ...

    def covers(self, pane: int) -> bool:
        """Whether a pane is in it, so that new rows of that pane make it stale."""
        ...

    def reset(self) -> None:
        """Forget everything; the next result is made anew."""
        ...


def make_combination(plan: AggregatePlan) -> Combination:
    """The one that fits."""
    return RunningCombination(plan.specs) if plan.is_invertible else StackedCombination(plan.specs)


def between(panes: Sequence[int], first: int, end: int) -> Sequence[int]:
    """Those from `first` up to, not including, `end`."""
    return panes[bisect.bisect_left(panes, first) : bisect.bisect_left(panes, end)]


class RunningCombination:
    """Add what enters, subtract what leaves."""

    def __init__(self, specs: Sequence[AccumulatorSpec]) -> None:
        self._specs = specs
        self._store = Store(specs)
        self._inside: dict[int, Sparse] = {}

    def result(self, panes: Sequence[int], first: int, end: int, freeze: Freeze, capacity: int) -> Sparse:
        """The panes of a window."""
        self._store.ensure(capacity)
        wanted = between(panes, first, end)
        for pane in [pane for pane in self._inside if not first <= pane < end]:
            self._store.remove(self._inside.pop(pane))
        for pane in wanted:
            if pane not in self._inside:
                self._inside[pane] = freeze(pane)
                self._store.merge(self._inside[pane])
        return self._store.take(self._store.present())

    def covers(self, pane: int) -> bool:
        """Whether a pane is in it."""
        return pane in self._inside

    def reset(self) -> None:
        """Forget everything."""
        self._store = Store(self._specs)
        self._inside = {}


class StackedCombination:
    """Combinations from each older pane up to the middle, and one from the middle on."""

    def __init__(self, specs: Sequence[AccumulatorSpec]) -> None:
        self._specs = specs
        #: Panes of the older half, the newest first, each with the combination from it up to the middle.
        self._older: list[tuple[int, Sparse]] = []
        self._newer: Sparse | None = None
        self._newer_panes: list[int] = []
        self._end: int | None = None

    def result(self, panes: Sequence[int], first: int, end: int, freeze: Freeze, capacity: int) -> Sparse:
        """The panes of a window."""
        start = first if self._end is None else max(first, self._end)
        for pane in between(panes, start, end):
            self._push(pane, freeze(pane), capacity)
        self._end = end
        while self._older and self._older[-1][0] < first:
            self._older.pop()
        if self._newer_panes and self._newer_panes[0] < first:
            self._turn(first, freeze, capacity)
        older = [self._older[-1][1]] if self._older else []
        newer = [] if self._newer is None else [self._newer]
        return combine(self._specs, [*older, *newer], capacity)

    def covers(self, pane: int) -> bool:
        """Whether a pane is in it."""
        return self._end is not None and pane < self._end

    def reset(self) -> None:
        """Forget everything."""
        self._older, self._newer, self._newer_panes, self._end = [], None, [], None

    def _push(self, pane: int, sparse: Sparse, capacity: int) -> None:
        self._newer = sparse if self._newer is None else combine(self._specs, [self._newer, sparse], capacity)
        self._newer_panes.append(pane)

    def _turn(self, first: int, freeze: Freeze, capacity: int) -> None:
        """The newer half becomes the older one. It happens when the older one is used up."""
        self._older = []
        suffix: Sparse | None = None
        for pane in reversed([pane for pane in self._newer_panes if pane >= first]):
            suffix = freeze(pane) if suffix is None else combine(self._specs, [freeze(pane), suffix], capacity)
            self._older.append((pane, suffix))
        self._newer, self._newer_panes = None, []
