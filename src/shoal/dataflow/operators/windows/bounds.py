"""Which windows a moment is in: plain arithmetic on whole microseconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shoal.dataflow.language.elements import START_OF_TIME
from shoal.dataflow.language.keys import Integers
from shoal.dataflow.language.windows import SlidingWindow


def first_end(window: SlidingWindow, time: int) -> int:
    """The end of the first window that a moment is in."""
    return (time - window.size) // window.slide * window.slide + window.slide + window.size


def last_end(window: SlidingWindow, time: int) -> int:
    """The end of the last window that a moment is in."""
    return time // window.slide * window.slide + window.size


def last_ends(window: SlidingWindow, times: Integers) -> Integers:
    """The same for many moments."""
    return times // window.slide * window.slide + window.size


def next_end(window: SlidingWindow, time: int) -> int:
    """The first end of any window that is after a moment."""
    return (time - window.size) // window.slide * window.slide + window.slide + window.size


def ends_of(window: SlidingWindow, time: int) -> Iterator[int]:
    """The ends of all windows that a moment is in."""
    return iter(range(first_end(window, time), last_end(window, time) + 1, window.slide))


def due_ends(window: SlidingWindow, panes: Iterable[int], before: int, watermark: int) -> Iterator[int]:
    """The ends of the windows with rows that the watermark has passed since `before`; panes and ends are in order."""
    end = START_OF_TIME
    for pane in panes:
        start = pane * window.pane
        end = max(end + window.slide, first_end(window, start), next_end(window, before))
        while end <= min(watermark, last_end(window, start)):
            yield end
            end += window.slide
        if end > watermark:
            return
        end -= window.slide


def first_needed(window: SlidingWindow, watermark: int) -> int:
    """The first moment whose last window has not ended."""
    return (watermark - window.size) // window.slide * window.slide + window.slide
