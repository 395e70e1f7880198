"""The index of one shard: linear probing over stored ids, removal by shifting back. Called by the other kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.tables.kernels.access import fence, load_word, store_word, words_at
from shoal.tables.kernels.compiling import helper, kernel
from shoal.tables.kernels.hashing import mix
from shoal.tables.kernels.places import (
    COUNT,
    FREE_COUNT,
    FREE_HEAD,
    MOVES,
    REMOVED,
    SLOT_BYTES,
)

ROW_MASK = 0xFFFFFFFF


@helper
def find(index: int, capacity: int, key: int, hashed: np.uint64) -> int:
    """The place of an id, or -1."""
    mask = capacity - 1
    place = np.int64(hashed) & mask
    # A reader may see places while they move; it must end, and finds out afterwards.
    for _ in range(capacity):
        address = index + place * SLOT_BYTES
        if load_word(address + 8) == 0:
            return -1
        if load_word(address) == key:
            return place
        place = (place + 1) & mask
    return -1


@helper
def row_in(entry: int) -> int:
    """The row in the second word of a place."""
    return (entry & ROW_MASK) - 1


@helper
def time_in(entry: int) -> int:
    """The time in the second word of a place."""
    return (entry >> 32) & ROW_MASK


@helper
def entry_of(row: int, time: int) -> int:
    """The second word of a place."""
    return (time << 32) | (row + 1)


@helper
def insert(index: int, capacity: int, key: int, hashed: np.uint64, entry: int) -> None:
    """Store an id that is not there yet. There is an empty place."""
    mask = capacity - 1
    place = np.int64(hashed) & mask
    while load_word(index + place * SLOT_BYTES + 8) != 0:
        place = (place + 1) & mask
    address = index + place * SLOT_BYTES
    store_word(address, key)
    store_word(address + 8, entry)


@helper
def remove(header: Any, index: int, capacity: int, place: int, row_address: int) -> None:
    """Take an id out and shift back those that probed past it, so that no place stays behind as a gravestone."""
    mask = capacity - 1
    slots = words_at(index, capacity * 2)
    moves = header.ctypes.data + MOVES * 8
    before = header[MOVES]
    store_word(moves, before + 1)
    fence()
    row = row_in(slots[place * 2 + 1])
    hole = place
    following = place
    while True:
        following = (following + 1) & mask
        entry = slots[following * 2 + 1]
        if entry == 0:
            break
        home = np.int64(mix(slots[following * 2])) & mask
        if ((following - home) & mask) >= ((following - hole) & mask):
            slots[hole * 2] = slots[following * 2]
            slots[hole * 2 + 1] = entry
            hole = following
    slots[hole * 2 + 1] = 0
    words_at(row_address, 1)[0] = header[FREE_HEAD]
    header[FREE_HEAD] = row + 1
    header[FREE_COUNT] += 1
    header[COUNT] -= 1
    header[REMOVED] += 1
    fence()
    store_word(moves, before + 2)


@kernel("void(int64, int64, int64, int64)")
def rehash(old: int, old_capacity: int, new: int, new_capacity: int) -> None:
    """Write every id of an index into a larger one, which is empty."""
    slots = words_at(old, old_capacity * 2)
    for place in range(old_capacity):
        entry = slots[place * 2 + 1]
        if entry != 0:
            key = slots[place * 2]
            insert(new, new_capacity, key, mix(key), entry)


@kernel("Tuple((int64, int64))(int64, int64)")
def measure_probes(index: int, capacity: int) -> tuple[int, int]:
    """The longest way from where an id belongs to where it is, and the sum of all of them."""
    slots = words_at(index, capacity * 2)
    longest = np.int64(0)
    total = np.int64(0)
    for place in range(capacity):
        if slots[place * 2 + 1] != 0:
            away = (place - np.int64(mix(slots[place * 2]))) & (capacity - 1)
            total += away
            longest = max(longest, away)
    return longest, total
