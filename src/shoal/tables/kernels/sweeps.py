"""Walks over a whole shard: expiry, and copies for dumps. Called by `shoal.tables.table` with the writer's lock."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.tables.kernels.access import floats_at, words_at
from shoal.tables.kernels.codecs import decode_row
from shoal.tables.kernels.compiling import kernel
from shoal.tables.kernels.index import remove, row_in, time_in
from shoal.tables.kernels.places import (
    COUNT,
    D_BLOCKS,
    D_CAPACITY,
    D_HEADER,
    D_INDEX,
    G_PLAIN,
    G_STATE,
    G_WIDTH,
    HEADER_WORDS,
)
from shoal.tables.kernels.updates import row_address


@kernel("Tuple((int64, int64))(int64[::1], int64[::1], int64[::1], int64, int64, int64, int64)")
def expire(shard: Any, geometry: Any, lifetimes: Any, now: int, start: int, places: int, floor: int) -> tuple[int, int]:
    """Remove the ids of some places that were not updated for the lifetime of their slot (0: they never expire).

    Returns where to go on, and how many were removed. At least `floor` ids stay.
    """
    capacity, index = shard[D_CAPACITY], shard[D_INDEX]
    slots = words_at(index, capacity * 2)
    header = words_at(shard[D_HEADER], HEADER_WORDS)
    removed = 0
    place = start
    end = min(start + places, capacity)
    while place < end and header[COUNT] > floor:
        entry = slots[place * 2 + 1]
        if entry != 0:
            lifetime = lifetimes[(slots[place * 2] >> 48) & 0x7FFF]
            if lifetime > 0 and now - time_in(entry) >= lifetime:
                address = row_address(shard[D_BLOCKS], row_in(entry), geometry)
                remove(header, index, capacity, place, address)
                removed += 1
                continue  # another id may have been shifted to this place
        place += 1
    return max(place, end), removed


@kernel(
    "int64(int64[::1], int64[::1], int64[:,::1], float32[:,::1], int64[::1],int64[::1],float32[:,::1],float32[:,::1])"
)
def copy_shard(
    shard: Any, geometry: Any, plan: Any, parameters: Any, ids: Any, times: Any, weights: Any, states: Any
) -> int:
    """Copy every id of a shard with its time, its weights and its state. Returns how many there are."""
    capacity = shard[D_CAPACITY]
    slots = words_at(shard[D_INDEX], capacity * 2)
    scratch = np.empty(1, np.float32)
    width, state = geometry[G_WIDTH], geometry[G_STATE]
    found = 0
    for place in range(capacity):
        entry = slots[place * 2 + 1]
        if entry == 0:
            continue
        ids[found], times[found] = slots[place * 2], time_in(entry)
        row = row_address(shard[D_BLOCKS], row_in(entry), geometry)
        if geometry[G_PLAIN]:
            floats = floats_at(row, width + state)
            for j in range(width):
                weights[found, j] = floats[j]
            for j in range(state):
                states[found, j] = floats[width + j]
        else:
            decode_row(row, plan, parameters, weights[found], scratch)
        found += 1
    return found
