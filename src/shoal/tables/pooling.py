"""Pooling of the rows of each example: sum, mean, first n; with exact gradients.

The plain path: `pool(rows, splits, Pooling.SUM)` takes a row per id, as `EmbeddingTable.lookup` returns them, and
`pool_gradient` gives a gradient per id, as `EmbeddingTable.apply` takes them. An example without ids is zeros, and so
is what first n lacks. `shoal.tables.fused` does the same for many features at once.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from shoal.core.errors import InvalidError, problem
from shoal.tables.kernels import pools
from shoal.tables.kernels.compiling import for_kernel
from shoal.tables.layout import Floats, Words

_MOST_LENGTH = 1 << 20


class Pooling(enum.IntEnum):
    """How the rows of an example become one. The numbers are those of Monolith's `PoolingType`."""

    SUM = 0
    MEAN = 1
    FIRST_N = 3


KINDS = {Pooling.SUM: pools.SUM, Pooling.MEAN: pools.MEAN, Pooling.FIRST_N: pools.FIRST_N}


def pool(rows: npt.ArrayLike, splits: npt.ArrayLike, pooling: Pooling, *, length: int = 0) -> Floats:
    """Pool rows by example.

    Args:
        rows: float32, a line per id.
        splits: where the ids of each example begin, and the number of ids at the end.
        pooling: how.
        length: n of first n.

    Returns:
        A line per example; with first n an array of examples × n × columns.
    """
    given = _as_rows("rows", rows)
    bounds = check_splits(splits, given.shape[0])
    check_length(pooling, length)
    width, examples = given.shape[1], bounds.size - 1
    out = np.zeros((examples, width * (length if pooling is Pooling.FIRST_N else 1)), np.float32)
    everything = np.arange(given.shape[0], dtype=np.int64)
    kind = KINDS[pooling]
    pools.pool(given, everything, bounds, kind, length, 0, width, examples, False, out, 0, width)
    return out.reshape(examples, length, width) if pooling is Pooling.FIRST_N else out


def pool_gradient(gradient: npt.ArrayLike, splits: npt.ArrayLike, pooling: Pooling, *, length: int = 0) -> Floats:
    """The gradient of each row, from that of what `pool` returned."""
    given = np.ascontiguousarray(gradient, np.float32)
    check_length(pooling, length)
    wanted = 3 if pooling is Pooling.FIRST_N else 2
    if given.ndim != wanted or (wanted == 3 and given.shape[1] != length):
        raise InvalidError(
            [problem("gradient", given.shape, f"must have {wanted} dimensions, as the pooled rows have")]
        )
    bounds = check_splits(splits, None)
    if given.shape[0] != bounds.size - 1:
        raise InvalidError([problem("gradient", given.shape, f"must have {bounds.size - 1} lines, one per example")])
    rows, width = int(bounds[-1]), given.shape[-1]
    sums = np.zeros((rows, width), np.float32)
    everything = np.arange(rows, dtype=np.int64)
    flat = for_kernel(given.reshape(given.shape[0], -1))
    examples, kind = given.shape[0], KINDS[pooling]
    pools.pool_gradient(flat, 0, width, everything, bounds, kind, length, 0, width, examples, False, sums)
    return sums


def check_splits(given: npt.ArrayLike, rows: int | None) -> Words:
    """Row splits that begin at 0, never fall, and end at the number of rows."""
    splits = np.asarray(given)
    if splits.ndim != 1 or splits.size == 0 or splits.dtype.kind not in "iu":
        raise InvalidError(
            [problem("splits", splits.shape, "must be an array of whole numbers, one more than examples")]
        )
    splits = np.ascontiguousarray(splits, np.int64)
    if splits[0] != 0 or (np.diff(splits) < 0).any() or (rows is not None and splits[-1] != rows):
        raise InvalidError([problem("splits", splits, f"must begin at 0, never fall and end at {rows}")])
    found: Words = for_kernel(splits)
    return found


def check_length(pooling: Pooling, length: int) -> None:
    """First n needs an n, and nothing else has one."""
    if pooling is Pooling.FIRST_N and not 1 <= length <= _MOST_LENGTH:
        raise InvalidError([problem("length", length, f"must be between 1 and {_MOST_LENGTH} for first n")])


def _as_rows(name: str, given: npt.ArrayLike) -> Floats:
    rows = np.ascontiguousarray(given, np.float32)
    if rows.ndim != 2:
        raise InvalidError([problem(name, rows.shape, "must have two dimensions")])
    found: Floats = for_kernel(rows)
    return found
