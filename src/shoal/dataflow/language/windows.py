"""Windows as users name them: `tumbling(seconds=60)`, `sliding(…)`, `session(…)`, `count(…)`.

Frozen values with their rules checked; what is done with them is in `shoal.dataflow.operators`. Lengths are whole
microseconds. Windows are half-open and aligned to 1970-01-01T00:00:00: a start is a multiple of the slide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from shoal.core.errors import InvalidError, problem

SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """As long as `size`, beginning every `slide`. Tumbling windows are those where both are the same."""

    size: int
    slide: int

    def __post_init__(self) -> None:
        problems = []
        if self.size <= 0:
            problems.append(problem("size", self.size, "must be above 0"))
        if not 0 < self.slide <= max(self.size, 1):
            problems.append(problem("slide", self.slide, "must be above 0 and no longer than the window"))
        if problems:
            raise InvalidError(problems, what="window")

    @property
    def pane(self) -> int:
        """The longest stretch of time that no window cuts: partial results are kept for each."""
        return math.gcd(self.size, self.slide)


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """Rows of a key that follow each other within `gap` belong together."""

    gap: int

    def __post_init__(self) -> None:
        if self.gap <= 0:
            raise InvalidError([problem("gap", self.gap, "must be above 0")], what="window")


@dataclass(frozen=True, slots=True)
class CountWindow:
    """So many rows of a key, in the order of their arrival, beginning every `slide` rows."""

    size: int
    slide: int

    def __post_init__(self) -> None:
        if not 0 < self.slide <= self.size:
            text = f"{self.size}, {self.slide}"
            raise InvalidError([problem("size, slide", text, "must be 0 < slide <= size")], what="window")


Window: TypeAlias = SlidingWindow | SessionWindow | CountWindow


@dataclass(frozen=True, slots=True)
class Firing:
    """When a window's result is given besides at its end, and what happens to late rows."""

    #: Give a preliminary result every so often, in processing time; 0 for never.
    early_every: int = 0
    #: Rows this much behind the watermark still correct a result that was given.
    allowed_lateness: int = 0


def tumbling(
    seconds: float = 0, *, milliseconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
) -> SlidingWindow:
    """Windows that follow each other without a gap and without overlap."""
    size = _micros(seconds, milliseconds, minutes, hours, days)
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
    return SlidingWindow(
        _micros(size_seconds, size_milliseconds, size_minutes, size_hours, 0),
        _micros(slide_seconds, slide_milliseconds, slide_minutes, slide_hours, 0),
    )


def session(
    gap_seconds: float = 0, *, gap_milliseconds: float = 0, gap_minutes: float = 0, gap_hours: float = 0
) -> SessionWindow:
    """Windows that end when nothing came for a while."""
    return SessionWindow(_micros(gap_seconds, gap_milliseconds, gap_minutes, gap_hours, 0))


def count(size: int, slide: int | None = None) -> CountWindow:
    """Windows of so many rows."""
    return CountWindow(size, size if slide is None else slide)


def _micros(seconds: float, milliseconds: float, minutes: float, hours: float, days: float) -> int:
    return round((seconds + milliseconds / 1000 + minutes * 60 + hours * 3600 + days * 86400) * SECOND)
