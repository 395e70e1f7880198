"""What a Nexmark run refuses: a message on stderr, a status other than 0, and no file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.integration.nexmark.harness import EXAMPLE, call, generate

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("events"), 2000, 1, 4000)


@pytest.fixture
def folder(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "events"))


def refuse(folder: Path, place: Path, query: str, *more: str) -> str:
    """Run what must be refused. The message."""
    output, late = place / "result.parquet", place / "late.parquet"
    files = ["--input", str(folder), "--output", str(output), "--late-output", str(late)]
    outcome = call("--query", query, *files, *more)
    assert outcome.status != 0
    assert outcome.err.strip()
    assert outcome.out == ""
    assert [each for each in place.rglob("*.parquet") if each.parent != folder] == []
    return outcome.err


def change(folder: Path, name: str, edit: object) -> None:
    path = folder / f"{name}.parquet"
    pq.write_table(edit(pq.read_table(path)), path)


@pytest.mark.parametrize(("query", "name"), [("q0", "bid"), ("q3", "person"), ("q4", "auction"), ("q8", "auction")])
def test_a_file_that_is_not_there(folder, tmp_path, query, name):
    (folder / f"{name}.parquet").unlink()
    assert f"{name}.parquet" in refuse(folder, tmp_path, query)


def test_files_that_are_not_read_may_be_missing(folder, tmp_path):
    for name in ("person", "auction"):
        (folder / f"{name}.parquet").unlink()
    assert call("--query", "q5", "--input", str(folder), "--output", str(tmp_path / "o.parquet")).status == 0


def test_a_folder_that_is_not_there(tmp_path):
    refuse(tmp_path / "nowhere", tmp_path, "q1")


@pytest.mark.parametrize("content", [b"", b"PAR1 this is no Parquet file PAR1", b"x" * 10_000])
def test_a_file_of_another_kind(folder, tmp_path, content):
    (folder / "bid.parquet").write_bytes(content)
    assert "bid.parquet" in refuse(folder, tmp_path, "q7")


def test_a_file_that_was_cut(folder, tmp_path):
    path = folder / "bid.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    assert "bid.parquet" in refuse(folder, tmp_path, "q7")


@pytest.mark.parametrize("query", ["q0", "q4", "q7"])
def test_damage_in_the_middle_of_a_file(folder, tmp_path, query):
    path = folder / "bid.parquet"
    table = pq.read_table(path)
    pq.write_table(table, path, row_group_size=200, compression="none", use_dictionary=False, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    place = pq.read_metadata(path).row_group(5).column(0).data_page_offset
    content[place : place + 40] = b"\xff" * 40
    path.write_bytes(content)
    refuse(folder, tmp_path, query, "--batch-rows", "100")


def test_a_column_that_is_missing(folder, tmp_path):
    change(folder, "bid", lambda table: table.drop_columns(["price"]))
    assert "'price'" in refuse(folder, tmp_path, "q1")


def test_a_column_of_another_type(folder, tmp_path):
    change(folder, "auction", lambda t: t.set_column(8, "category", t.column("category").cast(pa.string())))
    assert "'category' is string, not int64" in refuse(folder, tmp_path, "q4")


@pytest.mark.parametrize("query", ["q3", "q4", "q6", "q8"])
def test_rows_that_are_not_in_order(folder, tmp_path, query):
    change(folder, "auction", lambda table: pa.concat_tables([table.slice(50), table.slice(0, 50)]))
    assert "not sorted" in refuse(folder, tmp_path, query)


@pytest.mark.parametrize(("query", "name"), [("q5", "bid"), ("q8", "person")])
def test_a_row_without_a_time(folder, tmp_path, query, name):
    def edit(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index("date_time")
        times = [*table.column("date_time").to_pylist()[:-1], None]
        return table.set_column(place, "date_time", pa.array(times, pa.timestamp("ms")))

    change(folder, name, edit)
    refuse(folder, tmp_path, query)


def test_a_second_auction_of_one_id(folder, tmp_path):
    def edit(table: pa.Table) -> pa.Table:
        ids = table.column("id").to_pylist()
        return table.set_column(0, "id", pa.array([*ids[:-1], ids[0]], pa.int64()))

    change(folder, "auction", edit)
    assert "second row" in refuse(folder, tmp_path, "q4")


@pytest.mark.parametrize(
    "more",
    [
        ("--batch-rows", "0"),
        ("--batch-rows", "-5"),
        ("--batch-rows", "many"),
        ("--parallelism", "0"),
        ("--parallelism", "1.5"),
        ("--parallelism", "100000"),
        ("--lateness-ms", "-1"),
        ("--lateness-ms", ""),
        ("--query", "q9"),
        ("--query", ""),
        ("--speed", "high"),
    ],
)
def test_arguments_that_cannot_be(whole, tmp_path, more):
    refuse(whole, tmp_path, "q5", *more)


def test_places_that_cannot_be_written(whole, tmp_path):
    for output in (tmp_path, tmp_path / "nowhere" / "o.parquet"):
        outcome = call("--query", "q2", "--input", str(whole), "--output", str(output))
        assert outcome.status != 0
        assert str(output) in outcome.err
    same = str(tmp_path / "o.parquet")
    assert call("--query", "q5", "--input", str(whole), "--output", same, "--late-output", same).status != 0
    assert list(tmp_path.iterdir()) == []


def test_a_failed_run_leaves_an_older_result_alone(whole, folder, tmp_path):
    output = tmp_path / "o.parquet"
    assert call("--query", "q2", "--input", str(whole), "--output", str(output)).status == 0
    before = output.read_bytes()
    (folder / "bid.parquet").write_bytes(b"")
    assert call("--query", "q2", "--input", str(folder), "--output", str(output)).status != 0
    assert output.read_bytes() == before


def test_the_command_itself(whole, tmp_path):
    """By another process, from another directory, and with a name that does not end as Parquet files do."""
    command = [sys.executable, str(EXAMPLE / "run.py"), "--query", "q2", "--input", str(whole)]
    good = subprocess.run([*command, "--output", "result"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert good.returncode == 0, good.stderr
    assert good.stdout.splitlines()[-1].startswith('{"events": 1840,')
    assert good.stderr == ""
    assert pq.read_table(tmp_path / "result").schema.names == ["auction", "price"]
    bad = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert bad.returncode != 0
    assert "--output" in bad.stderr
