"""Lengths of time and amounts as users write them, as whole microseconds and bytes."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import TypeAlias

from shoal.core import durations
from shoal.core.errors import problem
from shoal.dataflow.errors import Location, PlanError
from shoal.dataflow.language.windows import LONGEST, LONGEST_TEXT

#: A timedelta, a text such as "5s" or "-10m", or a number of seconds.
Span: TypeAlias = timedelta | str | float

_MICROSECOND = timedelta(microseconds=1)
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def micros(value: Span, field: str, *, at: Location | None = None, least: int | None = 0) -> int:
    """A length of time in microseconds. Raises `PlanError`, also below `least`, and above what any may be."""
    found = _micros(value)
    if found is None:
        rule = 'must be a length of time: timedelta(seconds=5), "5s", or a number of seconds'
        raise PlanError([problem(field, value, f"{rule}; of at most {LONGEST_TEXT}")], at=at)
    if least is not None and found < least:
        raise PlanError([problem(field, value, f"must be at least {least / 1_000_000:g} seconds")], at=at)
    return bounded(found, value, field, at=at)


def bounded(found: int, value: object, field: str, *, at: Location | None = None) -> int:
    """A length of time in microseconds, as it is. Raises `PlanError`, with what was written, above what any may be."""
    if abs(found) > LONGEST:
        raise PlanError([problem(field, value, f"must be at most {LONGEST_TEXT}")], at=at)
    return found


def _micros(value: Span) -> int | None:
    if isinstance(value, timedelta):
        return value // _MICROSECOND
    if isinstance(value, str):
        sign, text = (-1, value.strip()[1:]) if value.strip().startswith("-") else (1, value)
        try:
            return sign * (durations.parse_duration(text) // _MICROSECOND)
        except ValueError:
            return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        counted = value * 1_000_000
        return round(counted) if isinstance(counted, int) or math.isfinite(counted) else None
    return None


def size(value: int | str, field: str, *, at: Location | None = None) -> int:
    """An amount of memory in bytes: a number of them, or a text such as "512MB" or "1GiB"."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise PlanError([problem(field, value, 'must be bytes, or a text such as "512MB" or "1GiB"')], at=at)
    base = 1024 if match[3] else 1000
    return round(float(match[1]) * float(base ** _POWERS[match[2].lower()]))


def show_micros(value: int) -> str:
    """A length of time for people."""
    sign = "-" if value < 0 else ""
    return sign + durations.format_duration(timedelta(microseconds=abs(value)))
