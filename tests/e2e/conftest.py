"""What every end-to-end test has: programs that hear Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def heard_interrupts() -> Iterator[None]:
    """Programs that a test starts hear SIGINT, also where the shell runs the tests in the background.

    Such a shell starts its jobs with SIGINT ignored, and every process below inherits that.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
