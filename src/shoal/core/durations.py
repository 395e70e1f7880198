"""Durations as people write them: `500ms`, `0.5s`, `10s`, `5m`, `1h`, `7d`."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

RULE = "must be a duration such as 500ms, 0.5s, 10s, 5m, 1h or 7d, between 0s and 36500d"
PATTERN = r"[0-9]+(\.[0-9]+)?(ms|s|m|h|d)"

_DURATION = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>ms|s|m|h|d)")
_MICROSECONDS = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1000}
_LONGEST = timedelta(days=36500)
_LONGEST_TEXT = 32


def parse_duration(text: str) -> timedelta:
    """Read a duration, exact to the microsecond. Raises ValueError with the rule when it is none."""
    text = text.strip()
    match = _DURATION.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
    if match is None:
        raise ValueError(RULE)
    microseconds = Decimal(match["number"]) * _MICROSECONDS[match["unit"]]
    if microseconds > _LONGEST // timedelta(microseconds=1):
        raise ValueError(RULE)
    return timedelta(microseconds=round(microseconds))


def format_duration(value: timedelta | float) -> str:
    """Write a duration the way `parse_duration` reads it: exact, and in the largest unit that needs no fraction.

    From a second on a fraction is one of seconds; below, one of milliseconds. Days are written as hours: what is
    written is stored and sent, also to programs that do not know days yet.
    """
    exact = value if isinstance(value, timedelta) else timedelta(seconds=value)
    microseconds = exact // timedelta(microseconds=1)
    for unit in ("h", "m", "s"):
        if microseconds and microseconds % _MICROSECONDS[unit] == 0:
            return f"{microseconds // _MICROSECONDS[unit]}{unit}"
    unit = "s" if microseconds >= _MICROSECONDS["s"] else "ms"
    number = f"{Decimal(microseconds) / _MICROSECONDS[unit]:f}"
    return f"{number}{unit}"
