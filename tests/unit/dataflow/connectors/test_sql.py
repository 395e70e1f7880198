"""Queries as sources; tables of DuckDB and SQLite as sinks."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from shoal.core import faults
from shoal.core.clock import SystemClock
from shoal.core.errors import InvalidError, ShoalError
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.connectors.base import SinkMode, Split
from shoal.dataflow.connectors.sql import SqlSink, SqlSource
from shoal.dataflow.errors import OperatorFailedError, PlanError
from shoal.dataflow.execution import engine
from shoal.dataflow.language.logical import Sink
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from tests.unit.dataflow.execution.flows import Tap, rows, table_source, tap_source


def read(source: SqlSource, position=None) -> list[dict]:
    found = []
    with contextlib.closing(
        source.open_reader(source.find_splits(), source.find_schema(), clock=SystemClock())
    ) as reader:
        if position is not None:
            reader.seek(Split("0"), position)
        while (fetched := reader.fetch(max_rows=7, timeout=0)) is not None:
            found += fetched.batch.to_pylist()
        assert reader.ended()
    return found


def test_a_query_is_read_from_its_start_and_from_a_place():
    source = SqlSource("SELECT range AS x, range * 2 AS y FROM range(20) ORDER BY x", batch_size=5)
    assert [row["y"] for row in read(source)] == list(range(0, 40, 2))
    assert [row["x"] for row in read(source, 13)] == list(range(13, 20))


def test_a_query_that_is_none_is_refused():
    with pytest.raises(InvalidError, match="cannot be run"):
        SqlSource("SELEC 1").find_schema()


@pytest.fixture(params=["out.duckdb", "out.sqlite"])
def database(request, tmp_path) -> str:
    return str(tmp_path / request.param)


def select(database: str, query: str) -> list[tuple]:
    if database.endswith(".sqlite"):
        connection = sqlite3.connect(database)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()
    with duckdb.connect(database) as connection:
        return connection.execute(query).fetchall()


def test_rows_are_appended(database):
    plan = [Sink(inputs=(table_source(rows(("a", 1, 1), ("b", 2, 2))),), connector=SqlSink("t", database))]
    for _ in range(2):
        engine.run(plan)
    assert select(database, "SELECT key, value FROM t ORDER BY 1, 2") == [("a", 1), ("a", 1), ("b", 2), ("b", 2)]


def test_a_table_is_made_also_without_rows(database):
    engine.run([Sink(inputs=(table_source(rows()),), connector=SqlSink("t", database))])
    assert select(database, "SELECT count(*) FROM t") == [(0,)]


def test_with_keys_rows_replace_and_changes_delete(database):
    changes = pa.record_batch(
        {
            "key": ["a", "b", "a", "b", "c", "d"],
            "value": [1, 2, 3, 2, None, 5],
            "op": ["+I", "+I", "+U", "-D", "+I", "+I"],
        }
    )
    sink = SqlSink("t", database, keys=("key",))
    assert sink.modes == frozenset({SinkMode.APPEND, SinkMode.UPSERT})
    engine.run([Sink(inputs=(table_source(changes),), connector=sink)])
    engine.run([Sink(inputs=(table_source(changes.slice(5, 1)),), connector=sink)])
    assert select(database, "SELECT * FROM t ORDER BY key") == [("a", 3), ("c", None), ("d", 5)]


def test_names_are_only_names(database):
    odd = pa.record_batch({'a"; DROP TABLE x; --': [1]})
    engine.run([Sink(inputs=(table_source(odd),), connector=SqlSink('t"t', database))])
    assert select(database, 'SELECT * FROM "t""t"') == [(1,)]


@pytest.mark.parametrize("point", [name for name in faults.POINTS if name.startswith("dataflow.")])
def test_a_crash_loses_and_doubles_no_rows(database, tmp_path, point):
    tap = Tap(splits=2)
    for each in range(8):
        tap.give(rows(("k", each, each)), str(each % 2))
    tap.close()
    plan = [Sink(inputs=(tap_source(tap, time=None, bounded=True),), connector=SqlSink("t", database), uid="out")]
    settings = FlowSettings(checkpoint=CheckpointSettings(directory=str(tmp_path / "checkpoints"), interval=60))
    faults.arm(point, _crash)
    with pytest.raises(Crash):
        engine.run(plan, name="job", parallelism=2, settings=settings)
    faults.disarm_all()
    engine.run(plan, name="job", parallelism=1, settings=settings)
    assert select(database, "SELECT value FROM t ORDER BY 1") == [(each,) for each in range(8)]


class Crash(BaseException):
    pass


def _crash(name: str) -> None:
    raise Crash(name)


# -- mistakes ---------------------------------------------------------------------------------------------


def stream() -> Stream:
    return Stream.from_dicts([{"key": "a", "value": 1}, {"key": "b", "value": 2}])


@pytest.mark.parametrize("name", [(), (":memory:",), ("sqlite::memory:",), ("",)])
def test_a_table_in_memory_is_refused_where_it_is_written(name):
    with pytest.raises(PlanError, match="must be a file") as caught:
        stream().to_sql("r", *name)
    assert caught.value.at.file.endswith("test_sql.py")
    assert ".to_sql('r', \"r.duckdb\")" in caught.value.hint


def test_a_key_that_rows_do_not_have_is_refused_before_anything_runs(database):
    with pytest.raises(PlanError, match=r"key 'zz': does not exist"):
        stream().to_sql("r", database, key="zz")
    plan = [Sink(inputs=(table_source(rows(("a", 1, 1))),), connector=SqlSink("r", database, keys=("zz",)))]
    with pytest.raises(PlanError, match="table r: key 'zz': does not exist"):
        engine.run(plan)
    assert not Path(database).exists()


def test_a_table_with_other_columns_says_which(database):
    stream().to_sql("r", database).run()
    other = Stream.from_dicts([{"key": "c", "other": 1}])
    with pytest.raises(OperatorFailedError, match="table 'r': column 'other': is not in the table; it has key, value"):
        other.to_sql("r", database).run()
    assert select(database, "SELECT count(*) FROM r") == [(2,)]


def test_the_first_error_of_a_database_is_the_one_that_is_told(database):
    make = "CREATE TABLE r (key TEXT, value INTEGER CHECK (value < 2))"
    if database.endswith(".sqlite"):
        with contextlib.closing(sqlite3.connect(database)) as connection:
            connection.execute(make)
    else:
        with duckdb.connect(database) as connection:
            connection.execute(make)
    for keys in ((), ("key",)):
        with pytest.raises(OperatorFailedError, match=r"(?i)table 'r': .*CHECK constraint failed"):
            stream().to_sql("r", database, key=keys).run()
    assert select(database, "SELECT count(*) FROM r") == [(0,)]


def test_changes_as_rows_keep_what_they_are(database):
    changes = pa.record_batch({"key": ["a"], "op": ["+I"]})
    engine.run([Sink(inputs=(table_source(changes),), connector=SqlSink("t", database))])
    assert select(database, "SELECT * FROM t") == [("a", "+I")]


@pytest.mark.parametrize("name", ["nonexist/x.db", "nonexist/x.duckdb", "sqlite:nonexist"])
def test_a_database_that_is_not_there(name):
    with pytest.raises(PlanError, match=f"database '{name}' not found") as caught:
        Stream.from_sql("SELECT 1", name).to_pylist()
    assert caught.value.at.file.endswith("test_sql.py")


def test_a_file_that_is_no_database(tmp_path):
    path = tmp_path / "x.duckdb"
    path.write_bytes(b"nothing of the kind" * 1000)
    with pytest.raises(PlanError, match=r"x\.duckdb"):
        Stream.from_sql("SELECT 1", str(path)).to_pylist()
    with pytest.raises(ShoalError, match=r"x\.duckdb"):
        stream().to_sql("t", str(path)).run()


def test_what_to_sql_wrote_is_read_back(database):
    stream().to_sql("r", database).run()
    again = Stream.from_sql(
        "SELECT *, value * CAST(1.5 AS DOUBLE) AS more, value + 1 AS next FROM r ORDER BY value;", database
    )
    found = again.collect()
    assert found.to_pylist() == [
        {"key": "a", "value": 1, "more": 1.5, "next": 2},
        {"key": "b", "value": 2, "more": 3.0, "next": 3},
    ]
    assert Stream.from_sql("SELECT * FROM r WHERE value > 5", database).to_pylist() == []
    assert [row["value"] for row in read(SqlSource("SELECT * FROM r ORDER BY value", database), 1)] == [2]
    with pytest.raises(PlanError, match="cannot be run"):
        Stream.from_sql("SELECT nope FROM r", database).to_pylist()


def test_values_that_sqlite_let_into_the_wrong_column_are_named(tmp_path):
    path = str(tmp_path / "x.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE t (n INTEGER); INSERT INTO t VALUES (1), ('two')")
    with pytest.raises(InvalidError, match=r"x\.sqlite: column 'n': has values that are not int64"):
        read(SqlSource("SELECT * FROM t", path))
    assert read(SqlSource("SELECT CAST(n AS TEXT) AS n FROM t", path)) == [{"n": "1"}, {"n": "two"}]
