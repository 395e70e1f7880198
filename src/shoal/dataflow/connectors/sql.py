"""SQL as source and sink: queries through DuckDB; tables of DuckDB and SQLite.

The tasks of a sink that is exact keep rows until their checkpoint is complete; then the coordinator writes the rows of
all tasks and a marker in one transaction: the table `shoal_commits` holds the last checkpoint, the incarnation and the
epoch of each job's sinks. A start looks at it. With keys a sink replaces and deletes rows, so it can hold changes.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.clock import Clock
from shoal.core.errors import InvalidError, PreconditionError, problem
from shoal.dataflow.connectors.base import CommitContext, Fetched, Recovery, SinkContext, SinkMode, Split
from shoal.dataflow.connectors.databases import (
    CommitRow,
    Database,
    DuckDatabase,
    SqliteDatabase,
    SqliteQuery,
    arrow_reader,
    connect_duckdb,
    duckdb_error,
    is_sqlite_file,
    limited,
    typed_errors,
)
from shoal.dataflow.connectors.markers import ALL_TASKS, Marker
from shoal.dataflow.connectors.write_ahead import WriteAhead, decode_segments, from_stream
from shoal.dataflow.language.elements import Batch, Schema

_ONLY = Split("0")
_NOTHING: frozenset[Split] = frozenset()
_ENDED = frozenset({_ONLY})
_SQLITE = (".sqlite", ".sqlite3", ".db")

_IN_MEMORY = frozenset({"", ":memory:", "sqlite:", "sqlite::memory:", "sqlite://", "sqlite:///", "sqlite:///:memory:"})

#: DuckDB lets one connection of a process write at a time; SQLite one connection of all.
_writing = threading.Lock()


def is_in_memory(database: str) -> bool:
    """Whether a name means a database that nobody else can see, and that ends with its connection."""
    return database.strip().lower() in _IN_MEMORY or database.strip().lower().startswith(":memory:")


# ---------------------------------------------------------------------------------------------------------
# Source


@dataclass(frozen=True, slots=True)
class SqlSource:
    """The rows of a query. Going on after a restart runs it again: it should have an ORDER BY."""

    query: str
    database: str = ":memory:"
    batch_size: int = 65_536
    most_splits: int = 1

    @property
    def is_bounded(self) -> bool:
        """A query ends."""
        return True

    @property
    def label(self) -> str:
        """What explain() calls it."""
        short = " ".join(self.query.split())
        return short if len(short) <= 40 else f"{short[:39]}…"

    def find_schema(self) -> Schema:
        """The columns of the query, without running it; of SQLite those that are computed are looked at."""
        if is_sqlite_file(self.database):
            with contextlib.closing(SqliteQuery(self.database, self.query, self.batch_size)) as query:
                return query.schema
        connection = connect_duckdb(self.database, read_only=True)
        try:
            return arrow_reader(connection, limited(self.query, 0), 1).schema
        except duckdb_error() as error:
            raise InvalidError([problem("query", self.query, f"cannot be run: {error}")], what=self.database) from error
        finally:
            connection.close()

    def find_splits(self) -> Sequence[Split]:
        """One."""
        return (_ONLY,)

    def open_reader(self, splits: Sequence[Split], schema: Schema, *, clock: Clock) -> SqlReader:
        """Begin to read."""
        return SqlReader(self, schema, has_split=bool(splits))


class SqlReader:
    """Runs a query. The position is a number of rows."""

    def __init__(self, source: SqlSource, schema: Schema, *, has_split: bool) -> None:
        self._source = source
        self._schema = schema
        self._connection: Any = None
        self._batches: Any = None
        self._rest: Batch | None = None
        self._skip = 0
        self._row = 0
        self._is_over = not has_split

    def seek(self, split: Split, position: Any) -> None:
        """Go on after so many rows."""
        self._skip = self._row = int(position)

    def fetch(self, *, max_rows: int, timeout: float) -> Fetched | None:
        """The next rows."""
        while not self._is_over:
            batch = self._next()
            if batch is None:
                self._is_over = True
                return None
            if self._skip:
                skipped = min(self._skip, batch.num_rows)
                self._skip -= skipped
                batch = batch.slice(skipped)
            if batch.num_rows > max_rows:
                batch, self._rest = batch.slice(0, max_rows), batch.slice(max_rows)
            if batch.num_rows:
                self._row += batch.num_rows
                if not batch.schema.equals(self._schema):
                    batch = batch.select(self._schema.names).cast(self._schema)
                return Fetched(_ONLY, batch, self._row)
        return None

    def _next(self) -> Batch | None:
        rest, self._rest = self._rest, None
        if rest is not None:
            return rest
        source = self._source
        with typed_errors(f"database {source.database}"):
            if self._connection is None and is_sqlite_file(source.database):
                self._connection = self._batches = SqliteQuery(source.database, source.query, source.batch_size)
            elif self._connection is None:
                self._connection = connect_duckdb(source.database, read_only=True)
                self._batches = arrow_reader(self._connection, source.query, source.batch_size)
            try:
                return self._batches.read_next_batch()
            except StopIteration:
                return None
            except OSError as error:  # what DuckDB raises in the middle comes through Arrow as one
                raise PreconditionError(f"database {source.database}: {error}") from error

    def ended(self) -> frozenset[Split]:
        """Whether all rows were read."""
        return _ENDED if self._is_over else _NOTHING

    def close(self) -> None:
        """Let go of the database."""
        if self._connection is not None:
            self._connection.close()


# ---------------------------------------------------------------------------------------------------------
# Sink


@dataclass(frozen=True, slots=True)
class SqlSink:
    """A table of a database file: SQLite by its suffix (.sqlite, .db), else DuckDB. It is made when it is not there."""

    table: str
    database: str
    #: The columns that say which row is meant; with them rows replace each other.
    keys: tuple[str, ...] = ()

    @property
    def modes(self) -> frozenset[SinkMode]:
        """With keys it can hold changes."""
        return frozenset({SinkMode.APPEND, SinkMode.UPSERT} if self.keys else {SinkMode.APPEND})

    @property
    def label(self) -> str:
        """What explain() calls it."""
        return f"table {self.table}"

    @property
    def named_columns(self) -> dict[str, tuple[str, ...]]:
        """The columns that rows must have, by the argument that names them. Checked when a plan is prepared."""
        return {"key": self.keys}

    def open_writer(self, schema: Schema | None, context: SinkContext) -> SqlWriter | ExactSqlWriter:
        """Begin to write."""
        return ExactSqlWriter(context) if context.exactly_once else SqlWriter(self._table(), schema)

    def open_committer(self, context: CommitContext) -> SqlCommitter | None:
        """The coordinator's end, for exactly once."""
        return SqlCommitter(self._table(), context) if context.exactly_once else None

    def _table(self) -> _Table:
        is_sqlite = self.database.startswith("sqlite:") or self.database.endswith(_SQLITE)
        database: Database = (
            SqliteDatabase(self.table, self.database, self.keys)
            if is_sqlite
            else DuckDatabase(self.table, self.database, self.keys)
        )
        return _Table(database, f"{self.database}, table {self.table!r}")


