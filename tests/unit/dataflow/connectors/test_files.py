"""Files as sources and sinks."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from shoal.core import faults
from shoal.core.clock import SystemClock
from shoal.core.errors import InvalidError, NotFoundError, ShoalError
from shoal.dataflow.connectors.base import SinkContext
from shoal.dataflow.connectors.files import (
    CsvSink,
    CsvSource,
    JsonLinesSink,
    JsonLinesSource,
    ParquetSink,
    ParquetSource,
)
from shoal.dataflow.execution import engine
from shoal.dataflow.language.logical import OnError, Sink
from shoal.dataflow.language.settings import CheckpointSettings, FlowSettings
from tests.unit.dataflow.execution.flows import Tap, rows, table_source, tap_source

TABLE = pa.table({"id": pa.array(range(1000), pa.int64()), "name": [f"n{each % 7}" for each in range(1000)]})


def write_parquet(path: Path) -> None:
    pq.write_table(TABLE, path, row_group_size=150)


def write_csv(path: Path) -> None:
    pa_csv.write_csv(TABLE, path)


def write_lines(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in TABLE.to_pylist()))


KINDS = [
    (ParquetSource, write_parquet, ".parquet"),
    (CsvSource, write_csv, ".csv"),
    (JsonLinesSource, write_lines, ".jsonl"),
]


def read(source, *, max_rows: int = 100, seek=None) -> tuple[list[dict], list]:
    """All rows, and every place on the way."""
    reader = source.open_reader(source.find_splits(), source.find_schema(), clock=SystemClock())
    for split, position in (seek or {}).items():
        reader.seek(split, position)
    found, places = [], []
    while (fetched := reader.fetch(max_rows=max_rows, timeout=0)) is not None:
        found += fetched.batch.to_pylist()
        places.append((fetched.split, fetched.position, len(found)))
    assert len(reader.ended()) == len(source.find_splits())
    reader.close()
    return found, places


@pytest.mark.parametrize(("kind", "write", "suffix"), KINDS)
def test_a_file_is_read_from_its_start_and_from_every_place(tmp_path, kind, write, suffix):
    path = tmp_path / f"data{suffix}"
    write(path)
    source = kind(str(path))
    found, places = read(source)
    assert found == TABLE.to_pylist()
    for split, position, count in places:
        assert read(source, seek={split: position})[0] == found[count:]


@pytest.mark.parametrize(("kind", "write", "suffix"), KINDS)
def test_directories_and_stars_mean_several_files(tmp_path, kind, write, suffix):
    for name in ("b", "a", "_hidden", ".hidden"):
        write(tmp_path / f"{name}{suffix}")
    (tmp_path / ".pending").mkdir()
    write(tmp_path / ".pending" / f"c{suffix}")
    (tmp_path / "notes.txt").write_text("not a file of rows")
    for path in (tmp_path, tmp_path / f"[ab]{suffix}".replace("[ab]", "?")):
        names = [Path(split.name).name for split in kind(str(path)).find_splits()]
        assert names == [f"a{suffix}", f"b{suffix}"]


@pytest.mark.parametrize(("kind", "write", "suffix"), KINDS)
def test_only_the_columns_that_are_wanted_are_read(tmp_path, kind, write, suffix):
    path = tmp_path / f"data{suffix}"
    write(path)
    found, _places = read(kind(str(path)).with_columns(("name",)))
    assert found == TABLE.select(["name"]).to_pylist()
    with pytest.raises(InvalidError, match="must be one of id, name"):
        kind(str(path), columns=("nope",)).find_schema()


def test_files_that_are_not_there(tmp_path):
    for path in (tmp_path / "nope.parquet", tmp_path, tmp_path / "*.parquet"):
        with pytest.raises(NotFoundError):
            ParquetSource(str(path)).find_splits()


def poison_of(source) -> tuple[list[dict], list[dict]]:
    reader = source.open_reader(source.find_splits(), source.find_schema(), clock=SystemClock())
    good, bad = [], []
    while (fetched := reader.fetch(max_rows=3, timeout=0)) is not None:
        good += fetched.batch.to_pylist()
        bad += [] if fetched.poison is None else fetched.poison.to_pylist()
    reader.close()
    return good, bad


SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.utf8())])


def test_bad_lines_of_csv_are_found(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("id,name\n1,a\n2\nthree,c\n4,d\n5,e,f\n6,g\n")
    good, bad = poison_of(CsvSource(str(path), schema=SCHEMA, on_error=OnError.SIDE))
    assert [row["id"] for row in good] == [1, 4, 6]
    assert len(bad) == 3
    with pytest.raises(pa.ArrowInvalid):
        poison_of(CsvSource(str(path), schema=SCHEMA))


def test_bad_lines_of_json_are_found(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": 1, "name": "a"}\n{"id": \n\n{"id": "x"}\n{"id": 2, "more": 3}\n[1]\n{"id": 3}')
    good, bad = poison_of(JsonLinesSource(str(path), schema=SCHEMA, on_error=OnError.SIDE))
    assert good == [{"id": 1, "name": "a"}, {"id": 2, "name": None}, {"id": 3, "name": None}]
    assert [row["value"] for row in bad] == ['{"id": ', '{"id": "x"}', "[1]"]


# -- sinks ------------------------------------------------------------------------------------------------

SINKS = [
    (ParquetSink, ParquetSource, ".parquet"),
    (CsvSink, CsvSource, ".csv"),
    (JsonLinesSink, JsonLinesSource, ".jsonl"),
]


@pytest.mark.parametrize(("sink", "source", "suffix"), SINKS)
def test_a_path_that_is_a_file_becomes_one(tmp_path, sink, source, suffix):
    path = tmp_path / f"out{suffix}"
    for _ in range(2):  # again is anew
        engine.run([Sink(inputs=(table_source(TABLE.to_batches()[0]),), connector=sink(str(path)))])
        assert path.is_file()
        assert read(source(str(path)))[0] == TABLE.to_pylist()


def test_a_file_without_rows_has_its_columns(tmp_path):
    path = tmp_path / "out.parquet"
    engine.run([Sink(inputs=(table_source(TABLE.to_batches()[0].slice(0, 0)),), connector=ParquetSink(str(path)))])
    assert pq.read_table(path).schema == TABLE.schema


@pytest.mark.parametrize(("sink", "source", "suffix"), SINKS)
def test_a_directory_gets_a_file_for_each_task(tmp_path, sink, source, suffix):
    path = tmp_path / "out"
    node = Sink(inputs=(table_source(TABLE.to_batches()[0]),), connector=sink(str(path)), parallelism=3)
    engine.run([node], settings=FlowSettings(batch_rows=100))
    assert len(list(path.glob(f"part-*{suffix}"))) == 3
    found, _places = read(source(str(path)))
    assert sorted(row["id"] for row in found) == list(range(1000))


def test_partitions_are_directories(tmp_path):
    path = tmp_path / "out"
    engine.run([Sink(inputs=(table_source(TABLE.to_batches()[0]),), connector=ParquetSink(str(path), ("name",)))])
    assert sorted(each.name for each in path.iterdir() if not each.name.startswith(".")) == [
        f"name=n{each}" for each in range(7)
    ]
    assert sorted(pq.read_table(path)["id"].to_pylist()) == list(range(1000))


def context(subtask: int = 0, parallelism: int = 1) -> SinkContext:
    return SinkContext("job", "out", subtask, parallelism, SystemClock(), exactly_once=True, has_checkpoints=True)


def listed(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir() if each.name != ".pending")


BATCH = TABLE.to_batches()[0].slice(0, 10)


def test_nothing_is_seen_before_the_commit(tmp_path):
    writer = ParquetSink(str(tmp_path)).open_writer(None, context())
    writer.restore([])
    writer.write(BATCH)
    assert listed(tmp_path) == []
    writer.prepare(1)
    assert listed(tmp_path) == []
    writer.commit(1)
    writer.commit(1)  # again does nothing
    assert listed(tmp_path) == ["part-000000000001-0000-0000.parquet"]
    assert pq.read_table(tmp_path).num_rows == 10


def test_a_failed_checkpoint_goes_with_the_next(tmp_path):
    writer = ParquetSink(str(tmp_path)).open_writer(None, context())
    writer.restore([])
    writer.write(BATCH)
    writer.prepare(1)
    writer.write(BATCH)
    prepared = writer.prepare(2)
    writer.close()  # the process dies here
    again = ParquetSink(str(tmp_path)).open_writer(None, context())
    again.restore([(2, 0, prepared)])
    assert listed(tmp_path) == ["part-000000000001-0000-0000.parquet", "part-000000000002-0000-0000.parquet"]


def test_what_a_dead_attempt_left_is_removed_and_what_it_prepared_is_kept(tmp_path):
    old = [ParquetSink(str(tmp_path)).open_writer(None, context(each, 3)) for each in range(3)]
    prepared = []
    for subtask, writer in enumerate(old):
        writer.write(BATCH)
        prepared.append((7, subtask, writer.prepare(7)))
        writer.write(BATCH)
        writer.prepare(8)  # never complete
    for subtask in range(2):
        ParquetSink(str(tmp_path)).open_writer(None, context(subtask, 2)).restore(prepared)
    assert listed(tmp_path) == [f"part-000000000007-000{each}-0000.parquet" for each in range(3)]
    assert list((tmp_path / ".pending").iterdir()) == []


@pytest.mark.parametrize("point", [name for name in faults.POINTS if name.startswith("dataflow.")])
@pytest.mark.parametrize("sink", [ParquetSink, CsvSink, JsonLinesSink])
def test_a_crash_loses_and_doubles_no_rows(tmp_path, point, sink):
    tap = Tap(splits=2)
    for each in range(8):
        tap.give(rows(("k", each, each)), str(each % 2))
    tap.close()
    plan = [Sink(inputs=(tap_source(tap, time=None, bounded=True),), connector=sink(str(tmp_path / "out")), uid="out")]
    settings = FlowSettings(checkpoint=CheckpointSettings(directory=str(tmp_path / "checkpoints"), interval=60))
    faults.arm(point, _crash)
    with pytest.raises(Crash):
        engine.run(plan, name="job", parallelism=2, settings=settings)
    faults.disarm_all()
    engine.run(plan, name="job", parallelism=1, settings=settings)
    source = {ParquetSink: ParquetSource, CsvSink: CsvSource, JsonLinesSink: JsonLinesSource}[sink]
    found, _places = read(source(str(tmp_path / "out")))
    assert sorted(row["value"] for row in found) == list(range(8))


class Crash(BaseException):
    pass


def _crash(name: str) -> None:
    raise Crash(name)


def test_files_below_pending_that_somebody_removed_are_noticed(tmp_path):
    writer = ParquetSink(str(tmp_path)).open_writer(None, context())
    writer.write(BATCH)
    prepared = writer.prepare(1)
    for each in (tmp_path / ".pending").iterdir():
        each.unlink()
    with pytest.raises(ShoalError, match="is gone"):
        ParquetSink(str(tmp_path)).open_writer(None, context()).restore([(1, 0, prepared)])
