"""Jobs over rows in memory, on one core: each of ours in turn with the same in bare Arrow. Run as a program.

    python -m bench.dataflow.memory JOB ROWS ROUNDS

prints one line of JSON: rows per second of `ours` and `bare`, round by round, and the same per second of CPU time. Ours
and bare take turns, so that a change of the machine's speed touches both. Called by `bench.dataflow.measures` in a
process that is held to one core.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.dataflow.rows import BATCH_ROWS, FEE, LIMIT, make_batches
from shoal import FlowSettings, Stream, col, fn, sliding, tumbling

WINDOW_SECONDS = 10
#: Rows of small batches: what a source gives that is not far behind.
SMALL_ROWS = 1000
_WINDOW = WINDOW_SECONDS * 1_000_000

Job = Callable[[Sequence[Any]], int]


class Counted:
    """Takes batches and counts their rows: a sink that costs nothing."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, batch: Any) -> None:
        """Take one."""
        self.rows += batch.num_rows


# -- ours -------------------------------------------------------------------------------------------------------------


def map_filter(batches: Sequence[Any], settings: FlowSettings | None = None) -> int:
    """Rows above a limit, with one column more."""
    seen = Counted()
    stream = Stream.from_batches(batches).filter(col("v") > LIMIT).with_columns(fee=col("v") * FEE)
    stream.foreach(seen, settings=settings)
    return seen.rows


def map_filter_in_morsels(batches: Sequence[Any]) -> int:
    """The same, with two threads that share the kernels."""
    return map_filter(batches, FlowSettings(morsel_workers=2))


def map_filter_wide(batches: Sequence[Any], settings: FlowSettings | None = None) -> int:
    """Heavier kernels than `map_filter`: where sharing them pays, if anywhere."""
    seen = Counted()
    stream = Stream.from_batches(batches).filter(col("v") > LIMIT)
    stream = stream.with_columns(
        a=(col("v") * FEE + 1) / (col("v") + 2), b=col("v") * col("v") - col("id"), c=col("key") + "-" + col("key")
    )
    stream.foreach(seen, settings=settings)
    return seen.rows


def text(batches: Sequence[Any], settings: FlowSettings | None = None) -> int:
    """Texts and regular expressions: kernels that compute for long."""
    seen = Counted()
    stream = Stream.from_batches(batches).with_columns(
        name=fn.replace(fn.upper(col("key")), "KEY", "user"), is_odd=fn.matches(col("key"), "^key-[0-9]+[13579]$")
    )
    stream.filter(col("is_odd") & fn.matches(col("name"), "user-[0-9]{5}[1-8]{2}")).foreach(seen, settings=settings)
    return seen.rows


def text_in_morsels(batches: Sequence[Any]) -> int:
    """The same, with two threads that share the kernels."""
    return text(batches, FlowSettings(morsel_workers=2))


def map_filter_wide_in_morsels(batches: Sequence[Any]) -> int:
    """The same, with two threads that share the kernels."""
    return map_filter_wide(batches, FlowSettings(morsel_workers=2))


def tumbling_sum(batches: Sequence[Any]) -> int:
    """The sum of each key in windows of 10 s."""
    seen = Counted()
    stream = Stream.from_batches(batches, event_time="ts").group_by("key").window(tumbling(seconds=WINDOW_SECONDS))
    stream.aggregate({"total": ("v", "sum")}).foreach(seen)
    return seen.rows


def sliding_sum(batches: Sequence[Any]) -> int:
    """The sum of each key in windows of 60 s that begin every second."""
    seen = Counted()
    stream = Stream.from_batches(batches, event_time="ts").group_by("key").window(sliding(60, 1))
    stream.aggregate({"total": ("v", "sum")}).foreach(seen)
    return seen.rows


def record_function(batches: Sequence[Any]) -> int:
    """A Python function over each record."""
    seen = Counted()
    stream = Stream.from_batches(batches).records().map(lambda row: {"id": row["id"], "fee": row["v"] * FEE})
    stream.foreach(seen)
    return seen.rows


# -- the same without an engine ---------------------------------------------------------------------------------------


