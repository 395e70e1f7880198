"""Results of many overlapping windows that have few rows each: the cost is that of the rows and of the results.

The entries of the panes are put in the order of slots and then of panes. The entries of a slot that are in one window
follow each other, so that a result is a range of entries. Sums of whole numbers are differences of sums from the
beginning. For other numbers the entries are cut into blocks as long as a window: a range is what is left of one block
and the beginning of the next, as in `matrix`. Values that are kept one by one are gathered for each result.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.dataflow.language.keys import combined
from shoal.dataflow.language.windows import SlidingWindow
from shoal.dataflow.operators.aggregates.columns import Cells, Vector, is_any, no_counts, peak_of, pick
from shoal.dataflow.operators.aggregates.logs import spread
from shoal.dataflow.operators.aggregates.plan import AccumulatorSpec
from shoal.dataflow.operators.aggregates.sparse import Sparse
from shoal.dataflow.operators.windows.packed import Block

#: Sums within it cannot have wrapped around.
_SAFE = 1 << 62
#: Fewer windows at once are not worth it, nor are more entries than so many for each window.
_MIN_WINDOWS = 4
_MOST_ENTRIES = 256
#: Nor are more results for each window.
MOST_RESULTS = 1024
#: And values that are kept one by one.
_MOST_VALUES = 8192
#: So many results or gathered values are made at once.
_AT_ONCE = 1 << 18


def is_worth_it(specs: Sequence[AccumulatorSpec], entries: int, windows: int) -> bool:
    """Whether there are few entries in the panes of so many windows."""
    if any(spec.kind.startswith("log:") for spec in specs):  # putting together two panes costs as much as gathering
        return 0 < entries <= _MOST_VALUES * windows
    return windows >= _MIN_WINDOWS and 0 < entries <= _MOST_ENTRIES * windows


@dataclass(frozen=True, slots=True)
class _Ranges:
    """The results: the window and the slot of each, and which entries it is made of."""

    windows: Cells
    slots: Cells
    low: Cells
    high: Cells


def turns(
    block: Block,
    specs: Sequence[AccumulatorSpec],
    window: SlidingWindow,
    ends: Sequence[int],
    capacity: int,
    *,
    most: int,
) -> list[Sequence[int]] | None:
    """The windows in portions of bounded size. None when they have more than `most` results each, or many values."""
    starts = _starts(window, ends)
    low = np.searchsorted(block.panes, starts)
    high = np.searchsorted(block.panes, starts + window.size // window.pane)
    results = np.minimum(high - low, capacity)
    if int(results.sum()) > most * len(ends):
        return None
    for spec, part in zip(specs, block.sparse.parts, strict=True):
        if spec.kind.startswith("log:"):
            sums = np.concatenate([[0], np.cumsum(_lengths(part))])
            values = sums[high] - sums[low]
            if int(values.sum()) > _MOST_VALUES * len(ends):
                return None
            results = np.maximum(results, values)
    cuts = np.flatnonzero(np.diff(np.cumsum(results) // _AT_ONCE)) + 1
    edges = [0, *cuts.tolist(), len(ends)]
    return [ends[start:end] for start, end in itertools.pairwise(edges)]


def results(
    block: Block, specs: Sequence[AccumulatorSpec], window: SlidingWindow, ends: Sequence[int]
) -> tuple[Cells, Sparse] | None:
    """The windows that end at `ends`: the end of each row, and the rows. None when a sum might not fit its type."""
    starts = _starts(window, ends)
    length = window.size // window.pane
    block = block.between(int(starts[0]), int(starts[-1]) + length)
    block = block.at(np.lexsort((block.panes, block.sparse.cells)))
    panes, starts = block.panes - starts[0], starts - starts[0]
    ranges = _ranges(panes, block.sparse.cells, starts, length)
    blocks = _Blocks(panes, block.sparse.cells, length)
    parts = []
    for spec, part in zip(specs, block.sparse.parts, strict=True):
        if spec.invertible:
            if spec.kind == "sum" and peak_of(part[0]) * int((ranges.high - ranges.low).max(initial=0)) >= _SAFE:
                return None
            is_zero = spec.kind == "nulls" and not is_any(part[0])
            parts.append((no_counts(len(ranges.slots)) if is_zero else _sums(part[0], ranges),))
        elif spec.kind.startswith("log:"):
            parts.append(_gathered(spec, part, ranges))
        elif spec.kind == "fold":
            parts.append((_folded(spec, part[0], blocks, ranges),))
        else:
            parts.append(_combined(spec, part, blocks, ranges))
    rows = _sums(block.sparse.rows, ranges)
    return np.asarray(ends, np.int64)[ranges.windows], Sparse(ranges.slots, rows, tuple(parts))


def _starts(window: SlidingWindow, ends: Sequence[int]) -> Cells:
    """The first pane of each window."""
    return (np.asarray(ends, np.int64) - window.size) // window.pane


def _lengths(part: tuple[Any, ...]) -> Cells:
    lengths: Cells = combined(part[0]).value_lengths().to_numpy(zero_copy_only=False)
    return lengths


def _ranges(panes: Cells, slots: Cells, starts: Cells, length: int) -> _Ranges:
    """Entries are in the order of slots and panes; panes are numbered from the first window's first."""
    first = np.searchsorted(starts, panes - length, "right")
    behind = np.searchsorted(starts, panes, "right")
    # A window that has an earlier entry of the slot is a result already.
    fresh = first.copy()
    same = slots[1:] == slots[:-1]
    fresh[1:] = np.where(same, np.maximum(first[1:], behind[:-1]), first[1:])
    counts = np.maximum(behind - fresh, 0)
    windows, result_slots = spread(fresh, counts), np.repeat(slots, counts)
    order = np.lexsort((result_slots, windows))
    windows, result_slots = windows[order], result_slots[order]
    # An entry is in the windows from its first up to the one before `behind`, and both grow along a slot. With room for
    # all windows a slot does not touch the next.
    ranks = np.concatenate([np.zeros(min(len(slots), 1), np.int64), np.cumsum(~same)]) * (len(starts) + 1)
    at = np.repeat(ranks, counts)[order] + windows
    low, high = (np.searchsorted(ranks + edge, at, "right") for edge in (behind, first))
    return _Ranges(windows, result_slots, low, high)


