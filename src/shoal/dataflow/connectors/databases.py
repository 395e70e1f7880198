"""Databases that a sink writes to: DuckDB and SQLite, behind one protocol.

Statements are made from names of tables and columns, which are quoted; values are always parameters. Called by
`shoal.dataflow.connectors.sql`.
"""
# ruff: noqa: S608 - every name in a statement goes through `quoted`

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, problem
from shoal.dataflow.language.elements import CHANGE, Batch, Schema

_COMMITS = "shoal_commits"
_OF_SINK = f"FROM {_COMMITS} WHERE job = ? AND sink = ?"

#: Two threads that open one file at a time get in each other's way.
_opening = threading.Lock()


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def limited(query: str, rows: int) -> str:
    """A user's query, with so many rows of it."""
    return f"SELECT * FROM ({bare(query)}) LIMIT {rows}"


def bare(query: str) -> str:
    """A query that can stand within another: without the semicolon at its end."""
    return query.strip().rstrip(";").rstrip()


def connect_duckdb(database: str, *, read_only: bool = False) -> Any:
    """A connection. A database in memory is always writable."""
    import duckdb

    is_file = database not in ("", ":memory:")
    if is_file and read_only and not Path(database).exists():
        raise NotFoundError("database", database, hint="a query reads a file that is there; sinks make theirs")
    with _opening, typed_errors(f"database {database}"):
        return duckdb.connect(database, read_only=read_only and is_file)


def arrow_reader(connection: Any, query: str, rows: int) -> Any:
    """The result of a query as a reader of batches. Raises `InvalidError` when it returns none."""
    relation = connection.sql(query)
    if relation is None:
        raise InvalidError([problem("query", query, "must return rows")])
    # The older name is that of DuckDB 1.
    return relation.to_arrow_reader(rows) if hasattr(relation, "to_arrow_reader") else relation.fetch_arrow_reader(rows)


def duckdb_error() -> type[Exception]:
    """What DuckDB raises."""
    import duckdb

    error: type[Exception] = duckdb.Error
    return error


@contextlib.contextmanager
def typed_errors(what: str) -> Iterator[None]:
    """What a database raises, as an error of ours that says which database it was."""
    try:
        yield
    except (duckdb_error(), sqlite3.Error) as error:
        text = " ".join(str(error).split())
        raise PreconditionError(f"{what}: {text}", what=what) from error


def check_table(table: str, keys: tuple[str, ...], schema: Schema, there: Sequence[str]) -> None:
    """Refuse rows that a table has no columns for, and keys that rows do not have."""
    known = {name.lower() for name in there}  # both databases take names in any case
    problems = [
        problem(f"table {table!r}: column {name!r}", None, f"is not in the table; it has {', '.join(there)}")
        for name in schema.names
        if name.lower() not in known
    ]
    problems += [
        problem(f"table {table!r}: key {name!r}", None, f"is no column of the rows: {', '.join(schema.names)}")
        for name in keys
        if name not in schema.names
    ]
    if problems:
        raise InvalidError(problems, hint="write into another table, or select and rename the columns before")


@dataclass(frozen=True, slots=True)
class CommitRow:
    """A row of the table of commits."""

    checkpoint: int
    incarnation: int
    #: In the column `term`.
    epoch: int


