"""The regular join: every pair of rows with equal keys, however far apart they come; for ever, or for a time to live.

Pairs go out as soon as both rows are there. A row that is kept without a partner goes out at the end of bounded input;
on endless input at once (`+I`), and is taken back (`-D`) when its first partner comes. The time to live is one of
processing time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from shoal.dataflow.language.elements import Batch
from shoal.dataflow.language.keys import Integers
from shoal.dataflow.operators.base import Output
from shoal.dataflow.operators.batches import processing_time
from shoal.dataflow.operators.joins.base import KeyedJoin
from shoal.dataflow.operators.joins.buffer import Segment
from shoal.dataflow.operators.joins.matching import slot_ranges


class RegularJoin(KeyedJoin):
    """Pairs of rows with equal keys. `emits_changes` on endless input that keeps rows without a partner."""

    restores_in_pieces = True

    def __init__(self, *, emits_changes: bool = False, ttl: int = 0, **settings: Any) -> None:
        super().__init__(**settings)
        self._ttl = ttl
        self._emits_changes = emits_changes
        self._next_tick: int | None = None

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Find partners among the rows of the other side, then wait for more of them."""
        added = "+I" if self._emits_changes else ""
        batch = self.without_null_keys(batch, port, out, change=added)
        if not batch.num_rows:
            return
        slots = self.slots_of(batch, port)
        matched = np.zeros(len(slots), np.bool_)
        for segment in self.buffers[1 - port].segments:
            ranges = slot_ranges(segment.slots, slots)
            found = ranges[1] > ranges[0]
            if found.any():
                matched |= found
                self._take_back(segment, np.unique(slots[found]), 1 - port, out)
                self.emit_pairs(batch, port, segment, ranges, out, change=added)
        if self.keeps[port] and self._emits_changes and not matched.all():
            self.emit_alone(batch.filter(pa.array(~matched)), port, out, change="+I")
        self.buffers[port].add(batch, slots, self._moments(len(slots)), matched)

    def on_end(self, out: Output) -> None:
        """Rows that never had a partner."""
        if not self._emits_changes:
            for port, buffer in enumerate(self.buffers):
                for segment in buffer.segments if self.keeps[port] else []:
                    self.emit_some(segment, ~segment.matched, port, out)

    def on_tick(self, now: int, out: Output) -> None:
        """Free rows that have outlived their time."""
        self._next_tick = None
        for port, buffer in enumerate(self.buffers):
            for segment in buffer.free_before(now - self._ttl + 1):
                if self.keeps[port] and not self._emits_changes:
                    self.emit_some(segment, ~segment.matched, port, out)
            for segment in buffer.segments:
                self._wake_at(int(segment.times.min()))
        self.forget_keys()

    def next_tick(self) -> int | None:
        """When rows are to be freed next."""
        return self._next_tick

    def _moments(self, rows: int) -> Integers:
        if not self._ttl:
            return np.zeros(rows, np.int64)
        now = processing_time(self.context.clock)
        self._wake_at(now)
        return np.full(rows, now)

    def _wake_at(self, oldest: int) -> None:
        # Not for every row: those of a quarter of their time to live are freed together.
        due = oldest + self._ttl + self._ttl // 4
        self._next_tick = due if self._next_tick is None else min(self._next_tick, due)

    def _take_back(self, segment: Segment, slots: Integers, port: int, out: Output) -> None:
        """Rows that have a partner now, and had gone out alone before."""
        if not self.keeps[port]:
            return
        first = np.isin(segment.slots, slots) & ~segment.matched
        if first.any():
            if self._emits_changes:
                self.emit_some(segment, first, port, out, change="-D")
            segment.mark_matched(first)

    def _take_in(self, table: Any, port: int) -> None:
        super()._take_in(table, port)
        if self._ttl:
            for segment in self.buffers[port].segments:
                self._wake_at(int(segment.times.min()))
