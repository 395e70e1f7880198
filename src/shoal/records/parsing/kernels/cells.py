"""Compiled kernels that read whole numbers out of the cells of CSV. Called by `shoal.records.parsing.tables`."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.records.parsing.kernels.wire import compiled

#: Numbers of more digits may not fit, and are left to Arrow.
_MOST_DIGITS = 18


@compiled
def split_numbers(data: Any, offsets: Any, separator: int, splits: Any, out: Any) -> Any:
    """The numbers of each cell, which a separator divides; an empty cell has none.

    Returns how many there are; negative when a cell holds anything but digits and a minus before them.
    """
    place = 0
    splits[0] = 0
    for row in range(len(offsets) - 1):
        at = np.int64(offsets[row])
        end = np.int64(offsets[row + 1])
        while at < end:
            negative = data[np.uint64(at)] == 45
            if negative:
                at += 1
            value = np.int64(0)
            digits = 0
            while at < end:
                digit = np.int64(data[np.uint64(at)]) - 48
                if digit < 0 or digit > 9:
                    break
                value = value * 10 + digit
                digits += 1
                at += 1
            if digits == 0 or digits > _MOST_DIGITS or place >= len(out):
                return -1
            out[np.uint64(place)] = -value if negative else value
            place += 1
            if at < end:
                # Another one must follow a separator.
                if data[np.uint64(at)] != separator or at + 1 == end:
                    return -1
                at += 1
        splits[row + 1] = place
    return place
