"""Windows as users say them: `tumbling(seconds=10)`, `sliding(60, 1)`, `session(gap_minutes=5)`, `count(100)`.

What is wrong with one is a `PlanError` that shows what was written, and where. Makes the values of
`shoal.dataflow.language.windows`.
"""

from __future__ import annotations

import math
from datetime import timedelta
from numbers import Real
from typing import Any

from shoal.core.durations import parse_duration
from shoal.core.errors import InvalidError, problem
from shoal.dataflow.errors import PlanError
from shoal.dataflow.language.functions import find_location
from shoal.dataflow.language.windows import (
    LONGEST,
    LONGEST_TEXT,
    MOST_OVERLAP,
    MOST_ROWS,
    SECOND,
    CountWindow,
    SessionWindow,
    SlidingWindow,
    overlap,
)

_MAX_WRITTEN = 200
#: What an example shows where nothing can be made out of what was written.
_EXAMPLE_SECONDS = 60.0


def tumbling(
    seconds: float = 0, *, milliseconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
) -> SlidingWindow:
    """Windows that follow each other without a gap and without overlap."""
    said = _Said("tumbling", seconds=seconds, milliseconds=milliseconds, minutes=minutes, hours=hours, days=days)
    size = said.length()
    return SlidingWindow(size, size)


def sliding(
    size_seconds: float = 0,
    slide_seconds: float = 0,
    *,
    size_milliseconds: float = 0,
    slide_milliseconds: float = 0,
    size_minutes: float = 0,
    slide_minutes: float = 0,
    size_hours: float = 0,
    slide_hours: float = 0,
) -> SlidingWindow:
    """Windows of one size that begin every so often, and so overlap."""
    said = _Said(
        "sliding",
        size_seconds=size_seconds,
        size_milliseconds=size_milliseconds,
        size_minutes=size_minutes,
        size_hours=size_hours,
        slide_seconds=slide_seconds,
        slide_milliseconds=slide_milliseconds,
        slide_minutes=slide_minutes,
        slide_hours=slide_hours,
    )
    size, slide = said.length("size_"), said.length("slide_")
    if slide > size:
        raise said.refused("must not slide by more than its size")
    said.check_overlap(size, slide)
    return SlidingWindow(size, slide)


def session(
    gap_seconds: float = 0, *, gap_milliseconds: float = 0, gap_minutes: float = 0, gap_hours: float = 0
) -> SessionWindow:
    """Windows that end when nothing came for a while."""
    said = _Said(
        "session",
        gap_seconds=gap_seconds,
        gap_milliseconds=gap_milliseconds,
        gap_minutes=gap_minutes,
        gap_hours=gap_hours,
    )
    return SessionWindow(said.length("gap_"))


def count(size: int, slide: int | None = None) -> CountWindow:
    """Windows of so many rows."""
    step = size if slide is None else slide
    said = _Said("count", size=size, **({} if slide is None else {"slide": slide}))
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in (size, step)):
        raise said.refused("must be whole numbers of rows")
    if not 0 < step <= size:
        raise said.refused("must be at least 1 row, and slide by no more than its size")
    if size > MOST_ROWS:
        raise said.refused(f"must be at most {MOST_ROWS:,} rows")
    said.check_overlap(size, step)
    return CountWindow(size, step)


_UNITS = {"milliseconds": 0.001, "seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}


class _Said:
    """What a user wrote, to be shown as such when it is wrong."""

    def __init__(self, window: str, **lengths: Any) -> None:
        self._window = window
        self._lengths = lengths

    def length(self, prefix: str = "") -> int:
        """The sum of the lengths whose names begin so, in microseconds."""
        given = {name: value for name, value in self._lengths.items() if name.startswith(prefix)}
        if not all(isinstance(each, Real) and not isinstance(each, bool) for each in given.values()):
            raise self.refused(f"must be numbers: {self._in_numbers()}")
        what = f"its {prefix.removesuffix('_')}" if prefix else "its length"
        longest = f"{what} must be at most {LONGEST_TEXT}"
        try:
            seconds = sum(float(value) * _UNITS[name.removeprefix(prefix)] for name, value in given.items())
        except OverflowError:  # a whole number that is larger than any fraction
            raise self.refused(longest) from None
        if not math.isfinite(seconds):
            raise self.refused("must be numbers that have an end")
        micros = round(seconds * SECOND)
        if micros <= 0:
            raise self.refused(f"{what} must be above 0, and is {seconds:g} seconds")
        if micros > LONGEST:
            raise self.refused(f"{longest}, and is {seconds:g} seconds")
        return micros

    def check_overlap(self, size: int, slide: int) -> None:
        """Refuse windows of which each row is in more than a user can mean."""
        windows = overlap(size, slide)
        if windows > MOST_OVERLAP:
            raise self.refused(
                f"would put each row into {windows:,} windows, and at most {MOST_OVERLAP:,} are possible"
            )

    def _in_numbers(self) -> str:
        """How to write lengths that were given as texts or timedeltas."""
        prefixes = list(dict.fromkeys(name.rpartition("_")[0] for name in self._lengths))
        return f"{self._window}({', '.join(self._as_number(f'{each}_' if each else '') for each in prefixes)})"

    def _as_number(self, prefix: str) -> str:
        given = {name.removeprefix(prefix): each for name, each in self._lengths.items() if name.startswith(prefix)}
        seconds = sum(_seconds(value, unit) for unit, value in given.items()) or _EXAMPLE_SECONDS
        for unit in ("hours", "minutes", "seconds"):
            if (seconds / _UNITS[unit]).is_integer():
                return f"{prefix}{unit}={seconds / _UNITS[unit]:g}"
        return f"{prefix}seconds={seconds:g}"

    def refused(self, rule: str) -> InvalidError:
        """The error, with the user's line."""
        said = self._lengths.items()
        written = ", ".join(f"{name}={value!r}" for name, value in said if name == "size" or not _is_zero(value))
        return PlanError([problem(f"{self._window}({written})"[:_MAX_WRITTEN], None, rule)], at=find_location())


def _seconds(value: Any, unit: str) -> float:
    """The length that a user means by a number, a text or a timedelta; 0 for anything else."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    try:
        found = parse_duration(value).total_seconds() if isinstance(value, str) else float(value) * _UNITS[unit]
    except (TypeError, ValueError, OverflowError):
        return _number(value) * _UNITS[unit]
    return found if math.isfinite(found) else 0.0


def _number(value: Any) -> float:
    """A number that was written as a text."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return found if math.isfinite(found) else 0.0


def _is_zero(value: Any) -> bool:
    """Whether it was left out, or might have been."""
    return isinstance(value, int | float) and value == 0
