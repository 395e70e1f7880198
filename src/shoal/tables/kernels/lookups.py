"""Reads of batches. They take no lock: a row that is written at the same time is read again until it is whole.

Called by `jobs` and `shoal.tables.table` on its own memory, and by `shoal.tables.shared` on that of another process.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.tables.kernels.access import LINE, fence, floats_at, lines_at, load_word, peek, prefetch_to_read
from shoal.tables.kernels.codecs import decode_row
from shoal.tables.kernels.compiling import helper, kernel
from shoal.tables.kernels.hashing import mix, shard_of
from shoal.tables.kernels.index import find, row_in
from shoal.tables.kernels.places import (
    BATCH,
    BLOCKS,
    D_BLOCK_COUNT,
    D_BLOCKS,
    D_CAPACITY,
    D_GENERATION,
    D_HEADER,
    D_INDEX,
    DIRECTORY_COLUMNS,
    G_BLOCK_SHIFT,
    G_PLAIN,
    G_SHARD_MASK,
    G_STRIDE,
    G_WIDTH,
    GENERATION,
    MOVES,
    SLOT_BYTES,
    STRIPE_START,
    STRIPES,
)
from shoal.tables.kernels.updates import row_address

#: The directory of this process is older than the table: the caller reads it again and repeats the call.
STALE = -1
#: A row stays half written: its writer waits for a processor, or was killed. The caller decides how long to try.
BUSY = -2
_MISSING, _AHEAD, _HALF = -1, -2, -3
_SPINS = 20_000


@helper
def _row_of(shard: int, geometry: Any, key: int, hashed: np.uint64) -> int:
    """The row of an id; -1 without one, -2 in a block that this process does not know yet."""
    places = peek(shard + D_INDEX * 8)
    place = find(places, peek(shard + D_CAPACITY * 8), key, hashed)
    if place < 0:
        return _MISSING
    row = row_in(load_word(places + place * SLOT_BYTES + 8))
    if row < 0:  # the place was emptied in between; the counter of moves tells
        return _MISSING
    return _AHEAD if (row >> geometry[G_BLOCK_SHIFT]) >= peek(shard + D_BLOCK_COUNT * 8) else row


@helper
def _read(row: int, geometry: Any, plan: Any, parameters: Any, values: Any, scratch: Any) -> None:
    if geometry[G_PLAIN]:
        floats = floats_at(row, values.size)
        for j in range(values.size):
            values[j] = floats[j]
    else:
        decode_row(row, plan, parameters, values, scratch)


@helper
def _is_quiet(header: int, moves: int) -> bool:
    """Whether no id of a shard was moved since its counter of moves was read."""
    fence()
    return not moves & 1 and load_word(header + MOVES * 8) == moves


@helper
def _is_whole(header: int, row: int, moves: int, before: int) -> bool:
    """Whether nobody wrote a row, or moved ids of its shard, since the two counters were read."""
    quiet = _is_quiet(header, moves)
    return not before & 1 and load_word(header + (STRIPE_START + (row & (STRIPES - 1))) * 8) == before and quiet


@helper
def _read_again(shard: int, geometry: Any, plan: Any, parameters: Any, key: int, values: Any, scratch: Any) -> int:
    """Find and read one row until it is seen whole. Returns its number as `_row_of` does; -3 when it takes too long."""
    header = peek(shard + D_HEADER * 8)
    for _ in range(_SPINS):
        moves = load_word(header + MOVES * 8)
        row = _row_of(shard, geometry, key, mix(key))
        if row < 0:
            if row == _AHEAD or _is_quiet(header, moves):
                return row
            continue
        before = load_word(header + (STRIPE_START + (row & (STRIPES - 1))) * 8)
        _read(row_address(peek(shard + D_BLOCKS * 8), row, geometry), geometry, plan, parameters, values, scratch)
        if _is_whole(header, row, moves, before):
            return row
    return _HALF


@helper
def _is_same_generation(directory: Any) -> bool:
    """Whether the indexes that this process knows are those of the table."""
    for number in range(directory.shape[0]):
        if load_word(directory[number, D_HEADER] + GENERATION * 8) != directory[number, D_GENERATION]:
            return False
    return True


@helper
def read_rows(directory: Any, geometry: Any, plan: Any, parameters: Any, ids: Any, values: Any) -> int:
    """Read the weights of ids; zeros for one that is not there. Returns how many were there, STALE or BUSY."""
    rows, moved = np.empty(BATCH, np.int64), np.empty(BATCH, np.int64)
    hashes, shards = np.empty(BATCH, np.uint64), np.empty(BATCH, np.int64)
    scratch = np.empty(1, np.float32)
    first, table = directory.ctypes.data, lines_at(geometry)
    width, mask = table[G_WIDTH], table[G_SHARD_MASK]
    lines = (min(table[G_STRIDE], width * 4) + LINE - 1) // LINE
    if not _is_same_generation(directory):
        return STALE
    hits = 0
    for begin in range(0, ids.size, BATCH):
        count = min(BATCH, ids.size - begin)
        for i in range(count):
            hashed = mix(ids[begin + i])
            shard = first + shard_of(hashed, mask) * (DIRECTORY_COLUMNS * 8)
            hashes[i], shards[i] = hashed, shard
            prefetch_to_read(
                peek(shard + D_INDEX * 8) + (np.int64(hashed) & (peek(shard + D_CAPACITY * 8) - 1)) * SLOT_BYTES
            )
        for i in range(count):
            shard = shards[i]
            moved[i] = load_word(peek(shard + D_HEADER * 8) + MOVES * 8)
            row = _row_of(shard, table, ids[begin + i], hashes[i])
            rows[i] = row
            if row >= 0:
                address = row_address(peek(shard + D_BLOCKS * 8), row, table)
                for line in range(lines):
                    prefetch_to_read(address + line * LINE)
        for i in range(count):
            shard, row = shards[i], rows[i]
            header = peek(shard + D_HEADER * 8)
            to = floats_at(values.ctypes.data + (begin + i) * width * 4, width)
            if row >= 0:
                before = load_word(header + (STRIPE_START + (row & (STRIPES - 1))) * 8)
                address = row_address(peek(shard + D_BLOCKS * 8), row, table)
                _read(address, table, plan, parameters, to, scratch)
                whole = _is_whole(header, row, moved[i], before)
            else:
                whole = _is_quiet(header, moved[i])
            if not whole:
                row = _read_again(shard, table, plan, parameters, ids[begin + i], to, scratch)
            if row == _AHEAD:
                return STALE
            if row == _HALF:
                return BUSY
            if row == _MISSING:
                for j in range(width):
                    to[j] = 0
            else:
                hits += 1
    # An index that was replaced meanwhile still names the rows of ids that were removed since.
    fence()
    return hits if _is_same_generation(directory) else STALE


@kernel("int64(int64[:,::1], int64[::1], int64[:,::1], float32[:,::1], int64[::1], float32[:,::1])")
def lookup(directory: Any, geometry: Any, plan: Any, parameters: Any, ids: Any, values: Any) -> int:
    """As `read_rows`."""
    return read_rows(directory, geometry, plan, parameters, ids, values)


@kernel("boolean(int64[:,::1])")
def is_current(directory: Any) -> bool:
    """Whether the directory of this process is that of the table."""
    for number in range(directory.shape[0]):
        if load_word(directory[number, D_HEADER] + BLOCKS * 8) != directory[number, D_BLOCK_COUNT]:
            return False
    return _is_same_generation(directory)
