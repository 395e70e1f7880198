"""The protocol of an exchange: what a channel carries, its sending end, and how the ends of two processes meet.

A channel leads from one sender to one receiver and has a name that both know. It carries batches, for which the sender
needs credit, and control frames, which need none and keep their place in the order. The receiving ends of a task's
channels meet in one `shoal.exchange.inbox.Inbox`. A transport is an `Endpoint`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from shoal.core.errors import InvalidError, ShoalError, problem

#: An Arrow record batch. The library has no types of its own, so this says what is meant.
Batch: TypeAlias = Any

#: Kinds of control frames that users of an exchange may define: 1 to this.
MOST_KINDS = 31
MOST_BODY = 64 * 1024
_INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class Control:
    """A control frame. The exchange gives no meaning to its kind.

    One that supersedes some kinds takes the place of frames of those kinds that wait right before it: however many are
    sent, few wait.
    """

    kind: int
    value: int = 0
    body: bytes = b""
    #: A bit for each kind that it takes the place of: `1 << kind`.
    supersedes: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.kind <= MOST_KINDS:
            raise InvalidError([problem("kind", self.kind, f"must be from 1 to {MOST_KINDS}")], what="control frame")
        if not -_INT64 <= self.value < _INT64:
            raise InvalidError([problem("value", self.value, "must fit into 64 bits")], what="control frame")
        if len(self.body) > MOST_BODY:
            rule = f"must have at most {MOST_BODY:,} bytes"
            raise InvalidError([problem("body", len(self.body), rule)], what="control frame")


@dataclass(frozen=True, slots=True)
class End:
    """Nothing comes after it on this channel."""


Item: TypeAlias = Batch | Control | End


class Sender(Protocol):
    """The sending end of a channel. One thread sends; any thread may close."""

    @property
    def blocked_seconds(self) -> float:
        """How long it has waited for credit so far."""
        ...

    def send(self, batch: Batch) -> None:
        """Append rows; waits for credit.

        Raises `PeerLostError` when the receiver is gone, what the receiver failed with, and `Cancelled` when this end
        is closed, also while it waits.
        """
        ...

    def control(self, frame: Control) -> None:
        """Append a control frame. Needs no credit."""
        ...

    def end(self) -> None:
        """Nothing more comes: the receiver gets everything, and then `End`."""
        ...

    def fail(self, error: BaseException) -> None:
        """This side failed: the receiver's next read behind what was sent raises it. Does nothing on a lost channel."""
        ...

    def close(self) -> None:
        """Let go of it. A stream that has not ended is lost to its receiver."""
        ...


def fits(used: int, size: int, capacity: int) -> bool:
    """The rule of credit, the same on both sides: one batch always fits into an empty channel, however large it is."""
    return used == 0 or used + size <= capacity


class Origin(Protocol):
    """The connection that a channel's batches come by: told outside of every lock, by the thread that reads."""

    def consumed(self, size: int) -> None:
        """So many bytes have been read."""
        ...

    def closed(self) -> None:
        """The receiver was closed, and reads nothing more."""
        ...


class Receiving(Protocol):
    """The receiving ends of some channels, as an endpoint sees them: `shoal.exchange.inbox` has them."""

    @property
    def capacity(self) -> int:
        """Bytes of batches that may wait on each channel."""
        ...

    def claim(self, index: int, origin: Origin | None = None) -> bool:
        """Take the sending end of a channel; False when somebody has it."""
        ...

    def hand_over(self, index: int, origin: Origin) -> int:
        """The sender of a channel goes on by another connection. Returns the bytes that wait."""
        ...

    def sender(self, index: int, name: str) -> Sender:
        """A sending end for tasks of this process, of a channel that was claimed."""
        ...

    def deliver(self, index: int, item: Item, size: int) -> None:
        """Append what a connection brought; never waits."""
        ...

    def fail(self, index: int, error: ShoalError) -> None:
        """The sender failed or was lost."""
        ...


class Endpoint(Protocol):
    """One process's end of the exchanges of a job and an epoch. Every method may be called from any thread."""

    @property
    def address(self) -> str:
        """Where others reach it."""
        ...

    def serve(self, names: Sequence[str], inbox: Receiving) -> None:
        """Let senders connect to channels: channel i of the inbox is `names[i]`. An empty name is none."""
        ...

    def connect(self, address: str, name: str) -> Sender:
        """Connect to a channel that another endpoint serves.

        Raises `PeerLostError` when nobody answers there, `NotFoundError` for a channel that is not served,
        `PreconditionError` for one that has a sender already, and what the gate there refuses a token with.
        """
        ...

    def close(self) -> None:
        """Close every channel: those that send here and those that are sent to lose their peer."""
        ...
