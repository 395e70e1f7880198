"""The interval join: a right row is a partner when its time is from `lower` to `upper` of the left row's, inclusive.

Pairs go out as soon as both rows are there. A row is freed when the watermark says that no partner can come;
one that is kept without a partner goes out then. A row is late when it comes behind the watermark and would be freed at
once; it is put aside, and matched with nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import END_OF_TIME, Batch
from shoal.dataflow.language.keys import Integers
from shoal.dataflow.operators.base import Output
from shoal.dataflow.operators.batches import event_times
from shoal.dataflow.operators.joins.base import LEFT, KeyedJoin
from shoal.dataflow.operators.joins.buffer import Segment
from shoal.dataflow.operators.joins.matching import bisect, slot_ranges


class IntervalJoin(KeyedJoin):
    """Pairs of rows with equal keys that are near in time."""

    restores_in_pieces = True

    def __init__(self, *, lower: int, upper: int, **settings: Any) -> None:
        super().__init__(**settings)
        if lower > upper:
            raise InvalidError([problem("lower, upper", f"{lower}, {upper}", "must be lower <= upper")], what="join")
        self._lower, self._upper = lower, upper

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Find partners among the rows of the other side, then wait for more of them."""
        batch = self._without_late(batch, port, out)
        batch = self.without_null_keys(batch, port, out)
        if not batch.num_rows:
            return
        times = event_times(batch)
        slots = self.slots_of(batch, port)
        matched = np.zeros(len(slots), np.bool_)
        for segment in self.buffers[1 - port].segments:
            ranges = self._ranges(segment, slots, times, port)
            found = ranges[1] > ranges[0]
            if found.any():
                matched |= found
                if self.keeps[1 - port]:
                    _mark(segment, ranges)
                self.emit_pairs(batch, port, segment, ranges, out)
        self.buffers[port].add(batch, slots, times, matched)

    def on_watermark(self, time: int, out: Output) -> None:
        """Free rows for which no partner can come."""
        if time <= self.watermark:
            return
        self.watermark = time
        for port, buffer in enumerate(self.buffers):
            for segment in buffer.free_before(self._first_needed(port)):
                if self.keeps[port]:
                    self.emit_some(segment, ~segment.matched, port, out)
        self.forget_keys()

    def output_watermark(self, time: int) -> int:
        """Rows without a partner go out when their time is long past: what is behind must wait for them."""
        if time == END_OF_TIME:
            return time
        waits = (self._upper if self.keeps[0] else 0, -self._lower if self.keeps[1] else 0, 0)
        return time - max(waits)

    def _first_needed(self, port: int) -> int:
        """Rows of earlier times have no partner to come."""
        if self.watermark == END_OF_TIME:
            return END_OF_TIME
        return self.watermark - self._upper if port == LEFT else self.watermark + self._lower

    def _without_late(self, batch: Batch, port: int, out: Output) -> Batch:
        # A row that is in time has partners that came before it, also when no others can come.
        late = event_times(batch) < min(self.watermark, self._first_needed(port))
        if not late.any():
            return batch
        self.put_aside(batch.filter(pa.array(late)), port, out)
        return batch.filter(pa.array(~late))

    def _ranges(self, segment: Segment, slots: Integers, times: Integers, port: int) -> tuple[Integers, Integers]:
        low, high = (self._lower, self._upper) if port == LEFT else (-self._upper, -self._lower)
        first, end = slot_ranges(segment.slots, slots)
        return (
            bisect(segment.times, first, end, times + low, right=False),
            bisect(segment.times, first, end, times + high, right=True),
        )


def _mark(segment: Segment, ranges: tuple[Integers, Integers]) -> None:
    """All rows of these ranges have a partner."""
    # A range begins at one place and ends at another: what lies within one has more of them begun than ended.
    steps = np.zeros(len(segment) + 1, np.int64)
    np.add.at(steps, ranges[0], 1)
    np.add.at(steps, ranges[1], -1)
    segment.mark_matched(np.cumsum(steps)[:-1] > 0)