class _Table:
    """A table, written in transactions."""

    def __init__(self, database: Database, label: str) -> None:
        self.database = database
        self.label = label
        self.is_made = False

    @contextlib.contextmanager
    def transaction(self, schema: Schema | None) -> Iterator[Database]:
        """One that is taken back when something fails. The first error is the one that is raised."""
        with _writing, typed_errors(self.label):
            self.database.begin()
            try:
                if not self.is_made:
                    self.database.prepare(schema)
                yield self.database
                self.database.end(is_good=True)
                self.is_made = self.is_made or schema is not None
            except BaseException:
                with contextlib.suppress(duckdb_error(), sqlite3.Error):
                    self.database.end(is_good=False)
                raise

    def close(self) -> None:
        """Let go of the database."""
        self.database.close()


class SqlWriter:
    """Writes the rows of one task as they come."""

    def __init__(self, table: _Table, schema: Schema | None) -> None:
        self._table = table
        self._schema = schema

    def write(self, batch: Batch) -> None:
        """Write rows."""
        self._schema = batch.schema if self._schema is None else self._schema
        with self._table.transaction(self._schema) as database:
            database.write(batch)

    def prepare(self, checkpoint: int) -> bytes:
        """Everything is in the table."""
        return b""

    def commit(self, checkpoint: int) -> None:
        """Everything is in the table."""

    def flush(self) -> None:
        """Everything is in the table; the table is there also without rows."""
        if not self._table.is_made and self._schema is not None:
            with self._table.transaction(self._schema):
                pass

    def close(self) -> None:
        """Let go of the database."""
        self._table.close()


