"""Panes with few rows each, kept together: a pane of its own for every row would cost far more than the row.

They are kept as blocks: one piece for the rows of many panes, in the order of panes and then of slots. A pane is either
in here or a `Pane` of its own, never both, so that the order in which its rows came is not lost.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.dataflow.operators.aggregates.columns import Cells, Mask
from shoal.dataflow.operators.aggregates.plan import AccumulatorSpec
from shoal.dataflow.operators.aggregates.sparse import Sparse, concat, distinct_rounds
from shoal.dataflow.operators.aggregates.store import Rows, combine

#: So many panes at once are worth keeping together, when they have no more rows than this on average.
_MANY = 16
_FEW_ROWS = 64
#: The same of what was aggregated in part: it waits until it is needed, or is so much, and is put together at once.
_MANY_PARTS = 4
_FEW_PARTS = 4096
_MOST_WAITING = 64
_MOST_WAITING_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of many panes: the pane of each, and the rest. No pane has a slot twice."""

    panes: Cells
    sparse: Sparse

    def __len__(self) -> int:
        return len(self.panes)

    def between(self, first: int, end: int) -> Block:
        """Panes `first` up to, not including, `end`."""
        low, high = np.searchsorted(self.panes, [max(first, _BEFORE_ALL), max(end, _BEFORE_ALL)])
        return Block(self.panes[low:high], self.sparse.at(slice(int(low), int(high))))

    def at(self, rows: Cells) -> Block:
        """Some rows, in their order."""
        return Block(self.panes[rows], self.sparse.at(rows))

    def each(self) -> Iterator[tuple[int, Sparse]]:
        """Pane by pane."""
        edges = [0, *(np.flatnonzero(self.panes[1:] != self.panes[:-1]) + 1).tolist(), len(self)] if len(self) else []
        for start, end in itertools.pairwise(edges):
            yield int(self.panes[start]), self.sparse.at(slice(start, end))


