"""Ranges of matching rows, for many rows at once; and the pairs that they make, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from shoal.dataflow.language.keys import Integers


def slot_ranges(known: Integers, slots: Integers) -> tuple[Integers, Integers]:
    """Where the rows of each slot lie among slots that are in order: first, and behind the last."""
    return np.searchsorted(known, slots, "left"), np.searchsorted(known, slots, "right")


def spread(first: Integers, end: Integers) -> tuple[Integers, Integers]:
    """All pairs of a range's number and a place in that range, at once: of ranges that hold few in all."""
    counts = end - first
    numbers = np.repeat(np.arange(len(first)), counts)
    return numbers, np.arange(len(numbers)) + (first - np.cumsum(counts) + counts)[numbers]


def bisect(times: Integers, first: Integers, end: Integers, targets: Any, *, right: bool) -> Integers:
    """For each row the place within its own range at which a time belongs; ranges are in order of time each.

    With `right` behind times that are equal to it, else before them.
    """
    low, high = first.copy(), end.copy()
    targets = np.broadcast_to(targets, low.shape)
    while True:
        open_ones = np.flatnonzero(low < high)
        if not len(open_ones):
            return low
        middle = (low[open_ones] + high[open_ones]) // 2
        here = times[middle]
        below = here <= targets[open_ones] if right else here < targets[open_ones]
        low[open_ones[below]] = middle[below] + 1
        high[open_ones[~below]] = middle[~below]


def pairs(first: Integers, end: Integers, max_pairs: int) -> Iterator[tuple[Integers, Integers]]:
    """The pairs of each row with the rows of its range, so many at a time: the row, and the place in its range."""
    counts = end - first
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, max_pairs):
        numbers = np.arange(start, min(start + max_pairs, total))
        rows = np.searchsorted(ends, numbers, "right")
        yield rows, first[rows] + numbers - (ends[rows] - counts[rows])
