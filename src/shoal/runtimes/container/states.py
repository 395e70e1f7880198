"""What an engine says of the state of a container. Pure; called by the container and the compose runtime."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from shoal.core.clock import epoch_ms
from shoal.runtimes.container.records import RunEnd

#: Exit codes from here on stand for a signal, by the convention of shells and engines.
_SIGNAL_BASE = 128
_HIGHEST_SIGNAL = 64


def is_running(found: Mapping[str, Any]) -> bool:
    """Whether a container has a process."""
    return bool(found["State"].get("Running") or found["State"].get("Paused") or found["State"].get("Restarting"))


def has_started(found: Mapping[str, Any]) -> bool:
    """Whether a container was ever started."""
    return millis(found["State"].get("StartedAt")) > 0


def end_of(state: Mapping[str, Any], now_ms: int, *, out_of_memory: bool) -> RunEnd:
    """How a container ended, from its `State`."""
    status = int(state.get("ExitCode") or 0)
    by_signal = _SIGNAL_BASE < status <= _SIGNAL_BASE + _HIGHEST_SIGNAL
    return RunEnd(
        code=0 if by_signal else status,
        signal=status - _SIGNAL_BASE if by_signal else 0,
        ended_at_ms=millis(state.get("FinishedAt")) or now_ms,
        out_of_memory=out_of_memory or bool(state.get("OOMKilled")),
    )


def millis(text: object) -> int:
    """An engine's time as milliseconds; 0 for its zero, which is in the year 1."""
    if not isinstance(text, str) or text.startswith("0001-"):
        return 0
    try:
        return epoch_ms(datetime.fromisoformat(text))
    except ValueError:
        return 0
