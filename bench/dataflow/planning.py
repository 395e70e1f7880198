"""How long it takes from a program to a plan that can run. Run as a program; prints one line of JSON."""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import time
from typing import Any

from bench.dataflow.rows import make_batches
from shoal import Stream, col, tumbling
from shoal.dataflow.connectors.memory import CollectSink
from shoal.dataflow.language.logical import Sink
from shoal.dataflow.plan.physical import plan
from shoal.dataflow.plan.prepare import prepare

TIMES = 20
ROWS = make_batches(100, keys=10, rows_per_second=10)


def define() -> Any:
    """Two sources, a join, expressions and a window."""
    orders = Stream.from_batches(ROWS, event_time="ts")
    users = Stream.from_batches(ROWS, event_time="ts").select("key", region=col("id"))
    large = orders.filter(col("v") > 10.0).with_columns(fee=col("v") * 0.03, half=col("v") / 2)
    joined = large.join(users, on="key")
    return joined.group_by("region").window(tumbling(seconds=10)).aggregate({"total": ("fee", "sum")})


def _milliseconds(call: Any) -> float:
    taken = []
    for _ in range(TIMES):
        began = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken)


def _plan() -> None:
    prepared = prepare([Sink(inputs=(define().node,), connector=CollectSink(), uid="result")])
    plan(prepared.sinks, parallelism=2, key_groups=128)


def _explain() -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        define().explain(parallelism=2)


if __name__ == "__main__":
    _plan()
    _explain()
    print(json.dumps({"plan": _milliseconds(_plan), "explain": _milliseconds(_explain)}))
