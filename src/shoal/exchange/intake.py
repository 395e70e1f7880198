"""The receiving side of a connection: who sends, what comes, and credit back for what was read.

Made by `shoal.exchange.unix` for each peer that connects. A peer that breaks the protocol is told why and loses its
connection; the channels that it had not ended fail.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from shoal.core.errors import NotFoundError, PreconditionError, ShoalError
from shoal.exchange.base import End, Receiving, fits
from shoal.exchange.errors import BadFrameError, PeerLostError, read_error, write_error
from shoal.exchange.frames import BatchReader, Header, Kind, pack_count, read_control
from shoal.exchange.sockets import FrameSocket
from shoal.exchange.tokens import Gate

_GREETING = frozenset({Kind.HELLO})
_STREAM = frozenset({Kind.OPEN, Kind.SCHEMA, Kind.BATCH, Kind.STREAM, Kind.CONTROL, Kind.END, Kind.FAIL})
#: Credit goes back when this part of it was read, or when nothing is left to read.
_SHARE = 4
#: Channels of one connection at most.
_MOST_CHANNELS = 1 << 16

Find = Callable[[str], tuple[Receiving, int] | None]


class _Channel:
    """A channel of a connection."""

    def __init__(self, intake: Intake, number: int, name: str, inbox: Receiving, index: int) -> None:
        self.name = name
        self.inbox = inbox
        self.index = index
        self.reader = BatchReader()
        self.is_over = False
        #: Whether its receiver was closed: what still comes is thrown away.
        self.is_closed = False
        self._intake = intake
        self._number = number
        self._lock = threading.Lock()
        self._unread = 0
        self._owed = 0

    def expect(self, size: int) -> None:
        """Refuse a batch that there was no credit for, before anything is allocated for it."""
        with self._lock:
            if not fits(self._unread, size, self.inbox.capacity):
                rule = f"must fit into what is left of the credit, {self.inbox.capacity - self._unread:,} bytes"
                raise BadFrameError(f"batch of channel {self.name!r}", f"{size:,} bytes", rule)
            self._unread += size

    def consumed(self, size: int) -> None:
        """The receiver has read so much. Called by its thread."""
        with self._lock:
            self._unread -= size
            self._owed += size
            if self._unread and self._owed * _SHARE < self.inbox.capacity:
                return
            owed, self._owed = self._owed, 0
        self._intake.tell(Kind.CREDIT, self._number, pack_count(owed))

    def closed(self) -> None:
        """The receiver was closed. Called by any thread."""
        self.is_closed = True
        error = PeerLostError(self.name, "its receiver was closed")
        self._intake.tell(Kind.BROKEN, self._number, write_error(error))


class Intake:
    """A connection from another process. One thread reads it."""

    def __init__(self, frames: FrameSocket, gate: Gate, find: Find, forget: Callable[[Intake], None]) -> None:
        self._frames = frames
        self._gate = gate
        self._find = find
        self._forget = forget
        self._channels: dict[int, _Channel] = {}
        self._thread = threading.Thread(target=self._run, name="exchange intake", daemon=True)
        self._handshake = 0.0

    def start(self, handshake: float) -> None:
        """Begin to read."""
        self._handshake = handshake
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._frames.shutdown()
        self._thread.join()

    def tell(self, kind: Kind, channel: int, content: bytes) -> None:
        """Tell the sender of a channel something. One that is gone need not know."""
        with contextlib.suppress(OSError):
            self._frames.write(kind, channel, content)

    # -- the thread that reads --------------------------------------------------------------------------------

    def _run(self) -> None:
        error: ShoalError | None = None
        reason = "its sender is gone"
        try:
            if self._greet():
                while (header := self._frames.read_header(_STREAM)) is not None:
                    self._hear(header)
        except OSError as raised:
            reason = raised.strerror or str(raised)
        except ShoalError as raised:
            error = raised
            with contextlib.suppress(OSError):
                self._frames.write(Kind.BROKEN, 0, write_error(raised))
        finally:
            self._frames.close()
            for channel in self._channels.values():
                if not channel.is_over:
                    channel.inbox.fail(channel.index, error or PeerLostError(channel.name, reason))
            self._forget(self)

    def _greet(self) -> bool:
        """Whether the peer may be here."""
        self._frames.limit_reads(self._handshake)
        header = self._frames.read_header(_GREETING)
        if header is None:
            return False
        try:
            self._gate.admit(self._frames.read_bytes(header.size).decode(errors="replace"))
        except ShoalError as error:
            self._frames.write(Kind.REFUSED, 0, write_error(error))
            return False
        self._frames.limit_reads(0)
        self._frames.write(Kind.WELCOME, 0)
        return True

    def _hear(self, header: Header) -> None:
        if header.kind is Kind.OPEN:
            self._open(header.channel, self._frames.read_bytes(header.size).decode(errors="replace"))
            return
        channel = self._channels.get(header.channel)
        if channel is None or channel.is_over:
            raise BadFrameError("channel", header.channel, "must be open")
        if channel.is_closed:
            self._frames.read_buffer(header.size)
            return
        try:
            self._take(channel, header)
        except PeerLostError:
            channel.closed()

    def _open(self, number: int, name: str) -> None:
        if number in self._channels or not number or len(self._channels) >= _MOST_CHANNELS:
            raise BadFrameError("channel", number, "must be new")
        found = self._find(name)
        if found is None:
            self._frames.write(Kind.REFUSED, number, write_error(NotFoundError("channel", name)))
            return
        inbox, index = found
        channel = _Channel(self, number, name, inbox, index)
        if not inbox.claim(index, channel):
            error = PreconditionError(f"channel {name!r} has a sender already")
            self._frames.write(Kind.REFUSED, number, write_error(error))
            return
        self._channels[number] = channel
        self._frames.write(Kind.OPENED, number, pack_count(inbox.capacity))

    def _take(self, channel: _Channel, header: Header) -> None:
        frames, inbox, index = self._frames, channel.inbox, channel.index
        match header.kind:
            case Kind.SCHEMA:
                channel.reader.read_schema(frames.read_buffer(header.size))
            case Kind.BATCH | Kind.STREAM:
                size = 1 + header.size
                channel.expect(size)
                inbox.deliver(index, channel.reader.read(header.kind, frames.read_buffer(header.size)), size)
            case Kind.CONTROL:
                inbox.deliver(index, read_control(frames.read_bytes(header.size)), 0)
            case Kind.END:
                channel.is_over = True
                inbox.deliver(index, End(), 0)
            case _:
                channel.is_over = True
                inbox.fail(index, read_error(frames.read_bytes(header.size)))
