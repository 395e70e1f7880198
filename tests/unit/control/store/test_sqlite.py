"""The store on SQLite: the suite on a file and in memory, and what only a file can suffer."""

import asyncio
import contextlib
import os
import sqlite3
import threading

import pytest

from shoal.control.store import sqlite
from shoal.control.store.base import INSTANCE_FILE, Batch, EventQuery
from shoal.control.store.errors import StoreError, StoreOutcome
from shoal.control.store.sqlite import SqliteStore
from shoal.core import faults
from shoal.core.errors import DamagedError, InvalidError, PreconditionError, UnavailableError
from shoal.testing.suites.store import StoreSuite
from shoal.testing.suites.store_records import decode_spec, event, workload


class TestSqliteStore(StoreSuite):
    __test__ = True

    @pytest.fixture
    def make_store(self, tmp_path):
        return lambda **settings: SqliteStore(tmp_path / "control.db", decode_spec=decode_spec, **settings)


class TestMemoryStore(StoreSuite):
    """In memory nothing outlives `close`, so what the suite says of reopening does not apply."""

    __test__ = True
    test_reopening_sees_everything = None
    test_the_bound_holds_after_reopening = None
    test_closing_finishes_what_was_accepted = None

    @pytest.fixture
    def make_store(self):
        return lambda **settings: SqliteStore(":memory:", decode_spec=decode_spec, **settings)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "control.db"


@pytest.fixture
async def store(path):
    store = SqliteStore(path, decode_spec=decode_spec)
    await store.open()
    yield store
    await store.close()


@pytest.mark.looptime
async def test_memory_needs_no_thread_and_no_time(looptime):
    before = threading.active_count()
    store = SqliteStore(":memory:", decode_spec=decode_spec)
    await store.open()
    async with asyncio.timeout(1):
        for each in range(20):
            await store.commit(Batch(workloads=(workload(f"w{each}"),)))
        assert len((await store.load()).workloads) == 20
        await store.ping()
    assert threading.active_count() == before
    assert looptime == 0
    await store.close()


async def test_every_commit_reaches_the_disk(path):
    seen = {}

    def look(connection):
        for pragma in ("journal_mode", "synchronous", "busy_timeout", "wal_autocheckpoint"):
            seen[pragma] = connection.exec_driver_sql(f"PRAGMA {pragma}").scalar()

    store = SqliteStore(path, decode_spec=decode_spec, guard=look)
    await store.open()
    await store.commit(Batch(workloads=(workload("a"),)))
    await store.close()
    full = 2
    assert seen == {"journal_mode": "wal", "synchronous": full, "busy_timeout": 5000, "wal_autocheckpoint": 1000}


@pytest.mark.parametrize("content", ["nothing", "no tables"])
async def test_an_empty_file_is_refused_where_a_control_plane_was(path, content):
    path.parent.mkdir()
    (path.parent / INSTANCE_FILE).write_text("name")
    if content == "nothing":
        path.touch()
    else:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
    store = SqliteStore(path, decode_spec=decode_spec)
    with pytest.raises(DamagedError, match="is empty, but a control plane has used this directory before"):
        await store.open()
    for file in path.parent.glob("control.db*"):
        file.unlink()
    await store.open()  # moved away on purpose: it begins anew
    await store.close()


async def test_an_empty_file_is_taken_in_a_new_directory(path):
    path.parent.mkdir()
    path.touch()
    store = SqliteStore(path, decode_spec=decode_spec)
    await store.open()
    await store.close()


async def test_nothing_is_stored_while_the_reserve_is_in_use(path, monkeypatch):
    store = SqliteStore(path, decode_spec=decode_spec)
    await store.open()
    assert store._database.free_reserve()

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(StoreError, match="the disk is full") as refused:
            await store.commit(Batch(workloads=(workload("a"),)))
        assert refused.value.outcome is StoreOutcome.FULL
        with pytest.raises(StoreError, match="the disk is full"):
            await store.ping()
        leader = await store.acquire_leadership("me", "here:1", seconds=5)  # what has to be stored, is
        assert leader.holder == "me"
        assert (await store.load()).workloads == ()
    await store.ping()
    await store.commit(Batch(workloads=(workload("a"),)))
    await store.close()


