"""Which store `--database` chooses, and what it says to a bad one; PostgreSQL as far as it goes without a server."""

import sys

import psycopg
import pytest
from sqlalchemy import exc

from shoal.control.store import postgres
from shoal.control.store.errors import StoreError
from shoal.control.store.postgres import PostgresStore
from shoal.control.store.select import open_store
from shoal.control.store.sqlite import SqliteStore
from shoal.core.errors import InternalError, InvalidError, UnsupportedError
from shoal.testing.suites.store_records import decode_spec

URL = "postgresql://me:p%40ss%2Fword@db.example:5433/fleet?sslmode=require"


@pytest.mark.parametrize("database", [None, ""])
def test_sqlite_in_the_data_directory_unless_told_otherwise(tmp_path, database):
    store = open_store(database, tmp_path, decode_spec=decode_spec)
    assert isinstance(store, SqliteStore)
    assert store.where == str(tmp_path / "control.db")


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_postgresql_by_url(tmp_path, scheme):
    store = open_store(f"{scheme}://me:secret@db.example/fleet", tmp_path, decode_spec=decode_spec)
    assert isinstance(store, PostgresStore)
    assert store.where == "PostgreSQL db.example:5432/fleet"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "database", ["mysql://me:secret@host/db", "postgresql+asyncpg://me:secret@h/d", "control.db", "secret", "://secret"]
)
def test_anything_else_is_refused_by_name(tmp_path, database):
    with pytest.raises(InvalidError) as caught:
        open_store(database, tmp_path, decode_spec=decode_spec)
    [found] = caught.value.problems
    assert found.field == "--database"
    assert "postgresql://" in found.rule
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("database", ["postgresql://me:secret@host:port/db", "postgresql://me:secret@[::1/db"])
def test_a_broken_url_is_refused_without_its_password(tmp_path, database):
    with pytest.raises(InvalidError) as caught:
        open_store(database, tmp_path, decode_spec=decode_spec)
    assert caught.value.problems[0].field == "--database"
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_missing_driver_is_told_with_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UnsupportedError) as caught:
        open_store(URL, tmp_path, decode_spec=decode_spec)
    assert caught.value.hint == "pip install 'shoal[postgres]'"


def wrapped(error):
    return exc.DBAPIError("INSERT …", {"document": "p@ss/word"}, error, hide_parameters=True)


@pytest.mark.parametrize(
    ("error", "committing", "kind", "outcome"),
    [
        (psycopg.errors.DiskFull("could not extend file"), True, StoreError, "full"),
        (psycopg.errors.AdminShutdown("terminating connection"), False, StoreError, "none"),
        (psycopg.errors.AdminShutdown("terminating connection"), True, StoreError, "unknown"),
        (psycopg.OperationalError("server closed the connection"), False, StoreError, "none"),
        (psycopg.OperationalError("server closed the connection"), True, StoreError, "unknown"),
        (psycopg.errors.ReadOnlySqlTransaction("cannot execute UPDATE"), True, StoreError, "none"),
    ],
)
@pytest.mark.parametrize("wrap", [wrapped, lambda error: error])
def test_what_errors_mean(error, committing, kind, outcome, wrap):
    explained = postgres._PostgresDatabase(URL).explain(wrap(error), committing=committing)
    assert type(explained) is kind
    assert explained.facts.get("outcome") == outcome
    assert "db.example:5433/fleet" in explained.message


def test_the_password_is_never_told():
    database = postgres._PostgresDatabase(URL)
    leaky = psycopg.OperationalError("bad conninfo p@ss/word\n and p%40ss%2Fword")
    explained = database.explain(leaky, committing=False)
    assert explained.message.endswith("bad conninfo *** and ***")
    assert isinstance(database.explain(ValueError("ours"), committing=False), InternalError)
    assert "p@ss" not in repr(database._engine.url)
