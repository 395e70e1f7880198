"""What the client library reports about its connection to the brokers, as a whole.

Each reader and writer of `shoal.topics.kafka` has one and passes `on_error` to its client, which calls it while the
reader or writer polls, in their thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from shoal.core.clock import Clock
from shoal.core.errors import DeniedError
from shoal.topics.kafka.secrecy import Redaction

if TYPE_CHECKING:
    from shoal.core.errors import ShoalError

_DENIED = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 the library's own name for an error code
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)
#: The client does not always come to say that all are down, so one is enough to look.
_DOWN = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
    }
)


class Connection:
    """Whether the brokers can be reached, as far as their client has reported."""

    def __init__(self, redaction: Redaction, clock: Clock) -> None:
        self._redaction = redaction
        self._clock = clock
        self._down_since: float | None = None
        self._denied: ShoalError | None = None
        self._last = ""

    def on_error(self, error: KafkaError) -> None:
        """Take note of what is not about one record or one partition."""
        self._last = self._redaction.clean(error.str())
        if error.code() in _DENIED:
            self._denied = DeniedError(f"the brokers refuse access: {self._last}")
        elif error.code() in _DOWN:
            self.is_down()

    def is_down(self) -> None:
        """Take note that a broker has not answered. There may be others."""
        if self._down_since is None:
            self._down_since = self._clock.monotonic()

    def is_up(self) -> None:
        """Take note that a broker has answered."""
        self._down_since, self._denied, self._last = None, None, ""

    def down_for(self) -> float:
        """How many seconds ago the trouble began, if no broker has answered since; else 0."""
        return 0.0 if self._down_since is None else self._clock.monotonic() - self._down_since

    def raise_if_denied(self) -> None:
        """Raise `DeniedError` when the brokers refuse who we say we are."""
        if self._denied is not None:
            denied, self._denied = self._denied, None
            raise denied

    @property
    def last(self) -> str:
        """The last that was heard, for people; empty when all is well."""
        return f" ({self._last})" if self._last else ""
