"""Eviction beside writers and readers, metrics, kernels that are kept, threads that agree."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from shoal.core.errors import PreconditionError
from shoal.core.telemetry import MetricRegistry
from shoal.tables.eviction import Evictor
from shoal.tables.jobs import JobMaker
from shoal.tables.kernels import compiling, jobs, sweeps
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


def test_a_writer_waits_for_one_look_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    table = EmbeddingTable(TableSettings((SliceSettings(1),), expiry=ExpirySettings(10)))
    looks: list[int] = []
    looks_of_writer: list[int] = []
    began, stopped = threading.Event(), threading.Event()

    def look(*_: object) -> tuple[int, int]:
        looks.append(1)
        began.set()
        while not (looks_of_writer or table._lock.is_awaited()):
            stopped.wait(0.001)
        return 1 << 40, 0

    def times(given: object, count: int) -> object:
        looks_of_writer.append(len(looks))
        return real_times(given, count)

    def sweep() -> None:
        while not stopped.is_set():
            table.expire_some()

    real_times = table._times
    monkeypatch.setattr(table, "_times", times)
    monkeypatch.setattr(sweeps, "expire", look)
    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    assert began.wait(10)
    table.apply([1], [[1.0]])
    stopped.set()
    sweeper.join()
    assert looks_of_writer == [1], "the sweep that was under way, and no other"


def test_a_reader_that_began_before_an_index_grew_takes_no_row_of_another_id() -> None:
    count = 400_000
    slices = (SliceSettings(4, optimizer=Sgd(0.0)),)
    ids = np.arange(3 * count, dtype=np.int64)
    values = np.repeat(ids.astype(np.float32)[:, None], 4, axis=1)
    table = EmbeddingTable(TableSettings(slices), threads=1)
    table.assign(ids[:count], values[:count])
    found: list[np.ndarray] = []
    began = threading.Event()

    def read() -> None:
        began.set()
        found.append(table.lookup(np.tile(ids[:count], 20)))

    reader = threading.Thread(target=read)
    reader.start()
    began.wait()
    # Its index grows under the reader, then its rows go to other ids.
    table.assign(ids[count : 2 * count], values[count : 2 * count])
    table.remove(ids[:count])
    table.assign(ids[2 * count :], values[2 * count :])
    reader.join()
    rows = found[0].reshape(20, count, 4)
    assert ((rows == values[:count]) | (rows == 0)).all()


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


def test_callers_that_find_the_threads_busy_do_their_batches_alone() -> None:
    """Readers and a writer share the threads of one table; the rows are those of a table with one thread."""
    slices = (SliceSettings(4, initializer=Ones(), optimizer=Adagrad(0.1)),)
    generator = np.random.default_rng(3)
    batches = [
        (generator.integers(0, 20_000, 4000), generator.normal(size=(4000, 4)).astype(np.float32)) for _ in range(60)
    ]
    found = []
    for threads in (1, 3):
        done = threading.Event()
        with EmbeddingTable(TableSettings(slices), threads=threads) as table:

            def read(table: EmbeddingTable = table, done: threading.Event = done) -> None:
                while not done.is_set():
                    table.lookup(np.arange(5000))

            readers = [threading.Thread(target=read) for _ in range(2)]
            for each in readers:
                each.start()
            for step, (ids, gradients) in enumerate(batches):
                table.apply(ids, gradients, step=step, event_times=step)
            done.set()
            for each in readers:
                each.join()
            found.append([(part.ids.tolist(), part.weights.tobytes()) for part in table.entries()])
    assert found[0] == found[1]


def test_threads_that_sleep_are_woken() -> None:
    with EmbeddingTable(TableSettings(SLICES), threads=4) as table:
        asleep = table._workers._asleep
        for round_number in range(5):
            while not all(asleep):
                pass
            assert table.apply(np.arange(2000), np.zeros((2000, 8), np.float32), event_times=round_number) == 2000
        assert (table.lookup(np.arange(2000)) == 1.0).all()


def test_the_caller_does_the_parts_of_threads_that_do_not_begin() -> None:
    """Its threads have no processor: no part is begun, and one that begins late finds nothing to do."""
    with EmbeddingTable(TableSettings(SLICES)) as table:
        table.assign(np.arange(3000), np.repeat(np.arange(3000, dtype=np.float32), 8).reshape(3000, 8))
        maker = JobMaker(table.layout, table.settings.shards, 3)
        mailbox = np.zeros(jobs.M_PARTS + 3 * jobs.LINE_WORDS, np.int64)
        for number in (1, 2):
            values = np.zeros((3000, 8), np.float32)
            job = maker.lookup(np.arange(3000), values, 3)
            job.see(table._shards.directory)
            jobs.take_part(mailbox, job.words, number, 0)
            assert (values[:, 0] == np.arange(3000)).all()
            job.words[:] = 1  # an address that nobody may touch
        for part in (1, 2):
            assert jobs.take_part(mailbox, job.words, 0, part) == 2, "the last job that it saw"


def test_a_table_is_closed_while_others_look_ids_up() -> None:
    for _ in range(20):
        table = EmbeddingTable(TableSettings(SLICES), threads=3)
        table.assign(np.arange(3000), np.ones((3000, 8), np.float32))
        reading, ended = threading.Barrier(3), []

        def read(table: EmbeddingTable = table, reading: threading.Barrier = reading, ended: list = ended) -> None:
            reading.wait()
            try:
                while True:
                    table.lookup(np.arange(3000))
            except PreconditionError as error:
                ended.append(error.message)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for each in readers:
            each.start()
        reading.wait()
        table.lookup(np.arange(3000))
        table.close()
        for each in readers:
            each.join()
        assert len(ended) == 2


FORKED = """
import os, sys
import numpy as np
from shoal.tables import EmbeddingTable, SliceSettings, TableSettings

table = EmbeddingTable(TableSettings((SliceSettings(4),)), threads=2)
ids, zeros = np.arange(5000), np.zeros((5000, 4), np.float32)
table.apply(ids, zeros)
child = os.fork()
if child == 0:
    table.apply(ids + 5000, zeros)
    os._exit(0 if len(table) == 10_000 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_goes_on_without_the_threads() -> None:
    assert subprocess.run([sys.executable, "-c", FORKED], check=False, timeout=60).returncode == 0


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
