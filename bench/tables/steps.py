"""Measures lookups, steps, memory and dumps of tables. Called by the area."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.areas import Note
from bench.tables.peers import TFRA
from bench.tables.stage import DAY, make_batches, make_table, scatter, with_new_ids
from shoal.core.errors import UnavailableError
from shoal.tables.dumps import arrow
from shoal.tables.eviction import Evictor
from shoal.tables.settings.optimizers import Adagrad
from shoal.tables.settings.table import ExpirySettings, SliceSettings, TableSettings
from shoal.tables.table import EmbeddingTable

_PEER_WITHIN = 900.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. A test of the measuring itself takes less of everything."""

    rows: int = 10_000_000
    small: int = 1_000_000
    large: int = 20_000_000
    #: Rows of the comparison with the peer, whose table takes minutes to fill.
    beside: int = 5_000_000
    #: A training step: some thousand examples with some tens of ids each.
    batch: int = 1 << 16
    batches: int = 40
    #: Ids of a batch with which handing over to another thread counts.
    short: int = 1 << 12
    #: New ids of each step while a table grows.
    growth: int = 1 << 14
    passes: int = 5

    def shorter(self) -> Scale:
        """As many ids, in short batches."""
        return dataclasses.replace(self, batch=self.short, batches=self.batches * self.batch // self.short)


FULL = Scale()


def measure_all(run: int, note: Note, scale: Scale = FULL) -> dict[str, float]:
    """Every figure once."""
    return measure_tables(run, scale) | measure_beside(scale, note)


def measure_tables(run: int, scale: Scale) -> dict[str, float]:
    """Every figure of ours once."""
    found: dict[str, float] = {}
    if run == 0:
        found |= measure_growth(scale)
    for dim in (16, 32):
        for threads, name in ((1, f"step_{dim}"), (2, f"step_{dim}_two_threads")):
            with make_table(scale.rows, dim, threads=threads) as table:
                if run == 0 and (dim, threads) == (16, 1):
                    found["memory_per_id_16"] = table.statistics().bytes / scale.rows
                found[name] = step_rate(table, scale.rows, scale)
                if dim == 16:
                    found[name.replace("step_16", "step_16_short")] = step_rate(table, scale.rows, scale.shorter())
                if (dim, threads) == (16, 1):
                    found["lookup_16"] = step_rate(table, scale.rows, scale, update=False)
                    if run == 0:
                        found |= measure_dump(table)
                    found |= measure_sweep(table, scale)
    with make_table(scale.small, 16, threads=1) as table:
        found["step_16_1m"] = step_rate(table, scale.small, scale)
    with make_table(scale.large, 16, threads=1) as table:
        found["step_16_20m"] = step_rate(table, scale.large, scale)
    return found


def step_rate(table: EmbeddingTable, rows: int, scale: Scale, *, update: bool = True, new_ids: bool = True) -> float:
    """Millions of ids a second: the median of some passes over the same batches, each with new ids of its own."""
    batches = make_batches(rows, scale.batch, scale.batches)
    dim = table.layout.width
    gradients = np.random.default_rng(2).normal(scale=0.01, size=(scale.batch, dim)).astype(np.float32)
    out = np.empty((scale.batch, dim), np.float32)
    rates = []
    for number in range(scale.passes):
        # Fewer were new than were looked up, so that these are.
        mixed = with_new_ids(batches, rows + table.statistics().lookups) if new_ids else batches
        started = time.perf_counter()
        for step, ids in enumerate(mixed):
            table.lookup(ids, out=out)
            if update:
                table.apply(ids, gradients, step=step, event_times=DAY + number)
        rates.append(scale.batch * scale.batches / (time.perf_counter() - started) / 1e6)
    return statistics.median(rates)


def measure_growth(scale: Scale) -> dict[str, float]:
    """Steps with new ids only, from an empty table that does not know how many will come."""
    rows = min(scale.growth, scale.rows)
    gradients = np.full((rows, 16), 0.01, np.float32)
    settings = TableSettings((SliceSettings(16, optimizer=Adagrad(0.05)),), expiry=ExpirySettings(30 * DAY))
    with EmbeddingTable(settings) as table:  # loads the kernels
        table.apply([1], gradients[:1], event_times=DAY)
    steps = []
    with EmbeddingTable(settings) as table:
        for start in range(0, scale.rows, rows):
            ids = scatter(np.arange(start, start + rows))
            started = time.perf_counter()
            table.apply(ids, gradients, event_times=DAY)
            steps.append(time.perf_counter() - started)
    return {"growth_step": statistics.median(steps) * 1e3, "growth_longest_step": max(steps) * 1e3}


def measure_sweep(table: EmbeddingTable, scale: Scale) -> dict[str, float]:
    """Short steps beside a thread that sweeps without a pause, and removes what was not seen for long."""
    short = scale.shorter()
    batches = make_batches(scale.rows, short.batch, short.batches)
    gradients = np.full((short.batch, table.layout.width), 0.01, np.float32)
    lookups, steps = [], []
    with Evictor({"bench": table}, interval=0.0):
        for step, ids in enumerate(batches):
            started = time.perf_counter()
            table.lookup(ids)
            looked_up = time.perf_counter()
            table.apply(ids, gradients, step=step, event_times=32 * DAY)
            lookups.append(looked_up - started)
            steps.append(time.perf_counter() - looked_up)
    return {
        "sweep_step": statistics.median(steps) * 1e3,
        "sweep_longest_step": max(steps) * 1e3,
        "sweep_longest_lookup": max(lookups) * 1e3,
    }


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


def measure_beside(scale: Scale, note: Note) -> dict[str, float]:
    """The step in turn with that of the peer, which gets the same batches."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-tables-") as folder:
        path = Path(folder) / "batches.npy"
        np.save(path, np.array(make_batches(scale.beside, scale.batch, scale.batches)))
        try:
            peer = TFRA.run([str(path), str(scale.beside)], within=_PEER_WITHIN)
        except UnavailableError as error:
            note(f"TFRA could not be measured: {error.message[:200]}")
            return {}
    with make_table(scale.beside, 16, threads=2) as table:
        own = step_rate(table, scale.beside, scale, new_ids=False)
    return {"step_16_beside_tfra": own, "tfra_step_16": float(peer["rate"])}
