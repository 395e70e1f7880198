"""Measures lookups, steps, memory and dumps of tables. Called by the area."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.areas import Note
from bench.tables.peers import TFRA
from bench.tables.stage import DAY, make_batches, make_table
from shoal.core.errors import UnavailableError
from shoal.tables.dumps import arrow
from shoal.tables.table import EmbeddingTable

BATCH, BATCHES, PASSES = 4096, 300, 5
_PEER_WITHIN = 900.0


def measure_all(run: int, note: Note, *, rows: int, small: int, large: int, beside: int) -> dict[str, float]:
    """Every figure once."""
    found: dict[str, float] = {}
    for dim in (16, 32):
        for threads, name in ((1, f"step_{dim}"), (2, f"step_{dim}_two_threads")):
            with make_table(rows, dim, threads=threads) as table:
                found[name] = step_rate(table, rows)
                if (dim, threads) == (16, 1):
                    found["lookup_16"] = step_rate(table, rows, update=False)
                    if run == 0:
                        found["memory_per_id_16"] = table.statistics().bytes / rows
                        found |= measure_dump(table)
    with make_table(small, 16, threads=1) as table:
        found["step_16_1m"] = step_rate(table, small)
    if run == 0:
        with make_table(large, 16, threads=1) as table:
            found["step_16_20m"] = step_rate(table, large)
    return found | measure_beside(beside, note)


def step_rate(table: EmbeddingTable, rows: int, *, update: bool = True) -> float:
    """Millions of ids a second: the median of some passes over the same batches."""
    batches = make_batches(rows, BATCH, BATCHES)
    dim = table.layout.width
    gradients = np.random.default_rng(2).normal(scale=0.01, size=(BATCH, dim)).astype(np.float32)
    out = np.empty((BATCH, dim), np.float32)
    rates = []
    for number in range(PASSES):
        started = time.perf_counter()
        for step, ids in enumerate(batches):
            table.lookup(ids, out=out)
            if update:
                table.apply(ids, gradients, step=step, event_times=DAY + number)
        rates.append(BATCH * BATCHES / (time.perf_counter() - started) / 1e6)
    return statistics.median(rates)


def measure_dump(table: EmbeddingTable) -> dict[str, float]:
    """A dump and a load."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-tables-") as folder:
        path = str(Path(folder) / "dump.arrow")
        started = time.perf_counter()
        arrow.write(table, path)
        written = time.perf_counter()
        with EmbeddingTable(table.settings) as empty:
            loading = time.perf_counter()
            arrow.load(path, empty)
            loaded = time.perf_counter()
    return {"dump_10m": written - started, "load_10m": loaded - loading}


def measure_beside(rows: int, note: Note) -> dict[str, float]:
    """The step in turn with that of the peer, which gets the same batches."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-tables-") as folder:
        path = Path(folder) / "batches.npy"
        np.save(path, np.array(make_batches(rows, BATCH, BATCHES)))
        try:
            peer = TFRA.run([str(path), str(rows)], within=_PEER_WITHIN)
        except UnavailableError as error:
            note(f"TFRA could not be measured: {error.message[:200]}")
            return {}
    with make_table(rows, 16, threads=2) as table:
        own = step_rate(table, rows)
    return {"step_16_beside_tfra": own, "tfra_step_16": float(peer["rate"])}
