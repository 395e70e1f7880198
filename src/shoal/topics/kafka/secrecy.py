"""What the client library logs, and how passwords and keys stay out of logs and errors.

Used by all of `shoal.topics.kafka`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from shoal.core.clock import Clock

_log = logging.getLogger("shoal.topics.kafka.client")

#: Settings whose value is secret; the path of a file is not.
_SECRET = re.compile(r"(password|passphrase|secret|token|credential|jaas|\.key|\.pem|oauthbearer)(?!.*\.location$)")
_BETWEEN = re.compile(r"[\s=,;\"']+")
#: What cannot be told from ordinary text is not looked for.
_SHORTEST = 3
_HIDDEN = "…"
#: The same warning is logged once in so many seconds. What differs in numbers alone is the same.
_QUIET_SECONDS = 10.0
_NUMBERS = re.compile(r"\d+")
_LINE, _LINES = 300, 100


@dataclass(frozen=True, slots=True)
class Redaction:
    """Takes secrets out of texts."""

    _secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def of(cls, client: Mapping[str, object]) -> Self:
        """Of the settings of a client: what their names give away as secret."""
        pieces: set[str] = set()
        for name, value in client.items():
            if _SECRET.search(name.lower()):
                pieces.update((str(value), *str(value).splitlines()))
                if name.lower().endswith("config"):  # many settings in one: the library quotes some of them alone
                    pieces.update(_BETWEEN.split(str(value)))
        # The longest first: a secret may be part of another.
        return cls(tuple(sorted((each for each in pieces if len(each) >= _SHORTEST), key=len, reverse=True)))

    def clean(self, text: str) -> str:
        """The text without the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return text


class ClientLog:
    """What a client logs through: without secrets, and without saying the same over and over.

    While no broker can be reached the client library says so many times a second.
    """

    def __init__(self, redaction: Redaction, clock: Clock) -> None:
        self._redaction = redaction
        self._clock = clock
        #: When a line was logged, and how often it has come since.
        self._said: dict[str, tuple[float, int]] = {}

    def log(self, level: int, message: str, *args: object) -> None:
        """What the client library calls for each line that it has to say."""
        if not _log.isEnabledFor(level):
            return
        text = self._redaction.clean(message % args if args else message)
        if level >= logging.WARNING:
            again = self._times_again(text)
            if again < 0:
                return
            text = f"{text} ({again} more of these since)" if again else text
        _log.log(level, "%s", text)

    def _times_again(self, text: str) -> int:
        """How often the line came since it was logged; below 0 when it is too early to log it again."""
        line, now = _NUMBERS.sub("", text)[:_LINE], self._clock.monotonic()
        logged_at, again = self._said.get(line, (-_QUIET_SECONDS, 0))
        if now - logged_at < _QUIET_SECONDS:
            self._said[line] = (logged_at, again + 1)
            return -1
        if len(self._said) >= _LINES:
            self._said.clear()
        self._said[line] = (now, 0)
        return again
