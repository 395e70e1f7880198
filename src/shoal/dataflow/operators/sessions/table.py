"""Which sessions are open, by key slot; and the arithmetic of spans of time that lie within a gap of each other.

All numpy, for many keys at once. The cell of a session is its place in the arrays here and in a `Store`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.dataflow.language.keys import Integers
from shoal.dataflow.operators.aggregates.accumulators import grown


@dataclass(frozen=True, slots=True)
class Spans:
    """Stretches of time of keys: from the first row to the last, both included."""

    slots: Integers
    lows: Integers
    highs: Integers

    def at(self, rows: Any) -> Spans:
        """Some of them."""
        return Spans(self.slots[rows], self.lows[rows], self.highs[rows])


@dataclass(frozen=True, slots=True)
class Joined:
    """Spans put together, in the order of slot and time; and which of them each of two sets has become part of."""

    spans: Spans
    of_first: Integers
    of_second: Integers


def find_spans(slots: Integers, times: Integers, gap: int) -> tuple[Spans, Integers]:
    """The spans that rows make among themselves, and the number of the span of each row."""
    order = np.lexsort((times, slots))
    slots, times = slots[order], times[order]
    begins = np.ones(len(slots), np.bool_)
    begins[1:] = (slots[1:] != slots[:-1]) | (times[1:] - times[:-1] >= gap)
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(slots)) - 1
    of_row = np.empty(len(slots), np.int64)
    of_row[order] = np.cumsum(begins) - 1
    return Spans(slots[starts], times[starts], times[ends]), of_row


def join_spans(first: Spans, second: Spans, gap: int) -> Joined:
    """Put together what lies within a gap of each other."""
    slots = np.concatenate([first.slots, second.slots])
    lows = np.concatenate([first.lows, second.lows])
    highs = np.concatenate([first.highs, second.highs])
    order = np.lexsort((lows, slots))
    slots, lows, highs = slots[order], lows[order], highs[order]
    reached = _greatest_so_far(slots, highs)
    begins = np.ones(len(slots), np.bool_)
    begins[1:] = (slots[1:] != slots[:-1]) | (lows[1:] - reached[:-1] >= gap)
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(slots)) - 1
    numbers = np.empty(len(slots), np.int64)
    numbers[order] = np.cumsum(begins) - 1
    spans = Spans(slots[starts], lows[starts], reached[ends])
    return Joined(spans, numbers[: len(first.slots)], numbers[len(first.slots) :])


def _greatest_so_far(slots: Integers, highs: Integers) -> Integers:
    """For each row the greatest value up to it, of its own slot. Slots are in order."""
    if not len(slots):
        return highs
    known, ranks = np.unique(highs, return_inverse=True)
    # Ranks instead of values: together with the number of the slot they always fit into 64 bits.
    places = np.cumsum(np.concatenate([[0], slots[1:] != slots[:-1]])) * len(known)
    greatest: Integers = known[np.maximum.accumulate(places + ranks) - places]
    return greatest


class SessionTable:
    """Open sessions. Those of one slot are linked to each other."""

    def __init__(self) -> None:
        self.slots, self.lows, self.highs, self._next = (np.zeros(0, np.int64) for _ in range(4))
        #: Whether its result was emitted as it is now.
        self.emitted, self._used = (np.zeros(0, np.bool_) for _ in range(2))
        self._heads = np.full(0, -1, np.int64)
        self._free: list[int] = []

    @property
    def capacity(self) -> int:
        """There is no cell at or above it."""
        return len(self._used)

    def alive(self) -> Integers:
        """The cells of all open sessions."""
        return np.flatnonzero(self._used)

    def spans(self, cells: Integers) -> Spans:
        """Those of some cells."""
        return Spans(self.slots[cells], self.lows[cells], self.highs[cells])

    def ended(self, time: int) -> Integers:
        """The cells of sessions whose last row is not after a moment."""
        return np.flatnonzero(self._used & (self.highs <= time))

    def cells_of(self, slots: Integers) -> Integers:
        """The cells of all sessions of these slots, ordered by slot and then by time."""
        self._ensure_heads(int(slots.max()) + 1 if len(slots) else 0)
        found = []
        cells = self._heads[slots]
        cells = cells[cells >= 0]
        while len(cells):
            found.append(cells)
            cells = self._next[cells]
            cells = cells[cells >= 0]
        if not found:
            return np.zeros(0, np.int64)
        every = np.concatenate(found)
        return every[np.lexsort((self.lows[every], self.slots[every]))]

    def allocate(self, count: int) -> Integers:
        """Cells for new sessions."""
        while len(self._free) < count:
            old = self.capacity
            capacity = max(64, 2 * old)
            for name in ("slots", "lows", "highs", "_next", "emitted", "_used"):
                setattr(self, name, grown(getattr(self, name), capacity, 0))
            self._free.extend(range(capacity - 1, old - 1, -1))
        taken = self._free[len(self._free) - count :][::-1]
        del self._free[len(self._free) - count :]
        cells = np.array(taken, np.int64)
        self._used[cells] = True
        return cells

    def put(self, cells: Integers, spans: Spans) -> None:
        """Set what these sessions are."""
        self.slots[cells], self.lows[cells], self.highs[cells] = spans.slots, spans.lows, spans.highs
        self.emitted[cells] = False

    def link(self, slots: Integers, cells: Integers) -> None:
        """All sessions of some slots, in the order of slots."""
        if not len(slots):
            return
        self._ensure_heads(int(slots.max()) + 1)
        same = slots[1:] == slots[:-1]
        self._next[cells] = -1
        self._next[cells[:-1][same]] = cells[1:][same]
        firsts = np.concatenate([[True], ~same])
        self._heads[slots[firsts]] = cells[firsts]

    def release(self, cells: Integers) -> None:
        """Free cells that no slot leads to any longer."""
        self._used[cells] = False
        self._free.extend(cells.tolist())

    def remove(self, cells: Integers, slots: Integers) -> None:
        """Take sessions out; `slots` are all that they belong to."""
        every = self.cells_of(slots)
        self.release(cells)
        self._heads[slots] = -1
        kept = every[self._used[every]]
        self.link(self.slots[kept], kept)

    def renumber(self, moved: Integers) -> None:
        """Slots have new numbers, in the same order."""
        cells = self.alive()
        self.slots[cells] = moved[self.slots[cells]]
        self._heads = np.full(int((moved >= 0).sum()), -1, np.int64)
        order = cells[np.lexsort((self.lows[cells], self.slots[cells]))]
        self.link(self.slots[order], order)

    def _ensure_heads(self, count: int) -> None:
        if count > len(self._heads):
            self._heads = grown(self._heads, max(count, 2 * len(self._heads)), -1)