class PackedPanes:
    """Blocks, the older ones first. Each is more than twice as large as the next, so that there are few.

    With `takes_parts` for what was aggregated in part, of windows that are a pane each: it comes pane by pane from each
    task before, mostly for the same panes.
    """

    def __init__(self, specs: Sequence[AccumulatorSpec], *, takes_parts: bool = False) -> None:
        self._specs = specs
        self._many, self._few = (_MANY_PARTS, _FEW_PARTS) if takes_parts else (_MANY, _FEW_ROWS)
        self._takes_parts = takes_parts
        self._blocks: list[Block] = []
        #: Parts as they came: in any order of slots. What they are in all is known, and so are their panes.
        self._waiting: list[Block] = []
        self._waiting_panes: list[Cells] = []
        self._waiting_rows = 0
        self._capacity = 0
        #: The panes that rows came into since the last snapshot; None before the first one.
        self._changed: list[Cells] | None = None

    def __bool__(self) -> bool:
        return bool(self._blocks or self._waiting)

    def __len__(self) -> int:
        """How many panes there are."""
        return len(distinct_panes([*(block.panes for block in self._blocks), *self._waiting_panes]))

    def before(self, end: int) -> Iterator[int]:
        """The panes before `end`, in order; some of them more than once."""
        self._settle()
        found = (distinct_panes([block.between(_BEFORE_ALL, end).panes]) for block in self._blocks)
        return heapq.merge(*(map(int, panes) for panes in found))

    def suits(self, panes: Cells) -> bool:
        """Whether rows of these panes, one entry for each row, are better kept here than as panes of their own."""
        low, high = int(panes.min()), int(panes.max())
        span = high - low + 1
        if len(panes) > self._few * span or (span < self._many and not self):
            return False
        found = distinct_panes([panes])
        return len(panes) <= self._few * len(found) and (len(found) >= self._many or bool(self.has(found).any()))

    def has(self, panes: Cells) -> Mask:
        """Which of these are here."""
        found = np.zeros(len(panes), np.bool_)
        for block in self._blocks:
            places = np.minimum(np.searchsorted(block.panes, panes), len(block) - 1)
            found |= block.panes[places] == panes
        for waiting in self._waiting_panes:
            found |= np.isin(panes, waiting)
        return found

    def add(self, piece: Sparse | Rows, panes: Cells, capacity: int) -> None:
        """Take rows in; in a `Sparse` a pane may have a slot twice. `capacity` is above every slot."""
        found = distinct_panes([panes])
        if self._changed is not None:
            self._changed.append(found)
        if self._takes_parts and isinstance(piece, Sparse):
            self._wait(Block(panes, piece), found, capacity)
            return
        self._settle()
        cells = _places(found, panes) * capacity + piece.cells
        pieces: Sequence[Sparse | Rows] = [Rows(cells, piece.inputs)] if isinstance(piece, Rows) else []
        if isinstance(piece, Sparse):
            pieces = distinct_rounds(piece.with_cells(cells))
        self._put(_combined(self._specs, found, pieces, capacity), capacity)

    def below(self, end: int, capacity: int) -> Block:
        """What there is of panes before `end`; it is here no longer."""
        self._settle()
        gone = [block.between(_BEFORE_ALL, end) for block in self._blocks]
        self._set([block.between(end, _BEHIND_ALL) for block in self._blocks])
        return _merged(self._specs, gone, capacity)

    def take(self, panes: Cells, capacity: int) -> Block:
        """What there is of these panes; it is here no longer."""
        self._settle()
        chosen = [np.isin(block.panes, panes) for block in self._blocks]
        gone = [block.at(np.flatnonzero(mask)) for block, mask in zip(self._blocks, chosen, strict=True)]
        self._set([block.at(np.flatnonzero(~mask)) for block, mask in zip(self._blocks, chosen, strict=True)])
        return _merged(self._specs, gone, capacity)

    def peek(self, first: int, end: int, capacity: int) -> Block:
        """Panes `first` up to, not including, `end`."""
        self._settle()
        return _merged(self._specs, [block.between(first, end) for block in self._blocks], capacity)

    def changes(self, capacity: int) -> Block:
        """The panes that changed since the last time, whole; all of them at first."""
        self._settle()
        changed, self._changed = self._changed, []
        if changed is None or not self._blocks:
            return _merged(self._specs, self._blocks, capacity)
        panes = distinct_panes(changed)
        if not len(panes):
            return _merged(self._specs, [], capacity)
        block = self.peek(int(panes[0]), int(panes[-1]) + 1, capacity)
        return block.at(np.flatnonzero(np.isin(block.panes, panes)))

    def count_changed(self) -> int:
        """How many panes changed, about."""
        return 0 if self._changed is None else sum(map(len, self._changed))

    def count(self) -> int:
        """How many entries there are, about."""
        return sum(map(len, self._blocks)) + self._waiting_rows

    def end_tracking(self) -> None:
        """The next snapshot has everything."""
        self._changed = None

    def begin_tracking(self) -> None:
        """All that there is now is known."""
        self._changed = []

    def slots(self) -> Cells:
        """The slots that have rows; some of them more than once."""
        blocks = [*self._blocks, *self._waiting]
        return np.concatenate([np.zeros(0, np.int64), *(block.sparse.cells for block in blocks)])

    def renumber(self, moved: Cells) -> None:
        """Slots have new numbers, in the same order."""
        self._settle()
        self._blocks = [
            Block(block.panes, block.sparse.with_cells(moved[block.sparse.cells])) for block in self._blocks
        ]

    def _wait(self, block: Block, panes: Cells, capacity: int) -> None:
        parts = distinct_rounds(block.sparse.with_cells(_cells_of(panes, block, capacity)))
        if len(parts) > 1:
            self._settle()
            self._put(_combined(self._specs, panes, parts, capacity), capacity)
            return
        self._waiting.append(block)
        self._waiting_panes.append(panes)
        self._waiting_rows += len(block)
        self._capacity = capacity
        if self._waiting_rows >= _MOST_WAITING_ROWS or len(self._waiting) >= _MOST_WAITING:
            self._settle()

    def _settle(self) -> None:
        """Make a block of the parts that wait, and of blocks that are no larger."""
        if not self._waiting:
            return
        blocks, panes, rows = self._waiting, self._waiting_panes, self._waiting_rows
        self._waiting, self._waiting_panes, self._waiting_rows = [], [], 0
        while self._blocks and len(self._blocks[-1]) <= 2 * rows:
            older = self._blocks.pop()
            blocks, panes, rows = [older, *blocks], [distinct_panes([older.panes]), *panes], rows + len(older)
        found = distinct_panes(panes)
        cells = [block.sparse.with_cells(_cells_of(found, block, self._capacity)) for block in blocks]
        self._set([*self._blocks, _combined(self._specs, found, cells, self._capacity)])

    def _put(self, block: Block, capacity: int) -> None:
        if not len(block):
            return
        while self._blocks and len(self._blocks[-1]) <= 2 * len(block):
            block = _merged(self._specs, [self._blocks.pop(), block], capacity)
        self._set([*self._blocks, block])

    def _set(self, blocks: list[Block]) -> None:
        self._blocks = [block for block in blocks if len(block)]


