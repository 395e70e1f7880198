"""The HEALTHCHECK of an image as a readiness probe of the agent. Pure.

Engines run it with timers of systemd or not at all, so theirs is switched off and the agent runs the command.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from shoal.model.workloads import MAX_DURATION, CommandProbe, Readiness

_SHELL = ("/bin/sh", "-c")
_NANOS = 1_000_000_000
#: What engines use where the image says nothing.
_INTERVAL, _TIMEOUT, _RETRIES = 30.0, 30.0, 3
_SHORTEST, _MOST_RETRIES = 0.1, 1000
#: Until it is ready first it is asked this often, whatever its interval: a start should not take half a minute.
_FIRST_INTERVAL = 0.5
_FIRST_DEADLINE = 60.0


def readiness_of(healthcheck: Mapping[str, Any]) -> Readiness | None:
    """The probe that a HEALTHCHECK means; None for none, `NONE`, and one that cannot be read."""
    words = healthcheck.get("Test")
    if not isinstance(words, list) or len(words) < 2 or not all(isinstance(word, str) for word in words):
        return None
    command = {"CMD": tuple(words[1:]), "CMD-SHELL": (*_SHELL, words[1])}.get(words[0])
    if command is None:
        return None
    interval = _seconds(healthcheck.get("Interval"), _INTERVAL)
    retries = healthcheck.get("Retries")
    threshold = retries if isinstance(retries, int) and 0 < retries <= _MOST_RETRIES else _RETRIES
    deadline = max(_FIRST_DEADLINE, _seconds(healthcheck.get("StartPeriod"), 0.0) + interval * threshold)
    return Readiness(
        command=CommandProbe(command=command),
        interval=timedelta(seconds=min(interval, _FIRST_INTERVAL)),
        timeout=timedelta(seconds=_seconds(healthcheck.get("Timeout"), _TIMEOUT)),
        deadline=min(timedelta(seconds=deadline), MAX_DURATION),
        period=timedelta(seconds=interval),
        failure_threshold=threshold,
    )


def _seconds(nanoseconds: object, default: float) -> float:
    if not isinstance(nanoseconds, int) or nanoseconds <= 0:
        return default
    return min(max(nanoseconds / _NANOS, _SHORTEST), MAX_DURATION.total_seconds())
