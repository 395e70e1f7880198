"""Databases that a sink writes to: DuckDB and SQLite, behind one protocol.

Statements are made from names of tables and columns, which are quoted; values are always parameters. Called by
`shoal.dataflow.connectors.sql`.
"""
# ruff: noqa: S608 - every name in a statement goes through `quoted`

from __future__ import annotations

import sqlite3
import threading
from typing import Any, Protocol

import pyarrow as pa

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import CHANGE, Batch, Schema

_COMMITS = "shoal_commits"

#: Two threads that open one file at a time get in each other's way.
_opening = threading.Lock()


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def limited(query: str, rows: int) -> str:
    """A user's query, with so many rows of it."""
    return f"SELECT * FROM ({query}) LIMIT {rows}"


def connect_duckdb(database: str, *, read_only: bool = False) -> Any:
    """A connection. A database in memory is always writable."""
    import duckdb

    with _opening:
        return duckdb.connect(database, read_only=read_only and database != ":memory:")


def arrow_reader(connection: Any, query: str, rows: int) -> Any:
    """The result of a query as a reader of batches. Raises `InvalidError` when it gives none."""
    relation = connection.sql(query)
    if relation is None:
        raise InvalidError([problem("query", query, "must give rows")])
    # The older name is that of DuckDB 1.
    return relation.to_arrow_reader(rows) if hasattr(relation, "to_arrow_reader") else relation.fetch_arrow_reader(rows)


def duckdb_error() -> type[Exception]:
    """What DuckDB raises."""
    import duckdb

    error: type[Exception] = duckdb.Error
    return error


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

    def committed(self, job: str, sink: str, subtask: int) -> int:
        """The last checkpoint that this task has committed; 0 for none."""
        ...

    def note(self, job: str, sink: str, subtask: int, checkpoint: int) -> None:
        """Note a checkpoint down."""
        ...

    def write(self, batch: Batch) -> None:
        """Rows."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class DuckDatabase:
    """A DuckDB file."""

    def __init__(self, table: str, database: str, keys: tuple[str, ...]) -> None:
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
            f"CREATE TABLE IF NOT EXISTS {_COMMITS} "
            "(job VARCHAR, sink VARCHAR, subtask INTEGER, checkpoint BIGINT, PRIMARY KEY (job, sink, subtask))"
        )
        if schema is not None:
            empty = without_change(schema).empty_table()
            self._connection.register("incoming", empty)
            self._connection.execute(f"CREATE TABLE IF NOT EXISTS {self._table} AS SELECT * FROM incoming")
            self._connection.unregister("incoming")

    def committed(self, job: str, sink: str, subtask: int) -> int:
        """The last checkpoint of this task."""
        query = f"SELECT checkpoint FROM {_COMMITS} WHERE job = ? AND sink = ? AND subtask = ?"
        row = self._connection.execute(query, [job, sink, subtask]).fetchone()
        return 0 if row is None else int(row[0])

    def note(self, job: str, sink: str, subtask: int, checkpoint: int) -> None:
        """Note a checkpoint down."""
        self._connection.execute(
            f"INSERT OR REPLACE INTO {_COMMITS} VALUES (?, ?, ?, ?)", [job, sink, subtask, checkpoint]
        )

    def write(self, batch: Batch) -> None:
        """Append; with keys the last row of each replaces what is there."""
        numbered = batch.append_column("__row", pa.array(range(batch.num_rows), pa.int64()))
        self._connection.register("incoming", pa.Table.from_batches([numbered]))
        try:
            self._insert(batch.schema.names)
        finally:
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


class SqliteDatabase:
    """An SQLite file."""

    def __init__(self, table: str, database: str, keys: tuple[str, ...]) -> None:
        path = database.removeprefix("sqlite:///").removeprefix("sqlite:")
        self._table = quoted(table)
        self._keys = keys
        with _opening:
            self._connection = sqlite3.connect(path, isolation_level=None, timeout=30.0)
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
            f"CREATE TABLE IF NOT EXISTS {_COMMITS} "
            "(job TEXT, sink TEXT, subtask INTEGER, checkpoint INTEGER, PRIMARY KEY (job, sink, subtask))"
        )
        if schema is not None:
            columns = ", ".join(f"{quoted(each.name)} {_sqlite_type(each.type)}" for each in without_change(schema))
            self._connection.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns})")

    def committed(self, job: str, sink: str, subtask: int) -> int:
        """The last checkpoint of this task."""
        query = f"SELECT checkpoint FROM {_COMMITS} WHERE job = ? AND sink = ? AND subtask = ?"
        row = self._connection.execute(query, [job, sink, subtask]).fetchone()
        return 0 if row is None else int(row[0])

    def note(self, job: str, sink: str, subtask: int, checkpoint: int) -> None:
        """Note a checkpoint down."""
        self._connection.execute(
            f"INSERT OR REPLACE INTO {_COMMITS} VALUES (?, ?, ?, ?)", (job, sink, subtask, checkpoint)
        )

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
