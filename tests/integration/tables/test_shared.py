"""Tables in shared memory: one writer, and readers in other processes that never see half a row."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing.process
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import ExhaustedError, InvalidError, NotFoundError, PreconditionError, UnavailableError
from shoal.tables.kernels import places
from shoal.tables.memory import SharedMemory
from shoal.tables.settings.optimizers import Sgd
from shoal.tables.settings.table import ExpirySettings, SliceSettings, TableSettings
from shoal.tables.shared import SharedTableReader
from shoal.tables.table import EmbeddingTable

WIDTH = 48
SLICES = (SliceSettings(WIDTH, optimizer=Sgd()),)
READY = "ready"


def read_some(folder: str, answers: Any, go: Any, scale: tuple[int, int], seed: int) -> None:
    """Look ids up, and count what must not be."""
    count, batches = scale
    reader = SharedTableReader(folder, patience=60.0)
    generator = np.random.default_rng(seed)
    found = {"hits": 0, "torn": 0, "foreign": 0}
    reader.lookup([0])
    answers.put(READY)
    go.wait()
    number = 0
    while number < batches or found["hits"] < batches:  # the writer goes on until there is enough to see
        number += 1
        ids = generator.integers(0, count, 256)
        rows = reader.lookup(ids)
        first = rows[:, 0]
        found["hits"] += int((first != 0).sum())
        found["torn"] += int((rows != rows[:, :1]).any(axis=1).sum())
        found["foreign"] += int(((first != 0) & (first.astype(np.int64) % count != ids)).sum())
    answers.put(found)


def make_writes(width: int, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of ids and rows. Every number of a row is `id + count * batch`, exact in float32: it tells whose."""
    generator = np.random.default_rng(0)
    found = []
    for number in range(1, 17):
        ids = generator.integers(0, count * number // 16 + 1, 256)
        found.append((ids, np.repeat((ids + count * number).astype(np.float32)[:, None], width, axis=1)))
    return found


@contextlib.contextmanager
def ended(processes: Sequence[multiprocessing.process.BaseProcess]) -> Iterator[None]:
    """Processes that were started in the block do not outlive it, also when it fails."""
    try:
        yield
    finally:
        for each in processes:
            if each.pid is not None and each.exitcode is None:
                each.kill()
                each.join()


def torture(folder: Path, batches: int, *, width: int, count: int, patience: float = 100.0) -> None:
    """Insert, overwrite, remove, expire and insert again until the readers are done."""
    slices = (SliceSettings(width, optimizer=Sgd()),)
    settings = TableSettings(slices, shards=2, expiry=ExpirySettings(3))
    context = multiprocessing.get_context("spawn")
    answers, go = context.Queue(), context.Event()
    writes = make_writes(width, count)
    readers = [
        context.Process(target=read_some, args=(str(folder), answers, go, (count, batches), seed)) for seed in (1, 2)
    ]
    with EmbeddingTable(settings, memory=SharedMemory(folder)) as table, ended(readers):
        for each in readers:
            each.start()
        assert [answers.get(timeout=patience) for _ in readers] == [READY, READY]
        go.set()
        number = 0
        while answers.qsize() < len(readers) and all(each.exitcode in (None, 0) for each in readers):
            ids, rows = writes[number % len(writes)]
            table.assign(ids, rows, event_times=number // 20)
            if number % 8 == 0:
                table.remove(ids[:32])
                table.expire_some(512)
            number += 1
        found = [answers.get(timeout=patience) for _ in readers]
        for each in readers:
            each.join(patience)
        assert [each.exitcode for each in readers] == [0, 0]
        assert table.statistics().removed > 0
    for each in found:
        assert each["hits"] > 0
        assert (each["torn"], each["foreign"]) == (0, 0), each
    assert not folder.exists()


@pytest.mark.parametrize(("width", "count", "batches"), [(48, 20_000, 300), (2048, 40, 1500)], ids=["many", "wide"])
def test_readers_never_see_half_a_row(tmp_path: Path, width: int, count: int, batches: int) -> None:
    """Many ids that come and go; and a few wide ones that are nearly always being written."""
    shm = Path("/dev/shm")
    torture(
        (shm if os.access(shm, os.W_OK) else tmp_path) / f"shoal-test-{os.getpid()}-{width}",
        batches,
        width=width,
        count=count,
    )


def test_a_writer_that_was_killed_within_a_row_is_an_error(tmp_path: Path) -> None:
    with EmbeddingTable(TableSettings(SLICES), memory=SharedMemory(tmp_path / "t")) as table:
        table.assign([1], np.ones((1, WIDTH), np.float32))
        reader = SharedTableReader(tmp_path / "t", patience=0.01)
        counters = table._shards.headers[:, places.STRIPE_START :]
        counters += 1  # as a writer leaves them that ends in the middle of a row
        with pytest.raises(UnavailableError, match="half written"):
            reader.lookup([1])
        assert not reader.lookup([2]).any()
        counters += 1
        assert (reader.lookup([1]) == 1).all()


def test_a_reader_follows_growth_and_sees_every_kind_of_change(tmp_path: Path) -> None:
    settings = TableSettings(SLICES, shards=2)
    with EmbeddingTable(settings, memory=SharedMemory(tmp_path / "t")) as table:
        reader = SharedTableReader(tmp_path / "t")
        assert reader.settings == settings
        assert not reader.lookup([1, 2, 3]).any()
        for size in (10, 5000, 20_000):
            ids = np.arange(size)
            table.assign(ids, np.full((size, WIDTH), float(size), np.float32))
            assert (reader.lookup(ids) == size).all()
            assert len(reader) == size
        table.apply([3], np.ones((1, WIDTH), np.float32))
        assert np.array_equal(reader.lookup([3]), table.lookup([3]))
        table.remove([3])
        assert not reader.lookup([3]).any()
        reader.close()
    with pytest.raises(NotFoundError):
        SharedTableReader(tmp_path / "t")


def test_a_table_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidError, match="power of two"):
        EmbeddingTable(TableSettings(SLICES, shards=3), memory=SharedMemory(tmp_path / "t"))

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    memory = SharedMemory(tmp_path / "t")
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ExhaustedError):
        EmbeddingTable(TableSettings(SLICES), memory=memory)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_is_behind_takes_no_file_of_the_next_writer(tmp_path: Path) -> None:
    settings = TableSettings(SLICES, shards=1)
    first = SharedMemory(tmp_path / "t")
    table = EmbeddingTable(settings, memory=first)
    table.assign([1, 2], np.repeat([[1.0], [2.0]], WIDTH, axis=1))
    with SharedTableReader(tmp_path / "t") as reader:
        assert (reader.lookup([1]) == 1).all()
        table.assign(np.arange(1, 2000), np.ones((1999, WIDTH), np.float32))
        generation = int(table._shards.headers[0, places.GENERATION])
        size = table._shards.directory.shards[0, places.D_CAPACITY] * places.SLOT_BYTES
        assert generation > 1
        first._lock.release()  # as if it was killed
        second = SharedMemory(tmp_path / "t")
        other = second.allocate(f"index-0-{generation}", size)
        other[:] = 0
        with pytest.raises(UnavailableError, match="shard 0 has no index"):
            reader.lookup([1])
        second.free(f"index-0-{generation}")
        with EmbeddingTable(settings, memory=second) as table:
            table.assign([1], np.full((1, WIDTH), 5, np.float32))
            assert (reader.lookup([1]) == 5).all(), "once its table is there, the reader goes over to it"


