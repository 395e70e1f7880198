"""A host clock that stands still until a test moves it."""

from __future__ import annotations


class StoppedClock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def since_boot(self) -> float:
        return self.seconds

    def wall_us(self) -> int:
        return 1_700_000_000_000_000 + int(self.seconds * 1_000_000)
