"""A join whose state is larger than its memory, as a process: `python -m … DIR ROWS load|match`.

`load` reads `ROWS` left rows of a kilobyte each, waits until a checkpoint has all of them, and is killed. `match` goes
on from that checkpoint, brings a right row for every thousandth left one, and stops when their pairs are out. Both say
at the end how many bytes the process used at most, before it began and over all; and what it went on from.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from shoal import Stream
from shoal.core.clock import Clock
from shoal.dataflow.connectors.base import Fetched, Split
from shoal.dataflow.execution import engine
from shoal.dataflow.settings import CheckpointSettings, FlowSettings

LEFT = pa.schema([("key", pa.int64()), ("payload", pa.binary())])
RIGHT = pa.schema([("key", pa.int64()), ("right", pa.int64())])
PAYLOAD = 1000
STEP = 1000
#: Rows that are read before a checkpoint has them.
AHEAD = 20_000


def payload(key: int) -> bytes:
    """What a left row carries; it cannot be compressed."""
    return random.Random(key).randbytes(PAYLOAD)


@dataclass(frozen=True)
class Counting:
    """Rows by their number, without an end: nothing comes behind the last one."""

    rows: int
    is_left: bool
    is_bounded: bool = False
    label: str = "counting"
    most_splits: int = 1

    def find_schema(self) -> pa.Schema:
        """Its columns."""
        return LEFT if self.is_left else RIGHT

    def find_splits(self) -> Sequence[Split]:
        """One."""
        return [Split("0")]

    def open_reader(self, splits: Sequence[Split], schema: pa.Schema, *, clock: Clock) -> CountingReader:
        """Begin to read."""
        return CountingReader(self, schema)


class CountingReader:
    """Its position is the number of the next row."""

    def __init__(self, source: Counting, schema: pa.Schema) -> None:
        self._source = source
        self._schema = schema
        self._next = 0
        self._saved = 0

    def seek(self, split: Split, position: Any) -> None:
        """Go on with a row."""
        self._next = self._saved = position

    def commit_offsets(self, positions: Mapping[str, Any]) -> None:
        """A checkpoint has so many rows."""
        self._saved = positions["0"] or 0

    def fetch(self, *, max_rows: int, timeout: float) -> Fetched | None:
        """Some rows; not many more than checkpoints have, as these hold in memory what is new."""
        numbers = range(self._next, min(self._next + 2000, self._saved + AHEAD, self._source.rows))
        if not numbers:
            time.sleep(0.01)
            return None
        self._next = numbers.stop
        if self._source.is_left:
            columns: dict[str, Any] = {"key": list(numbers), "payload": [payload(each) for each in numbers]}
        else:
            columns = {"key": [each * STEP for each in numbers], "right": list(numbers)}
        batch = pa.record_batch(columns, schema=self._source.find_schema())
        return Fetched(Split("0"), batch.select(self._schema.names), self._next)

    def ended(self) -> frozenset[Split]:
        """It has no end."""
        return frozenset()

    def close(self) -> None:
        """There is nothing to let go of."""


def used(field: str = "VmHWM") -> int:
    """Bytes of memory of this process: at most, or now."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def main(directory: str, count: str, phase: str) -> None:
    """Run it."""
    rows = int(count)
    before = used()
    left = Stream.from_source(Counting(rows, is_left=True)).uid("left")
    right = Stream.from_source(Counting(rows // STEP if phase == "match" else 0, is_left=False)).uid("right")
    joined = left.join(right, on="key").uid("join")
    checkpoint = CheckpointSettings(directory=f"{directory}/checkpoints", interval=0.1)
    settings = FlowSettings(state="rocks", scratch=f"{directory}/scratch", checkpoint=checkpoint)
    flow = engine.start([joined.to_parquet(f"{directory}/out/").uid("out").node], name="join", settings=settings)

    def emitted(uid: str) -> int:
        return sum(each.rows for each in flow.metrics().steps if each.uid == uid)

    wanted = ("left", rows) if phase == "load" else ("join", rows // STEP)
    while emitted(wanted[0]) < wanted[1]:
        if flow.is_done:
            flow.wait()
        time.sleep(0.05)
    if phase == "match":
        flow.stop()
    else:
        done = flow.metrics().checkpoints.completed
        while flow.metrics().checkpoints.completed < done + 2:
            time.sleep(0.05)
    print(before, used(), flow.restored or 0, flush=True)
    if phase == "load":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
