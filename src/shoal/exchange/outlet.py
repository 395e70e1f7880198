"""The sending side of a connection: its channels, and the credit that each has left.

Made by `shoal.exchange.unix` and `shoal.exchange.flight` for each process that this one sends to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from shoal.core.errors import ShoalError
from shoal.core.threads import SYSTEM
from shoal.exchange.base import Batch, Control, fits
from shoal.exchange.errors import Cancelled, PeerLostError, read_error, write_error
from shoal.exchange.frames import BatchWriter, Header, Kind, pack_control, read_count, read_opened
from shoal.exchange.streams import FrameStream

_GREETING = frozenset({Kind.WELCOME, Kind.REFUSED})
_ANSWERS = frozenset({Kind.OPENED, Kind.REFUSED, Kind.CREDIT, Kind.BROKEN, Kind.READY, Kind.MOVING})
#: Seconds that a closed channel waits for its turn to say so.
_LAST_WORD = 0.2


class Outlet:
    """A connection to another process. One thread reads its answers."""

    def __init__(self, frames: FrameStream, handshake: float) -> None:
        self._frames = frames
        self._handshake = handshake
        self._changed = threading.Condition()
        self._senders: dict[int, ChannelSender] = {}
        self._made = 0
        self._lost = ""
        self._broken: ShoalError | None = None
        #: Whether the other side wants its senders to connect anew.
        self.is_moving = False
        self._thread = threading.Thread(target=self._read, name="exchange credit", daemon=True)

    @classmethod
    def greet(cls, frames: FrameStream, *, address: str, channel: str, token: str, handshake: float) -> Outlet:
        """Show the token. Raises what the other side refuses it with, and `PeerLostError`."""
        try:
            frames.limit_reads(handshake)
            frames.write(Kind.HELLO, 0, token.encode())
            header = frames.read_header(_GREETING)
            if header is None:
                raise ConnectionResetError("it hung up")
            if header.kind is Kind.REFUSED:
                raise read_error(frames.read_bytes(header.size))
            frames.limit_reads(0)
        except (TimeoutError, BlockingIOError) as error:
            frames.close()
            raise PeerLostError(channel, f"{address} did not answer within {handshake:g} s") from error
        except OSError as error:
            frames.close()
            raise PeerLostError(channel, f"{address}: {error.strerror or error}") from error
        except BaseException:
            frames.close()
            raise
        outlet = cls(frames, handshake)
        outlet._thread.start()
        return outlet

    @property
    def is_lost(self) -> bool:
        """Whether the connection is gone."""
        return bool(self._lost)

    def open(self, name: str) -> ChannelSender:
        """A channel. Raises what the other side refuses it with."""
        sender = self._ask(name, Kind.OPEN)
        self.wait(sender, lambda: sender.is_settled)
        return sender

    def follow(self, name: str) -> ChannelSender:
        """A channel whose sender will leave another connection for this one, when that has been told to it."""
        sender = self._ask(name, Kind.FOLLOW)
        self.wait(sender, lambda: sender.is_ready)
        return sender

    def _ask(self, name: str, kind: Kind) -> ChannelSender:
        with self._changed:
            self._made += 1
            sender = ChannelSender(self, self._made, name, self._changed)
            self._senders[self._made] = sender
        self.write(sender, kind, name.encode())
        return sender

    def wait(self, sender: ChannelSender, condition: Callable[[], bool]) -> None:
        """Wait for an answer. Raises what it is, if it is an error."""
        with self._changed:
            is_settled = self._changed.wait_for(
                lambda: condition() or sender.error is not None or sender.is_closed or bool(self._lost),
                self._handshake,
            )
            if not is_settled:
                raise PeerLostError(sender.name, "its receiver does not answer")
            self.check(sender)

    def check(self, sender: ChannelSender) -> None:
        """Raise when nothing more can be sent. Under the lock."""
        if sender.is_closed:
            raise Cancelled
        if sender.error is not None:
            raise sender.error
        if self._broken is not None:
            raise self._broken
        if self._lost:
            raise PeerLostError(sender.name, self._lost)

    def write(self, sender: ChannelSender, kind: Kind, *parts: object) -> None:
        """One frame of a channel."""
        self.write_all(sender, [(kind, parts)])

    def write_all(self, sender: ChannelSender, frames: list[tuple[Kind, object]]) -> None:
        """Some frames of a channel."""
        try:
            self._frames.write_all(frames, sender.number)  # type: ignore[arg-type]
        except OSError as error:
            with self._changed:
                self._lose(error.strerror or str(error))
                self.check(sender)

    def forget(self, sender: ChannelSender, last_word: ShoalError | None) -> None:
        """A channel was closed."""
        with self._changed:
            self._senders.pop(sender.number, None)
            self._changed.notify_all()
            is_left = self.is_moving and not self._senders
        if last_word is not None and not self._lost:
            self._frames.try_write(Kind.FAIL, sender.number, write_error(last_word), patience=_LAST_WORD)
        if is_left:
            self.close()

    def close(self) -> None:
        """End every channel."""
        with self._changed:
            for sender in self._senders.values():
                sender.is_closed = True
            self._lose("this end was closed")
        self._frames.shutdown()
        self._thread.join()

    # -- the thread that reads --------------------------------------------------------------------------------

    def _read(self) -> None:
        reason = "its receiver is gone"
        try:
            while (header := self._frames.read_header(_ANSWERS)) is not None:
                self._hear(header, self._frames.read_bytes(header.size))
        except OSError as error:
            reason = error.strerror or str(error)
        except ShoalError as error:
            reason = error.message
        with self._changed:
            self._lose(reason)
        self._frames.close()

    def _hear(self, header: Header, content: bytes) -> None:
        with self._changed:
            sender = self._senders.get(header.channel)
            if header.kind is Kind.MOVING:
                self.is_moving = True
            elif header.kind is Kind.BROKEN and not header.channel:
                self._broken = read_error(content)
            elif sender is not None:
                sender.hear(header.kind, content)
            self._changed.notify_all()

    def _lose(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._changed.notify_all()


class ChannelSender:
    """The sending end of a channel to another process, by one connection."""

    def __init__(self, outlet: Outlet, number: int, name: str, changed: threading.Condition) -> None:
        self.number = number
        self.name = name
        self.is_closed = False
        self.is_ready = False
        self.error: ShoalError | None = None
        self.outlet = outlet
        self._changed = changed
        self._writer = BatchWriter()
        self._capacity = 0
        self._unread = 0
        self._is_over = False
        #: How long it has waited for credit.
        self.blocked_seconds = 0.0

    @property
    def is_settled(self) -> bool:
        """Whether the receiver has opened it."""
        return self._capacity > 0

    def hear(self, kind: Kind, content: bytes) -> None:
        """The receiver said something. Under the lock."""
        match kind:
            case Kind.OPENED:
                capacity, self._unread = read_opened(content)
                self._capacity = max(1, capacity)
            case Kind.CREDIT:
                self._unread = max(0, self._unread - read_count(content))
            case Kind.READY:
                self.is_ready = True
            case _:
                self.error = read_error(content)

    def send(self, batch: Batch) -> None:
        """Append rows; waits for credit."""
        frames = self._writer.write(batch)
        size = 1 + sum(len(part) for part in frames[-1][1])
        if not self._reserve(size):
            self._write(Kind.ASK)  # the receiver gathers credit, and may have enough
            with self._changed:
                self.outlet.check(self)
                while not fits(self._unread, size, self._capacity):
                    began = SYSTEM.now()
                    self._changed.wait()
                    self.blocked_seconds += SYSTEM.now() - began
                    self.outlet.check(self)
                self._unread += size
        self.outlet.write_all(self, frames)  # type: ignore[arg-type]

    def _reserve(self, size: int) -> bool:
        """Take credit for a batch if there is enough."""
        with self._changed:
            self.outlet.check(self)
            if not fits(self._unread, size, self._capacity):
                return False
            self._unread += size
            return True

    def control(self, frame: Control) -> None:
        """Append a control frame."""
        self._write(Kind.CONTROL, pack_control(frame))

    def end(self) -> None:
        """Nothing more comes."""
        self._is_over = True
        self._write(Kind.END)

    def fail(self, error: BaseException) -> None:
        """This side failed."""
        self._is_over = True
        try:
            self._write(Kind.FAIL, write_error(error))
        except (ShoalError, Cancelled):
            return

    def leave(self, successor: ChannelSender) -> None:
        """Go on by another connection, whose side of it is ready. Everything sent here arrives before."""
        self._is_over = True
        self._write(Kind.LEAVE)
        successor.outlet.wait(successor, lambda: successor.is_settled)
        self.close()

    def close(self) -> None:
        """Let go of it."""
        if self.is_closed:
            return
        self.is_closed = True
        self.outlet.forget(self, None if self._is_over else PeerLostError(self.name, "its sender was closed"))

    def _write(self, kind: Kind, *parts: object) -> None:
        with self._changed:
            self.outlet.check(self)
        self.outlet.write(self, kind, *parts)
