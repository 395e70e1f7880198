"""The agent's database: one SQLite file in its data directory, with a lock that keeps a second agent out.

A change is a function of the connection, run in one transaction in a thread. When `write` returns, the change survives
a crash of the process and of the machine; when it raises, nothing was stored. `shoal.agent.store.intents` and
`shoal.agent.store.action_log` have the tables.

Writes work on a full disk, so that workloads can still be stopped and deleted. The database keeps free pages and its
log (WAL) keeps its blocks, so small changes allocate nothing. A reserve file is freed when that is not enough, and to
open the log again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from shoal.core.disk.locks import FileLock
from shoal.core.disk.private_files import make_data_directory
from shoal.core.disk.reserve import Reserve
from shoal.core.errors import DamagedError, ExhaustedError, PreconditionError, ShoalError, UnavailableError

log = logging.getLogger(__name__)

T = TypeVar("T")

FILE_NAME = "agent.db"
LOCK_NAME = "agent.lock"
RESERVE_NAME = "agent.reserve"
SCHEMA_VERSION = 1

#: What the reserve file holds: enough to open the log of the database again.
RESERVE_BYTES = 2 * 1024 * 1024
#: The log keeps this many bytes on disk, and is written back to the database after half of it.
WAL_BYTES = 4 * 1024 * 1024
_PAGE = 4096
_CHECKPOINT_PAGES = WAL_BYTES // _PAGE // 2
#: The database keeps at least this many free pages while the disk has room.
_FREE_PAGES = 256

_SCHEMA = """
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE intents (
    workload_id TEXT PRIMARY KEY,
    type TEXT NOT NULL,
    revision_id TEXT NOT NULL,
    desired TEXT NOT NULL,
    spec BLOB NOT NULL,
    spec_sha256 BLOB NOT NULL,
    generation INTEGER NOT NULL,
    born INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    deleting INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    progress TEXT NOT NULL
);
CREATE TABLE generations (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    workload_id TEXT NOT NULL UNIQUE,
    highest INTEGER NOT NULL
);
CREATE TABLE actions (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id TEXT NOT NULL UNIQUE,
    workload_id TEXT NOT NULL,
    action_type TEXT NOT NULL,
    status TEXT NOT NULL,
    error TEXT NOT NULL,
    generation INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    started_ms INTEGER NOT NULL,
    ended_ms INTEGER NOT NULL
);
CREATE INDEX actions_of_workload ON actions (workload_id, seq);
"""

# Added later: an agent that does not know the table has no use for it, so the format is still the same and a database
# can go back to an older agent.
_ADDED = """
CREATE TABLE IF NOT EXISTS secrets (
    workload_id TEXT PRIMARY KEY,
    sealed BLOB NOT NULL
) WITHOUT ROWID;
"""


class AgentDatabase:
    """The open database."""

    def __init__(self, data_dir: Path, *, threads: Executor | None = None) -> None:
        self.path = data_dir / FILE_NAME
        self._lock = FileLock(
            data_dir / LOCK_NAME,
            what=f"data directory {data_dir}",
            hint="stop that agent, or give this one another --data-dir",
        )
        self._threads = threads or ThreadPoolExecutor(max_workers=1, thread_name_prefix="agent-database")
        self._connection: sqlite3.Connection | None = None
        self._reserve = Reserve(data_dir / RESERVE_NAME, RESERVE_BYTES)
        #: Why the last write failed; empty when it did not.
        self.trouble = ""
        #: Whether it failed because the disk is full.
        self.full = False

    async def open(self) -> None:
        """Lock the directory, open the file and bring it up to date."""
        await self._run(self._open)

    async def write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Run `change` in a transaction of its own. Durable when this returns; if it raises, nothing was changed."""
        try:
            result = await self._run(lambda: self._on_a_full_disk(lambda: self._in_transaction(change)))
        except ShoalError as error:
            self.trouble, self.full = error.message, isinstance(error, ExhaustedError)
            raise
        self.trouble, self.full = "", False
        return result

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run `query`; it changes nothing."""
        return await self._run(lambda: query(self._connected()))

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` in the database's thread: it may wait for the disk that the database is on."""
        return await self._run(work)

    async def keep_room(self) -> None:
        """Allocate the reserve again after it was used. Does nothing while the disk is full."""
        await self._run(self._keep_room)

    async def close(self) -> None:
        """Close the file and let go of the directory. Safe to call twice."""
        await self._run(self._close)
        self._threads.shutdown(wait=False)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: _translated(work, self.path))

    def _open(self) -> None:
        make_data_directory(self.path.parent)
        self._lock.acquire()
        try:
            self._connection = self._on_a_full_disk(self._connect)
            self._keep_room()
        except BaseException:
            self._lock.release()
            raise

    def _connect(self) -> sqlite3.Connection:
        # Specs may hold private values: only this user may read the file. SQLite's side files follow.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=5.0)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(f"PRAGMA journal_size_limit={WAL_BYTES}")
            connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found > SCHEMA_VERSION:
            raise PreconditionError(
                f"{self.path} was written by a newer version (format {found}; this one knows {SCHEMA_VERSION})",
                hint="start the newer version, or give this one another --data-dir",
            )
        if found == 0:
            connection.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version={SCHEMA_VERSION};COMMIT;")
        connection.execute(_ADDED)

    def _in_transaction(self, change: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connected()
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = change(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result

    def _on_a_full_disk(self, work: Callable[[], T]) -> T:
        """Run it; on a full disk once more, with the reserve freed."""
        try:
            return work()
        except sqlite3.Error as error:
            if not _is_full(error, self.path.parent) or not self._reserve.release():
                raise
        log.warning("the disk of %s is full; its reserve is given back", self.path.parent)
        return work()

    def _keep_room(self) -> None:
        connection = self._connected()
        if not self._reserve.allocate():
            return
        with contextlib.suppress(sqlite3.OperationalError, OSError):  # a full disk has no pages to keep
            missing = _FREE_PAGES - connection.execute("PRAGMA freelist_count").fetchone()[0]
            if missing > 0:
                # Pages that were used once and are free again stay with the file.
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("CREATE TABLE room (content BLOB)")
                connection.execute("INSERT INTO room VALUES (zeroblob(?))", (missing * _PAGE,))
                connection.execute("DROP TABLE room")
                connection.execute("COMMIT")
            # The log is not locked itself: it may be opened and closed beside SQLite.
            handle = os.open(f"{self.path}-wal", os.O_RDWR | os.O_CLOEXEC)
            try:
                os.posix_fallocate(handle, 0, WAL_BYTES)
            finally:
                os.close(handle)
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise UnavailableError(f"{self.path} is not open")
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._lock.release()


_FULL = sqlite3.SQLITE_FULL
#: What SQLite says when the disk is too full to make the log.
_NO_LOG = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR})
_NEARLY_NOTHING = 64 * 1024
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def _is_full(error: sqlite3.Error, directory: Path) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code not in _NO_LOG:
        return code == _FULL
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize < _NEARLY_NOTHING


def _translated(work: Callable[[], T], path: Path) -> T:
    try:
        return work()
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == _FULL:
            raise ExhaustedError(f"no room left to write {path}", hint="free some disk space") from error
        if code in _DAMAGED:
            raise DamagedError(
                f"{path} is damaged: {error}",
                hint="move it away; the node begins empty then, and what still runs there is reported as orphaned "
                "(docs/backup-and-restore.md)",
                path=str(path),
            ) from error
        raise UnavailableError(f"{path} cannot be used: {error}") from error
    except OSError as error:
        raise UnavailableError(
            f"{path.parent} cannot be used: {error.strerror or error}",
            hint="the agent must be able to read and write its --data-dir",
        ) from error