def _sums(values: Vector, ranges: _Ranges) -> Vector:
    """Sums of whole numbers. The running sum may wrap around; what is left after subtracting is right all the same."""
    sums = np.zeros(len(values) + 1, values.dtype)
    np.cumsum(values, out=sums[1:])
    return np.asarray(sums[ranges.high] - sums[ranges.low])


def _gathered(spec: AccumulatorSpec, part: tuple[Any, ...], ranges: _Ranges) -> tuple[Any, ...]:
    """Kept values: those of all entries of each result."""
    lengths = ranges.high - ranges.low
    entries = spread(ranges.low, lengths)
    accumulator = spec.make_accumulator()
    accumulator.merge(
        np.repeat(np.arange(len(lengths)), lengths), tuple(pick(combined(array), entries) for array in part)
    )
    return accumulator.take(np.arange(len(lengths)))


class _Blocks:
    """Entries cut by slot and by stretches as long as a window: where the stretch of each begins and ends."""

    def __init__(self, panes: Cells, slots: Cells, length: int) -> None:
        turn = panes // length
        edges = np.flatnonzero((slots[1:] != slots[:-1]) | (turn[1:] != turn[:-1])) + 1
        starts = np.concatenate([np.zeros(min(len(panes), 1), np.int64), edges])
        lengths = np.diff(np.concatenate([starts, [len(panes)]]))
        self.first = np.repeat(starts, lengths)
        self.behind = self.first + np.repeat(lengths, lengths)
        self.longest = int(lengths.max(initial=0))


def _combined(spec: AccumulatorSpec, part: tuple[Any, ...], blocks: _Blocks, ranges: _Ranges) -> tuple[Any, ...]:
    """Numbers that can be put together, but not subtracted."""
    places = np.arange(len(blocks.first))
    before = behind = part
    step = 1
    while step < blocks.longest:  # after each round an entry has what twice as many entries hold
        later = places[places - step >= blocks.first]
        before = _put_together(spec, before, later - step, before, later, keep=(before, later))
        earlier = places[places + step < blocks.behind]
        behind = _put_together(spec, behind, earlier, behind, earlier + step, keep=(behind, earlier))
        step *= 2
    last = ranges.high - 1
    one = blocks.first[last] <= ranges.low  # the whole range is in one stretch
    # Then it is all of that stretch from `low` on, or all of it up to `high`.
    ends_there = one & (ranges.low > blocks.first[last])
    result = tuple(np.where(ends_there, b[ranges.low], a[last]) for a, b in zip(before, behind, strict=True))
    two = np.flatnonzero(~one)
    return _put_together(spec, behind, ranges.low[two], before, last[two], keep=(result, two))


def _put_together(
    spec: AccumulatorSpec,
    one: tuple[Any, ...],
    earlier: Cells,
    other: tuple[Any, ...],
    later: Cells,
    *,
    keep: tuple[tuple[Any, ...], Cells],
) -> tuple[Any, ...]:
    """A copy of `keep` in which some entries are those of `one` put together with those of `other`."""
    whole, at = keep
    if not len(at):
        return whole
    accumulator = spec.make_accumulator()
    accumulator.grow(len(at))
    cells = np.arange(len(at))
    accumulator.merge(cells, tuple(array[earlier] for array in one))
    accumulator.merge(cells, tuple(array[later] for array in other))
    made = []
    for array, new in zip(whole, accumulator.take(cells), strict=True):
        changed = array.copy()
        changed[at] = new
        made.append(changed)
    return tuple(made)


def _folded(spec: AccumulatorSpec, items: Any, blocks: _Blocks, ranges: _Ranges) -> Vector:
    """What a user's function makes of the entries; it is called about twice for each entry and once for a result."""
    function, given = spec.function, list(items)
    before, behind = list(given), list(given)
    first, end = blocks.first.tolist(), blocks.behind.tolist()
    for place in range(1, len(given)):
        if first[place] < place:
            before[place] = function(before[place - 1], given[place])
    for place in range(len(given) - 2, -1, -1):
        if place + 1 < end[place]:
            behind[place] = function(given[place], behind[place + 1])
    made = np.empty(len(ranges.slots), object)
    for number, (low, high) in enumerate(zip(ranges.low.tolist(), ranges.high.tolist(), strict=True)):
        start = first[high - 1]
        if start == low:
            made[number] = before[high - 1]
        elif start < low:
            made[number] = behind[low]
        else:
            made[number] = function(behind[low], before[high - 1])
    return made
