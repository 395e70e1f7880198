"""What is sent: impressions and clicks as a pure function of their numbers, and the order in which they arrive.

Every event is known from the beginning, however often it is sent: so `clicks.feed` can be killed
and go on, and `clicks.audit` knows what must come of it without looking at any topic. Times are milliseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

ADS = ("anchovy", "herring", "mackerel", "sardine")
#: Of a hundred impressions of each ad so many are clicked.
_CLICKED = (12, 38, 25, 19)

#: From one impression to the next.
STEP = 2
#: What is sent at once is what arrives within so long.
CHUNK = 50
#: Most events are on the way for less than this, and so come out of order.
USUAL_DELAY = 300
#: The longest that any event is on the way.
LONGEST_DELAY = 2500
#: One click in so many comes long after everybody has stopped waiting for it, and one so long after its impression that
#: it does not belong to it.
_LATE_ONE_IN = 40
_SLOW_ONE_IN = 20

_WORD = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Impression:
    """An ad was shown."""

    impression: int
    ad: str
    shown_at: int
    arrives_at: int


@dataclass(frozen=True, slots=True)
class Click:
    """It was clicked."""

    click: int
    impression: int
    clicked_at: int
    arrives_at: int

    @property
    def delay(self) -> int:
        """How long it was on the way."""
        return self.arrives_at - self.clicked_at


def impression(start: int, number: int) -> Impression:
    """The impression of a number, of traffic that began at a time."""
    shown_at = start + number * STEP
    return Impression(number, ADS[_chance(number, 1) % len(ADS)], shown_at, shown_at + _chance(number, 2) % USUAL_DELAY)


def click(start: int, number: int) -> Click | None:
    """The click on an impression; None when there was no click."""
    if _chance(number, 3) % 100 >= _CLICKED[_chance(number, 1) % len(ADS)]:
        return None
    after = 50 + _chance(number, 4) % 1500
    if _chance(number, 5) % _SLOW_ONE_IN == 0:
        after += 2000
    delay = _chance(number, 6) % USUAL_DELAY
    if _chance(number, 7) % _LATE_ONE_IN == 0:
        delay += LONGEST_DELAY - USUAL_DELAY
    clicked_at = start + number * STEP + after
    return Click(number, number, clicked_at, clicked_at + delay)


def chunks(start: int, first: int = 0) -> Iterator[tuple[list[Impression], list[Click]]]:
    """What arrives in each `CHUNK` from the first one asked for on, in the order of arrival; without an end."""
    # A start in the middle begins with impressions whose clicks may arrive now: 3,550 ms after them at most.
    number = max(0, (first * CHUNK - 2000 - 1550 - LONGEST_DELAY) // STEP)
    waiting: list[tuple[int, int, int, Impression | Click]] = []
    chunk = first
    while True:
        end = start + (chunk + 1) * CHUNK
        while start + number * STEP < end:
            shown, clicked = impression(start, number), click(start, number)
            heapq.heappush(waiting, (shown.arrives_at, 0, number, shown))
            if clicked is not None:
                heapq.heappush(waiting, (clicked.arrives_at, 1, number, clicked))
            number += 1
        impressions: list[Impression] = []
        clicks: list[Click] = []
        while waiting and waiting[0][0] < end:
            arrives_at, _kind, _number, event = heapq.heappop(waiting)
            if arrives_at < start + chunk * CHUNK:
                continue  # it belongs to a chunk before the first
            if isinstance(event, Impression):
                impressions.append(event)
            else:
                clicks.append(event)
        yield impressions, clicks
        chunk += 1


def _chance(number: int, use: int) -> int:
    """A number that looks like chance, and is the same each time."""
    word = (number * 8 + use) * 0x9E3779B97F4A7C15 & _WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
    return word ^ word >> 31
