"""The receiving side of a connection: who sends, what comes, and credit back for what was read.

Made by `shoal.exchange.unix` and `shoal.exchange.flight` for each peer that connects. A peer that breaks the protocol
is told why and loses its connection; the channels that it had not ended fail.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from shoal.core.errors import NotFoundError, PreconditionError, ShoalError
from shoal.exchange.base import End, Receiving, fits
from shoal.exchange.errors import BadFrameError, PeerLostError, read_error, write_error
from shoal.exchange.frames import BatchReader, Header, Kind, pack_count, pack_opened, read_control
from shoal.exchange.streams import FrameStream
from shoal.exchange.tokens import Gate

_GREETING = frozenset({Kind.HELLO})
_STREAM = frozenset(
    {
        Kind.OPEN,
        Kind.SCHEMA,
        Kind.BATCH,
        Kind.STREAM,
        Kind.CONTROL,
        Kind.END,
        Kind.FAIL,
        Kind.FOLLOW,
        Kind.LEAVE,
        Kind.ASK,
    }
)
#: Credit goes back when this part of it was read, or at once when the sender asks for it.
_SHARE = 4
#: Channels of one connection at most.
_MOST_CHANNELS = 1 << 16


class Served:
    """The channels that an endpoint serves, and those whose senders are about to go on by another connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channels: dict[str, tuple[Receiving, int]] = {}
        self._followers: dict[str, Channel] = {}

    def add(self, names: Sequence[str], inbox: Receiving) -> None:
        """Serve channels: channel i of the inbox is `names[i]`."""
        with self._lock:
            self._channels |= {name: (inbox, index) for index, name in enumerate(names) if name}

    def find(self, name: str) -> tuple[Receiving, int] | None:
        """Where a channel leads to."""
        with self._lock:
            return self._channels.get(name)

    def follow(self, channel: Channel) -> None:
        """The sender of a channel will leave its connection for this one."""
        with self._lock:
            self._followers[channel.name] = channel

    def follower(self, name: str) -> Channel | None:
        """By what its sender goes on. Asked for once."""
        with self._lock:
            return self._followers.pop(name, None)

    def fail_all(self, reason: str) -> None:
        """Nothing more comes by any of them."""
        with self._lock:
            channels, self._channels, self._followers = self._channels, {}, {}
        for name, (inbox, index) in channels.items():
            inbox.fail(index, PeerLostError(name, reason))


class Channel:
    """A channel of a connection."""

    def __init__(self, intake: Intake, number: int, name: str, inbox: Receiving, index: int) -> None:
        self.name = name
        self.inbox = inbox
        self.index = index
        self.reader = BatchReader()
        self.is_over = False
        #: Whether its sender has still to leave another connection.
        self.is_waiting = False
        #: Whether its receiver was closed: what still comes is thrown away.
        self.is_closed = False
        self._intake = intake
        self._number = number
        self._lock = threading.Lock()
        self._unread = 0
        self._owed = 0
        self._is_asked = False

    def expect(self, size: int) -> None:
        """Refuse a batch that there was no credit for, before anything is allocated for it."""
        with self._lock:
            if not fits(self._unread, size, self.inbox.capacity):
                rule = f"must fit into what is left of the credit, {self.inbox.capacity - self._unread:,} bytes"
                raise BadFrameError(f"batch of channel {self.name!r}", f"{size:,} bytes", rule)
            self._unread += size
            self._is_asked = False

    def ask(self) -> None:
        """The sender has no credit left for its next batch, and waits."""
        with self._lock:
            self._is_asked = True
            owed, self._owed = self._owed, 0
        if owed:
            self._intake.tell(Kind.CREDIT, self._number, pack_count(owed))

    def take_over(self) -> None:
        """Its sender has left the connection before this one, and goes on here: what waits counts as sent here."""
        # What is read meanwhile waits for the lock: the sender must know of the bytes before it hears of credit.
        with self._lock:
            self._unread = self.inbox.hand_over(self.index, self)
            self._intake.tell(Kind.OPENED, self._number, pack_opened(self.inbox.capacity, self._unread))
        self.is_waiting = False
        if self._intake.is_ending:
            self.inbox.fail(self.index, PeerLostError(self.name, "its sender is gone"))

    def consumed(self, size: int) -> None:
        """The receiver has read so much. Called by its thread."""
        with self._lock:
            self._unread -= size
            self._owed += size
            if not self._is_asked and self._owed * _SHARE < self.inbox.capacity:
                return
            owed, self._owed = self._owed, 0
        self._intake.tell(Kind.CREDIT, self._number, pack_count(owed))

    def closed(self) -> None:
        """The receiver was closed. Called by any thread."""
        self.is_closed = True
        error = PeerLostError(self.name, "its receiver was closed")
        self._intake.tell(Kind.BROKEN, self._number, write_error(error))


