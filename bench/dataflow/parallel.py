"""Jobs over two processes beside the same over one, from rows in memory. A program.

    python -m bench.dataflow.parallel JOB ROWS ROUNDS

`function` calls a Python function with each record. `tumbling` sums each key in windows of 10 s behind a hash exchange,
with checkpoints every second and an exactly-once sink of Parquet files. Prints rows per second of `two` processes with
parallelism 2 and of `one` with parallelism 1, in turn, and the rows that came out of each. Called by
`bench.dataflow.measures`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.dataflow.made_rows import RowsSource
from bench.dataflow.memory import WINDOW_SECONDS
from bench.dataflow.rows import FEE
from shoal import CheckpointSettings, FlowSettings, Stream, tumbling
from shoal.dataflow.execution import engine

#: Seconds from one checkpoint to the next.
_INTERVAL = 1.0


def _ignore(batch: Any) -> None:
    """A sink that costs nothing."""


def _function(row: Any) -> dict[str, Any]:
    return {"id": row["id"], "fee": row["v"] * FEE}


def _run_function(rows: int, processes: int, folder: Path) -> engine.RunReport:
    del folder
    stream = Stream.from_source(RowsSource(rows)).records().map(_function)
    return _run(stream.uid("out").to_callback(_ignore), processes, FlowSettings())


def _run_tumbling(rows: int, processes: int, folder: Path) -> engine.RunReport:
    stream = Stream.from_source(RowsSource(rows), event_time="ts").group_by("key")
    sums = stream.window(tumbling(seconds=WINDOW_SECONDS)).aggregate({"total": ("v", "sum")}).uid("out")
    checkpoint = CheckpointSettings(directory=str(folder / "checkpoints"), interval=_INTERVAL)
    return _run(sums.to_parquet(str(folder / "sums")), processes, FlowSettings(checkpoint=checkpoint))


def _run(output: Any, processes: int, settings: FlowSettings) -> engine.RunReport:
    return engine.run([output.node], name="bench", parallelism=processes, settings=settings, processes=processes)


JOBS: dict[str, Callable[[int, int, Path], engine.RunReport]] = {"function": _run_function, "tumbling": _run_tumbling}


def take_turns(name: str, rows: int, rounds: int) -> dict[str, list[float]]:
    """Rows per second of one process and of two, in turn, from the start of the tasks to the end of the last."""
    rates: dict[str, list[float]] = {"two": [], "one": []}
    given: dict[int, int] = {}
    for _ in range(rounds):
        for label, processes in (("two", 2), ("one", 1)):
            with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
                report = JOBS[name](rows, processes, Path(folder))
            rates[label].append(rows / report.seconds)
            given[processes] = report.rows("out")
    if given[1] != given[2]:
        raise SystemExit(f"{name}: {given[1]} rows came out of one process, and {given[2]} of two")
    return rates


if __name__ == "__main__":
    print(json.dumps(take_turns(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