async def test_nobody_else_reads_the_files(store, path):
    await store.commit(Batch(workloads=(workload("a"),)))
    files = sorted(path.parent.iterdir())
    beside = ["-shm", "-wal", ".lock", ".reserve"]
    assert [file.name for file in files] == ["control.db", *(f"control.db{each}" for each in beside)]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


async def test_a_second_store_is_refused(store, path):
    second = SqliteStore(path, decode_spec=decode_spec)
    with pytest.raises(PreconditionError, match=f"in use by process {os.getpid()}") as caught:
        await second.open()
    assert caught.value.facts["pid"] == str(os.getpid())
    assert "--data-dir" in caught.value.hint
    await store.commit(Batch(workloads=(workload("a"),)))
    await store.close()
    await second.open()
    assert len((await second.load()).workloads) == 1
    await second.close()


async def test_a_file_that_is_no_database(path):
    path.parent.mkdir()
    path.write_bytes(b"these are the notes of somebody" * 100)
    store = SqliteStore(path, decode_spec=decode_spec)
    with pytest.raises(DamagedError, match="is not a database") as caught:
        await store.open()
    assert str(path) in caught.value.message
    assert path.read_bytes().startswith(b"these are the notes")
    path.unlink()
    await store.open()  # nothing of the failed attempt is in the way
    await store.close()


@pytest.mark.parametrize("size", [50, 100, 5000, 40_000])
async def test_a_file_that_was_cut_off(path, size):
    store = SqliteStore(path, decode_spec=decode_spec)
    await store.open()
    await store.commit(Batch(workloads=(workload("a"),)))
    await store.close()
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DamagedError, match="damaged") as caught:
        await SqliteStore(path, decode_spec=decode_spec).open()
    assert str(path) in caught.value.message
    assert "backup" in caught.value.hint
    assert path.stat().st_size == size


async def test_a_database_of_another_program(path):
    path.parent.mkdir()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE nodes (id TEXT)")
    other.close()
    with pytest.raises(InvalidError, match="tables of another program"):
        await SqliteStore(path, decode_spec=decode_spec).open()


async def test_a_database_of_a_newer_program(path):
    store = SqliteStore(path, decode_spec=decode_spec)
    await store.open()
    await store.close()
    with sqlite3.connect(path) as newer:
        newer.execute("INSERT INTO schema_migrations VALUES (9999, 'from_the_future')")
    newer.close()
    with pytest.raises(PreconditionError, match="newer version of shoal: it has schema 9999") as caught:
        await store.open()
    assert caught.value.hint


async def test_a_place_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="cannot be used: not a directory"):
        await SqliteStore(tmp_path / "file" / "control.db", decode_spec=decode_spec).open()


