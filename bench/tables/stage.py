"""Tables full of rows, and batches of zipf ids. Called by `steps`, and by the tests of the measuring."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.tables.settings.optimizers import Adagrad
from shoal.tables.settings.table import AdmissionSettings, ExpirySettings, FilterKind, SliceSettings, TableSettings
from shoal.tables.table import EmbeddingTable

ZIPF = 1.05
_CHUNK = 1 << 16
DAY = 86_400
NEW_ONE_IN = 64


def scatter(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Different numbers as different ids of 63 bits."""
    word = numbers.astype(np.uint64)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((word ^ (word >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def make_batches(rows: int, size: int, count: int, *, seed: int = 1) -> list[npt.NDArray[np.int64]]:
    """Batches of zipf ids over so many rows."""
    total = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -ZIPF)
    drawn = np.random.default_rng(seed).random(size * count) * total[-1]
    return list(scatter(np.searchsorted(total, drawn).astype(np.int64)).reshape(count, size))


def with_new_ids(batches: Sequence[npt.NDArray[np.int64]], first: int) -> list[npt.NDArray[np.int64]]:
    """The same batches with one id in 64 replaced by one that no table has, numbered from `first` on.

    Each comes in three batches after one another. In the first two the filter of admission counts it and nothing is
    trained; with the third it is inserted.
    """
    made = []
    for number, ids in enumerate(batches):
        each = max(1, ids.size // (3 * NEW_ONE_IN))
        mixed = ids.copy()
        fresh = first + np.arange(max(0, number - 2) * each, (number + 1) * each)
        mixed[:: ids.size // fresh.size][: fresh.size] = scatter(fresh)
        made.append(mixed)
    return made


def make_table(rows: int, dim: int, *, threads: int) -> EmbeddingTable:
    """A table that holds every id of the batches, with admission and expiry on."""
    settings = TableSettings(
        (SliceSettings(dim, optimizer=Adagrad(0.05)),),
        name="bench",
        admission=AdmissionSettings(FilterKind.SLIDING, threshold=2),
        expiry=ExpirySettings(30 * DAY),
        expected_ids=rows,
    )
    table = EmbeddingTable(settings, threads=threads)
    weights = np.zeros((_CHUNK, dim), np.float32)
    for start in range(0, rows, _CHUNK):
        ids = scatter(np.arange(start, min(start + _CHUNK, rows)))
        table.assign(ids, weights[: ids.size], event_times=DAY)
    return table
