"""What the keeper says about itself, into its own log. Never raises: a full disk must not end it."""

from __future__ import annotations

import contextlib
import os
import traceback

from shoal.runtimes.clocks import LinuxClock, iso_millis

_STDERR = 2


def say(text: str) -> None:
    """One line."""
    with contextlib.suppress(OSError):
        os.write(_STDERR, f"{iso_millis(LinuxClock().wall_ms())} {text}\n".encode(errors="replace"))


def say_exception() -> None:
    """The exception that is being handled, with where it came from."""
    say(traceback.format_exc().rstrip())