def test_a_closed_reader_is_told(tmp_path: Path) -> None:
    with EmbeddingTable(TableSettings(SLICES), memory=SharedMemory(tmp_path / "t")):
        reader = SharedTableReader(tmp_path / "t")
        reader.close()
        reader.close()
        with pytest.raises(PreconditionError, match="is closed"):
            reader.lookup([1])


def test_a_reader_outlives_the_writer(tmp_path: Path) -> None:
    with EmbeddingTable(TableSettings(SLICES), memory=SharedMemory(tmp_path / "t")) as table:
        table.assign([1], np.ones((1, WIDTH), np.float32))
        reader = SharedTableReader(tmp_path / "t")
    assert (reader.lookup([1]) == 1).all()


# ---------------------------------------------------------------------------------------------------------
# Killed and started again

LARGE = TableSettings((SliceSettings(2048, optimizer=Sgd(learning_rate=1.0)),), shards=1)
SMALL = TableSettings((SliceSettings(1, optimizer=Sgd()),), shards=2)


def full(ids: Any, number: int, width: int) -> np.ndarray:
    """Rows that tell of which id and write they are."""
    return np.repeat((np.asarray(ids) + 1000 * number).astype(np.float32)[:, None], width, axis=1)


def write_for_ever(folder: str, work: str, ready: Any) -> None:
    """A writer that spends nearly all of its time on one kind of work."""
    table = EmbeddingTable(SMALL if work == "growth" else LARGE, memory=SharedMemory(folder))
    ids, number = np.arange(40), 0
    table.assign(ids, full(ids, 1, table.settings.dim))
    ready.set()
    while True:
        number += 1
        if work == "apply":  # every weight grows by 1,000, then falls again
            table.apply(ids, np.full((40, 2048), 1000 if number % 2 == 0 else -1000, np.float32))
        elif work == "removal":
            table.remove(ids)
            table.assign(ids, full(ids, 1, 2048))
        else:
            more = np.arange(1 << 14) + (number << 14)
            table.assign(more, np.ones((more.size, 1), np.float32))


