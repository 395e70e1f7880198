"""The as-of join: with each left row the right row of its key that is nearest in time.

`backward` takes the last one that is not after it, `forward` the first one that is not before it, `nearest` the nearer
of the two, and of equally near ones the earlier. A tolerance bounds the distance; 0 is none. A left row waits until the
watermark says that no better partner can come; one that is behind the watermark when it comes is late.
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
from shoal.dataflow.operators.joins.base import LEFT, RIGHT, KeyedJoin
from shoal.dataflow.operators.joins.buffer import Segment
from shoal.dataflow.operators.joins.matching import bisect, slot_ranges

DIRECTIONS = ("backward", "forward", "nearest")


class AsOfJoin(KeyedJoin):
    """Left rows with the nearest right row."""

    def __init__(self, *, tolerance: int = 0, direction: str = "backward", **settings: Any) -> None:
        super().__init__(**settings)
        problems = []
        if direction not in DIRECTIONS:
            problems.append(problem("direction", direction, f"must be one of {', '.join(DIRECTIONS)}"))
        if tolerance < 0:
            problems.append(problem("tolerance", tolerance, "must not be below 0"))
        if self.keeps[RIGHT]:
            problems.append(problem("kind", None, "must be inner or left for an as-of join"))
        if problems:
            raise InvalidError(problems, what="join")
        self._tolerance = tolerance
        self._direction = direction

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Let rows wait."""
        if port == LEFT:
            late = event_times(batch) < self.watermark
            if late.any():
                self.put_aside(batch.filter(pa.array(late)), port, out)
                batch = batch.filter(pa.array(~late))
        batch = self.without_null_keys(batch, port, out)
        if batch.num_rows:
            self.buffers[port].add(batch, self.slots_of(batch, port), event_times(batch))

    def on_watermark(self, time: int, out: Output) -> None:
        """Emit the left rows whose partner is certain."""
        if time <= self.watermark:
            return
        self.watermark = time
        left, right = self.buffers[LEFT].whole(), self.buffers[RIGHT].whole()
        if left is not None:
            partners = np.full(len(left), -1) if right is None else self._partners(left, right)
            ready = self._ready(left, right, partners)
            done = left.at(np.flatnonzero(ready))
            self._emit(done, right, partners[ready], out)
            self.buffers[LEFT].replace([left.at(np.flatnonzero(~ready))], [done], self.groups_of)
        if right is not None:
            self._free_right(right)
        self.forget_keys()

    def output_watermark(self, time: int) -> int:
        """What waits is not late when it goes out."""
        waiting = self.buffers[LEFT].segments
        return min([time, *(int(segment.times.min()) for segment in waiting)])

    def _partners(self, left: Segment, right: Segment) -> Integers:
        """The place of the best right row for each left one, -1 where there is none."""
        first, end = slot_ranges(right.slots, left.slots)
        before = bisect(right.times, first, end, left.times, right=True) - 1
        behind = bisect(right.times, first, end, left.times, right=False)
        earlier = np.where(before >= first, before, -1)
        later = np.where(behind < end, behind, -1)
        if self._direction == "backward":
            chosen = earlier
        elif self._direction == "forward":
            chosen = later
        else:
            nearer = (later >= 0) & (
                (earlier < 0) | (right.times[later] - left.times < left.times - right.times[earlier])
            )
            chosen = np.where(nearer, later, earlier)
        if self._tolerance:
            far = np.abs(right.times[chosen] - left.times) > self._tolerance
            chosen = np.where(far, -1, chosen)
        return chosen

    def _ready(self, left: Segment, right: Segment | None, partners: Integers) -> Any:
        """Which left rows can no longer get a better partner."""
        if self.watermark == END_OF_TIME:
            return np.ones(len(left), np.bool_)
        if self._direction == "backward":
            return left.times < self.watermark
        if self._tolerance:
            return left.times + self._tolerance < self.watermark
        if right is None:
            return np.zeros(len(left), np.bool_)
        # Without a tolerance a later row has to be there: none that is still to come can lie before it.
        first, end = slot_ranges(right.slots, left.slots)
        behind = bisect(right.times, first, end, left.times, right=False)
        there = behind < end
        return there & (right.times[np.where(there, behind, 0)] < self.watermark)

    def _emit(self, left: Segment, right: Segment | None, partners: Integers, out: Output) -> None:
        order = np.argsort(left.times, kind="stable")
        found = partners[order] >= 0
        for start in range(0, len(order), self.context.max_rows):
            some = slice(start, start + self.context.max_rows)
            rows, has = order[some], found[some]
            if right is not None and has.any():
                mine = left.rows.take(pa.array(rows[has]))
                theirs = right.rows.take(pa.array(partners[rows[has]]))
                out.emit(self.columns.assemble(mine, theirs, times=_times(left, rows[has])))
            if self.keeps[LEFT] and not has.all():
                self.emit_alone(left.rows.take(pa.array(rows[~has])), LEFT, out)

    def _free_right(self, right: Segment) -> None:
        """Keep what a left row that waits, or is to come, may need."""
        waiting = [int(segment.times.min()) for segment in self.buffers[LEFT].segments]
        bound = min([self.watermark, *waiting])
        if bound == END_OF_TIME:
            self.buffers[RIGHT].replace([], [right], self.groups_of)
            return
        needed = right.times >= bound
        if self._direction != "forward":
            # And the last one before: rows are in order, so its successor is of another key or not before.
            last = np.ones(len(right), np.bool_)
            last[:-1] = (right.slots[1:] != right.slots[:-1]) | needed[1:]
            needed |= last & (right.times >= bound - self._tolerance if self._tolerance else True)
        if not needed.all():
            gone = right.at(np.flatnonzero(~needed))
            self.buffers[RIGHT].replace([right.at(np.flatnonzero(needed))], [gone], self.groups_of)


def _times(left: Segment, rows: Integers) -> Integers:
    """A result has the time of its left row: it is one more thing that is known of that row."""
    return left.times[rows]
