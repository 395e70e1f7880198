"""Windows: what `tumbling(seconds=60)` and the others of `shoal.dataflow.api.streams.windows` make.

Frozen values with their rules checked; what is done with them is in `shoal.dataflow.operators`. Lengths are whole
microseconds. Windows are half-open and aligned to 1970-01-01T00:00:00: a start is a multiple of the slide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from shoal.core.errors import InvalidError, problem

SECOND = 1_000_000
DAY = 86_400 * SECOND

#: No length of time in a program is longer. Behind any event time it is far from what 64 bits hold.
LONGEST = 36_500 * DAY
LONGEST_TEXT = "36500 days (100 years)"
#: No window of rows is larger: they are kept.
MOST_ROWS = 1_000_000_000
#: No row is in more windows at once.
MOST_OVERLAP = 1_000_000


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """As long as `size`, beginning every `slide`. Tumbling windows are those where both are the same."""

    size: int
    slide: int

    def __post_init__(self) -> None:
        problems = []
        if self.size <= 0:
            problems.append(problem("size", self.size, "must be above 0"))
        if self.size > LONGEST:
            problems.append(problem("size", self.size, f"must be at most {LONGEST_TEXT}"))
        if not 0 < self.slide <= max(self.size, 1):
            problems.append(problem("slide", self.slide, "must be above 0 and no longer than the window"))
        elif overlap(self.size, self.slide) > MOST_OVERLAP:
            problems.append(problem("slide", self.slide, f"must put a row into at most {MOST_OVERLAP:,} windows"))
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
        if not 0 < self.gap <= LONGEST:
            rule = f"must be above 0 and at most {LONGEST_TEXT}"
            raise InvalidError([problem("gap", self.gap, rule)], what="window")


@dataclass(frozen=True, slots=True)
class CountWindow:
    """So many rows of a key, in the order of their arrival, beginning every `slide` rows."""

    size: int
    slide: int

    def __post_init__(self) -> None:
        if not 0 < self.slide <= self.size <= MOST_ROWS or overlap(self.size, self.slide) > MOST_OVERLAP:
            text = f"{self.size}, {self.slide}"
            rule = f"must be 0 < slide <= size <= {MOST_ROWS:,}, with a row in at most {MOST_OVERLAP:,} windows"
            raise InvalidError([problem("size, slide", text, rule)], what="window")


def overlap(size: int, slide: int) -> int:
    """How many windows a row is in, at most."""
    return -(-size // slide)


Window: TypeAlias = SlidingWindow | SessionWindow | CountWindow


@dataclass(frozen=True, slots=True)
class Firing:
    """When a window's result is emitted besides at its end, and what happens to late rows."""

    #: Give a preliminary result every so often, in processing time; 0 for never.
    early_every: int = 0
    #: Rows this much behind the watermark still correct a result that was emitted.
    allowed_lateness: int = 0
