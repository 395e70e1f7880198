"""Eviction beside writers and readers, metrics, kernels that are kept, threads that agree."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from shoal.core.telemetry import MetricRegistry
from shoal.tables.eviction import Evictor
from shoal.tables.kernels import compiling
from shoal.tables.metrics import TableMetrics
from shoal.tables.settings.initializers import Ones
from shoal.tables.settings.optimizers import Adagrad, Sgd
from shoal.tables.settings.table import ExpirySettings, SliceSettings, TableSettings
from shoal.tables.table import EmbeddingTable

SLICES = (SliceSettings(8, initializer=Ones(), optimizer=Sgd(0.0)),)


def test_eviction_beside_a_writer_and_a_reader() -> None:
    table = EmbeddingTable(TableSettings(SLICES, expiry=ExpirySettings(10)))
    wrong: list[np.ndarray] = []
    done = threading.Event()

    def read() -> None:
        generator = np.random.default_rng(1)
        while not done.is_set():
            rows = table.lookup(generator.integers(0, 50_000, 500))
            if not (rows == rows[:, :1]).all() or not np.isin(rows[:, 0], (0.0, 1.0)).all():
                wrong.append(rows)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with Evictor({"t": table}, interval=0.0001, places=256):
            zeros = np.zeros((500, 8), np.float32)
            for second in range(300):
                start = second * 150
                table.apply(np.arange(start, start + 500), zeros, event_times=second)
            # Everything but the last ten seconds goes, without another call.
            while len(table) > 500 + 10 * 150:
                done.wait(0.001)
    finally:
        done.set()
        reader.join()
    assert wrong == []
    last = 299 * 150
    assert (table.lookup(np.arange(last, last + 500)) == 1.0).all()
    assert table.statistics().removed > 40_000


def test_an_evictor_outlives_a_closed_table() -> None:
    closed, table = (EmbeddingTable(TableSettings(SLICES, expiry=ExpirySettings(1))) for _ in range(2))
    table.apply([1], np.zeros((1, 8), np.float32), event_times=0)
    table.apply([2], np.zeros((1, 8), np.float32), event_times=5)
    closed.close()
    with Evictor({"closed": closed, "table": table}, interval=0.0001, places=1 << 12):
        while len(table) > 1:
            pass


@pytest.mark.parametrize("count", [1000, 5000])
def test_any_number_of_threads_gives_the_same_table(count: int) -> None:
    slices = (SliceSettings(5, optimizer=Adagrad(0.1)),)
    generator = np.random.default_rng(2)
    batches = [
        (generator.integers(0, 3000, count), generator.normal(size=(count, 5)).astype(np.float32)) for _ in range(5)
    ]
    found = []
    for threads in (1, 2, 3, 16):
        with EmbeddingTable(TableSettings(slices), threads=threads) as table:
            for step, (ids, gradients) in enumerate(batches):
                table.apply(ids, gradients, step=step, event_times=step)
            parts = list(table.entries())
            found.append([(each.ids.tolist(), each.weights.tobytes(), each.states.tobytes()) for each in parts])
    assert all(each == found[0] for each in found)


def test_metrics_follow_the_tables() -> None:
    registry = MetricRegistry()
    metrics = TableMetrics(registry)
    with EmbeddingTable(TableSettings(SLICES)) as table:
        table.apply([1, 2], np.zeros((2, 8), np.float32), event_times=77)
        table.lookup([1, 2, 3, 4])
        metrics.update({"users": table})
        table.lookup([1, 1])
        metrics.update({"users": table})
        text = registry.render().decode()
    for line in (
        'shoal_tables_ids{table="users"} 2.0',
        'shoal_tables_lookup_ids_total{table="users"} 6.0',
        'shoal_tables_lookup_hits_total{table="users"} 4.0',
        'shoal_tables_hit_ratio{table="users"} 1.0',
        'shoal_tables_inserted_ids_total{table="users"} 2.0',
        'shoal_tables_newest_update_seconds{table="users"} 77.0',
        'shoal_tables_time_basis{basis="event_time",table="users"} 1.0',
        'shoal_tables_time_basis{basis="arrival",table="users"} 0.0',
    ):
        assert line in text


PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
from shoal.tables.kernels import index, pools
import numpy as np
ids = np.array([5, 5, 7])
print(pools.deduplicate(ids, np.zeros(16, np.int64), np.zeros(3, np.int64), np.zeros(3, np.int64)))
"""


def run(env: dict[str, str]) -> list[str]:
    answer = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    return answer.stdout.splitlines()


def test_a_kernel_is_compiled_once_and_says_so(tmp_path: Path) -> None:
    env = {"PATH": "", "HOME": str(tmp_path), "SHOAL_KERNEL_CACHE": str(tmp_path / "cache")}
    first, second = run(env), run(env)
    assert first[-1] == second[-1] == "2"
    assert "compiling table kernels" in first[0]
    assert "shoal warmup" in first[0]
    assert second == ["2"]


def test_without_a_folder_kernels_still_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    found = run({"PATH": "", "HOME": str(tmp_path), "SHOAL_KERNEL_CACHE": str(tmp_path / "file" / "cache")})
    assert found[-1] == "2"
    assert "compiled at every start" in found[0]


def test_a_kernel_depends_on_all_modules_that_it_uses() -> None:
    assert compiling.fingerprint("updates") != compiling.fingerprint("lookups")
    used = set(compiling.sources("updates"))
    assert {"updates", "access", "index", "optimizers", "filters", "hashing", "codecs", "places"} <= used
    assert "pools" not in used


def test_a_wrong_call_of_a_kernel_is_no_new_compilation(caplog: pytest.LogCaptureFixture) -> None:
    from shoal.tables.kernels import lookups

    with caplog.at_level(logging.INFO), pytest.raises(TypeError, match="No matching definition"):
        lookups.is_current(np.zeros((2, 2), np.float64))
