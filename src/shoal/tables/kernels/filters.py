"""Admission filters: how often an id that is not in the table was seen.

The sliding filter of a shard is a ring of splits, each an open-addressed array of 64-bit cells: 32 bits that tell ids
apart and a count of 32 bits. The split in use takes new counts; when it is full, the oldest is emptied and used next.
An id that was not seen for a whole turn of the ring begins at 0 again. The probabilistic filter has no memory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from shoal.tables.kernels.access import words_at
from shoal.tables.kernels.compiling import helper
from shoal.tables.kernels.hashing import draw, mix
from shoal.tables.kernels.places import F_HEAD, F_ROTATIONS, F_USED, FILTER_WORDS

NO_FILTER, SLIDING, PROBABILISTIC, PROBABILISTIC_EQUAL = range(4)

# Fields of the settings of a filter, as kernels get them.
A_KIND, A_SPLITS, A_CELLS, A_SEED, A_BATCH = range(5)

_COUNT = np.int64(0xFFFFFFFF)
_SALT = np.int64(0x5851F42D4C957F2D)
_PROBES = 32


@helper
def _cell(cells: Any, start: int, size: int, hashed: np.uint64, mark: int) -> int:
    """Where the mark is in a split, or the empty cell for it; -1 when the cells around are taken."""
    place = np.int64(hashed) & (size - 1)
    for _ in range(_PROBES):
        cell = cells[start + place]
        if cell == 0 or ((cell >> 32) & _COUNT) == mark:
            return start + place
        place = (place + 1) & (size - 1)
    return -1


@helper
def _add(address: int, splits: int, size: int, key: int, count: int) -> int:
    """Count an id. Returns how often it was counted before."""
    header = words_at(address, FILTER_WORDS)
    cells = words_at(address + FILTER_WORDS * 8, splits * size)
    hashed = mix(key ^ _SALT)
    # A mark of 0 would look like an empty cell.
    mark = np.int64(hashed >> np.uint64(32)) | 1
    head = header[F_HEAD]
    place = _cell(cells, head * size, size, hashed, mark)
    if place < 0 or (cells[place] == 0 and header[F_USED] * 4 >= size * 3):
        head = (head + 1) % splits
        cells[head * size : (head + 1) * size] = 0
        header[F_HEAD], header[F_USED] = head, 0
        header[F_ROTATIONS] += 1
        place = _cell(cells, head * size, size, hashed, mark)
    before = cells[place] & _COUNT
    if cells[place] == 0:
        header[F_USED] += 1
        for back in range(1, splits):
            older = _cell(cells, ((head - back) % splits) * size, size, hashed, mark)
            if older >= 0 and cells[older] != 0:
                before = cells[older] & _COUNT
                break
    cells[place] = (mark << 32) | min(before + count, _COUNT)
    return before


@helper
def is_admitted(address: int, admission: Any, key: int, count: int, threshold: int) -> bool:
    """Whether an id that is not in the table may enter it. Counts its occurrences."""
    kind = admission[A_KIND]
    if kind == NO_FILTER or threshold <= 0:
        return True
    if kind == SLIDING:
        return _add(address, admission[A_SPLITS], admission[A_CELLS], key, count) >= threshold
    chance = np.float64(count) / np.float64(threshold)
    if kind == PROBABILISTIC_EQUAL:
        chance = 1.0 - math.pow(math.pow(0.05, 1.0 / threshold), np.float64(count))
    return draw(admission[A_SEED], key, admission[A_BATCH]) < chance
