"""Tables in shared memory: one writer, and readers in other processes that never see half a row."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import NotFoundError
from shoal.tables.memory import SharedMemory
from shoal.tables.settings.optimizers import Sgd
from shoal.tables.settings.table import ExpirySettings, SliceSettings, TableSettings
from shoal.tables.shared import SharedTableReader
from shoal.tables.table import EmbeddingTable

WIDTH = 48
IDS = 20_000
#: A value is `id + IDS * round`, exact in float32, so that it tells whose it is.
ROUNDS = 500
SLICES = (SliceSettings(WIDTH, optimizer=Sgd()),)


def read_until(folder: str, stop: Any, answers: Any, seed: int) -> None:
    """Look ids up until the writer is done, and count what must not be."""
    reader = SharedTableReader(folder)
    generator = np.random.default_rng(seed)
    found = {"read": 0, "hits": 0, "torn": 0, "foreign": 0, "batches": 0}
    while not stop.is_set() or found["batches"] < 10:
        ids = generator.integers(0, IDS, 256)
        rows = reader.lookup(ids)
        first = rows[:, 0]
        found["read"] += ids.size
        found["batches"] += 1
        found["hits"] += int((first != 0).sum())
        found["torn"] += int((rows != rows[:, :1]).any(axis=1).sum())
        found["foreign"] += int(((first != 0) & (first.astype(np.int64) % IDS != ids)).sum())
    answers.put(found)


def write(table: EmbeddingTable, rounds: int) -> None:
    """Insert, overwrite, expire and insert again, while the table grows from nothing."""
    generator = np.random.default_rng(0)
    for number in range(rounds):
        ids = generator.integers(0, min(IDS, 100 + number * 40), 128)
        values = (ids + IDS * (1 + number % ROUNDS)).astype(np.float32)
        table.assign(ids, np.repeat(values[:, None], WIDTH, axis=1), event_times=number // 50)
        table.expire_some(512)


def torture(folder: Path, rounds: int) -> None:
    settings = TableSettings(SLICES, shards=4, expiry=ExpirySettings(3))
    context = multiprocessing.get_context("spawn")
    stop, answers = context.Event(), context.Queue()
    with EmbeddingTable(settings, memory=SharedMemory(folder)) as table:
        readers = [context.Process(target=read_until, args=(str(folder), stop, answers, seed)) for seed in (1, 2)]
        for each in readers:
            each.start()
        write(table, rounds)
        # The first readers may come when all is written; what they must see is written on until they have.
        stop.set()
        while any(each.is_alive() for each in readers) and answers.qsize() < len(readers):
            write(table, 20)
        found = [answers.get(timeout=60) for _ in readers]
        for each in readers:
            each.join(60)
        assert [each.exitcode for each in readers] == [0, 0]
        statistics = table.statistics()
    assert statistics.removed > 1000
    for each in found:
        assert each["hits"] > 0
        assert (each["torn"], each["foreign"]) == (0, 0), each
    assert not folder.exists()


def test_readers_never_see_half_a_row(tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    torture((shm if os.access(shm, os.W_OK) else tmp_path) / f"shoal-test-{os.getpid()}", 700)


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


def test_a_reader_outlives_the_writer(tmp_path: Path) -> None:
    with EmbeddingTable(TableSettings(SLICES), memory=SharedMemory(tmp_path / "t")) as table:
        table.assign([1], np.ones((1, WIDTH), np.float32))
        reader = SharedTableReader(tmp_path / "t")
    assert (reader.lookup([1]) == 1).all()
