"""Rows that wait for partners: segments sorted by slot and time, merged as they grow.

Each segment holds at least twice as much as the next one, so there are few of them, and a row is copied only as often
as the logarithm of their number. A row can be marked as matched, and rows that are too old are left out and freed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.dataflow.language.elements import Batch
from shoal.dataflow.language.keys import Integers
from shoal.dataflow.operators.batches import stacked


@dataclass(slots=True)
class Segment:
    """Rows in the order of slot, time and arrival."""

    slots: Integers
    times: Integers
    matched: np.ndarray[Any, np.dtype[np.bool_]]
    rows: Batch

    def __len__(self) -> int:
        return len(self.slots)

    def at(self, places: Integers) -> Segment:
        """Some of them."""
        return Segment(self.slots[places], self.times[places], self.matched[places], self.rows.take(pa.array(places)))


class RowBuffer:
    """The rows of one side. `times` may be any moments by which rows are ordered and freed."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []

    def __len__(self) -> int:
        return sum(map(len, self.segments))

    def add(self, rows: Batch, slots: Integers, times: Integers, matched: Any = None) -> None:
        """Take rows in. `matched` says which of them have had a partner."""
        if not len(slots):
            return
        flags = np.zeros(len(slots), np.bool_) if matched is None else matched
        order = np.lexsort((times, slots))
        self.segments.append(Segment(slots, times, flags, rows).at(order))
        while len(self.segments) > 1 and len(self.segments[-2]) < 2 * len(self.segments[-1]):
            newer = self.segments.pop()
            self.segments.append(_merged(self.segments.pop(), newer))

    def free_before(self, time: int) -> Iterator[Segment]:
        """Forget rows of earlier times; gives them, so that those without a partner can be put out."""
        kept: list[Segment] = []
        for segment in self.segments:
            old = segment.times < time
            if not old.any():
                kept.append(segment)
                continue
            yield segment.at(np.flatnonzero(old))
            if not old.all():
                kept.append(segment.at(np.flatnonzero(~old)))
        self.segments = kept

    def replace(self, segments: list[Segment]) -> None:
        """Have these rows and no others."""
        self.segments = [segment for segment in segments if len(segment)]

    def live_slots(self, live: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        """Mark the slots that have rows."""
        for segment in self.segments:
            live[segment.slots] = True

    def renumber(self, moved: Integers) -> None:
        """Slots have new numbers, in the same order."""
        for segment in self.segments:
            segment.slots = moved[segment.slots]

    def whole(self) -> Segment | None:
        """All rows in one segment."""
        while len(self.segments) > 1:
            newer = self.segments.pop()
            self.segments.append(_merged(self.segments.pop(), newer))
        return self.segments[0] if self.segments else None


def _merged(older: Segment, newer: Segment) -> Segment:
    """Two segments as one; of equal slots and times the older one's rows come first."""
    slots = np.concatenate([older.slots, newer.slots])
    times = np.concatenate([older.times, newer.times])
    matched = np.concatenate([older.matched, newer.matched])
    rows = stacked([older.rows, newer.rows])
    return Segment(slots, times, matched, rows).at(np.lexsort((times, slots)))