async def test_a_locked_file_is_unavailable_for_a_while(path):
    def impatient(connection):
        connection.exec_driver_sql("PRAGMA busy_timeout = 10")

    store = SqliteStore(path, decode_spec=decode_spec, guard=impatient)
    await store.open()
    await store.commit(Batch(workloads=(workload("a"),)))
    shell = sqlite3.connect(path, isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    with pytest.raises(UnavailableError, match="locked by another program"):
        await store.commit(Batch(workloads=(workload("b"),)))
    assert len((await store.load()).workloads) == 1
    shell.execute("ROLLBACK")
    shell.close()
    await store.commit(Batch(workloads=(workload("b"),)))
    await store.close()


async def test_a_full_disk_and_room_again(path):
    room = 1_000_000

    def limit(connection):
        # Each connection has a limit of its own; SQLite raises the same error as for a full disk.
        connection.exec_driver_sql(f"PRAGMA max_page_count = {room}")

    store = SqliteStore(path, decode_spec=decode_spec, guard=limit)
    await store.open()
    await store.commit(Batch(workloads=(workload("a"),)))
    room = 1  # as small as the file is
    many = Batch(workloads=tuple(workload(f"w{each}") for each in range(500)), events=(event("a"),))
    outcomes = await asyncio.gather(
        store.commit(many), store.commit(Batch(workloads=(workload("b"),))), return_exceptions=True
    )
    assert outcomes[0].outcome is StoreOutcome.FULL
    assert "the disk is full" in outcomes[0].message
    stored = {each.workload_id for each in (await store.load()).workloads}
    assert stored == {"a"} | ({"b"} if outcomes[1] == () else set())
    room = 1_000_000
    await store.ping()
    [first] = await store.commit(many)
    assert first.cursor == 1
    assert len((await store.load()).workloads) == 500 + len(stored)
    await store.close()


async def test_ping_tries_a_write_after_the_disk_was_full(path):
    full = False

    def refuse(connection):
        if full:
            connection.exec_driver_sql("PRAGMA query_only = ON")  # every write fails, reads do not

    store = SqliteStore(path, decode_spec=decode_spec, guard=refuse)
    await store.open()

    def raise_full(_name):
        raise StoreError("the disk is full", outcome=StoreOutcome.FULL)

    faults.arm("store.commit.before", raise_full)
    with pytest.raises(StoreError):
        await store.commit(Batch(workloads=(workload("a"),)))
    faults.disarm_all()
    full = True
    with pytest.raises(UnavailableError):
        await store.ping()
    full = False
    await store.ping()
    await store.close()


async def test_few_transactions_pay_for_trimming(path):
    store = SqliteStore(path, decode_spec=decode_spec, max_events=50)
    await store.open()
    oldest = []
    for _ in range(100):
        await store.commit(Batch(events=(event("a"),)))
        oldest.append((await store.events(EventQuery(limit=1))).oldest)
    await store.close()
    # One more than a tenth too many, and they go down to fifty at once.
    assert sorted(set(oldest)) == [1, 7, 13, 19, 25, 31, 37, 43, 49]


async def test_the_file_does_not_grow_for_ever(path):
    store = SqliteStore(path, decode_spec=decode_spec, max_events=100)
    await store.open()
    await store.commit(Batch(workloads=(workload("a"),)))
    sizes = []
    version = 1
    for _ in range(3):
        for _ in range(150):
            await store.commit(
                Batch(workloads=(workload("a", version=version),), events=tuple(event(f"w{n}") for n in range(20)))
            )
            version += 1
        sizes.append((path.stat().st_size, path.with_name("control.db-wal").stat().st_size))
    before = {file: file.stat().st_size for file in path.parent.iterdir()}
    for _ in range(20):
        await store.ping()
        await store.events(EventQuery())
        await store.load()
    assert {file: file.stat().st_size for file in path.parent.iterdir()} == before
    assert sizes[2][0] <= sizes[0][0] * 1.5
    assert sizes[2][1] <= 16 << 20
    await store.close()
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "control.db",
        "control.db.lock",
        "control.db.reserve",
    ]


def test_what_errors_mean(tmp_path):
    database = sqlite._SqliteDatabase(tmp_path / "control.db")

    def explain(code, **arguments):
        error = sqlite3.OperationalError("words")
        error.sqlite_errorcode = code
        return database.explain(error, **arguments)

    unknown = explain(sqlite3.SQLITE_IOERR_FSYNC, committing=True)
    assert isinstance(unknown, UnavailableError)
    assert unknown.facts["outcome"] == "unknown"
    assert explain(sqlite3.SQLITE_FULL, committing=True).outcome is StoreOutcome.FULL
    assert explain(sqlite3.SQLITE_IOERR_READ, committing=False).outcome is StoreOutcome.NOT_APPLIED