_BEFORE_ALL, _BEHIND_ALL = -(2**63), 2**63 - 1


def distinct_panes(panes: list[Cells]) -> Cells:
    """All numbers in order, each once."""
    every = panes[0] if len(panes) == 1 else np.concatenate([np.zeros(0, np.int64), *panes])
    if (every[1:] < every[:-1]).any():
        return np.unique(every)
    return every[np.concatenate([[True], every[1:] > every[:-1]])] if len(every) else every


def _merged(specs: Sequence[AccumulatorSpec], blocks: Sequence[Block], capacity: int) -> Block:
    """Blocks in the order in which their rows came, as one."""
    filled = [block for block in blocks if len(block)]
    if len(filled) == 1:
        return filled[0]
    if not filled:
        return Block(np.zeros(0, np.int64), combine(specs, [], capacity))
    if all(one.panes[-1] < other.panes[0] for one, other in itertools.pairwise(filled)):
        return Block(np.concatenate([each.panes for each in filled]), concat([each.sparse for each in filled]))
    found = distinct_panes([block.panes for block in filled])
    pieces = [block.sparse.with_cells(_cells_of(found, block, capacity)) for block in filled]
    return _combined(specs, found, pieces, capacity)


def _cells_of(panes: Cells, block: Block, capacity: int) -> Cells:
    """A number for each entry of a block by its pane, which is one of these, and its slot."""
    return _places(panes, block.panes) * capacity + block.sparse.cells


def _places(panes: Cells, some: Cells) -> Cells:
    """Where some of these panes are among them. Mostly they follow each other, and there is nothing to look for."""
    if panes[-1] - panes[0] + 1 == len(panes):
        places: Cells = some - panes[0]
        return places
    return np.asarray(np.searchsorted(panes, some))


def _combined(specs: Sequence[AccumulatorSpec], panes: Cells, pieces: Sequence[Sparse | Rows], capacity: int) -> Block:
    """Pieces with such numbers as a block."""
    whole = combine(specs, pieces, capacity * len(panes))
    return block_of(panes, whole, capacity)


def block_of(panes: Cells, whole: Sparse, capacity: int) -> Block:
    """A block of cells in order, each by the place of its pane among these and by its slot."""
    begins = np.arange(len(panes) + 1) * capacity
    lengths = np.diff(np.searchsorted(whole.cells, begins))
    return Block(np.repeat(panes, lengths), whole.with_cells(whole.cells - np.repeat(begins[:-1], lengths)))


def together(block: Block, alone: Sequence[tuple[int, Sparse]]) -> Block:
    """A block with panes that are not in it; both are in order."""
    blocks = [Block(np.full(len(sparse), pane), sparse) for pane, sparse in alone if len(sparse)]
    if not blocks:
        return block
    blocks = [block, *blocks] if len(block) else blocks
    whole = Block(np.concatenate([each.panes for each in blocks]), concat([each.sparse for each in blocks]))
    return whole.at(np.argsort(whole.panes, kind="stable")) if len(block) else whole
