"""How a store fails: one type, and what became of the change.

    StoreError                 an `UnavailableError`: the same call may succeed later
    ├── DamagedStoreError      the file of the store cannot be read; it needs a person
    └── LeadershipLostError    a `NotLeaderError`: another control plane leads by now

A compare-and-set that lost is no failure of the store; it raises `ConflictError`. Raised by the stores of this package
and by `shoal.testing.stores`; every loop of the control plane treats them by one policy (`shoal.control.state.loops`).
"""

from __future__ import annotations

import enum
from typing import Any

from shoal.core.errors import DamagedError, NotLeaderError, UnavailableError


class StoreOutcome(enum.Enum):
    """What became of a change that the store did not acknowledge. Over the wire it is the fact `outcome`."""

    NOT_APPLIED = "none"
    """Nothing was stored."""
    UNKNOWN = "unknown"
    """It was lost during the commit itself. It is stored, or not, or will be in a moment."""
    FULL = "full"
    """Nothing was stored: the disk is full."""
    LEADERSHIP_LOST = "leadership-lost"
    """Nothing was stored: the term under which it was decided is over."""


class StoreError(UnavailableError):
    """The store could not do it."""

    def __init__(
        self, message: str, *, outcome: StoreOutcome = StoreOutcome.NOT_APPLIED, hint: str = "", **facts: Any
    ) -> None:
        super().__init__(message, hint=hint, outcome=outcome.value, **facts)

    @property
    def outcome(self) -> StoreOutcome:
        """What became of the change."""
        return StoreOutcome(self.facts["outcome"])


class DamagedStoreError(DamagedError, StoreError):
    """The file of the store can no longer be read."""


class LeadershipLostError(NotLeaderError, StoreError):
    """Another control plane leads, or nobody does: what was decided under this term is not stored."""

    retryable = False

    def __init__(self, leader: str) -> None:
        super().__init__(leader)
        self.facts["outcome"] = StoreOutcome.LEADERSHIP_LOST.value