class Database(Protocol):
    """One kind of database. Every method but `begin` runs within a transaction."""

    def begin(self) -> None:
        """Open a transaction."""
        ...

    def end(self, *, is_good: bool) -> None:
        """Commit it, or take it back."""
        ...

    def prepare(self, schema: Schema | None) -> None:
        """Make the tables that are not there."""
        ...

    def read_commits(self, job: str, sink: str) -> dict[int, CommitRow]:
        """What a sink has committed, by subtask."""
        ...

    def note(self, job: str, sink: str, subtask: int, row: CommitRow) -> None:
        """Note down what was committed, in place of every row of the sink."""
        ...

    def write(self, batch: Batch) -> None:
        """Rows."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class _Commits:
    """The table of commits, the same in every database."""

    _connection: Any

    def read_commits(self, job: str, sink: str) -> dict[int, CommitRow]:
        """What a sink has committed."""
        query = f"SELECT subtask, checkpoint, incarnation, term {_OF_SINK}"
        return {row[0]: CommitRow(*row[1:]) for row in self._connection.execute(query, [job, sink]).fetchall()}

    def note(self, job: str, sink: str, subtask: int, row: CommitRow) -> None:
        """Note down what was committed. A row that is there is updated: DuckDB cannot replace one in a transaction."""
        is_there = subtask in self.read_commits(job, sink)
        self._connection.execute(f"DELETE {_OF_SINK} AND subtask <> ?", [job, sink, subtask])
        columns = ("checkpoint", "incarnation", "term", "job", "sink", "subtask")
        values = [row.checkpoint, row.incarnation, row.epoch, job, sink, subtask]
        if is_there:
            change = f"UPDATE {_COMMITS} SET {', '.join(f'{name} = ?' for name in columns[:3])}"
            self._connection.execute(f"{change} WHERE {' AND '.join(f'{name} = ?' for name in columns[3:])}", values)
        else:
            marks = ", ".join("?" for _ in columns)
            self._connection.execute(f"INSERT INTO {_COMMITS} ({', '.join(columns)}) VALUES ({marks})", values)


class DuckDatabase(_Commits):
    """A DuckDB file."""

    def __init__(self, table: str, database: str, keys: tuple[str, ...]) -> None:
        self._name = table
        self._table = quoted(table)
        self._keys = keys
        self._connection = connect_duckdb(database)

    def begin(self) -> None:
        """Open a transaction."""
        self._connection.execute("BEGIN")

    def end(self, *, is_good: bool) -> None:
        """Commit it, or take it back."""
        self._connection.execute("COMMIT" if is_good else "ROLLBACK")

    def prepare(self, schema: Schema | None) -> None:
        """Make the tables."""
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {_COMMITS} (job VARCHAR, sink VARCHAR, subtask INTEGER, checkpoint BIGINT, "
            "incarnation BIGINT DEFAULT 0, term BIGINT DEFAULT 0)"
        )
        for column in ("incarnation", "term"):  # of tables from before
            self._connection.execute(f"ALTER TABLE {_COMMITS} ADD COLUMN IF NOT EXISTS {column} BIGINT DEFAULT 0")
        if schema is not None:
            columns = without_change(schema) if self._keys else schema
            empty = columns.empty_table()
            self._connection.register("incoming", empty)
            self._connection.execute(f"CREATE TABLE IF NOT EXISTS {self._table} AS SELECT * FROM incoming")
            self._connection.unregister("incoming")
            found = self._connection.execute(f"SELECT * FROM {self._table} LIMIT 0").description
            check_table(self._name, self._keys, columns, [each[0] for each in found])

    def write(self, batch: Batch) -> None:
        """Append; with keys the last row of each replaces what is there."""
        numbered = batch.append_column("__row", pa.array(range(batch.num_rows), pa.int64()))
        self._connection.register("incoming", pa.Table.from_batches([numbered]))
        # Not in a `finally`: after an error the transaction takes no more, and to say so would hide the error. The
        # name goes with the transaction.
        self._insert(batch.schema.names)
        self._connection.unregister("incoming")

    def _insert(self, names: list[str]) -> None:
        columns = ", ".join(quoted(name) for name in names if name != CHANGE or not self._keys)
        if not self._keys:
            self._connection.execute(f"INSERT INTO {self._table} BY NAME SELECT {columns} FROM incoming ORDER BY __row")
            return
        keys = ", ".join(map(quoted, self._keys))
        match = " AND ".join(f"t.{quoted(key)} IS NOT DISTINCT FROM i.{quoted(key)}" for key in self._keys)
        self._connection.execute(f"DELETE FROM {self._table} AS t USING incoming AS i WHERE {match}")
        kept = f"WHERE {quoted(CHANGE)} NOT IN ('-D', '-U')" if CHANGE in names else ""
        last = f"SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY __row DESC) AS __last FROM incoming"
        self._connection.execute(
            f"INSERT INTO {self._table} BY NAME "
            f"SELECT {columns} FROM (SELECT * FROM ({last}) WHERE __last = 1) {kept} ORDER BY __row"
        )

    def close(self) -> None:
        """Let go of it."""
        self._connection.close()


def sqlite_path(database: str) -> str:
    """The file that the name of an SQLite database means."""
    return database.removeprefix("sqlite:///").removeprefix("sqlite:")


class SqliteDatabase(_Commits):
    """An SQLite file."""

    def __init__(self, table: str, database: str, keys: tuple[str, ...]) -> None:
        path = sqlite_path(database)
        self._name = table
        self._table = quoted(table)
        self._keys = keys
        with _opening, typed_errors(f"database {database}"):
            self._connection = sqlite3.connect(path, isolation_level=None, timeout=30.0, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode=WAL")

    def begin(self) -> None:
        """Open a transaction."""
        self._connection.execute("BEGIN IMMEDIATE")

    def end(self, *, is_good: bool) -> None:
        """Commit it, or take it back."""
        self._connection.execute("COMMIT" if is_good else "ROLLBACK")

    def prepare(self, schema: Schema | None) -> None:
        """Make the tables."""
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {_COMMITS} (job TEXT, sink TEXT, subtask INTEGER, checkpoint INTEGER, "
            "incarnation INTEGER DEFAULT 0, term INTEGER DEFAULT 0)"
        )
        there = {row[1] for row in self._connection.execute(f"PRAGMA table_info({_COMMITS})")}
        for column in {"incarnation", "term"} - there:  # of tables from before
            self._connection.execute(f"ALTER TABLE {_COMMITS} ADD COLUMN {column} INTEGER DEFAULT 0")
        if schema is not None:
            wanted = without_change(schema) if self._keys else schema
            columns = ", ".join(f"{quoted(each.name)} {_sqlite_type(each.type)}" for each in wanted)
            self._connection.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns})")
            found = self._connection.execute(f"SELECT * FROM {self._table} LIMIT 0").description
            check_table(self._name, self._keys, wanted, [each[0] for each in found])

    def write(self, batch: Batch) -> None:
        """Append; with keys each row replaces what is there, in order."""
        changes = batch.column(CHANGE).to_pylist() if self._keys and CHANGE in batch.schema.names else None
        shown = batch if changes is None else batch.drop_columns([CHANGE])
        rows = list(zip(*(_sqlite_values(column) for column in shown.columns), strict=True))
        marks = ", ".join("?" for _ in shown.schema.names)
        names = ", ".join(map(quoted, shown.schema.names))
        insert = f"INSERT INTO {self._table} ({names}) VALUES ({marks})"
        if not self._keys:
            self._connection.executemany(insert, rows)
            return
        match = " AND ".join(f"{quoted(key)} IS ?" for key in self._keys)
        delete = f"DELETE FROM {self._table} WHERE {match}"
        at = [shown.schema.get_field_index(key) for key in self._keys]
        for index, row in enumerate(rows):
            self._connection.execute(delete, tuple(row[each] for each in at))
            if changes is None or changes[index] not in {"-D", "-U"}:
                self._connection.execute(insert, row)

    def close(self) -> None:
        """Let go of it."""
        self._connection.close()


# ---------------------------------------------------------------------------------------------------------
# Queries of SQLite

_SQLITE_MAGIC = b"SQLite format 3\x00"
_SQLITE_KINDS = {"integer": pa.int64(), "real": pa.float64(), "text": pa.utf8(), "blob": pa.binary()}


def is_sqlite_file(database: str) -> bool:
    """Whether a name means an SQLite file: by its prefix, else by the first bytes of the file."""
    if database.startswith("sqlite:"):
        return True
    try:
        with Path(database).open("rb") as file:
            return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except OSError:  # there is none, or none of ours: opening it reports that
        return False


class SqliteQuery:
    """The rows of a query of an SQLite file, as batches. It is read by Python itself: DuckDB would have to download.

    A column has the type that its table declares. One that is computed has that of its values.
    """

    def __init__(self, database: str, query: str, batch_size: int) -> None:
        path = Path(sqlite_path(database))
        self._what = f"database {database}"
        self._query = bare(query)
        self._batch_size = batch_size
        self._cursor: sqlite3.Cursor | None = None
        self._schema: Schema | None = None
        if not path.exists():
            raise NotFoundError("database", database, hint="a query reads a file that is there; sinks make theirs")
        with _opening, typed_errors(self._what):
            uri = f"{path.absolute().as_uri()}?mode=ro"
            self._connection = sqlite3.connect(uri, uri=True, timeout=30.0, check_same_thread=False)

    @property
    def schema(self) -> Schema:
        """The columns."""
        if self._schema is None:
            try:
                self._schema = self._find_schema()
            except sqlite3.Error as error:
                raise InvalidError(
                    [problem("query", self._query, f"cannot be run: {error}")], what=self._what
                ) from error
        return self._schema

    def _find_schema(self) -> Schema:
        # A view knows what its columns were declared as; the result of a query does not.
        self._connection.execute(f"CREATE TEMP VIEW shoal_query AS {self._query}")
        declared = [(row[1], row[2]) for row in self._connection.execute("PRAGMA temp.table_info(shoal_query)")]
        self._connection.execute("DROP VIEW temp.shoal_query")
        asked = [name for name, kind in declared if not kind]
        found: dict[str, set[str]] = {}
        for name in asked:
            rows = self._connection.execute(f"SELECT DISTINCT typeof({quoted(name)}) FROM ({self._query})")
            found[name] = {row[0] for row in rows}
        return pa.schema([(name, _declared(kind) if kind else _seen(found[name])) for name, kind in declared])

    def read_next_batch(self) -> Batch:
        """The next rows. Raises `StopIteration` at the end."""
        with typed_errors(self._what):
            if self._cursor is None:
                self._cursor = self._connection.execute(self._query)
            rows = self._cursor.fetchmany(self._batch_size)
        if not rows:
            raise StopIteration
        columns = zip(*rows, strict=True)
        return pa.RecordBatch.from_arrays(
            [self._array(each, values) for each, values in zip(self.schema, columns, strict=True)], schema=self.schema
        )

    def _array(self, field: Any, values: Sequence[Any]) -> Any:
        try:
            return pa.array(values, field.type)
        except (pa.ArrowException, TypeError, OverflowError) as error:
            hint = f"SQLite lets any value into any column; say in the query what it is: CAST({field.name} AS TEXT)"
            raise InvalidError(
                [problem(f"column {field.name!r}", None, f"has values that are not {field.type}: {error}")],
                what=self._what,
                hint=hint,
            ) from error

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()


def _declared(kind: str) -> Any:
    """The type of a column by SQLite's own rules for what a declaration means."""
    name = kind.upper()
    if "INT" in name or "BOOL" in name:
        return pa.int64()
    if any(each in name for each in ("CHAR", "CLOB", "TEXT", "DATE", "TIME")):
        return pa.utf8()
    if "BLOB" in name:
        return pa.binary()
    return pa.float64()


def _seen(kinds: set[str]) -> Any:
    """The type that holds values of these kinds."""
    there = kinds - {"null"}
    if not there:
        return pa.utf8()
    if there == {"integer", "real"}:
        return pa.float64()
    return _SQLITE_KINDS[next(iter(there))] if len(there) == 1 else pa.utf8()


def without_change(schema: Schema) -> Schema:
    """The columns of a table: what a change does to a row is not one of them."""
    return pa.schema([each for each in schema if each.name != CHANGE])


def _sqlite_type(kind: Any) -> str:
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "INTEGER"
    if pa.types.is_floating(kind):
        return "REAL"
    return "BLOB" if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else "TEXT"


def _sqlite_values(column: Any) -> list[Any]:
    """Values that SQLite knows: times and what is nested become text."""
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.cast(pa.utf8())
    values = column.to_pylist()
    plain = (int, float, str, bytes, type(None))
    return [value if isinstance(value, plain) else str(value) for value in values]
