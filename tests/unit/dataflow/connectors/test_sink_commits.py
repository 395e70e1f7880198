"""Every sink that commits with checkpoints goes through one suite. Kafka does in `tests/integration/topics`."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.connectors.base import SupportsCommit
from shoal.dataflow.connectors.files.sinks import CsvSink, JsonLinesSink, ParquetSink
from shoal.dataflow.connectors.sql import SqlSink
from shoal.dataflow.connectors.topics.endpoints import TopicSink
from shoal.testing.streams import Recording, RecordingSink
from shoal.testing.suites.sinks import SinkKit, SinkSuite
from tests.unit.dataflow.connectors.sinks import all_sinks, committed_values


def _of_files(made: type, read: Callable[[str], Stream]) -> Callable[[Path], SinkKit]:
    def kit(directory: Path) -> SinkKit:
        place = directory / "out"

        def values() -> list[int]:
            has_files = place.exists() and any(place.glob("part-*"))
            return [row["value"] for row in read(str(place)).collect().to_pylist()] if has_files else []

        return SinkKit(lambda: made(str(place)), values)

    return kit


def _of_sqlite(directory: Path) -> SinkKit:
    path = str(directory / "rows.sqlite")

    def values() -> list[int]:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            try:
                return [row[0] for row in connection.execute("SELECT value FROM rows")]
            except sqlite3.OperationalError:  # no such table: nothing was ever committed
                return []

    return SinkKit(lambda: SqlSink("rows", path), values)


def _of_duckdb(directory: Path) -> SinkKit:
    path = str(directory / "rows.duckdb")

    def values() -> list[int]:
        with contextlib.closing(duckdb.connect(path)) as connection:
            try:
                return [row[0] for row in connection.execute("SELECT value FROM rows").fetchall()]
            except duckdb.CatalogException:
                return []

    return SinkKit(lambda: SqlSink("rows", path), values)


def _of_topic(directory: Path) -> SinkKit:
    broker = str(directory / "log")
    return SinkKit(lambda: TopicSink("out", broker), lambda: committed_values(broker, "out"))


def _of_recording(*, in_tasks: bool) -> Callable[[Path], SinkKit]:
    def kit(_directory: Path) -> SinkKit:
        recording = Recording()
        return SinkKit(
            lambda: RecordingSink(recording, in_tasks), lambda: [int(row["value"]) for row in recording.rows]
        )

    return kit


KITS: dict[str, tuple[type, Callable[[Path], SinkKit]]] = {
    "parquet": (ParquetSink, _of_files(ParquetSink, Stream.from_parquet)),
    "csv": (CsvSink, _of_files(CsvSink, Stream.from_csv)),
    "json": (JsonLinesSink, _of_files(JsonLinesSink, Stream.from_json)),
    "sqlite": (SqlSink, _of_sqlite),
    "duckdb": (SqlSink, _of_duckdb),
    "local topic": (TopicSink, _of_topic),
    "recording": (RecordingSink, _of_recording(in_tasks=False)),
    "recording in tasks": (RecordingSink, _of_recording(in_tasks=True)),
}


class TestSinkCommits(SinkSuite):
    """All of them."""

    __test__ = True

    @pytest.fixture(params=KITS)
    def kit(self, request: pytest.FixtureRequest, tmp_path: Path) -> SinkKit:
        return KITS[request.param][1](tmp_path)


def test_every_sink_that_commits_is_in_the_table():
    committing = {kind for kind in all_sinks() if isinstance(kind, type) and hasattr(kind, "open_committer")}
    assert committing <= {kind for kind, _kit in KITS.values()}
    assert all(isinstance(kit(Path("/nowhere")).make(), SupportsCommit) for _kind, kit in KITS.values())
