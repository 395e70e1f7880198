"""Migrations: in order, once, all or none."""

import pytest
from sqlalchemy import create_engine, inspect

from shoal.control.store.migrate import find_migrations, migrate
from shoal.core.errors import InternalError, InvalidError, PreconditionError

FIRST = """
-- A comment; with a semicolon;
CREATE TABLE one (
    id TEXT, -- at the end of a line
    words TEXT DEFAULT 'a;b'
);

INSERT INTO one (id) VALUES ('x');
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "0001_first.sql").write_text(FIRST)
    (tmp_path / "README.md").write_text("not a migration")
    return tmp_path


@pytest.fixture
def connection():
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def run(connection, folder, dialect="sqlite"):
    with connection.begin():
        return [each.number for each in migrate(connection, find_migrations(dialect, folder), where="here")]


def tables(connection):
    with connection.begin():
        return sorted(inspect(connection).get_table_names())


def test_statements_are_cut_at_the_end_of_a_line(folder):
    [first] = find_migrations("sqlite", folder)
    create, insert = first.statements()
    assert create.startswith("CREATE TABLE one (")
    assert create.endswith(")")
    assert insert == "INSERT INTO one (id) VALUES ('x')"


def test_applied_once_and_in_order(connection, folder):
    assert run(connection, folder) == [1]
    (folder / "0003_third.sql").write_text("INSERT INTO two (id) VALUES ('y');")
    (folder / "0002_second.sql").write_text("CREATE TABLE two (id TEXT);")
    assert run(connection, folder) == [2, 3]
    assert run(connection, folder) == []
    with connection.begin():
        assert connection.exec_driver_sql("SELECT id FROM two").scalars().all() == ["y"]
        names = connection.exec_driver_sql("SELECT name FROM schema_migrations ORDER BY number").scalars().all()
    assert names == ["first", "second", "third"]


def test_a_file_for_one_dialect_takes_the_place_of_the_shared_one(folder):
    (folder / "0001_first.sqlite.sql").write_text("CREATE TABLE special (id TEXT);")
    assert "special" in find_migrations("sqlite", folder)[0].script
    assert find_migrations("postgresql", folder)[0].script == FIRST
    (folder / "0002_second.sqlite.sql").write_text("SELECT 1;")
    (folder / "0002_second.postgresql.sql").write_text("SELECT 2;")
    assert [each.script for each in find_migrations("postgresql", folder)][1] == "SELECT 2;"


@pytest.mark.parametrize(
    ("name", "script", "words"),
    [
        ("0003_gap.sql", "SELECT 1;", "without gaps"),
        ("0001_other.sql", "SELECT 1;", "two migrations have the number 0001"),
        ("0002_cut.sql", "SELECT 1", "ends within a statement"),
    ],
)
def test_mistakes_of_ours_are_told(connection, folder, name, script, words):
    (folder / name).write_text(script)
    with pytest.raises(InternalError, match=words):
        run(connection, folder)


def test_a_newer_database_is_refused_untouched(connection, folder):
    (folder / "0002_second.sql").write_text("CREATE TABLE two (id TEXT);")
    run(connection, folder)
    (folder / "0002_second.sql").unlink()
    with pytest.raises(PreconditionError, match="here was written by a newer version of shoal"):
        run(connection, folder)


def test_the_tables_of_others_are_left_alone(connection, folder):
    with connection.begin():
        connection.exec_driver_sql("CREATE TABLE theirs (id TEXT)")
    with pytest.raises(InvalidError, match="theirs"):
        run(connection, folder)
    assert tables(connection) == ["theirs"]


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_our_own_are_found_in_the_package(dialect):
    migrations = find_migrations(dialect)
    assert migrations[0].name == "initial"
    created = [line for line in migrations[0].statements() if line.startswith("CREATE TABLE")]
    assert [line.split()[2] for line in created] == ["nodes", "workloads", "groups", "observations", "events", "meta"]
