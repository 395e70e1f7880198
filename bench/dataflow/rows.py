"""The rows that jobs in memory work on: the same for us, for bare Arrow and, by the same rules, for peers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

#: Rows of a batch: what a source of ours gives at most, too.
BATCH_ROWS = 65_536
#: Where event time begins: on the edge of a window of 10 s.
FIRST = 1_700_000_000_000_000
#: Half of the values lie above it.
LIMIT = 1000.0
FEE = 0.03
SEED = 7


def make_batches(rows: int, *, keys: int, rows_per_second: int, batch_rows: int = BATCH_ROWS) -> list[Any]:
    """Rows in order of time: an id, a moment, one of so many string keys and a value from 0 to 2,000."""
    random = np.random.default_rng(SEED)
    names = pa.array([f"key-{number:07d}" for number in range(keys)])
    made = []
    for begin in range(0, rows, batch_rows):
        count = min(batch_rows, rows - begin)
        ids = np.arange(begin, begin + count, dtype=np.int64)
        columns = {
            "id": pa.array(ids),
            "ts": pa.array(FIRST + ids * 1_000_000 // rows_per_second).cast(pa.timestamp("us")),
            "key": names.take(pa.array(random.integers(0, keys, count))),
            "v": pa.array(random.random(count) * 2 * LIMIT),
        }
        made.append(pa.RecordBatch.from_pydict(columns))
    return made