class ExactSqlWriter:
    """Keeps the rows of one task for the coordinator, which writes them when their checkpoint is complete."""

    def __init__(self, context: SinkContext) -> None:
        self._write_ahead = WriteAhead(context)

    def write(self, batch: Batch) -> None:
        """Keep rows."""
        self._write_ahead.add(batch)

    def prepare(self, checkpoint: int) -> bytes:
        """The rows lie in the checkpoint until it is complete."""
        return self._write_ahead.seal(checkpoint)

    def commit(self, checkpoint: int) -> None:
        """The coordinator has written them."""
        self._write_ahead.forget(checkpoint)

    def flush(self) -> None:
        """Only with checkpoints is there anything exact."""

    def close(self) -> None:
        """There is nothing to let go of."""


class SqlCommitter:
    """Writes the rows of all tasks of a sink, with the marker in the same transaction."""

    commits_in_tasks = False
    is_repeatable = False

    def __init__(self, table: _Table, context: CommitContext) -> None:
        self._table = table
        self._context = context
        self._incarnation = 0
        self._committed: Mapping[int, int] = {}

    def fence(self) -> Mapping[int, Marker | None]:
        """Put this epoch into the rows of the sink: a commit under another one is refused."""
        job, sink = self._context.job, self._context.sink
        with self._table.transaction(None) as database:
            found = database.read_commits(job, sink)
            if len(found) == 1 and ALL_TASKS in found:
                row = found[ALL_TASKS]
                database.note(job, sink, ALL_TASKS, CommitRow(row.checkpoint, row.incarnation, self._context.epoch))
        # A job of an older version has a row for each task.
        return {task: Marker(row.incarnation, row.checkpoint) for task, row in found.items()} or {ALL_TASKS: None}

    def recover(self, recovery: Recovery) -> None:
        """Write what was prepared and is not in the table."""
        self._incarnation = recovery.incarnation
        self._committed = recovery.committed
        self._write(recovery.checkpoint, recovery.prepared, is_first=True)

    def commit(self, checkpoint: int, prepared: Mapping[int, bytes]) -> None:
        """Write the rows of the checkpoint, and that they are written."""
        if any(prepared.values()):
            self._write(checkpoint, prepared)

    def close(self) -> None:
        """Let go of the database."""
        self._table.close()

    def _write(self, checkpoint: int, prepared: Mapping[int, bytes], *, is_first: bool = False) -> None:
        batches = [
            batch
            for task, content in sorted(prepared.items())
            for number, stream in decode_segments(content)
            if number > self._done(task)
            for batch in from_stream(stream)
        ]
        job, sink = self._context.job, self._context.sink
        newest = max([checkpoint, *self._committed.values()])
        with self._table.transaction(batches[0].schema if batches else None) as database:
            if not is_first:
                self._check_epoch(database.read_commits(job, sink))
            for batch in batches:
                database.write(batch)
            database.note(job, sink, ALL_TASKS, CommitRow(newest, self._incarnation, self._context.epoch))
        self._committed = {ALL_TASKS: newest}

    def _done(self, task: int) -> int:
        """Through which checkpoint the rows of a task are in the table."""
        return max(self._committed.get(task, 0), self._committed.get(ALL_TASKS, 0))

    def _check_epoch(self, found: Mapping[int, CommitRow]) -> None:
        row = found.get(ALL_TASKS)
        if row is None or (row.incarnation, row.epoch) != (self._incarnation, self._context.epoch):
            epoch = "no coordinator" if row is None else f"epoch {row.epoch}"
            raise PreconditionError(
                f"{self._table.label}: the sink belongs to {epoch}, this coordinator has epoch {self._context.epoch}",
                hint="stop this one: another coordinator has taken the job over",
            )
