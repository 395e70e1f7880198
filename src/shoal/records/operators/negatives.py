"""Makes negative rows of positive ones, with the items of other rows. For data that has positive rows only.

A row is a user's side and an item's side. `ItemPool` keeps the item's side of recent rows, by channel.
`GenerateNegatives` puts items of the pool into copies of positive rows. An item of the row's own channel makes a hard
negative, an item of another channel an easy one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shoal.core.errors import InvalidError, problem
from shoal.records.operators.base import LABEL, column_of, list_column, ragged, with_column

#: No item is there.
_NONE = -1


class ItemPool:
    """The item's side of recent rows: the newest of each channel, in bounded memory.

    Items stay where they came, as Arrow columns. Each channel has a ring of their numbers. When half of the stored
    items are no longer in a ring, the others move together, so that a pool never holds more than twice its items and
    one batch.
    """

    def __init__(
        self, columns: tuple[str, ...], *, items_per_channel: int = 10_000, max_channels: int = 1_000, start: int = 500
    ) -> None:
        """An empty pool.

        Args:
            columns: the item's side of a row.
            items_per_channel: older ones make room.
            max_channels: items of more channels are left out, and counted in `left_out`.
            start: how many items must be there before any is drawn.
        """
        limits = {"items_per_channel": items_per_channel, "max_channels": max_channels}
        problems = [problem(name, value, "must be 1 or more") for name, value in limits.items() if value < 1]
        if start < 0:
            problems.append(problem("start", start, "must be 0 or more"))
        if not columns:
            problems.append(problem("columns", columns, "must name the columns of an item"))
        if problems:
            raise InvalidError(problems)
        self.columns = columns
        self.left_out = 0
        self._start, self._size, self._max_channels = start, items_per_channel, max_channels
        self._places: dict[Any, int] = {}
        self._rings = np.full((0, items_per_channel), _NONE, np.int64)
        self._counts = np.zeros(0, np.int64)
        self._items: Any = None

    def __len__(self) -> int:
        return int(self._lengths().sum())

    @property
    def is_ready(self) -> bool:
        """Whether items may be drawn."""
        return len(self) >= max(self._start, 1)

    def add(self, batch: Any, channels: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Keep the items of some rows. Returns the place of each row's channel and the number of its item, or -1."""
        items = pa.table({name: column_of(batch, name) for name in self.columns})
        if self._items is None:
            self._items = items.slice(0, 0)
        if not items.schema.equals(self._items.schema):
            raise InvalidError([problem("columns", str(items.schema), f"must stay the same: {self._items.schema}")])
        self._make_room(batch.num_rows)
        places = self._places_of(channels)
        numbers = np.where(places == _NONE, _NONE, np.arange(batch.num_rows) + self._items.num_rows)
        self._items = pa.concat_tables([self._items, items])
        kept = np.flatnonzero(places != _NONE)
        order = kept[np.argsort(places[kept], kind="stable")]
        of_channel = places[order]
        sizes = np.bincount(of_channel, minlength=len(self._counts))
        rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        # Of two items that fall onto one place the later one is assigned last, and stays.
        self._rings[of_channel, (self._counts[of_channel] + rank) % self._size] = numbers[order]
        self._counts += sizes
        return places, numbers

    def draw(
        self, places: NDArray[np.int64], own: NDArray[np.int64], easy: NDArray[np.bool_], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """The number of an item for each row, or -1 where the pool has none that fits. The pool is ready.

        Args:
            places: the place of the row's channel, or -1.
            own: the number of the row's item, which is not drawn.
            easy: whether the item is to be of another channel.
            rng: decides.
        """
        lengths = self._lengths()
        ends = np.cumsum(lengths)
        mine = np.where(places == _NONE, 0, lengths[places])
        before = np.where(places == _NONE, 0, (ends - lengths)[places])
        choices = np.where(easy, ends[-1] - mine, mine)
        at = (rng.random(len(places)) * choices).astype(np.int64)
        # Other channels are those before the row's own and those behind it.
        at = np.where(easy, np.where(at >= before, at + mine, at), before + at)
        drawn = self._numbers_at(at, ends, choices > 0)
        same = (drawn == own) & (choices > 1) & ~easy
        drawn[same] = self._numbers_at(before[same] + (at[same] - before[same] + 1) % mine[same], ends)
        drawn[drawn == own] = _NONE
        return drawn

    def take(self, numbers: NDArray[np.int64]) -> dict[str, Any]:
        """The columns of some items."""
        chosen = self._items.take(pa.array(numbers))
        return {name: _whole(chosen.column(name)) for name in self.columns}

    def _numbers_at(
        self, at: NDArray[np.int64], ends: NDArray[np.int64], wanted: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64]:
        """The items at some positions, counted through all channels."""
        numbers = np.full(len(at), _NONE, np.int64)
        rows = np.arange(len(at)) if wanted is None else np.flatnonzero(wanted)
        channel = np.searchsorted(ends, at[rows], side="right")
        begins = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
        numbers[rows] = self._rings[channel, at[rows] - begins[channel]]
        return numbers

    def _lengths(self) -> NDArray[np.int64]:
        return np.minimum(self._counts, self._size)

    def _places_of(self, channels: NDArray[Any]) -> NDArray[np.int64]:
        found, inverse = np.unique(channels, return_inverse=True)
        for each in found.tolist():
            if each not in self._places and len(self._places) < self._max_channels:
                self._places[each] = len(self._places)
        more = len(self._places) - len(self._counts)
        if more:
            self._rings = np.concatenate((self._rings, np.full((more, self._size), _NONE, np.int64)))
            self._counts = np.concatenate((self._counts, np.zeros(more, np.int64)))
        places = np.array([self._places.get(each, _NONE) for each in found.tolist()], np.int64)[inverse]
        self.left_out += int((places == _NONE).sum())
        return np.asarray(places)

    def _make_room(self, coming: int) -> None:
        held = self._rings != _NONE
        live = self._rings[held]
        if self._items.num_rows + coming <= max(2 * len(live), coming):
            return
        self._items = self._items.take(pa.array(live)).combine_chunks()
        self._rings[held] = np.arange(len(live))


@dataclass(frozen=True, slots=True)
class GenerateNegatives:
    """Puts negatives behind each positive row: copies of it with items that the pool draws. Other rows stay alone.

    Every row's item joins the pool first. Nothing is made until the pool is ready, and none where it has no other item.
    """

    pool: ItemPool
    #: For each positive row.
    count: int = 1
    #: The column that says the channel: a number or a text, or ids, of which the first counts. Empty: one channel.
    channel: str = ""
    #: The share of negatives with an item of another channel.
    easy_share: float = 0.0
    positive_label: float = 1.0
    negative_label: float = 0.0

    def __post_init__(self) -> None:
        problems = []
        if self.count < 1:
            problems.append(problem("count", self.count, "must be 1 or more"))
        if not 0 <= self.easy_share <= 1:
            problems.append(problem("easy_share", self.easy_share, "must be from 0 to 1"))
        if problems:
            raise InvalidError(problems)

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows, with negatives."""
        places, numbers = self.pool.add(batch, self._channels(batch))
        rows = np.repeat(self._positive(batch), self.count)
        if not self.pool.is_ready or not len(rows):
            return batch
        easy = rng.random(len(rows)) < self.easy_share
        drawn = self.pool.draw(places[rows], numbers[rows], easy, rng)
        rows, drawn = rows[drawn != _NONE], drawn[drawn != _NONE]
        if not len(rows):
            return batch
        whole = pa.Table.from_batches([batch, self._negatives(batch.take(pa.array(rows)), drawn)]).combine_chunks()
        order = np.argsort(np.concatenate((np.arange(batch.num_rows), rows)), kind="stable")
        return whole.to_batches()[0].take(pa.array(order))

    def _negatives(self, batch: Any, drawn: NDArray[np.int64]) -> Any:
        for name, column in self.pool.take(drawn).items():
            batch = with_column(batch, name, column)
        labels = np.full(batch.num_rows, self.negative_label, np.float32)
        made = list_column(np.arange(batch.num_rows + 1), labels)
        return with_column(batch, LABEL, made.cast(column_of(batch, LABEL).type))

    def _positive(self, batch: Any) -> NDArray[np.int64]:
        splits, values = ragged(batch, LABEL)
        has = np.flatnonzero(np.diff(splits) > 0)
        return np.asarray(has[values[splits[:-1][has]] == np.float32(self.positive_label)])

    def _channels(self, batch: Any) -> NDArray[Any]:
        if not self.channel:
            return np.zeros(batch.num_rows, np.int64)
        column = column_of(batch, self.channel)
        if not pa.types.is_list(column.type) and column.null_count:
            raise InvalidError([problem(self.channel, None, "every row must have a channel")])
        splits, values = ragged(batch, self.channel)
        empty = np.flatnonzero(np.diff(splits) == 0)
        if len(empty):
            raise InvalidError([problem(self.channel, [], f"every row must have a channel; row {empty[0]} has none")])
        return values[splits[:-1]].astype(str) if values.dtype == object else values[splits[:-1]]


def _whole(column: Any) -> Any:
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
