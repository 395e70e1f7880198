"""Files as sources and sinks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from shoal.core import faults, files
from shoal.core.clock import SystemClock
from shoal.core.errors import InvalidError, NotFoundError, ShoalError
from shoal.dataflow.api.apps.app import App
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.connectors.base import CommitContext, Recovery, SinkContext
from shoal.dataflow.connectors.files.commits import FilesCommitter
from shoal.dataflow.connectors.files.sources import (
    CsvSink,
    CsvSource,
    JsonLinesSink,
    JsonLinesSource,
    ParquetSink,
    ParquetSource,
)
from shoal.dataflow.connectors.markers import ALL_TASKS
from shoal.dataflow.errors import CheckpointError, OperatorFailedError, PlanError, PoisonError
from shoal.dataflow.execution import engine
from shoal.dataflow.language.expressions.trees import col
from shoal.dataflow.language.logical import OnError, Sink
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
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
    with pytest.raises(PoisonError, match=r"x\.csv cannot be read: line 3: Expected 2 columns, got 1: 2$"):
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
    for overwrite in (False, True):  # again is anew, for those who say so
        node = Sink(inputs=(table_source(TABLE.to_batches()[0]),), connector=sink(str(path), overwrite=overwrite))
        engine.run([node])
        assert path.is_file()
        assert read(source(str(path)))[0] == TABLE.to_pylist()


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "x.jsonl", "x.ndjson", "x.json"])
def test_a_file_that_is_there_is_not_replaced(tmp_path, name):
    path = tmp_path / name
    path.write_text("precious")

    def write(**options):
        rows = Stream.from_dicts([{"a": each} for each in range(9)], batch_size=2)
        kind = {".csv": rows.to_csv, ".parquet": rows.to_parquet}.get(path.suffix, rows.to_json)
        return kind(str(path), **options)

    with pytest.raises(PlanError, match=f"{name}: is there already, and would be replaced") as caught:
        write().run()
    assert "overwrite=True" in caught.value.hint
    assert path.read_text() == "precious"
    assert [each.name for each in tmp_path.iterdir()] == [name]
    write(overwrite=True).run()
    assert "precious" not in path.read_bytes().decode("latin-1")
    path.write_text("")  # as those make that want a name of their own: there is nothing to lose
    write().run()
    assert path.stat().st_size > 0


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_path_that_is_a_file_is_one_at_any_parallelism(tmp_path, parallelism):
    path = tmp_path / "x.csv"
    rows = Stream.from_dicts([{"a": each} for each in range(100)], batch_size=3)
    rows.key_by("a").filter(lambda batch: True).to_csv(str(path)).run(parallelism=parallelism)
    assert sorted(path.read_text().split()[1:], key=int) == [str(each) for each in range(100)]


def test_what_cannot_be_one_file_is_refused(tmp_path):
    path = tmp_path / "x.csv"
    rows = Stream.from_dicts([{"a": 1}])
    with pytest.raises(PlanError, match=r"x\.csv: is one file, and 2 tasks cannot write it together") as caught:
        rows.to_csv(str(path)).with_parallelism(2).run()
    assert f'"{tmp_path}/x/"' in caught.value.hint
    app = App("files", data_dir=tmp_path / "app", exactly_once=True)
    flow = app.dataflow("f")(lambda: rows.to_csv(str(path)))
    with pytest.raises(PlanError, match=r"x\.csv: is one file, and a run with checkpoints") as caught:
        flow.run()
    assert f'"{tmp_path}/x/"' in caught.value.hint
    assert not path.exists()
    with pytest.raises(PlanError, match=r"to_csv: overwrite: is for one file.*: a folder keeps what is in it"):
        rows.to_csv(str(tmp_path / "folder"), overwrite=True)


def test_a_folder_that_is_called_like_a_file_stays_one(tmp_path):
    path = tmp_path / "x.csv"
    path.mkdir()
    for _ in range(2):
        Stream.from_dicts([{"a": 1}]).to_csv(str(path)).run()
    assert len(list(path.glob("part-*.csv"))) == 2
    with pytest.raises(PlanError, match=r"x\.csv: is a folder, and overwrite=True is for one file"):
        Stream.from_dicts([{"a": 1}]).to_csv(str(path), overwrite=True).run()


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
    """The files of a folder, without the times of their runs."""
    return sorted(re.sub(r"-\d{13}-", "-", each.name) for each in path.iterdir() if each.name != ".pending")


BATCH = TABLE.to_batches()[0].slice(0, 10)


@pytest.mark.parametrize("exactly_once", [False, True])
def test_sinks_and_jobs_and_runs_that_share_a_folder_keep_what_is_in_it(tmp_path, exactly_once):
    for job in ("one", "other", "third"):
        app = App(job, data_dir=tmp_path / "app", exactly_once=exactly_once)
        stream = Stream.from_dicts([{"a": 1}, {"a": 2}])
        app.dataflow("f")(lambda stream=stream: [stream.to_csv(str(tmp_path / "out")) for _ in range(2)])
        app.run()
        shutil.rmtree(tmp_path / "app", ignore_errors=True)  # so that it begins anew
    assert len(list((tmp_path / "out").glob("part-*.csv"))) == 6
    assert Stream.from_csv(str(tmp_path / "out")).count() == 12


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


def committer(path: Path) -> FilesCommitter:
    return ParquetSink(str(path)).open_committer(CommitContext("job", "out", 1, 1, 0, SystemClock(), exactly_once=True))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"checkpoint": "x"}'])
def test_a_marker_that_cannot_be_read_is_an_error(tmp_path, content):
    (tmp_path / ".pending").mkdir()
    (tmp_path / ".pending" / "job.out.commits.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"job\.out\.commits\.json cannot be read"):
        committer(tmp_path).fence()


def test_files_below_pending_that_somebody_removed_are_noticed(tmp_path):
    writer = ParquetSink(str(tmp_path)).open_writer(None, context())
    writer.write(BATCH)
    prepared = writer.prepare(1)
    for each in (tmp_path / ".pending").iterdir():
        each.unlink()
    started = committer(tmp_path)
    started.fence()
    with pytest.raises(ShoalError, match="checkpoint 1 has prepared, is gone"):
        started.recover(Recovery(1, 1, {0: prepared}, {ALL_TASKS: 0}))


def test_a_writer_that_failed_leaves_nothing_behind(tmp_path):
    writer = ParquetSink(str(tmp_path)).open_writer(None, context())
    writer.write(BATCH)
    writer._open[""].format._waiting.append(BATCH.select(["id"]))  # what a full disk does, too: the close fails
    with pytest.raises(pa.ArrowInvalid):
        writer.prepare(1)
    writer.close()
    assert list((tmp_path / ".pending").iterdir()) == []


@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_what_a_killed_writer_left_unfinished_is_removed_at_the_next_start(tmp_path, has_checkpoints):
    program = (
        "import os, pyarrow as pa; from shoal.core import files;"
        f"f = files.open_file('{tmp_path}/.pending/job.out.0.1-1', 'wb'); f.write(b'x'); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    living = files.open_file(f"{tmp_path}/.pending/job.out.0.2-1", "wb")
    assert len(list((tmp_path / ".pending").iterdir())) == 2
    if has_checkpoints:
        started = committer(tmp_path)
        started.fence()
        started.recover(Recovery(1, 0, {}, {ALL_TASKS: 0}))
    else:
        ParquetSink(str(tmp_path)).open_writer(None, SinkContext("job", "out", 0, 1, SystemClock()))
    left = {each.name for each in (tmp_path / ".pending").iterdir()}
    assert left - {"job.out.commits.json"} == {".job.out.0.2-1.0.part"}
    living.close()


def test_a_sink_that_needs_a_folder_says_so(tmp_path):
    (tmp_path / "afile").write_text("mine")
    with pytest.raises(PlanError, match="afile: is a file, and the sink needs a folder"):
        Stream.from_dicts([{"a": 1}]).to_csv(str(tmp_path / "afile")).run()
    assert (tmp_path / "afile").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_told_before_anything_runs(tmp_path):
    (tmp_path / "afile").write_text("mine")
    (tmp_path / "x.csv").write_text("mine")
    seen = []

    def see(batch):
        seen.append(batch)
        return batch

    read = Stream.from_dicts([{"a": 1}]).map(see, schema={"a": "int64"})
    for path, rule in {
        "afile": "is a file, and the sink needs a folder",
        "afile/below/": f"cannot be made: {tmp_path}/afile is a file",
        "afile/x.csv": f"cannot be made: {tmp_path}/afile is a file",
        "x.csv": "is there already, and would be replaced",
    }.items():
        written = read.to_csv(str(tmp_path / path))
        written.explain()  # asks nobody
        with pytest.raises(PlanError, match=re.escape(rule)) as caught:
            written.run()
        assert caught.value.at is not None
        assert caught.value.at.file.endswith("test_files.py")
        assert caught.value.hint
    assert not seen
    assert sorted(each.name for each in tmp_path.iterdir()) == ["afile", "x.csv"]


def test_one_bad_place_keeps_all_dataflows_of_an_app_from_starting(tmp_path):
    (tmp_path / "afile").write_text("mine")
    app = App("files", data_dir=tmp_path / "app")
    rows_in = Stream.from_dicts([{"a": 1}])
    app.dataflow("good")(lambda: rows_in.to_csv(str(tmp_path / "good/")))
    app.dataflow("bad")(lambda: rows_in.to_csv(str(tmp_path / "afile")))
    with pytest.raises(PlanError, match="afile: is a file"):
        app.run()
    assert not (tmp_path / "good").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_nothing_may_be_added_to(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o555)
    with pytest.raises(PlanError, match="nothing may be added to the folder"):
        Stream.from_dicts([{"a": 1}]).to_csv(str(tmp_path / "closed" / "out/")).run()


# -- folders that are columns -----------------------------------------------------------------------------


def test_partitions_are_columns_again(tmp_path):
    rows_in = [
        {"id": each, "day": date(2026, 1, 1 + each % 2), "shop": shop, "n": each % 3, "b": bytes([each, 47])}
        for each, shop in enumerate(["north", "a/b=c %€", None, "1", ""])
    ]
    path = str(tmp_path / "out")
    Stream.from_dicts(rows_in).to_parquet(path, partition_by=["day", "shop", "n", "b"]).run()
    found = Stream.from_parquet(path).collect()
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == rows_in
    assert found.schema.field("day").type == pa.date32()
    assert found.schema.field("shop").type == pa.utf8()
    assert sorted(row["n"] for row in Stream.from_parquet(path).select("n").to_pylist()) == [0, 0, 1, 1, 2]
    assert Stream.from_parquet(path).filter(col("shop") == "1").select("id").to_pylist() == [{"id": 3}]


def test_folders_that_others_wrote_are_columns_too(tmp_path):
    for name in ("_k=1/s=01", "_k=22/s=7", "_k=__HIVE_DEFAULT_PARTITION__/s=7", "_temporary/s=9"):
        (tmp_path / name).mkdir(parents=True)
        pq.write_table(pa.table({"id": [1]}), tmp_path / name / "x.parquet")
    found = Stream.from_parquet(str(tmp_path)).to_pylist()
    assert [(row["_k"], row["s"]) for row in found] == [(1, "01"), (22, "7"), (None, "7")]


def test_a_value_that_no_folder_can_be_called_is_refused(tmp_path):
    with pytest.raises(ShoalError, match="too long for the name of a folder"):
        Stream.from_dicts([{"k": "x" * 300, "v": 1}]).to_parquet(str(tmp_path), partition_by="k").run()


def test_partitions_leave_a_column_for_the_files(tmp_path):
    with pytest.raises(ShoalError, match="must leave a column for the files"):
        Stream.from_dicts([{"k": 1}]).to_parquet(str(tmp_path), partition_by="k").run()


def test_a_partition_column_that_rows_do_not_have_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(PlanError, match=r"partition_by 'zz': does not exist"):
        Stream.from_dicts([{"k": 1}]).to_parquet(str(tmp_path / "p"), partition_by=["zz"])
    write_csv(tmp_path / "x.csv")
    late = Stream.from_csv(str(tmp_path / "x.csv")).to_parquet(str(tmp_path / "p"), partition_by=["zz"])
    with pytest.raises(PlanError, match=r"partition_by 'zz': does not exist"):
        late.run()
    assert not (tmp_path / "p").exists()


# -- files that cannot be read ----------------------------------------------------------------------------

READ = {".parquet": Stream.from_parquet, ".csv": Stream.from_csv, ".jsonl": Stream.from_json}


@pytest.mark.parametrize(("suffix", "text"), [(".csv", "a\n1\n"), (".jsonl", '{"a": 1}\n')])
@pytest.mark.parametrize("empty", ["", "\n\n"])
def test_an_empty_file_among_others_has_no_rows(tmp_path, suffix, text, empty):
    (tmp_path / f"2{suffix}").write_text(text)
    (tmp_path / f"1{suffix}").write_text(empty)
    (tmp_path / f"3{suffix}").write_text(empty)
    assert READ[suffix](str(tmp_path)).to_pylist() == [{"a": 1}]
    with pytest.raises(PlanError, match=rf"1{suffix}: is empty") as caught:
        READ[suffix](str(tmp_path / f"1{suffix}")).to_pylist()
    assert caught.value.at.file.endswith("test_files.py")


def test_names_without_rows_do_not_hide_the_types_of_the_next_file(tmp_path):
    (tmp_path / "1.csv").write_text("a,b\n")
    (tmp_path / "2.csv").write_text("a,b\n1,x\n")
    assert Stream.from_csv(str(tmp_path)).to_pylist() == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize("content", [b"", b"junk", None])
def test_parquet_that_is_none_is_named(tmp_path, content):
    write_parquet(tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()[:-20] if content is None else content
    (tmp_path / "b.parquet").write_bytes(content)
    with pytest.raises(OperatorFailedError, match=r"b\.parquet cannot be read"):
        Stream.from_parquet(str(tmp_path)).to_pylist()
    with pytest.raises(PlanError, match=r"b\.parquet cannot be read"):
        Stream.from_parquet(str(tmp_path / "b.parquet")).to_pylist()


def test_a_column_that_one_file_lacks_is_named_with_the_file(tmp_path):
    write_parquet(tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "b.parquet")
    with pytest.raises(OperatorFailedError, match=r"b\.parquet: column 'name': is not in this file; it has id"):
        Stream.from_parquet(str(tmp_path)).to_pylist()
    write_csv(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("id\n1\n")
    with pytest.raises(OperatorFailedError, match=r"b\.csv: column 'name': is not in this file; it has id"):
        Stream.from_csv(str(tmp_path)).to_pylist()


def test_a_bad_row_is_named_with_the_file_and_its_number(tmp_path):
    write_csv(tmp_path / "a.csv")
    good = "".join(f"{each},x\n" for each in range(400_000))
    for bad, why in (("three,x\n", "invalid value 'three'"), ("3\n", "Expected 2 columns, got 1")):
        (tmp_path / "b.csv").write_text(f"id,name\n{good}{bad}")
        with pytest.raises(OperatorFailedError, match=rf"b\.csv cannot be read: line 400002: .*{why}"):
            Stream.from_csv(str(tmp_path)).to_pylist()
    write_lines(tmp_path / "a.jsonl")
    good = '{"id": 1, "name": "x"}\n' * 100_000 + "\n"
    for bad in ('{"id": "x"}', '{"id": '):
        (tmp_path / "b.jsonl").write_text(f"{good}{bad}\n{good}")
        with pytest.raises(OperatorFailedError, match=r"b\.jsonl cannot be read: line 100002: .*\{\"id\":"):
            Stream.from_json(str(tmp_path)).to_pylist()


def test_a_line_may_be_longer_than_a_block(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"a": "x"}) + "\n" + json.dumps({"a": "y" * 5_000_000}) + "\n")
    assert [len(row["a"]) for row in Stream.from_json(str(tmp_path)).to_pylist()] == [1, 5_000_000]


def test_a_folder_without_files_of_the_kind_says_so(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(PlanError, match=r"any \.csv or \.tsv file in the folder .* not found"):
        Stream.from_csv(str(tmp_path)).to_pylist()


@pytest.mark.parametrize("text", ["null\n", 'null\n{"a":1}\n', '{"a":1}\nnull\n', '{"a":1}null\n', '{"a":1}\n[1]\n'])
def test_a_line_of_json_that_is_no_object_is_never_a_row(tmp_path, text):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    schema = pa.schema([("a", pa.int64())])
    rows = Stream.from_json(str(path), schema=schema, on_error="skip").collect()
    assert rows.to_pylist() == [{"a": 1}] * (text.count('{"a":1}\n'))
    with pytest.raises((OperatorFailedError, PlanError)):
        Stream.from_json(str(path)).collect()


DECLARED = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.float64())])


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda stream: stream, [{"id": 1, "name": None, "price": None}, {"id": 2, "name": "two", "price": 2.5}]),
        (lambda stream: stream.select("price"), [{"price": None}, {"price": 2.5}]),
        (lambda stream: stream.select("name", "id"), [{"name": None, "id": 1}, {"name": "two", "id": 2}]),
        (lambda stream: stream.filter(col("price").is_null()).select("id"), [{"id": 1}]),
        (lambda stream: stream.aggregate(n=("*", "count"), prices=("price", "count")), [{"n": 2, "prices": 1}]),
    ],
    ids=["all", "only the missing one", "others", "filter", "count"],
)
def test_a_declared_column_that_a_parquet_file_lacks_is_null(tmp_path, program, expected):
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [2], "name": ["two"], "price": [2.5]}), tmp_path / "b.parquet")
    assert program(Stream.from_parquet(str(tmp_path), schema=DECLARED)).to_pylist() == expected


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_every_row_of_a_file_without_any_declared_column_is_there(tmp_path, batch_rows):
    pq.write_table(pa.table({"other": list(range(7))}), tmp_path / "a.parquet", row_group_size=3)
    stream = Stream.from_parquet(str(tmp_path), schema=DECLARED, batch_size=2)
    found = stream.to_pylist(settings=FlowSettings(batch_rows=batch_rows))
    assert found == [{"id": None, "name": None, "price": None}] * 7


def test_a_declared_column_that_must_not_be_null_is_missed(tmp_path):
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string(), nullable=False)])
    with pytest.raises(OperatorFailedError, match=r"a\.parquet: column 'name': is not in this file; it has id"):
        Stream.from_parquet(str(tmp_path), schema=schema).to_pylist()
