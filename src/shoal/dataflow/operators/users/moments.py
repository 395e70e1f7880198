"""Points in time and delays as users of timers write them, in microseconds.

Called by the context of process functions, `shoal.dataflow.operators.users.current`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME
from shoal.dataflow.language.lengths import Span, micros

#: A point in time: microseconds since 1970, or a datetime. One without a zone is UTC.
Time: TypeAlias = int | datetime
#: A length of time, counted from the current time: "5s", or a timedelta. A bare number would be a point in time.
Delay: TypeAlias = str | timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def life_micros(ttl: Span) -> int:
    """How long state lives, in microseconds; 0 is for ever. Raises `PlanError` for what is no length of time."""
    return micros(ttl, "ttl")


def time_micros(time: Time, field: str = "time") -> int:
    """A point in time in microseconds. Raises `InvalidError` for anything else, also for a delay."""
    if isinstance(time, datetime):
        return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    # Numbers from NumPy and Arrow columns are whole, too.
    whole = getattr(time, "__index__", None)
    if whole is None or isinstance(time, bool):
        raise InvalidError([problem(field, time, "must be microseconds since 1970, or a datetime")])
    found = int(whole())
    if not START_OF_TIME <= found <= END_OF_TIME:
        raise InvalidError([problem(field, time, "must be microseconds since 1970 that fit into 64 bits")])
    return found


def timer_micros(time: Time | Delay, now: int) -> int:
    """The time of a timer, in microseconds: a point in time, or a delay from `now`."""
    if isinstance(time, str | timedelta):
        return now + micros(time, "timer")
    return time_micros(time, "timer")
