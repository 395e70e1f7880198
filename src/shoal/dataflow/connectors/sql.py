"""SQL as source and sink: queries through DuckDB; tables of DuckDB and SQLite.

A sink that is exact keeps rows until their checkpoint is complete, and then writes them and a row of its own in one
transaction: the table `shoal_commits` holds the last checkpoint of each (job, sink, subtask). A restart looks at it.
With keys it replaces and deletes rows, so it can hold changes.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.clock import Clock
from shoal.core.errors import InvalidError, PreconditionError, problem
from shoal.dataflow.connectors.ahead import Ahead, decode_segments, from_stream
from shoal.dataflow.connectors.base import Fetched, SinkContext, SinkMode, Split
from shoal.dataflow.connectors.databases import (
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
from shoal.dataflow.language.elements import Batch, Schema

_ONLY = Split("0")
_NOTHING: frozenset[Split] = frozenset()
_ENDED = frozenset({_ONLY})
_ASK_AT = 32 * 1024 * 1024
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

    def open_writer(self, schema: Schema | None, context: SinkContext) -> SqlWriter:
        """Begin to write."""
        is_sqlite = self.database.startswith("sqlite:") or self.database.endswith(_SQLITE)
        database: Database = (
            SqliteDatabase(self.table, self.database, self.keys)
            if is_sqlite
            else DuckDatabase(self.table, self.database, self.keys)
        )
        return SqlWriter(database, schema, context, self.table, self.database)


class SqlWriter:
    """Writes the rows of one task."""

    def __init__(self, database: Database, schema: Schema | None, context: SinkContext, table: str, file: str) -> None:
        self._database = database
        self._file = file
        self._context = context
        self._table = table
        self._schema = schema
        self._ahead = Ahead()
        self._asked = False
        self._is_made = False

    def write(self, batch: Batch) -> None:
        """Keep rows for the checkpoint; without exactness put them out now."""
        self._schema = batch.schema if self._schema is None else self._schema
        if not self._context.exactly_once:
            self._put([batch], None)
            return
        self._ahead.add(batch)
        if self._ahead.waiting_bytes > _ASK_AT and not self._asked:
            self._asked = True
            self._context.ask_checkpoint()

    def prepare(self, checkpoint: int) -> bytes:
        """The rows lie in the checkpoint until it is complete."""
        self._asked = False
        return self._ahead.seal(checkpoint)

    def commit(self, checkpoint: int) -> None:
        """Write them, and that they are written, in one transaction."""
        segments = [each for each in self._ahead.sealed if each.checkpoint <= checkpoint]
        if segments:
            batches = [batch for each in segments for batch in each.batches()]
            self._put(batches, (self._context.subtask, checkpoint))
        self._ahead.forget(checkpoint)

    def restore(self, prepared: Sequence[tuple[int, int, bytes]]) -> None:
        """Write what was prepared and is not in the table."""
        if not self._context.exactly_once:
            return
        for number, subtask, content in prepared:
            if subtask % self._context.parallelism == self._context.subtask:
                self._settle(number, subtask, content)
        if not prepared:
            self._forget_earlier_life()

    def flush(self) -> None:
        """Everything is in the table; the table is there also without rows."""
        if not self._is_made and self._schema is not None:
            self._put([], None)

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def _settle(self, number: int, subtask: int, content: bytes) -> None:
        with _writing, self._transaction():
            done = self._database.committed(self._context.job, self._context.sink, subtask)
        if done > number:
            raise PreconditionError(
                f"table {self._table!r} has the output of checkpoint {done}, the job goes on from {number}",
                hint="the newest checkpoint was lost: its output would come twice. Restore it, or start the job anew",
            )
        segments = [stream for each, stream in decode_segments(content) if each > done]
        batches = [batch for stream in segments for batch in from_stream(stream)]
        if batches:
            self._schema = batches[0].schema if self._schema is None else self._schema
            self._put(batches, (subtask, number))

    def _forget_earlier_life(self) -> None:
        with _writing, self._transaction():
            if self._database.committed(self._context.job, self._context.sink, self._context.subtask):
                self._database.note(self._context.job, self._context.sink, self._context.subtask, 0)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """One that is taken back when something fails. The first error is the one that is raised."""
        with typed_errors(f"{self._file}, table {self._table!r}"):
            self._database.begin()
            try:
                is_made = self._is_made or self._schema is not None
                if not self._is_made:
                    self._database.prepare(self._schema)
                yield
                self._database.end(is_good=True)
                self._is_made = is_made
            except BaseException:
                with contextlib.suppress(duckdb_error(), sqlite3.Error):
                    self._database.end(is_good=False)
                raise

    def _put(self, batches: Sequence[Batch], mark: tuple[int, int] | None) -> None:
        with _writing, self._transaction():
            for batch in batches:
                self._database.write(batch)
            if mark is not None:
                self._database.note(self._context.job, self._context.sink, *mark)
