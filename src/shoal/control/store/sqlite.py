"""The store on SQLite: one file in the data directory, for one control plane.

The file is in WAL mode with `synchronous=FULL`: when a commit returns, its pages have reached the disk. A lock file
beside it, held for life, keeps a second process out; SQLite's own locks would let two in and have them fight over
versions. `:memory:` keeps everything in this process, without threads, for tests.

Called by `shoal.control.store.select`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc
from sqlalchemy.pool import NullPool

from shoal.control.store.database import MAX_EVENTS, SqlStore, TransactionGuard
from shoal.control.store.lane import PATIENCE
from shoal.control.store.rows import SpecDecoder
from shoal.core.errors import (
    DamagedError,
    ExhaustedError,
    InternalError,
    ShoalError,
    UnavailableError,
)
from shoal.core.locks import FileLock
from shoal.core.private_files import make_data_directory

MEMORY = ":memory:"

BUSY_SECONDS = 5.0
"""How long a write waits for somebody who holds the file, such as a person with a shell on it."""

_PRAGMAS = (
    # A commit is durable when it returns, also when the power goes.
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}",
    # The log is copied into the file every 1,000 pages, and one that grew beyond 16 MB is cut back then.
    "PRAGMA wal_autocheckpoint = 1000",
    f"PRAGMA journal_size_limit = {16 << 20}",
)

_LITTLE_ROOM = 1 << 20
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
            # Specs hold what people put into environments: nobody else need read them.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            self.release()
            raise UnavailableError(
                f"{self.where} cannot be opened: {error.strerror}",
                hint="the control plane must be able to read and write its data directory",
            ) from error

    def release(self) -> None:
        """Let the next process in."""
        self._lock.release()

    def connect(self, *, writing: bool) -> Connection:
        """A new connection."""
        return self._engine.connect().execution_options(**{_WRITES: writing})

    def lock_schema(self, connection: Connection) -> None:
        """Nothing to do: a transaction that writes is alone."""

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
        if sqlite3.SQLITE_FULL in codes or (sqlite3.SQLITE_IOERR in codes and self._has_little_room()):
            return ExhaustedError(
                f"{self.where}: the disk is full; nothing was stored", hint="make room; the store goes on by itself"
            )
        if codes & {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT} and not committing:
            return DamagedError(
                f"{self.where} is damaged: {sentence}",
                hint="restore it from a backup, as docs/backup-and-restore.md says; without one, move it away: "
                "what runs goes on as orphans then",
                path=self.where,
            )
        if codes & {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return UnavailableError(
                f"{self.where} is locked by another program; nothing was stored",
                hint="close whatever else has the file open",
            )
        if not causes:
            return InternalError(f"{self.where}: {sentence}")
        if committing:
            return UnavailableError(
                f"{self.where}: the commit failed, and whether it was stored is not known: {sentence}",
                outcome="unknown",
            )
        return UnavailableError(f"{self.where}: {sentence}")

    def _has_little_room(self) -> bool:
        with contextlib.suppress(OSError):
            return not self.inline and shutil.disk_usage(self._path.parent).free < _LITTLE_ROOM
        return False


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
