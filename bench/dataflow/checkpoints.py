"""What checkpoints cost: how long a task stands still, what is written, and what is left of the throughput. A program.

    python -m bench.dataflow.checkpoints changes KEYS ROUNDS
    python -m bench.dataflow.checkpoints often ROWS ROUNDS

`changes` keeps a sum for each key, changes one of a hundred of them between two checkpoints, and prints how long the
task stood still, how much was written, and how much a whole checkpoint is. `often` prints rows per second of jobs with
a checkpoint every 100 ms, in turn with the same job without. Called by `bench.dataflow.measures`.
"""

from __future__ import annotations

import json
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.dataflow.memory import WINDOW_SECONDS, Counted
from bench.dataflow.rows import BATCH_ROWS, SEED, make_batches
from shoal import CheckpointSettings, FlowSettings, Stream, tumbling
from shoal.dataflow.execution import engine

#: Seconds from the begin of one checkpoint to that of the next.
INTERVAL = 0.1
#: One key of so many changes between two checkpoints.
SHARE = 100
_PAUSE = threading.Event()


def measure_changes(keys: int, rounds: int) -> dict[str, float]:
    """Milliseconds of pause and bytes of a checkpoint after one key of a hundred changed, and of a whole one."""
    given: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def feed() -> Iterator[Any]:
        while (batch := given.get()) is not None:
            yield batch

    schema = pa.schema({"key": pa.int64(), "v": pa.int64()})
    stream = Stream.from_iterable(feed, schema=schema, bounded=False).group_by("key").aggregate({"n": ("v", "sum")})
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = CheckpointSettings(directory=folder, interval=INTERVAL, min_pause=0.0)
        sink = stream.to_callback(Counted()).node
        flow = engine.start([sink], name="bench", settings=FlowSettings(checkpoint=checkpoint))
        try:
            return _changes(flow, given, keys, rounds)
        finally:
            given.put(None)
            flow.abort()


def _changes(flow: engine.RunningFlow, given: Any, keys: int, rounds: int) -> dict[str, float]:
    random = np.random.default_rng(SEED)
    every = np.arange(keys)
    # Each key comes once, so that what is written of all of them is what a whole checkpoint has.
    loaded = threading.Event()
    sizes: list[int] = []
    watching = threading.Thread(target=_watch, args=(flow, loaded, sizes))
    watching.start()
    _give(flow, given, every)
    _next_checkpoints(flow)
    loaded.set()
    watching.join()
    found = []
    for _ in range(rounds):
        _give(flow, given, random.choice(keys, keys // SHARE, replace=False))
        found.append(max(_next_checkpoints(flow)))
    return {
        "pause": statistics.median(pause for _written, pause in found) * 1000,
        "longest_pause": max(pause for _written, pause in found) * 1000,
        "written": statistics.median(written for written, _pause in found),
        "whole": sum(sizes),
    }


def _watch(flow: engine.RunningFlow, loaded: threading.Event, sizes: list[int]) -> None:
    """Note how much each checkpoint has written until all keys are there."""
    last = 0
    while not loaded.wait(0.002):
        now = flow.metrics().checkpoints
        if now.last_number > last:
            last = now.last_number
            sizes.append(now.last_bytes)


def _give(flow: engine.RunningFlow, given: Any, keys: Any) -> None:
    """Change keys, and wait until they are taken in."""
    before = _rows_read(flow)
    for start in range(0, len(keys), BATCH_ROWS):
        some = pa.array(keys[start : start + BATCH_ROWS])
        given.put(pa.record_batch({"key": some, "v": pa.array(np.ones(len(some), np.int64))}))
    while _rows_read(flow) < before + len(keys):
        _PAUSE.wait(0.001)


def _rows_read(flow: engine.RunningFlow) -> int:
    return flow.metrics().steps[0].rows


def _next_checkpoints(flow: engine.RunningFlow) -> list[tuple[int, float]]:
    """Bytes and pauses of the next two: the first may have begun before the keys were taken in."""
    found: dict[int, tuple[int, float]] = {}
    last = flow.metrics().checkpoints.last_number
    while len(found) < 2:
        now = flow.metrics().checkpoints
        if now.last_number > last:
            found[now.last_number] = now.last_bytes, now.last_pause
        _PAUSE.wait(0.002)
    return list(found.values())


# ---------------------------------------------------------------------------------------------------------
# With and without checkpoints


def _windows(stream: Stream) -> Stream:
    return stream.group_by("key").window(tumbling(seconds=WINDOW_SECONDS)).aggregate({"total": ("v", "sum")})


def _sums(stream: Stream) -> Stream:
    return stream.group_by("key").aggregate({"total": ("v", "sum")})


@dataclass(frozen=True, slots=True)
class Job:
    """What is run with checkpoints and without."""

    build: Callable[[Stream], Stream]
    keys: int
    #: Rows in a second of event time.
    density: int
    #: How many times as many rows are made, and how often each batch of them is read: a run is to be long beside its
    #: start and its end.
    made: int = 1
    read: int = 1


JOBS = {
    "tumbling": Job(_windows, 1000, 1000, made=3, read=10),
    "tumbling_many_keys": Job(_windows, 1_000_000, 200_000, made=2, read=2),
    "sums": Job(_sums, 100_000, 1000, read=10),
}


def measure_often(rows: int, rounds: int) -> dict[str, dict[str, float]]:
    """Rows per second of each job with checkpoints and without, in turn."""
    return {name: _take_turns(job, rows * job.made, rounds) for name, job in JOBS.items()}


def _take_turns(job: Job, rows: int, rounds: int) -> dict[str, float]:
    batches = _read_again(make_batches(rows, keys=job.keys, rows_per_second=job.density), job.read)
    rows *= job.read
    rates: dict[str, list[float]] = {"with": [], "without": []}
    _run(job, batches[: max(1, len(batches) // 8)], with_checkpoints=True)
    for _ in range(rounds):
        for label, found in rates.items():
            began = time.perf_counter()
            _run(job, batches, with_checkpoints=label == "with")
            found.append(rows / (time.perf_counter() - began))
    return {label: statistics.median(found) for label, found in rates.items()}


def _read_again(batches: Sequence[Any], times: int) -> list[Any]:
    """The batches so many times one after the other, each time later. All but their times is shared."""
    span = pc.max(batches[-1]["ts"]).cast(pa.int64()).as_py() + 1 - pc.min(batches[0]["ts"]).cast(pa.int64()).as_py()
    return [_later(batch, span * turn) for turn in range(times) for batch in batches]


def _later(batch: Any, by: int) -> Any:
    index = batch.schema.get_field_index("ts")
    times = pc.add(batch["ts"].cast(pa.int64()), by).cast(batch["ts"].type)
    return batch.set_column(index, batch.schema.field(index), times)


def _run(job: Job, batches: Sequence[Any], *, with_checkpoints: bool) -> None:
    stream = job.build(Stream.from_batches(batches, event_time="ts"))
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = CheckpointSettings(directory=folder, interval=INTERVAL) if with_checkpoints else None
        engine.run([stream.to_callback(Counted()).node], name="bench", settings=FlowSettings(checkpoint=checkpoint))


if __name__ == "__main__":
    measure = {"changes": measure_changes, "often": measure_often}[sys.argv[1]]
    print(json.dumps(measure(int(sys.argv[2]), int(sys.argv[3]))))
