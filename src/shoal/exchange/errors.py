"""What can go wrong on a channel, beyond what `shoal.core.errors` names.

    ShoalError
    ├── InvalidError
    │   └── BadFrameError          the peer sent something that is no frame, or more than it had credit for
    ├── PreconditionError
    │   └── StaleEpochError        one side belongs to an epoch of the job that is over
    ├── UnavailableError
    │   └── PeerLostError          the connection broke before the stream had ended
    └── PeerFailedError            the task on the other side failed; carries its words

`Cancelled` is no failure: the caller's own side has been closed. Raised by every transport.
"""

from __future__ import annotations

import json
from typing import Any

from shoal.core.errors import (
    DeniedError,
    ExhaustedError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    Problem,
    ShoalError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedError,
    problem,
)

#: Characters of an error that cross a channel at most.
_MOST_TEXT = 16_000


class Cancelled(BaseException):
    """This side was closed. Not an `Exception`, so that nobody takes it for a failure of a row."""


class BadFrameError(InvalidError):
    """The peer broke the protocol. Its connection is closed."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        super().__init__([problem(field, value, rule)], what="exchange")


class StaleEpochError(PreconditionError):
    """A peer of another life of the job: the older of the two has to end."""

    def __init__(self, job: str, *, offered: int, current: int) -> None:
        super().__init__(
            f"job {job!r}: epoch {offered} is not {current}, the epoch that runs here",
            job=job,
            offered=offered,
            current=current,
        )


class PeerLostError(UnavailableError):
    """The other side is gone, and the stream had not ended."""

    def __init__(self, channel: str, reason: str) -> None:
        super().__init__(f"channel {channel!r} lost its peer: {reason}", channel=channel)


class PeerFailedError(ShoalError):
    """The other side said that it failed, and why."""


_KNOWN: dict[str, type[ShoalError]] = {
    kind.__name__: kind
    for kind in (
        BadFrameError,
        DeniedError,
        ExhaustedError,
        NotFoundError,
        PeerLostError,
        PreconditionError,
        StaleEpochError,
        UnauthenticatedError,
        UnsupportedError,
    )
}


def write_error(error: BaseException) -> bytes:
    """An error as bytes for the other side."""
    known = isinstance(error, ShoalError)
    message = error.message if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
    body = {
        "type": type(error).__name__ if known else "",
        "message": message[:_MOST_TEXT],
        "hint": error.hint[:_MOST_TEXT] if isinstance(error, ShoalError) else "",
        "facts": dict(error.facts) if isinstance(error, ShoalError) else {},
    }
    return json.dumps(body).encode()


def read_error(content: bytes) -> ShoalError:
    """The inverse; a type that is not known here, and what cannot be read, is a `PeerFailedError`."""
    try:
        body: Any = json.loads(content)
        message, hint, facts = str(body["message"]), str(body["hint"]), dict(body["facts"])
        kind = _KNOWN.get(str(body["type"]), PeerFailedError)
    except (ValueError, KeyError, TypeError, RecursionError):
        return PeerFailedError("the other side failed, and its words cannot be read")
    # Constructors differ from type to type; what they leave behind does not.
    error = kind.__new__(kind, message)
    error.message, error.hint, error.facts = message, hint, {str(name): str(value) for name, value in facts.items()}
    if isinstance(error, InvalidError):
        error.problems = (Problem("exchange", "", message),)
    return error