class Intake:
    """A connection from another process. One thread reads it: the one that calls `run`."""

    def __init__(self, frames: FrameStream, gate: Gate, served: Served) -> None:
        self._frames = frames
        self._gate = gate
        self._served = served
        self._channels: dict[int, Channel] = {}
        self._over = threading.Event()
        self.is_ending = False

    def run(self, handshake: float) -> None:
        """Read until it is over. The peer has `handshake` seconds to say who it is."""
        error: ShoalError | None = None
        reason = "its sender is gone"
        try:
            if self._greet(handshake):
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
            self._fail(error, reason)
            self._over.set()

    def close(self, patience: float | None = None) -> None:
        """End it, and wait until it has: for so long, if its thread may hang in a read that nobody can end."""
        self._frames.shutdown()
        self._over.wait(patience)
        self._fail(None, "this end was closed")

    def lose(self, reason: str) -> None:
        """The peer sends nothing more. From any thread; the one that reads may still wait for it."""
        self._fail(None, reason)
        self._frames.shutdown()

    def tell(self, kind: Kind, channel: int, content: bytes = b"") -> None:
        """Tell the sender of a channel something. One that is gone need not know."""
        with contextlib.suppress(OSError):
            self._frames.write(kind, channel, content)

    def _fail(self, error: ShoalError | None, reason: str) -> None:
        self.is_ending = True  # said first: a channel that is taken over meanwhile looks at it
        for channel in list(self._channels.values()):
            if not channel.is_over and not channel.is_waiting:
                channel.inbox.fail(channel.index, error or PeerLostError(channel.name, reason))

    # -- the thread that reads --------------------------------------------------------------------------------

    def _greet(self, handshake: float) -> bool:
        """Whether the peer may be here."""
        self._frames.limit_reads(handshake)
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
        if header.kind in (Kind.OPEN, Kind.FOLLOW):
            self._open(header, self._frames.read_bytes(header.size).decode(errors="replace"))
            return
        channel = self._channels.get(header.channel)
        if channel is None or channel.is_over or channel.is_waiting:
            raise BadFrameError("channel", header.channel, "must be open")
        if channel.is_closed:
            self._frames.read_buffer(header.size)
            return
        try:
            self._take(channel, header)
        except PeerLostError:
            channel.closed()

    def _open(self, header: Header, name: str) -> None:
        number = header.channel
        if number in self._channels or not number or len(self._channels) >= _MOST_CHANNELS:
            raise BadFrameError("channel", number, "must be new")
        found = self._served.find(name)
        if found is None:
            self._frames.write(Kind.REFUSED, number, write_error(NotFoundError("channel", name)))
            return
        inbox, index = found
        channel = Channel(self, number, name, inbox, index)
        if header.kind is Kind.FOLLOW:
            channel.is_waiting = True
            self._channels[number] = channel
            self._served.follow(channel)
            self._frames.write(Kind.READY, number)
            return
        if not inbox.claim(index, channel):
            error = PreconditionError(f"channel {name!r} has a sender already")
            self._frames.write(Kind.REFUSED, number, write_error(error))
            return
        self._channels[number] = channel
        self._frames.write(Kind.OPENED, number, pack_opened(inbox.capacity, 0))

    def _take(self, channel: Channel, header: Header) -> None:
        frames, inbox, index = self._frames, channel.inbox, channel.index
        match header.kind:
            case Kind.SCHEMA:
                channel.reader.read_schema(frames.read_buffer(header.size))
            case Kind.BATCH | Kind.STREAM:
                size = 1 + header.size
                channel.expect(size)
                inbox.deliver(index, channel.reader.read(header.kind, frames.read_buffer(header.size)), size)
            case Kind.ASK:
                channel.ask()
            case Kind.CONTROL:
                inbox.deliver(index, read_control(frames.read_bytes(header.size)), 0)
            case Kind.END:
                channel.is_over = True
                inbox.deliver(index, End(), 0)
            case Kind.LEAVE:
                follower = self._served.follower(channel.name)
                if follower is None:
                    raise BadFrameError("channel", channel.name, "must be ready to go on by another connection")
                channel.is_over = True
                follower.take_over()
            case _:
                channel.is_over = True
                inbox.fail(index, read_error(frames.read_bytes(header.size)))
