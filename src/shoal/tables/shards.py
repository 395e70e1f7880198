"""The memory of a table: headers, indexes and blocks of rows, and how they grow, one shard at a time.

`Directory` is a frozen view: where everything is, as kernels read it. Growth makes a new one; a reader that began with
the old one keeps that memory alive, learns of the new generation at its end and reads again. Called by `table`, with
its writer's lock.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np

from shoal.core.errors import ExhaustedError
from shoal.tables.kernels import index, places
from shoal.tables.layout import Layout, Words
from shoal.tables.memory import Bytes, Memory

_MOST_ROWS = 2**32 - 2


@dataclass(frozen=True, slots=True)
class Directory:
    """Where the shards are, and the memory that must live as long as this is used."""

    shards: Words
    keeps: tuple[object, ...]


class Shards:
    """The memory of every shard of one table."""

    def __init__(self, layout: Layout, memory: Memory) -> None:
        self._layout = layout
        self._memory = memory
        count = int(layout.geometry[places.G_SHARD_MASK]) + 1
        headers = memory.allocate("headers", count * places.HEADER_WORDS * 8)
        self._headers = headers.view(np.int64).reshape(count, places.HEADER_WORDS)
        self._indexes: list[Bytes] = []
        self._blocks: list[list[Bytes]] = [[] for _ in range(count)]
        self._filters: list[Bytes] = []
        self._tables: list[Words] = [np.zeros(0, np.int64) for _ in range(count)]
        self.directory = Directory(np.zeros((count, places.DIRECTORY_COLUMNS), np.int64), ())
        for shard in range(count):
            self._headers[shard, places.CAPACITY] = layout.first_capacity
            self._headers[shard, places.GENERATION] = 1
            self._indexes.append(memory.allocate(f"index-{shard}-1", layout.first_capacity * places.SLOT_BYTES))
            if layout.filter_bytes:
                self._filters.append(memory.allocate(f"filter-{shard}", layout.filter_bytes))
            self._publish(shard)

    @property
    def headers(self) -> Words:
        """The header words of every shard."""
        return self._headers

    @property
    def bytes(self) -> int:
        """How much memory was asked for."""
        blocks = sum(block.nbytes for each in self._blocks for block in each)
        others = sum(each.nbytes for each in (*self._indexes, *self._filters))
        return int(blocks + others + self._headers.nbytes)

    def make_room(self, shard: int) -> None:
        """Let a shard take more ids: a larger index, more rows, or both."""
        header = self._headers[shard]
        wanted = int(header[places.COUNT]) + places.BATCH
        if wanted * 16 > int(header[places.CAPACITY]) * places.MAX_LOAD:
            self._grow_index(shard)
        rows = len(self._blocks[shard]) * self._layout.block_rows
        if rows - int(header[places.NEXT_ROW]) + int(header[places.FREE_COUNT]) < places.BATCH:
            self._add_block(shard)
        self._publish(shard)

    def grow_one(self) -> None:
        """Grow the fullest index if it has more ids than it should.

        Ids are spread evenly, so that all shards become full at about the same time. Without memory for it, the index
        is used until it has no room; then `make_room` fails.
        """
        counts, capacities = self._headers[:, places.COUNT], self._headers[:, places.CAPACITY]
        full = counts * 16 > capacities * places.LOAD
        if full.any():
            shard = int(np.argmax(np.where(full, counts / capacities, 0.0)))
            with contextlib.suppress(ExhaustedError):
                self._grow_index(shard)
                self._publish(shard)

    def _grow_index(self, shard: int) -> None:
        header = self._headers[shard]
        old = int(header[places.CAPACITY])
        generation = int(header[places.GENERATION])
        made = self._memory.allocate(f"index-{shard}-{generation + 1}", old * 2 * places.SLOT_BYTES)
        index.rehash(self._indexes[shard].ctypes.data, old, made.ctypes.data, old * 2)
        self._indexes[shard] = made
        # In this order: a reader that sees the new generation finds its capacity.
        header[places.CAPACITY] = old * 2
        header[places.GENERATION] = generation + 1
        self._memory.free(f"index-{shard}-{generation}")

    def _add_block(self, shard: int) -> None:
        number = len(self._blocks[shard])
        if (number + 1) * self._layout.block_rows > _MOST_ROWS:
            raise ExhaustedError("a shard holds at most 2^32 rows", hint="use more shards")
        size = self._layout.block_rows * self._layout.stride
        self._blocks[shard].append(self._memory.allocate(f"rows-{shard}-{number}", size, lasting=True))
        self._tables[shard] = np.array([each.ctypes.data for each in self._blocks[shard]], np.int64)
        self._headers[shard, places.BLOCKS] = number + 1

    def _publish(self, shard: int) -> None:
        """Make a new directory in which one shard is as it is now."""
        found = self.directory.shards.copy()
        line = found[shard]
        line[places.D_HEADER] = self._headers[shard].ctypes.data
        line[places.D_INDEX] = self._indexes[shard].ctypes.data
        line[places.D_CAPACITY] = self._headers[shard, places.CAPACITY]
        line[places.D_BLOCKS] = self._tables[shard].ctypes.data
        line[places.D_BLOCK_COUNT] = len(self._blocks[shard])
        line[places.D_GENERATION] = self._headers[shard, places.GENERATION]
        if self._filters:
            line[places.D_FILTER] = self._filters[shard].ctypes.data
        # Blocks live as long as the table; tables of blocks and indexes are replaced.
        self.directory = Directory(found, (tuple(self._indexes), tuple(self._tables), self._blocks, self._headers))
