"""What becomes of records that cannot be read: the policy, and the count.

A reader meets bytes that are not what their format says, makes a `CorruptError` with file and offset, and asks here
what follows: the read ends with the error, the record is left out, or it is left out and handed on with the reason.
Called by every reader of this package.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from shoal.core.errors import CorruptError, InvalidError, problem


class OnBad(enum.Enum):
    """What follows a bad record."""

    #: The read ends with the error.
    FAIL = "fail"
    #: It is left out and counted.
    SKIP = "skip"
    #: It is left out, counted, and handed to the side output.
    SIDE = "side"


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that could not be read."""

    path: str
    #: Where it begins in the file, after inflation.
    offset: int
    reason: str
    #: Its bytes, as far as they are known: those of a frame that is cut off are not.
    payload: bytes = b""


class BadRecords:
    """A policy, and how often it was needed. One for each read, or for many."""

    def __init__(self, policy: OnBad = OnBad.FAIL, side: Callable[[BadRecord], None] | None = None) -> None:
        if (policy is OnBad.SIDE) != (side is not None):
            raise InvalidError([problem("side", side, "must be given with the policy SIDE, and with no other")])
        self.policy = policy
        #: How many records were left out. A file that is cut off counts as one, whatever was in the rest of it.
        self.count = 0
        #: The last error, for a message.
        self.last: CorruptError | None = None
        self._side = side

    def meet(self, error: CorruptError, payload: bytes = b"") -> None:
        """Act on a bad record: return to go on without it, or raise `error`."""
        if self.policy is OnBad.FAIL:
            raise error
        self.count += 1
        self.last = error
        if self._side is not None:
            self._side(BadRecord(error.path, error.offset, error.problems[0].rule, payload))
