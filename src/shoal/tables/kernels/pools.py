"""Pooling of rows, forward and backward. Called by `shoal.tables.pooling` and `shoal.tables.fused`.

`splits` says which rows belong to which example: those from `splits[i]` to `splits[i + 1]`. `inverse` says which line
of `unique` each row is. A pooled example is written into columns of a larger output, from `column` on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.tables.kernels.compiling import kernel

SUM, MEAN, FIRST_N = range(3)


@kernel(
    "void(float32[:,::1], int64[::1], int64[::1], int64,int64,int64,int64,int64, boolean, float32[:,::1], int64,int64)"
)
def pool(
    unique: Any,
    inverse: Any,
    splits: Any,
    kind: int,
    length: int,
    start: int,
    end: int,
    examples: int,
    shared: bool,
    out: Any,
    column: int,
    pitch: int,
) -> None:
    """Add the pooled columns `start` to `end` of each example's rows to the output.

    First-n writes at most `length` rows, each `pitch` columns after the one before. With `shared`, the
    rows of the first example are those of every example.
    """
    width = end - start
    for example in range(examples):
        line = 0 if shared else example
        first, last = splits[line], splits[line + 1]
        if kind == FIRST_N:
            last = min(last, first + length)
        share = np.float32(1)
        if kind == MEAN and last > first:
            share = np.float32(1) / np.float32(last - first)
        for row in range(first, last):
            source = inverse[row]
            to = column + ((row - first) * pitch if kind == FIRST_N else 0)
            for j in range(width):
                out[example, to + j] += share * unique[source, start + j]


@kernel(
    "void(float32[:,::1], int64,int64, int64[::1], int64[::1], int64,int64,int64,int64,int64, boolean, float32[:,::1])"
)
def pool_gradient(
    gradient: Any,
    column: int,
    pitch: int,
    inverse: Any,
    splits: Any,
    kind: int,
    length: int,
    start: int,
    end: int,
    examples: int,
    shared: bool,
    sums: Any,
) -> None:
    """Add the gradient of pooled columns to the rows that they came from."""
    width = end - start
    for example in range(examples):
        line = 0 if shared else example
        first, last = splits[line], splits[line + 1]
        if kind == FIRST_N:
            last = min(last, first + length)
        share = np.float32(1)
        if kind == MEAN and last > first:
            share = np.float32(1) / np.float32(last - first)
        for row in range(first, last):
            to = inverse[row]
            source = column + ((row - first) * pitch if kind == FIRST_N else 0)
            for j in range(width):
                sums[to, start + j] += share * gradient[example, source + j]


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1])")
def deduplicate(ids: Any, scratch: Any, unique: Any, inverse: Any) -> int:
    """Number ids in the order in which they first occur. Returns how many there are.

    `scratch` is a hash set of zeros, a power of two of words, at least twice as many as ids.
    """
    mask = scratch.size - 1
    found = 0
    for i in range(ids.size):
        key = ids[i]
        word = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
        place = np.int64(word >> np.uint64(20)) & mask
        while scratch[place] != 0 and unique[scratch[place] - 1] != key:
            place = (place + 1) & mask
        if scratch[place] == 0:
            unique[found] = key
            found += 1
            scratch[place] = found
        inverse[i] = scratch[place] - 1
    return found