def bare_map_filter(batches: Sequence[Any]) -> int:
    """Kernels in a loop, with literals made once."""
    seen = Counted()
    limit, fee = pa.scalar(LIMIT, pa.float64()), pa.scalar(FEE, pa.float64())
    for batch in batches:
        kept = batch.filter(pc.greater(batch.column("v"), limit))
        seen(kept.append_column("fee", pc.multiply(kept.column("v"), fee)))
    return seen.rows


def bare_tumbling_sum(batches: Sequence[Any]) -> int:
    """Grouped batch by batch, and the parts of a window together when it is over."""
    seen = Counted()
    window = pa.scalar(_WINDOW, pa.int64())
    parts: list[Any] = []
    closed = None
    for batch in batches:
        starts = pc.divide(pc.cast(batch.column("ts"), pa.int64()), window)
        table = pa.table({"key": batch.column("key"), "window": starts, "v": batch.column("v")})
        parts.append(table.group_by(["key", "window"], use_threads=False).aggregate([("v", "sum")]))
        newest = pc.max(starts).as_py()
        if closed is None or newest > closed:
            parts = _close(parts, newest, seen)
            closed = newest
    _close(parts, None, seen)
    return seen.rows


def _close(parts: list[Any], newest: int | None, seen: Counted) -> list[Any]:
    """Windows before the newest are over."""
    everything = pa.concat_tables(parts)
    if newest is None:
        over, rest = everything, []
    else:
        before = pc.less(everything.column("window"), pa.scalar(newest, pa.int64()))
        over, rest = everything.filter(before), [everything.filter(pc.invert(before))]
    seen(over.group_by(["key", "window"], use_threads=False).aggregate([("v_sum", "sum")]))
    return rest


def bare_records(batches: Sequence[Any]) -> int:
    """Rows as dictionaries, a function over each, and back."""
    seen = Counted()
    for batch in batches:
        rows = [{"id": row["id"], "fee": row["v"] * FEE} for row in batch.to_pylist()]
        seen(pa.RecordBatch.from_pylist(rows))
    return seen.rows


@dataclass(frozen=True, slots=True)
class Pair:
    """A job of ours, and what takes turns with it."""

    ours: Job
    other: Job
    keys: int = 1000
    #: Rows in a second of event time.
    density: int = 1000
    batch_rows: int = BATCH_ROWS
    #: Both give as many rows.
    is_same: bool = True


PAIRS = {
    "map_filter": Pair(map_filter, bare_map_filter),
    "map_filter_small": Pair(map_filter, bare_map_filter, batch_rows=SMALL_ROWS),
    "map_filter_in_morsels": Pair(map_filter_in_morsels, map_filter),
    "map_filter_wide_in_morsels": Pair(map_filter_wide_in_morsels, map_filter_wide),
    "text_in_morsels": Pair(text_in_morsels, text),
    "tumbling": Pair(tumbling_sum, bare_tumbling_sum),
    "tumbling_many_keys": Pair(tumbling_sum, bare_tumbling_sum, keys=1_000_000, density=200_000),
    "sliding": Pair(sliding_sum, tumbling_sum, is_same=False),
    "records": Pair(record_function, bare_records),
}


def take_turns(name: str, rows: int, rounds: int) -> dict[str, list[float]]:
    """Rows per second of ours and of the other, round by round. What warms them up is not counted."""
    pair = PAIRS[name]
    batches = make_batches(rows, keys=pair.keys, rows_per_second=pair.density, batch_rows=pair.batch_rows)
    jobs = {"ours": pair.ours, "bare": pair.other}
    rates: dict[str, list[float]] = {f"{label}{kind}": [] for label in jobs for kind in ("", "_cpu")}
    given = {label: job(batches[: max(1, len(batches) // 8)]) for label, job in jobs.items()}
    for _ in range(rounds):
        for label, job in jobs.items():
            began, used = time.perf_counter(), time.process_time()
            given[label] = job(batches)
            rates[label].append(rows / (time.perf_counter() - began))
            rates[f"{label}_cpu"].append(rows / (time.process_time() - used))
    if pair.is_same and given["ours"] != given["bare"]:
        raise SystemExit(f"{name}: {given['ours']} rows came out, and {given['bare']} of the other")
    return rates


if __name__ == "__main__":
    print(json.dumps(take_turns(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
