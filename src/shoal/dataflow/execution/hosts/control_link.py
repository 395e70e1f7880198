"""Carries control messages between a coordinator and a task host: bytes in, bytes out, over a connected socket.

A host shows the token of the job's epoch first, so that a host of an earlier epoch is refused. Each message has its
length in front. What the bytes mean is in `shoal.dataflow.execution.hosts.control_messages`. Used by
`shoal.dataflow.execution.hosts.linked` (the coordinator's side) and `shoal.dataflow.execution.hosts.host_process`.
Between nodes the connection is TCP with TLS (`shoal.dataflow.execution.remote.connections`).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Protocol

from shoal.dataflow.execution.hosts.control_messages import MOST_BYTES, BadMessageError
from shoal.exchange.errors import PeerLostError
from shoal.exchange.tokens import Gate

_LENGTH = struct.Struct("<Q")
_TIMEVAL = struct.Struct("ll")
#: Bytes of a greeting at most, and seconds in which it has to come.
_MOST_GREETING = 4096
_HANDSHAKE = 30.0
#: Seconds after which a peer that takes nothing of a message is lost.
STALL = 10


class Connection(Protocol):
    """A connected socket, or something that is used like one."""

    def settimeout(self, seconds: float | None, /) -> None: ...  # noqa: D102
    def setsockopt(self, level: int, option: int, value: bytes, /) -> None: ...  # noqa: D102
    def sendall(self, content: bytes, /) -> None: ...  # noqa: D102
    def recv_into(self, view: memoryview, /) -> int: ...  # noqa: D102
    def shutdown(self, how: int, /) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class ControlLink:
    """Messages as bytes, in both directions. One thread receives; any thread sends."""

    def __init__(self, raw: Connection, heard: Callable[[], None] = lambda: None) -> None:
        """`heard` is called for each message that comes."""
        self._raw = raw
        self._heard = heard
        self._lock = threading.Lock()
        raw.settimeout(None)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(STALL, 0))

    @classmethod
    def connect(cls, path: str, gate: Gate, host: int) -> ControlLink:
        """The host's side: show the token and the number of this host."""
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        raw.connect(path)
        raw.sendall(f"{host} {gate.token}\n".encode())
        return cls(raw)

    @classmethod
    def accept(cls, raw: socket.socket, gate: Gate) -> tuple[ControlLink, int]:
        """The coordinator's side. Raises `ShoalError` for a host of another job or epoch, and `OSError`."""
        raw.settimeout(_HANDSHAKE)
        content = b""
        while not content.endswith(b"\n") and len(content) < _MOST_GREETING:
            part = raw.recv(1)
            if not part:
                raise PeerLostError("control", "it hung up")
            content += part
        host, _, token = content.decode(errors="replace").strip().partition(" ")
        gate.admit(token)
        return cls(raw), int(host) if host.isdecimal() and len(host) < 10 else -1

    def limit_reads(self, seconds: float | None) -> None:
        """How long `receive` waits; None: without a limit."""
        self._raw.settimeout(seconds)

    def send(self, content: bytes) -> None:
        """Send a message. Raises `PeerLostError`, also when the peer takes nothing of it for `STALL` seconds."""
        with self._lock:
            self._send(content)

    def try_send(self, content: bytes) -> bool:
        """Send a message unless another one is on its way, which may be large. Raises `PeerLostError`."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._send(content)
        finally:
            self._lock.release()
        return True

    def _send(self, content: bytes) -> None:
        try:
            self._raw.sendall(_LENGTH.pack(len(content)))
            self._raw.sendall(content)
        except (TimeoutError, BlockingIOError) as error:
            self.close()  # the rest of it would be taken for another message
            raise PeerLostError("control", f"it took nothing for {STALL} s") from error
        except OSError as error:
            raise PeerLostError("control", error.strerror or str(error)) from error

    def receive(self) -> bytes | None:
        """The next message; None when the peer is gone or sends nothing in time. Raises `BadMessageError`."""
        try:
            header = self._read(_LENGTH.size)
            if header is None:
                return None
            size = _LENGTH.unpack(header)[0]
            if size > MOST_BYTES:
                raise BadMessageError("length", size, f"must be at most {MOST_BYTES:,}")
            content = self._read(size)
        except OSError:
            return None
        if content is None:
            return None
        self._heard()
        return bytes(content)

    def _read(self, size: int) -> bytearray | None:
        content = bytearray(size)
        view = memoryview(content)
        while view:
            received = self._raw.recv_into(view)
            if not received:
                return None
            view = view[received:]
        return content

    def close(self) -> None:
        """End every call that waits. From any thread."""
        with contextlib.suppress(OSError):
            self._raw.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Close the socket. Called by the thread that receives."""
        self.close()
        self._raw.close()