def check(reader: SharedTableReader, ids: np.ndarray) -> int:
    """Look ids up one by one, as some rows may stay half written. Returns how many were there; none may be torn."""
    hits = 0
    for each in ids.tolist():
        with contextlib.suppress(UnavailableError):
            (row,) = reader.lookup([each])
            assert (row == row[0]).all()
            assert row[0] == 0 or row[0] % 1000 == each
            hits += int(row[0] != 0)
    return hits


@pytest.mark.parametrize("work", ["apply", "removal", "growth"])
def test_a_killed_writer_is_started_again_in_its_folder(tmp_path: Path, work: str) -> None:
    """Killed several times in the middle of its work. The reader is the same all the time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    ids, folder, reader = np.arange(40), tmp_path / "t", None
    for looks in (3, 30):
        ready = context.Event()
        writer = context.Process(target=write_for_ever, args=(str(folder), work, ready))
        with ended([writer]):
            writer.start()
            assert ready.wait(100)
            reader = reader or SharedTableReader(folder, patience=0.002)
            assert sum(check(reader, ids) for _ in range(looks)) > 0 or work == "removal"
            writer.kill()
            writer.join()
        check(reader, ids)
    assert reader is not None
    settings = TableSettings(SLICES, name="other")
    with EmbeddingTable(settings, memory=SharedMemory(folder)) as table:
        table.assign(ids, full(ids, 7, WIDTH))
        assert np.array_equal(reader.lookup(ids), full(ids, 7, WIDTH))
        assert (len(reader), reader.settings) == (40, settings)
    assert not folder.exists()


@pytest.mark.parametrize(("name", "message"), [
    ("index-0-1", "index-0-1 has 64 bytes and not 4096"), ("rows-0-0", "rows-0-0 has 64 bytes"), ("headers", "headers"),
])  # fmt: skip
def test_files_that_are_too_short_are_an_error(tmp_path: Path, name: str, message: str) -> None:
    with EmbeddingTable(TableSettings(SLICES, shards=1), memory=SharedMemory(tmp_path / "t")) as table:
        table.assign([1], np.ones((1, WIDTH), np.float32))
        # A copy: cutting a file that is mapped would end the process that maps it.
        (tmp_path / "copy").mkdir()
        for each in (tmp_path / "t").iterdir():
            content = each.read_bytes()
            (tmp_path / "copy" / each.name).write_bytes(content[:64] if each.name == name else content)
    with pytest.raises(UnavailableError, match=message):
        SharedTableReader(tmp_path / "copy")


@pytest.mark.parametrize("generation", [0, -1, 48, 2**62])
def test_a_header_that_is_made_up_is_an_error(tmp_path: Path, generation: int) -> None:
    with EmbeddingTable(TableSettings(SLICES, shards=1), memory=SharedMemory(tmp_path / "t")) as table:
        table._shards.headers[0, places.GENERATION] = generation
        with pytest.raises(UnavailableError, match="is of generation"):
            SharedTableReader(tmp_path / "t")
