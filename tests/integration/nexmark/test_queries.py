"""Nexmark against DuckDB: results, late rows and the last line, for batches, widths and disorders of many sizes."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.integration.nexmark.harness import QUERIES, call, check, generate
from tests.integration.nexmark.oracle import COLUMNS, LATE_COLUMNS, Oracle, difference

pytestmark = pytest.mark.integration

WINDOWED = ("q5", "q7", "q8")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of events, made when they are asked for."""
    base = tmp_path_factory.mktemp("events")
    made: dict[tuple[object, ...], Path] = {}

    def folder(events: int, disorder_ms: int, *more: str, seed: int = 1) -> Path:
        what = (events, disorder_ms, seed, *more)
        if what not in made:
            made[what] = generate(base / str(len(made)), events, seed, disorder_ms, *more)
        return made[what]

    return folder


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(
    ("batch_rows", "parallelism", "disorder_ms"),
    [(7, 3, 4000), pytest.param(100, 2, 0, marks=pytest.mark.long), (1000, 1, 1500)],
)
def test_small_batches(folders, tmp_path, query, *, batch_rows, parallelism, disorder_ms):
    check(folders(3000, disorder_ms), tmp_path, query, batch_rows=batch_rows, parallelism=parallelism)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("parallelism", [1, pytest.param(2, marks=pytest.mark.long), 3])
def test_large_batches(folders, tmp_path, query, parallelism):
    check(folders(60_000, 4000, seed=2), tmp_path, query, batch_rows=50_000, parallelism=parallelism)


#: What `make test` has of each number of processes: no exchange, windows, a join.
FEW = {("q0", 1), ("q5", 2), ("q3", 2), ("q8", 3)}


@pytest.mark.parametrize(
    ("query", "processes"),
    [
        pytest.param(query, processes, marks=() if (query, processes) in FEW else pytest.mark.long)
        for query in QUERIES
        for processes in (1, 2, 3)
    ],
)
def test_over_processes(folders, tmp_path, query, processes):
    folder = folders(60_000, 4000, seed=2)
    check(folder, tmp_path, query, batch_rows=5000, parallelism=processes, processes=processes)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(("parallelism", "disorder_ms"), [(1, 0), (2, 4000)])
def test_single_rows(folders, tmp_path, query, parallelism, disorder_ms):
    summary = check(folders(900, disorder_ms), tmp_path, query, batch_rows=1, parallelism=parallelism)
    assert summary["batches"] == summary["events"]


@pytest.mark.parametrize("query", ["q5", "q7"])
@pytest.mark.parametrize("parallelism", [1, *(pytest.param(each, marks=pytest.mark.long) for each in (2, 3))])
@pytest.mark.parametrize("lateness_ms", [0, 4000])
def test_more_disorder_than_the_bound(folders, tmp_path, query, parallelism, lateness_ms):
    # Sparse rows and much disorder: of a sliding window's five some have ended, and some have not.
    folder = folders(900, 10_000)
    options = {"batch_rows": 1, "parallelism": parallelism, "lateness_ms": lateness_ms}
    summary = check(folder, tmp_path, query, **options)
    assert summary["late"] > 0 or query == "q5"
    plain = Oracle(folder).rows(query, 1_000_000_000)
    assert difference(pq.read_table(tmp_path / "result.parquet"), plain, COLUMNS[query]) != ""


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("parallelism", [pytest.param(1, marks=pytest.mark.long), 3])
def test_rows_far_beyond_the_bound(folders, tmp_path, query, parallelism):
    folder = folders(8_000, 4000, "--late-rows", "300")
    # 50 rows are under half a minute of any query's input; the late ones are a minute late.
    summary = check(folder, tmp_path, query, batch_rows=50, parallelism=parallelism)
    assert (summary["late"] > 10) == (query in WINDOWED)


@pytest.mark.parametrize("query", WINDOWED)
def test_late_rows_are_counted_without_a_late_output(folders, tmp_path, query):
    folder = folders(8_000, 4000, "--late-rows", "300")
    output = tmp_path / "result.parquet"
    outcome = call("--query", query, "--input", str(folder), "--output", str(output), "--batch-rows", "50")
    late = Oracle(folder).late(query, 4000).num_rows
    assert outcome.status == 0
    assert f'"late": {late},' in outcome.out
    assert difference(pq.read_table(output), Oracle(folder).rows(query, 4000), COLUMNS[query]) == ""


@pytest.mark.parametrize("query", QUERIES)
def test_nothing_to_report(folders, tmp_path, query):
    folder = folders(0, 0)
    summary = check(folder, tmp_path, query, batch_rows=10, parallelism=2)
    assert (summary["events"], summary["batches"], summary["late"]) == (0, 0, 0)
    assert pq.read_table(tmp_path / "late.parquet").schema.names == list(LATE_COLUMNS)


@pytest.mark.parametrize("query", ["q3", "q4", "q6", "q8"])
@pytest.mark.parametrize("empty", ["person", "auction", "bid"])
def test_one_of_two_inputs_is_empty(folders, tmp_path, query, empty):
    folder = tmp_path / "events"
    folder.mkdir()
    for name in ("person", "auction", "bid"):
        table = pq.read_table(folders(3000, 4000) / f"{name}.parquet")
        pq.write_table(table.slice(0, 0) if name == empty else table, folder / f"{name}.parquet")
    place = tmp_path / "out"
    place.mkdir()
    check(folder, place, query, batch_rows=100, parallelism=2)


def test_texts_in_other_layouts(folders, tmp_path):
    folder = tmp_path / "events"
    folder.mkdir()
    for name in ("person", "auction", "bid"):
        table = pq.read_table(folders(3000, 4000) / f"{name}.parquet")
        place = table.schema.get_field_index("extra")
        table = table.set_column(place, "extra", table.column("extra").dictionary_encode())
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=300)
    for query in ("q0", "q7"):
        place = tmp_path / query
        place.mkdir()
        check(folder, place, query, batch_rows=64)
