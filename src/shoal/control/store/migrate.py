"""Brings the schema up to date: numbered files, in order, in one transaction.

A file `0002_name.sql` runs on every database; `0002_name.sqlite.sql` and `0002_name.postgresql.sql` stand for it where
the two need different words. What was applied is noted in `schema_migrations`. A database that has seen a later
migration than this program knows is refused: an older program would not understand what it finds.

Called by `shoal.control.store.database` inside the transaction that holds the schema's lock.
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources.abc import Traversable

from sqlalchemy import Connection, inspect, text

from shoal.core.errors import InternalError, InvalidError, PreconditionError, problem

_FILE_NAME = re.compile(r"(?P<number>\d{4})_(?P<name>[a-z0-9_]+)(?:\.(?P<dialect>sqlite|postgresql))?\.sql")
_TABLE = "schema_migrations"
_CREATE = f"CREATE TABLE {_TABLE} (number INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL)"


@dataclass(frozen=True, slots=True)
class Migration:
    """One step from a schema to the next."""

    number: int
    name: str
    script: str

    def statements(self) -> Iterator[str]:
        """The statements one by one: each ends with a semicolon at the end of a line; comments have their own lines."""
        lines: list[str] = []
        for line in self.script.splitlines():
            if line.strip() and not line.lstrip().startswith("--"):
                lines.append(line)
                if line.rstrip().endswith(";"):
                    yield "\n".join(lines).rstrip().removesuffix(";")
                    lines.clear()
        if lines:
            raise InternalError(f"migration {self.number:04} ends within a statement")


def find_migrations(dialect: str, folder: Traversable | None = None) -> tuple[Migration, ...]:
    """Every migration for a dialect, in order."""
    folder = folder or importlib.resources.files("shoal.control.store.migrations")
    chosen: dict[int, tuple[bool, Migration]] = {}
    for file in folder.iterdir():
        match = _FILE_NAME.fullmatch(file.name)
        if match is None or match["dialect"] not in (None, dialect):
            continue
        number, special = int(match["number"]), match["dialect"] is not None
        if number in chosen and chosen[number][0] == special:
            raise InternalError(f"two migrations have the number {number:04}")
        if number not in chosen or special:
            chosen[number] = (special, Migration(number, match["name"], file.read_text("utf-8")))
    if sorted(chosen) != list(range(1, len(chosen) + 1)):
        raise InternalError("the migrations are not numbered without gaps from 0001")
    return tuple(chosen[number][1] for number in sorted(chosen))


def migrate(
    connection: Connection, migrations: Iterable[Migration], *, where: str, schema: str | None = None
) -> tuple[Migration, ...]:
    """Apply what is missing, in the transaction that the caller began, and return it."""
    applied = _applied(connection, where=where, schema=schema)
    known = tuple(migrations)
    newest = max(applied, default=0)
    if newest > len(known):
        raise PreconditionError(
            f"{where} was written by a newer version of shoal: it has schema {newest}, this program knows {len(known)}",
            hint="run that version or a newer one, or restore a backup taken before the upgrade",
            schema=newest,
            known=len(known),
        )
    missing = tuple(migration for migration in known if migration.number not in applied)
    note = text(f"INSERT INTO {_TABLE} (number, name) VALUES (:number, :name)")  # noqa: S608 the name is a constant
    for migration in missing:
        for statement in migration.statements():
            connection.exec_driver_sql(statement)
        connection.execute(note, {"number": migration.number, "name": migration.name})
    return missing


def _applied(connection: Connection, *, where: str, schema: str | None) -> frozenset[int]:
    tables = inspect(connection).get_table_names(schema=schema)
    if _TABLE in tables:
        return frozenset(connection.execute(text(f"SELECT number FROM {_TABLE}")).scalars())  # noqa: S608 as above
    if tables:
        raise InvalidError(
            [problem("database", where, f"holds tables of another program ({', '.join(sorted(tables)[:3])})")],
            hint="give the control plane a database, or a data directory, of its own",
        )
    connection.exec_driver_sql(_CREATE)
    return frozenset()
