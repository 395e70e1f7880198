"""A window whose state is larger than its memory, as a process: `python -m … KIND DIR ROWS load|finish`.

The window has `ROWS` keys, each with a row of a kilobyte. `load` reads them, waits until a checkpoint has all of them,
and is killed. `finish` goes on from that checkpoint and brings event time to its end. `KIND` is `aggregate` for the
last payload of each key, `join` for pairs with a right row for every thousandth key. Both say at the end how many bytes
the process used at most, before it began and over all; and what it went on from.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from shoal import Stream, tumbling
from shoal.dataflow.execution import engine
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from tests.integration.dataflow.large_join_job import STEP, Counting, used

DAY = tumbling(seconds=86_400)


def stream_of(kind: str, rows: int) -> Stream:
    """What is run. All rows are in the first window: their keys are their times, in microseconds."""
    left = Stream.from_source(Counting(rows, is_left=True), event_time="key", time_unit="us").uid("left")
    if kind == "aggregate":
        return left.group_by("key").window(DAY).aggregate(n=("*", "count"), payload=("payload", "last")).uid("out")
    right = Stream.from_source(Counting(rows // STEP, is_left=False), event_time="key", time_unit="us").uid("right")
    return left.join(right, on="key", window=DAY).uid("out")


def main(kind: str, directory: str, count: str, phase: str) -> None:
    """Run it."""
    rows = int(count)
    before = used()
    checkpoint = CheckpointSettings(directory=f"{directory}/checkpoints", interval=0.1)
    settings = FlowSettings(state="rocks", scratch=f"{directory}/scratch", checkpoint=checkpoint)
    sink = stream_of(kind, rows).to_parquet(f"{directory}/out/").node
    flow = engine.start([sink], name="window", settings=settings)
    if phase == "finish":
        flow.stop(finish=True)
    else:
        while sum(each.rows for each in flow.metrics().steps if each.uid == "left") < rows:
            if flow.is_done:
                flow.wait()
            time.sleep(0.05)
        done = flow.metrics().checkpoints.completed
        while flow.metrics().checkpoints.completed < done + 2:
            time.sleep(0.05)
    print(before, used(), flow.restored or 0, flush=True)
    if phase == "load":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
