"""Durations as people write them: `500ms`, `0.5s`, `10s`, `5m`, `1h`."""

from __future__ import annotations

import re
from datetime import timedelta

RULE = "must be a duration such as 500ms, 0.5s, 10s, 5m or 1h"
PATTERN = r"[0-9]+(\.[0-9]+)?(ms|s|m|h)"

_DURATION = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = timedelta(days=36500).total_seconds()


def parse_duration(text: str) -> timedelta:
    """Read a duration. Raises ValueError with the rule when it is none."""
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match["number"]) * _UNITS[match["unit"]] if match else -1.0
    if not 0 <= seconds <= _LONGEST:
        raise ValueError(RULE)
    return timedelta(seconds=seconds)


def format_duration(value: timedelta | float) -> str:
    """Write a duration the way `parse_duration` reads it, in the largest unit that stays exact to the millisecond."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    millis = round(seconds * 1000)
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if millis and millis % size == 0:
            return f"{millis // size}{unit}"
    if millis >= 1000:
        return f"{millis / 1000:g}s"
    return f"{millis}ms"
