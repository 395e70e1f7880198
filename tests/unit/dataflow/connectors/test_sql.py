"""Queries as sources; tables of DuckDB and SQLite as sinks."""

from __future__ import annotations

import sqlite3

import duckdb
import pyarrow as pa
import pytest

from shoal.core import faults
from shoal.core.clock import SystemClock
from shoal.core.errors import InvalidError, PreconditionError
from shoal.dataflow.connectors.base import SinkContext, SinkMode, Split
from shoal.dataflow.connectors.sql import SqlSink, SqlSource
from shoal.dataflow.execution import engine
from shoal.dataflow.language.logical import Sink
from shoal.dataflow.language.settings import CheckpointSettings, FlowSettings
from tests.unit.dataflow.execution.flows import Tap, rows, table_source, tap_source


def read(source: SqlSource, position=None) -> list[dict]:
    reader = source.open_reader(source.find_splits(), source.find_schema(), clock=SystemClock())
    if position is not None:
        reader.seek(Split("0"), position)
    found = []
    while (fetched := reader.fetch(max_rows=7, timeout=0)) is not None:
        found += fetched.batch.to_pylist()
    assert reader.ended()
    reader.close()
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


def context(**options) -> SinkContext:
    return SinkContext("job", "out", 0, 1, SystemClock(), exactly_once=True, **options)


def test_rows_wait_for_their_checkpoint_and_a_failed_one_goes_with_the_next(database):
    writer = SqlSink("t", database).open_writer(None, context())
    writer.restore([])
    writer.write(rows(("a", 1, 1)))
    writer.prepare(1)
    writer.write(rows(("a", 2, 2)))
    prepared = writer.prepare(2)
    writer.close()
    again = SqlSink("t", database).open_writer(None, context())
    again.restore([(2, 0, prepared)])
    again.restore([(2, 0, prepared)])
    again.close()
    assert select(database, "SELECT value FROM t ORDER BY 1") == [(1,), (2,)]


def test_going_on_from_before_what_is_in_the_table_is_refused(database):
    writer = SqlSink("t", database).open_writer(None, context())
    writer.restore([])
    writer.write(rows(("a", 1, 1)))
    prepared = writer.prepare(5)
    writer.commit(5)
    writer.close()
    again = SqlSink("t", database).open_writer(None, context())
    with pytest.raises(PreconditionError, match="has the output of checkpoint 5, the job goes on from 4"):
        again.restore([(4, 0, prepared)])
    again.restore([])  # an earlier life of the job does not count
    again.restore([(4, 0, b"")])
    again.close()


def test_much_output_asks_for_a_checkpoint(database):
    asked: list[int] = []
    writer = SqlSink("t", database).open_writer(None, context(ask_checkpoint=lambda: asked.append(1)))
    wide = pa.record_batch({"x": ["x" * 1_000_000] * 20})
    writer.write(wide)
    assert asked == []
    writer.write(wide)
    writer.write(wide)
    assert asked == [1]
    writer.close()
