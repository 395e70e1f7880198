"""The store on SQLite: one file in the data directory, for one control plane.

The file is in WAL mode with `synchronous=FULL`: when a commit returns, its pages have reached the disk. A lock file
beside it, held for life, keeps a second process out; SQLite's own locks would let two in, which would conflict
all the time. `:memory:` keeps everything in this process, without threads, for tests.

Called by `shoal.control.store.select`.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc
from sqlalchemy.pool import NullPool

from shoal.control.store.base import INSTANCE_FILE
from shoal.control.store.database import MAX_EVENTS, SqlStore, TransactionGuard, disk_full
from shoal.control.store.errors import DamagedStoreError, StoreError, StoreOutcome
from shoal.control.store.lane import PATIENCE
from shoal.control.store.rows import SpecDecoder
from shoal.core.disk.locks import FileLock
from shoal.core.disk.private_files import make_data_directory
from shoal.core.disk.reserve import Reserve
from shoal.core.errors import InternalError, ShoalError

MEMORY = ":memory:"

BUSY_SECONDS = 5.0
"""How long a write waits for another program that holds the file, such as the `sqlite3` shell."""

_PRAGMAS = (
    # A commit is durable when it returns, also when the power goes.
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}",
    # The log is copied into the file every 1,000 pages, and one that grew beyond 16 MB is cut back then.
    "PRAGMA wal_autocheckpoint = 1000",
    f"PRAGMA journal_size_limit = {16 << 20}",
)

RESERVE_BYTES = 1 << 20
"""Enough for several starts on a full disk: each takes a step of it, unless the last one closed its files."""

_RESERVE_STEP = 1 << 17
"""Enough for SQLite to open its log and for a control plane to store that it leads."""

_LITTLE_ROOM = 1 << 20
_NO_ROOM = 1 << 16
_WRITES = "shoal_writes"


class SqliteStore(SqlStore):
    """A store in one file; see `SqlStore` for the other arguments."""

    def __init__(
        self,
        path: Path | str,
        *,
        decode_spec: SpecDecoder,
        max_events: int = MAX_EVENTS,
        guard: TransactionGuard | None = None,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(
            _SqliteDatabase(path), decode_spec=decode_spec, max_events=max_events, guard=guard, patience=patience
        )


class _SqliteDatabase:
    dialect = "sqlite"
    schema: str | None = None

    def __init__(self, path: Path | str) -> None:
        self.exclusive = True
        self.inline = str(path) == MEMORY
        self.where = "memory" if self.inline else str(path)
        self._path = Path(path)
        self._engine = _engine(self._path, memory=self.inline)
        self._existed = False
        self._reserve = Reserve(self._path.with_name(f"{self._path.name}.reserve"), RESERVE_BYTES)
        self._lock = FileLock(
            self._path.with_name(f"{self._path.name}.lock"),
            what=str(self._path),
            hint="one data directory serves one control plane; stop the other, or use another --data-dir",
        )

    def claim(self) -> None:
        """Keep other processes out."""
        if self.inline:
            return
        try:
            make_data_directory(self._path.parent)
            self._lock.acquire()
            # Specs may hold private values of environments: only the owner may read the file.
            self._existed = self._path.exists()
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._reserve.allocate()
        except OSError as error:
            self.release()
            raise StoreError(
                f"{self.where} cannot be opened: {error.strerror}",
                hint="the control plane must be able to read and write its data directory",
            ) from error

    def release(self) -> None:
        """Unlock, and leave a reserve for the next process: closing the log has made room."""
        if self._lock.held:
            self._reserve.allocate()
        self._lock.release()

    def connect(self, *, writing: bool) -> Connection:
        """A new connection. It needs files beside the database, which a full disk has room for in the reserve only."""
        while True:
            try:
                return self._connect(writing=writing)
            except exc.DBAPIError as error:
                explained = self.explain(error, committing=False)
                full = isinstance(explained, StoreError) and explained.outcome is StoreOutcome.FULL
                if not full or not self.free_reserve():
                    raise

    def _connect(self, *, writing: bool) -> Connection:
        connection = self._engine.connect().execution_options(**{_WRITES: writing})
        try:
            with connection.begin():  # SQLite opens its log with the first transaction
                connection.exec_driver_sql("SELECT count(*) FROM sqlite_master")
        except BaseException:
            connection.close()
            raise
        return connection

    def has_room(self) -> bool:
        """Whether the reserve is in place: what was freed for a start is not for ordinary changes."""
        return self.inline or self._reserve.allocate()

    def is_full(self) -> bool:
        """Whether the next change may find no room."""
        return not self.has_room() or self._free() < _NO_ROOM

    def free_reserve(self) -> bool:
        """Give back what was set aside."""
        return not self.inline and self._reserve.shrink(_RESERVE_STEP)

    def lock_schema(self, connection: Connection) -> None:
        """A transaction that writes is alone. Refuse a file that has lost its content instead of beginning anew."""
        if not self._existed or not self._path.with_name(INSTANCE_FILE).exists():
            return
        if not connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one():
            raise DamagedStoreError(
                f"{self.where} is empty, but a control plane has used this directory before",
                hint="restore it from a backup, as docs/backup-and-restore.md says; to begin anew, move it away: what "
                "runs goes on as orphans then",
                path=self.where,
            )

    def disconnect(self, connection: Connection, *, writing: bool) -> None:
        """Close; the writer copies the log into the file first."""
        try:
            if writing and not self.inline:
                raw = connection.connection.dbapi_connection
                if raw is not None:
                    raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            connection.close()

    def cut_off(self, connection: Connection) -> None:
        """Nothing to do: a wait for a lock ends by itself, and a disk that hangs cannot be left."""

    def is_locked_out(self, error: exc.DBAPIError) -> bool:
        """Never: nobody else has the file."""
        return False

    def end_holders(self, connection: Connection) -> int:
        """There are none."""
        return 0

    def explain(self, error: Exception, *, committing: bool) -> ShoalError:
        """What an error of SQLite means."""
        causes = list(_sqlite_errors(error))
        # A full disk ends the transaction, and undoing a savepoint that is gone then raises another error on top.
        codes = {cause.sqlite_errorcode & 0xFF for cause in causes if hasattr(cause, "sqlite_errorcode")}
        sentence = str(causes[0]) if causes else f"{type(error).__name__}: {error}"
        # Files cannot be made or grown. A commit that fails so may have happened all the same.
        starved = bool(codes & {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}) and not committing
        if sqlite3.SQLITE_FULL in codes or (starved and self._free() < _LITTLE_ROOM):
            return disk_full(self.where)
        if codes & {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT} and not committing:
            return DamagedStoreError(
                f"{self.where} is damaged: {sentence}",
                hint="restore it from a backup, as docs/backup-and-restore.md says; without one, move it away: "
                "what runs goes on as orphans then",
                path=self.where,
            )
        if codes & {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return StoreError(
                f"{self.where} is locked by another program; nothing was stored",
                hint="close the other program",
            )
        if not causes:
            return InternalError(f"{self.where}: {sentence}")
        if committing:
            return StoreError(
                f"{self.where}: the commit failed, and whether it was stored is not known: {sentence}",
                outcome=StoreOutcome.UNKNOWN,
            )
        return StoreError(f"{self.where}: {sentence}")

    def _free(self) -> float:
        with contextlib.suppress(OSError):
            return math.inf if self.inline else shutil.disk_usage(self._path.parent).free
        return math.inf


def _engine(path: Path, *, memory: bool) -> Engine:
    url = URL.create("sqlite+pysqlite", database=MEMORY if memory else str(path.absolute()))
    engine = create_engine(url, poolclass=NullPool, hide_parameters=True)
    event.listen(engine, "connect", _set_up_connection)
    event.listen(engine, "begin", _begin)
    return engine


def _set_up_connection(raw: sqlite3.Connection, _record: Any) -> None:
    # The driver begins no transaction by itself; `_begin` says which kind.
    raw.isolation_level = None
    for pragma in _PRAGMAS:
        raw.execute(pragma).close()


def _begin(connection: Connection) -> None:
    # A transaction that will write takes the lock at once: taking it later can fail after the work is done.
    writes = connection.get_execution_options().get(_WRITES, True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _sqlite_errors(error: BaseException) -> Iterator[sqlite3.Error]:
    """The errors of the driver in the chain that led to this one."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, sqlite3.Error):
            yield each
        waiting += [getattr(each, "orig", None), each.__cause__, each.__context__]
