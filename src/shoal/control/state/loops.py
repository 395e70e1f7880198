"""One policy for every background loop of the control plane: no failure of the store ends a loop.

A round that fails is logged when the failure starts and when it ends, and the next round decides anew on what is
stored. That is right for every `StoreOutcome`: what was not applied is decided again; after an unknown outcome the
ledger reads what is stored first; a full disk refuses changes until there is room; a loop whose leadership is lost
stores nothing more, because each of its changes carries its term, until the election ends it.

Called by every loop of `shoal.control`. An exception that is not a `ShoalError` is a bug and is not caught here.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from shoal.core.errors import ConflictError, NotLeaderError, ShoalError

log = logging.getLogger(__name__)


class Rounds:
    """The rounds of one loop.

    Args:
        name: what the loop does, for the log.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        #: Why the last round failed; empty when it did not.
        self.failure = ""

    @contextlib.contextmanager
    def attempt(self, about: str = "") -> Iterator[None]:
        """Run one round. It never raises a `ShoalError`; `failure` says whether it failed."""
        try:
            yield
        except ShoalError as error:
            self.failed(error, about)
        else:
            self.succeeded()

    def failed(self, error: ShoalError, about: str = "") -> None:
        """Note a failure. Only the first of its kind is logged: a store that is away fails thousands of rounds."""
        kind = f"{type(error).__name__} {error.facts.get('outcome', '')}".strip()
        if kind != self.failure:
            expected = isinstance(error, ConflictError | NotLeaderError)
            what = f"{self.name}, {about}" if about else self.name
            log.log(logging.INFO if expected else logging.WARNING, "%s: failed and is tried again: %s", what, error)
        self.failure = kind

    def succeeded(self) -> None:
        """Note a success."""
        if self.failure:
            log.info("%s: succeeded again", self.name)
            self.failure = ""
