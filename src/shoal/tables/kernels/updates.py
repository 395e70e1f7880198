"""Writes of batches: gradients, values, removals. Called by `jobs`, by one thread for each shard.

A function with `part` and `parts` works on the shards whose number is `part` modulo `parts`, so that threads never
meet. A function that returns a position stopped there, because a shard (the number is in `stopped`) has no room for the
next ids; the caller makes room and goes on from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.tables.kernels.access import LINE, fence, floats_at, ints_at, lines_at, peek, prefetch, store_word, words_at
from shoal.tables.kernels.codecs import encode_row
from shoal.tables.kernels.compiling import helper, kernel
from shoal.tables.kernels.filters import is_admitted
from shoal.tables.kernels.hashing import mix, shard_of
from shoal.tables.kernels.index import entry_of, find, insert, remove, row_in, time_in
from shoal.tables.kernels.optimizers import fill_row, update_row
from shoal.tables.kernels.places import (
    BATCH,
    COUNT,
    D_BLOCK_COUNT,
    D_BLOCKS,
    D_CAPACITY,
    D_FILTER,
    D_HEADER,
    D_INDEX,
    DIRECTORY_COLUMNS,
    FREE_COUNT,
    FREE_HEAD,
    G_BLOCK_SHIFT,
    G_LIMIT,
    G_PLAIN,
    G_SEED,
    G_SHARD_MASK,
    G_STATE,
    G_STRIDE,
    G_WIDTH,
    HEADER_WORDS,
    INSERTED,
    MAX_LOAD,
    NEXT_ROW,
    NO_ROOM,
    NOT_ADMITTED,
    SLOT_BYTES,
    STRIPE_START,
    STRIPES,
)

_LOW = np.int64(0xFFFFFFFF)
#: A larger gradient counts as one that is not finite: sums of squares of such ones leave the range of float32.
_MOST = np.float32(1e15)


@helper
def row_address(blocks: int, row: int, geometry: Any) -> int:
    """Where a row lies."""
    shift = geometry[G_BLOCK_SHIFT]
    return peek(blocks + (row >> shift) * 8) + (row & ((1 << shift) - 1)) * geometry[G_STRIDE]


@helper
def _begin(header: int, row: int) -> None:
    """Readers of the row wait or read again from here on."""
    counter = header + (STRIPE_START + (row & (STRIPES - 1))) * 8
    store_word(counter, peek(counter) + 1)
    fence()


@helper
def _end(header: int, row: int) -> None:
    fence()
    counter = header + (STRIPE_START + (row & (STRIPES - 1))) * 8
    store_word(counter, peek(counter) + 1)


@helper
def _take_row(header: Any, blocks: int, geometry: Any) -> int:
    """A row that nobody uses; the caller knows that there is one. A freed row is taken first."""
    header[COUNT] += 1
    header[INSERTED] += 1
    row = header[FREE_HEAD] - 1
    if row < 0:
        row = header[NEXT_ROW]
        header[NEXT_ROW] += 1
    else:
        header[FREE_HEAD] = peek(row_address(blocks, row, geometry))
        header[FREE_COUNT] -= 1
    return row


@helper
def _has_room(shard: int, header: Any, geometry: Any) -> bool:
    """Whether a shard takes a whole block of new ids."""
    rows = (peek(shard + D_BLOCK_COUNT * 8) << geometry[G_BLOCK_SHIFT]) - header[NEXT_ROW] + header[FREE_COUNT]
    return rows >= BATCH and (header[COUNT] + BATCH) * 16 <= peek(shard + D_CAPACITY * 8) * MAX_LOAD


@helper
def _locate(first: int, geometry: Any, keys: Any, begin: int, found: Any, part: int, parts: int) -> None:
    """Find the ids of a block: ask for their places, then for their rows.

    `found` gets a line per id: the address of its shard's line in the directory, its place (-1 is not there, -2 is of
    another part), the address of its row.
    """
    count = min(BATCH, keys.size - begin)
    lines = (geometry[G_STRIDE] + LINE - 1) // LINE
    for i in range(count):
        hashed = mix(keys[begin + i])
        number = shard_of(hashed, geometry[G_SHARD_MASK])
        shard = first + number * (DIRECTORY_COLUMNS * 8)
        found[i, 0], found[i, 1] = shard, -2 if number % parts != part else -1
        prefetch(peek(shard + D_INDEX * 8) + (np.int64(hashed) & (peek(shard + D_CAPACITY * 8) - 1)) * SLOT_BYTES)
    for i in range(count):
        if found[i, 1] == -2:
            continue
        key, shard = keys[begin + i], found[i, 0]
        index = peek(shard + D_INDEX * 8)
        place = find(index, peek(shard + D_CAPACITY * 8), key, mix(key))
        found[i, 1] = place
        if place >= 0:
            row = row_in(peek(index + place * SLOT_BYTES + 8))
            address = row_address(peek(shard + D_BLOCKS * 8), row, geometry)
            found[i, 2] = address
            for line in range(lines):
                prefetch(address + line * LINE)


@helper
def _stops(first: int, geometry: Any, count: int, found: Any, stopped: Any) -> bool:
    """Whether a shard may lack room for the new ids of a block."""
    for i in range(count):
        if found[i, 1] == -1:
            shard = found[i, 0]
            header = words_at(peek(shard + D_HEADER * 8), HEADER_WORDS)
            if header[COUNT] < geometry[G_LIMIT] and not _has_room(shard, header, geometry):
                stopped[0] = (shard - first) // (DIRECTORY_COLUMNS * 8)
                return True
    return False


@helper
def select(ids: Any, mine: Any, positions: Any) -> int:
    """Where the ids of a part are, given which shards it has. Returns how many there are.

    Whether an id is of a part is a matter of chance, which no processor foresees: there is no branch on it.
    """
    mask, found = np.int64(mine.size - 1), 0
    for i in range(ids.size):
        positions[found] = i
        found += np.int64(mine[shard_of(mix(ids[i]), mask)])
    return found


@helper
def sum_gradients(
    ids: Any,
    gradients: Any,
    times: Any,
    positions: Any,
    scratch: Any,
    unique: Any,
    counts: Any,
    sums: Any,
    newest: Any,
) -> int:
    """Add up the gradients of the ids at some positions, in their order. Returns how many ids there are.

    `scratch` is a hash set: word 0 is a number that grows with each call, so that the set is hardly ever cleared; a
    power of two of words follows, at least twice as many as ids.
    """
    epoch = scratch[0] + 1
    if epoch >= 1 << 31:
        scratch[:] = 0
        epoch = 1
    scratch[0] = epoch
    last = scratch.size - 1
    found = 0
    width = gradients.shape[1]
    homes, numbers = np.empty(BATCH, np.int64), np.empty(BATCH, np.int64)
    for begin in range(0, positions.size, BATCH):
        size = min(BATCH, positions.size - begin)
        for k in range(size):
            home = (np.int64(mix(ids[positions[begin + k]])) & (last - 1)) + 1
            homes[k] = home
            prefetch(scratch.ctypes.data + home * 8)
        for k in range(size):
            i, place = positions[begin + k], homes[k]
            key = ids[i]
            while (scratch[place] >> 32) == epoch and unique[scratch[place] & _LOW] != key:
                place = place + 1 if place < last else 1
            if (scratch[place] >> 32) == epoch:
                number = scratch[place] & _LOW
                counts[number] += 1
                newest[number] = max(newest[number], times[i])
            else:
                number = found
                scratch[place] = (epoch << 32) | found
                unique[found], counts[found], newest[found] = key, 1, times[i]
                sums[found, :] = 0
                found += 1
            numbers[k] = number
        for k in range(size):
            to = floats_at(sums.ctypes.data + numbers[k] * width * 4, width)
            given = floats_at(gradients.ctypes.data + positions[begin + k] * width * 4, width)
            for j in range(width):
                to[j] += given[j]
    return found


@helper
def drop_not_finite(sums: Any, count: int, counts: Any) -> int:
    """Mark the gradients that are not finite, or too large, with a count of 0. Returns how many there are."""
    found = 0
    for i in range(count):
        good = 0
        for j in range(sums.shape[1]):
            good += 1 if abs(sums[i, j]) <= _MOST else 0
        if good < sums.shape[1]:
            counts[i] = 0
            found += 1
    return found


@helper
def apply_gradients(
    directory: Any,
    geometry: Any,
    plan: Any,
    parameters: Any,
    thresholds: Any,
    admission: Any,
    keys: Any,
    counts: Any,
    times: Any,
    gradients: Any,
    rates: Any,
    step: int,
    start: int,
    stopped: Any,
) -> int:
    """Apply one gradient to each id, of which none is there twice; a count of 0 leaves it out.

    Returns where it stopped.
    """
    found = np.empty((BATCH, 3), np.int64)
    first, table = directory.ctypes.data, lines_at(geometry)
    state_end = table[G_WIDTH] + table[G_STATE]
    for begin in range(start, keys.size, BATCH):
        _locate(first, table, keys, begin, found, 0, 1)
        if _stops(first, table, min(BATCH, keys.size - begin), found, stopped):
            return begin
        for i in range(min(BATCH, keys.size - begin)):
            at = begin + i
            if counts[at] == 0:
                continue
            key, shard, place, address = keys[at], found[i, 0], found[i, 1], found[i, 2]
            head, index = peek(shard + D_HEADER * 8), peek(shard + D_INDEX * 8)
            if place >= 0:
                entry = peek(index + place * SLOT_BYTES + 8)
                row = row_in(entry)
                if times[at] > time_in(entry):
                    store_word(index + place * SLOT_BYTES + 8, entry_of(row, times[at]))
                _begin(head, row)
            else:
                header = words_at(head, HEADER_WORDS)
                threshold = thresholds[(key >> 48) & 0x7FFF]
                if not is_admitted(peek(shard + D_FILTER * 8), admission, key, counts[at], threshold):
                    header[NOT_ADMITTED] += 1
                    continue
                if header[COUNT] >= table[G_LIMIT]:
                    header[NO_ROOM] += 1
                    continue
                row = _take_row(header, peek(shard + D_BLOCKS * 8), table)
                address = row_address(peek(shard + D_BLOCKS * 8), row, table)
                _begin(head, row)
                fill_row(address, plan, parameters, state_end, table[G_SEED], key)
            update_row(address, plan, parameters, gradients.ctypes.data + at * table[G_WIDTH] * 4, rates, step)
            _end(head, row)
            if place < 0:
                insert(index, peek(shard + D_CAPACITY * 8), key, mix(key), entry_of(row, times[at]))
    return keys.size


@helper
def assign_rows(
    directory: Any,
    geometry: Any,
    plan: Any,
    parameters: Any,
    keys: Any,
    times: Any,
    weights: Any,
    states: Any,
    part: int,
    parts: int,
    start: int,
    stopped: Any,
) -> int:
    """Store weights as they are given, and the state of the optimizer, or its first state where `states` has no lines.

    Returns where it stopped.
    """
    found = np.empty((BATCH, 3), np.int64)
    scratch = np.empty(1, np.float32)
    first, table = directory.ctypes.data, lines_at(geometry)
    width, state = table[G_WIDTH], table[G_STATE]
    for begin in range(start, keys.size, BATCH):
        _locate(first, table, keys, begin, found, part, parts)
        if _stops(first, table, min(BATCH, keys.size - begin), found, stopped):
            return begin
        for i in range(min(BATCH, keys.size - begin)):
            at = begin + i
            key, shard, place = keys[at], found[i, 0], found[i, 1]
            if place == -2:
                continue
            head, index = peek(shard + D_HEADER * 8), peek(shard + D_INDEX * 8)
            header = words_at(head, HEADER_WORDS)
            if place < 0:  # an id may stand twice in a block
                place = find(index, peek(shard + D_CAPACITY * 8), key, mix(key))
            if place >= 0:
                row = row_in(peek(index + place * SLOT_BYTES + 8))
                store_word(index + place * SLOT_BYTES + 8, entry_of(row, times[at]))
            elif header[COUNT] >= table[G_LIMIT]:
                header[NO_ROOM] += 1
                continue
            else:
                row = _take_row(header, peek(shard + D_BLOCKS * 8), table)
            address = row_address(peek(shard + D_BLOCKS * 8), row, table)
            _begin(head, row)
            if table[G_PLAIN]:
                if place < 0 and states.shape[0] == 0:
                    fill_row(address, plan, parameters, width + state, table[G_SEED], key)
                _copy(address, weights.ctypes.data + at * width * 4, width)
                if states.shape[0] > 0:
                    _copy(address + width * 4, states.ctypes.data + at * state * 4, state)
            else:
                encode_row(address, plan, parameters, weights[at], scratch)
            _end(head, row)
            if place < 0:
                insert(index, peek(shard + D_CAPACITY * 8), key, mix(key), entry_of(row, times[at]))
    return keys.size


@helper
def _copy(to: int, source: int, count: int) -> None:
    """Copy 32-bit values."""
    from_view, to_view = ints_at(source, count), ints_at(to, count)
    for i in range(count):
        to_view[i] = from_view[i]


@kernel("int64(int64[:,::1], int64[::1], int64[::1])")
def remove_ids(directory: Any, geometry: Any, keys: Any) -> int:
    """Remove ids. Returns how many there were."""
    found = 0
    for i in range(keys.size):
        hashed = mix(keys[i])
        shard = directory[shard_of(hashed, geometry[G_SHARD_MASK])]
        place = find(shard[D_INDEX], shard[D_CAPACITY], keys[i], hashed)
        if place >= 0:
            row = row_in(peek(shard[D_INDEX] + place * SLOT_BYTES + 8))
            header = words_at(shard[D_HEADER], HEADER_WORDS)
            remove(header, shard[D_INDEX], shard[D_CAPACITY], place, row_address(shard[D_BLOCKS], row, geometry))
            found += 1
    return found
