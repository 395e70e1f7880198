"""Event time: columns of times as microseconds, and watermarks from the times that were seen.

`Watermarks` is pure and serves sources, split by split, and `AssignTimes`, the operator that names event time in the
middle of a stream. Called by `shoal.dataflow.execution.sources` and `shoal.dataflow.execution.planner`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shoal.core.clock import Clock
from shoal.core.errors import InvalidError, problem
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME, TIME, Batch
from shoal.dataflow.language.failures import PoisonError
from shoal.dataflow.language.logical import EventTime
from shoal.dataflow.operators.base import Context, Operator, OperatorState, Output

_MICROS = {"s": 1_000_000, "ms": 1000, "us": 1, "": 1}
#: A task that reads looks at the clock more often than this, in seconds.
_LONGEST_STEP = 1.0
_NS_PER_MICRO = pa.scalar(1000, pa.int64())


@dataclass(slots=True)
class _Progress:
    """What is known of one split's time."""

    greatest: int = START_OF_TIME
    heard_at: float = 0.0


class Silence:
    """Counts the seconds in which a task could have read: what idleness is measured by.

    A task that waits for a slow one behind it does not read, and what lies unread meanwhile is not silent. So the time
    from one look to the next counts for no more than a task that does read takes for it.
    """

    def __init__(self, clock: Clock, longest_step: float) -> None:
        self._clock = clock
        self._longest = longest_step
        self._looked_at = clock.monotonic()
        self._seconds = 0.0

    def seconds(self) -> float:
        """So many, up to now."""
        now = self._clock.monotonic()
        self._seconds += min(now - self._looked_at, self._longest)
        self._looked_at = now
        return self._seconds


class Watermarks:
    """The watermark of a task over its splits. Times are microseconds; `now` is what `Silence` says.

    Of a split it is the greatest time seen less the disorder. Of the task it is the least over the splits: one that was
    not heard of yet holds it back, one that is idle does not, one that ended does not. When none is left that counts
    the task is idle and its watermark stands still. It never goes back.
    """

    def __init__(self, time: EventTime, splits: Iterable[Split], now: float) -> None:
        self._disorder = time.disorder
        self._idle_after = time.idle_after / 1_000_000
        self._open = {split.name: _Progress(heard_at=now) for split in splits}
        self._current = START_OF_TIME

    def add(self, split: Split, now: float, *, greatest: int = START_OF_TIME) -> None:
        """A split more, or one whose time is known from before."""
        self._open[split.name] = _Progress(greatest, now)

    def saw(self, split: Split, greatest: int, now: float) -> None:
        """Rows of a split, the latest of them at this time."""
        progress = self._open.get(split.name)
        if progress is not None:
            progress.heard_at = now
            progress.greatest = max(progress.greatest, greatest)

    def end(self, split: Split) -> None:
        """A split has no more rows."""
        self._open.pop(split.name, None)

    def greatest(self, split: Split) -> int:
        """The greatest time seen in a split."""
        progress = self._open.get(split.name)
        return START_OF_TIME if progress is None else progress.greatest

    def current(self, now: float) -> tuple[int, bool]:
        """The watermark, and whether the task is idle."""
        active = [each for each in self._open.values() if not self._is_idle(each, now)]
        if not active:
            return self._current, True
        least = min(each.greatest for each in active)
        if least > START_OF_TIME:
            self._current = max(self._current, least - self._disorder)
        return self._current, False

    def _is_idle(self, progress: _Progress, now: float) -> bool:
        return self._idle_after > 0 and now - progress.heard_at >= self._idle_after


def to_micros(column: Any, unit: str = "") -> Any:
    """A column of times as int64 microseconds since 1970. Raises `InvalidError` for a type that is no time."""
    kind = column.type
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_integer(kind):
        whole = column if kind == pa.int64() else column.cast(pa.int64())
        if unit == "ns":
            return pc.divide(whole, _NS_PER_MICRO)
        factor = _MICROS[unit]
        return whole if factor == 1 else pc.multiply_checked(whole, pa.scalar(factor, pa.int64()))
    if pa.types.is_timestamp(kind):
        micros = column if kind.unit == "us" else column.cast(pa.timestamp("us", kind.tz), safe=False)
        return micros.cast(pa.int64())
    if pa.types.is_date(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.timestamp("us")).cast(pa.int64())
    raise InvalidError([problem("event time", kind, "must be a timestamp, a date or a whole number")])


class AssignTimes(Operator):
    """Event time named in the middle of a stream: sets the column and makes watermarks of its own."""

    _SPLIT = Split("here")

    def __init__(self, time: EventTime) -> None:
        self._time = time
        self._marks = Watermarks(time, [self._SPLIT], 0.0)
        self._silence: Silence | None = None

    def open(self, context: Context) -> None:
        """Idleness is counted from here on."""
        self._silence = Silence(context.clock, _LONGEST_STEP)
        self._marks.add(self._SPLIT, self._now())

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Put the times of the named column in their place."""
        times = to_micros(batch.column(self._time.column), self._time.unit)
        if times.null_count:
            raise PoisonError(f"column {self._time.column!r} has no time in {times.null_count} rows")
        self._marks.saw(self._SPLIT, pc.max(times).as_py(), self._now())
        if TIME in batch.schema.names:
            batch = batch.drop_columns([TIME])
        out.emit(batch.append_column(TIME, times))

    def is_idle(self) -> bool:
        """Whether no row came for a while."""
        return self._marks.current(self._now())[1]

    def _now(self) -> float:
        return 0.0 if self._silence is None else self._silence.seconds()

    def output_watermark(self, time: int) -> int:
        """The watermark behind it, whatever the one before it is; the end is the end."""
        return END_OF_TIME if time == END_OF_TIME else self._marks.current(self._now())[0]

    def snapshot(self) -> OperatorState:
        """The greatest time seen."""
        return OperatorState(shared=json.dumps({"greatest": self._marks.greatest(self._SPLIT)}).encode())

    def restore(self, states: Iterable[OperatorState]) -> None:
        """Go on from the least of the tasks' times: none of them may find its rows late."""
        found = [json.loads(state.shared)["greatest"] for state in states if state.shared]
        seen = [each for each in found if each != START_OF_TIME]
        if seen:
            self._marks.add(self._SPLIT, self._now(), greatest=min(seen))
