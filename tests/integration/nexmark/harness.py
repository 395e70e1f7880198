"""Runs the scripts of `examples/nexmark` in this process, and compares what they write with the oracle."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.integration.nexmark.oracle import COLUMNS, LATE_COLUMNS, Oracle, difference

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "nexmark"
QUERIES = tuple(COLUMNS)


@functools.cache
def script(name: str) -> Any:
    """A script of the example. Its modules have short names: they are known to nobody else afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(EXAMPLE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLE))
        for each in set(sys.modules) - before:
            if str(getattr(sys.modules[each], "__file__", "")).startswith(str(EXAMPLE)):
                del sys.modules[each]


def generate(folder: Path, events: int, seed: int, disorder_ms: int, *more: str) -> Path:
    """A folder of events."""
    wanted = ["--events", str(events), "--seed", str(seed), "--disorder-ms", str(disorder_ms), *more]
    assert script("generate").main([*wanted, "--output", str(folder)]) == 0
    return folder


@dataclass(frozen=True)
class Outcome:
    """How a run went."""

    status: int
    out: str
    err: str


def call(*arguments: str) -> Outcome:
    """Run a query with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    with _redirected(out, err):
        try:
            status = script("run").main(list(arguments))
        except SystemExit as stop:  # that is how argparse refuses
            status = int(stop.code or 0)
    return Outcome(status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _redirected(out: io.StringIO, err: io.StringIO) -> Iterator[None]:
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


def check(
    folder: Path,
    place: Path,
    query: str,
    *,
    batch_rows: int,
    parallelism: int = 1,
    lateness_ms: int = 4000,
    processes: int = 0,
) -> dict[str, Any]:
    """Run a query and compare its result, its late rows and its last line with the oracle. Returns that line."""
    output, late = place / "result.parquet", place / "late.parquet"
    outcome = call(
        *("--query", query, "--input", str(folder), "--output", str(output), "--late-output", str(late)),
        *("--batch-rows", str(batch_rows), "--parallelism", str(parallelism), "--lateness-ms", str(lateness_ms)),
        *("--processes", str(processes)),
    )
    assert outcome.status == 0, outcome.err
    oracle = Oracle(folder)
    expected_late = oracle.late(query, lateness_ms)
    assert difference(pq.read_table(output), oracle.rows(query, lateness_ms), COLUMNS[query]) == ""
    assert difference(pq.read_table(late), expected_late, LATE_COLUMNS) == ""
    summary: dict[str, Any] = json.loads(outcome.out.splitlines()[-1])
    events = oracle.count(query)
    assert summary["events"] == events
    assert summary["late"] == expected_late.num_rows
    assert -(-events // batch_rows) <= summary["batches"] <= events
    assert summary["seconds"] >= 0
    assert sorted(each.name for each in place.iterdir()) == ["late.parquet", "result.parquet"]
    return summary
