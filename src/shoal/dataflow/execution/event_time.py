"""Event time: columns of times as microseconds, and watermarks from the times that were seen.

`Watermarks` is pure and serves sources, split by split, and `AssignTimes`, the operator that names event time in the
middle of a stream. Called by `shoal.dataflow.execution.sources` and `shoal.dataflow.execution.building`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shoal.core.clock import Clock
from shoal.core.errors import InvalidError, problem
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.errors import PoisonError
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME, TIME, Batch
from shoal.dataflow.language.logical import EventTime
from shoal.dataflow.operators.base import Context, OperatorState, Output, StepOperator

#: Why a row that has a null for its event time cannot be used.
NO_TIME = "no event time"
_MICROS = {"d": 86_400_000_000, "s": 1_000_000, "ms": 1000, "us": 1, "": 1}
#: The years 1 to 9999, in microseconds: what dates of Python and RFC 3339 can say. Far from what 64 bits hold, so that
#: windows around a time cannot overflow.
_EARLIEST, _LATEST = -62_135_596_800_000_000, 253_402_300_799_999_999
#: A task that reads looks at the clock more often than this, in seconds.
_LONGEST_STEP = 1.0
#: So many splits at a time are asked for their end.
_MOST_ASKED = 32
_NS_PER_MICRO = pa.scalar(1000, pa.int64())


@dataclass(slots=True)
class _Progress:
    """What is known of one split's time."""

    greatest: int = START_OF_TIME
    #: When its last rows came, or when it was last known not to be at its end.
    heard_at: float = 0.0
    #: When it was last confirmed that it is at its end; None when that was not confirmed since `heard_at`.
    confirmed_at: float | None = None


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

    A split is idle when it brought nothing for the time that the user gave. With `confirms` it must have been at its
    end all that time, and its broker must have confirmed that: a slow one is not idle.
    """

    def __init__(self, time: EventTime, splits: Iterable[Split], now: float, *, confirms: bool = False) -> None:
        self._disorder = time.disorder
        self._idle_after = time.idle_after / 1_000_000
        self._confirms = confirms
        self._open = {split.name: _Progress(heard_at=now) for split in splits}
        self._current = START_OF_TIME

    def add(self, split: Split, now: float, *, greatest: int = START_OF_TIME) -> None:
        """A split more, or one whose time is known from before."""
        self._open[split.name] = _Progress(greatest, now)

    def saw(self, split: Split, greatest: int, now: float) -> None:
        """Rows of a split, the latest of them at this time."""
        progress = self._open.get(split.name)
        if progress is not None:
            progress.heard_at, progress.confirmed_at = now, None
            progress.greatest = max(progress.greatest, greatest)

    def see_ends(self, at_end: Collection[str], now: float) -> list[str]:
        """Which splits are at their end, as far as the reader knows. Gives those that are to be confirmed now."""
        asked: list[str] = []
        for name, progress in self._open.items():
            if name not in at_end:
                progress.heard_at, progress.confirmed_at = now, None
            elif self._is_silent(progress, now):
                last = progress.confirmed_at
                if last is None or now - last >= self._idle_after:
                    asked.append(name)
        return asked[:_MOST_ASKED]

    def confirm(self, asked: Iterable[str], confirmed: Collection[str], now: float) -> None:
        """Which of the splits that were asked for are at their end; the others count as heard of."""
        for name in asked:
            progress = self._open[name]
            if name in confirmed:
                progress.confirmed_at = now
            else:
                progress.heard_at, progress.confirmed_at = now, None

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

    def slowest(self, at_end: Collection[str], now: float) -> int | None:
        """The time of the slowest split that has still something to read; None when there is none."""
        behind = (
            each.greatest
            for name, each in self._open.items()
            if each.greatest > START_OF_TIME and name not in at_end and not self._is_idle(each, now)
        )
        return min(behind, default=None)

    def beyond(self, most: int) -> frozenset[str]:
        """The splits whose time is greater than this."""
        return frozenset(name for name, each in self._open.items() if each.greatest > most)

    def _is_idle(self, progress: _Progress, now: float) -> bool:
        return self._is_silent(progress, now) and (not self._confirms or progress.confirmed_at is not None)

    def _is_silent(self, progress: _Progress, now: float) -> bool:
        return self._idle_after > 0 and now - progress.heard_at >= self._idle_after


# ---------------------------------------------------------------------------------------------------------
# Columns of times


def to_micros(column: Any, unit: str = "") -> Any:
    """A column of times as int64 microseconds since 1970; null where there is none that fits (see `why_unfit`).

    Raises `InvalidError` for a type that is no time.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if _is_text(column.type):
        return _scaled(_parsed(column).cast(pa.int64()), "us")
    counts, unit = _counted(column, unit)
    return _scaled(counts, unit)


def why_unfit(column: Any, unit: str, rows: Sequence[int], field: str) -> list[str]:
    """Why `to_micros` has no time for these rows."""
    values = column.take(pa.array(rows, pa.int64()))
    rule = "must be a time of the years 1 to 9999"
    if _is_text(column.type):
        rule = f"{rule}, such as 2026-01-31T12:00:00"
    else:
        values, unit = _counted(values, unit)  # times that are too large for Python cannot be shown as times
        rule = f"{rule}, in {unit or 'us'} since 1970"
    return [NO_TIME if each is None else str(problem(field, each, rule)) for each in values.to_pylist()]


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _counted(column: Any, unit: str) -> tuple[Any, str]:
    """A column as whole numbers, and what they count."""
    kind = column.type
    if pa.types.is_integer(kind) and (unit in _MICROS or unit == "ns"):
        return column, unit
    if pa.types.is_integer(kind):
        raise InvalidError([problem("time unit", unit, "must be s, ms, us or ns")])
    if pa.types.is_timestamp(kind):
        return column.cast(pa.int64()), kind.unit
    if pa.types.is_date32(kind):
        return column.cast(pa.int32()), "d"
    if pa.types.is_date64(kind):
        return column.cast(pa.int64()), "ms"
    raise InvalidError([problem("event time", kind, "must be a timestamp, a date or a whole number")])


def _scaled(counts: Any, unit: str) -> Any:
    """Whole numbers as microseconds, null where they are out of range."""
    counts = _within(counts, *_range_of(unit))
    whole = counts if counts.type == pa.int64() else counts.cast(pa.int64())
    if unit == "ns":
        return pc.divide(whole, _NS_PER_MICRO)
    factor = _MICROS[unit]
    return whole if factor == 1 else pc.multiply(whole, pa.scalar(factor, pa.int64()))


def _range_of(unit: str) -> tuple[int, int]:
    """The first and the last count that is in range."""
    if unit == "ns":  # all that 64 bits hold: the years 1678 to 2262
        return -(2**63), 2**63 - 1
    return -(-_EARLIEST // _MICROS[unit]), _LATEST // _MICROS[unit]


def _within(counts: Any, low: int, high: int) -> Any:
    """The numbers with nulls for those that are out of range. Usually none is, and nothing is copied."""
    found = pc.min_max(counts)
    least, greatest = found["min"].as_py(), found["max"].as_py()
    if least is None or (low <= least and greatest <= high):
        return counts
    if counts.type == pa.uint64():
        fits = pc.less_equal(counts, pa.scalar(high, pa.uint64()))
    else:
        wide = counts.cast(pa.int64())
        fits = pc.and_(pc.greater_equal(wide, pa.scalar(low)), pc.less_equal(wide, pa.scalar(high)))
    return pc.if_else(fits, counts, pa.scalar(None, counts.type))


def _parsed(column: Any) -> Any:
    """Texts as times, null where they are none."""
    kind = pa.timestamp("us")
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:  # one of them; which one is found by halving
        if len(column) == 1:
            return pa.nulls(1, kind)
        half = len(column) // 2
        return pa.concat_arrays([_parsed(column.slice(0, half)), _parsed(column.slice(half))])


# ---------------------------------------------------------------------------------------------------------
# Event time in the middle of a stream


class AssignTimes(StepOperator):
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
        name = self._time.column
        times = to_micros(batch.column(name), self._time.unit)
        if times.null_count:
            raise self._no_times(batch.column(name), times)
        self._marks.saw(self._SPLIT, pc.max(times).as_py(), self._now())
        if TIME in batch.schema.names:
            batch = batch.drop_columns([TIME])
        out.emit(batch.append_column(TIME, times))

    def _no_times(self, column: Any, times: Any) -> PoisonError:
        name = self._time.column
        first = pc.indices_nonzero(pc.is_null(times))[0].as_py()
        (why,) = why_unfit(column, self._time.unit, [first], f"event time column {name!r}")
        return PoisonError(
            f"column {name!r} has no time in {times.null_count} rows, such as: {why}",
            hint=f"leave them out before: .filter(…) in front of .event_time({name!r}), "
            f'such as .filter(col("{name}").is_valid())',
            column=name,
        )

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
