"""The transport between processes of one host: a unix socket with Arrow IPC.

An endpoint listens at a socket in a private folder. A process has one connection to each process that it sends to, and
all channels to it share that. On both sides one thread reads a connection: the receiver's delivers into inboxes, and
never waits because senders keep to their credit; the sender's takes the credit that comes back.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.errors import InvalidError, ShoalError, problem
from shoal.exchange.base import Receiving, Sender
from shoal.exchange.errors import PeerLostError
from shoal.exchange.intake import Intake, Served
from shoal.exchange.outlet import Outlet
from shoal.exchange.sockets import FrameSocket
from shoal.exchange.tokens import Gate

#: Bytes of a socket's path at most: the kernel has room for 107.
MOST_PATH = 99
_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class UnixSettings:
    """Limits of a unix endpoint."""

    #: Seconds in which a peer has to say who it is, and in which it has to answer.
    handshake: float = 10.0
    #: Seconds after which a peer that reads nothing is lost.
    stall: float = 60.0
    #: Connections from others at most.
    most_peers: int = 1024


class UnixEndpoint:
    """An `Endpoint` at a unix socket."""

    def __init__(self, path: str, gate: Gate, settings: UnixSettings | None = None) -> None:
        self.address = path
        self._gate = gate
        self._settings = settings or UnixSettings()
        self._lock = threading.Lock()
        self._dialing = threading.Lock()
        self._served = Served()
        self._intakes: set[Intake] = set()
        self._outlets: dict[str, Outlet] = {}
        self._is_closed = False
        self._listener = _listen(path)
        self._thread = threading.Thread(target=self._accept, name=f"exchange {os.path.basename(path)}", daemon=True)  # noqa: PTH119
        self._thread.start()

    def serve(self, names: Sequence[str], inbox: Receiving) -> None:
        """Let senders connect to channels."""
        self._served.add(names, inbox)

    def connect(self, address: str, name: str) -> Sender:
        """Connect to a channel that another endpoint serves."""
        return self._outlet(address, name).open(name)

    def _outlet(self, address: str, name: str) -> Outlet:
        with self._dialing:  # not the other lock: who answers may be this endpoint
            outlet = self._outlets.get(address)
            if outlet is None or outlet.is_lost:
                outlet = self._dial(address, name)
            with self._lock:
                if not self._is_closed:
                    self._outlets[address] = outlet
                    return outlet
        outlet.close()
        raise PeerLostError(name, "this end was closed")

    def _dial(self, address: str, name: str) -> Outlet:
        handshake = self._settings.handshake
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        raw.settimeout(handshake)
        try:
            raw.connect(address)
            frames = FrameSocket(raw, stall=self._settings.stall)
        except OSError as error:
            raw.close()
            raise PeerLostError(name, f"{address}: {error.strerror or error}") from error
        return Outlet.greet(frames, address=address, channel=name, token=self._gate.token, handshake=handshake)

    def close(self) -> None:
        """Close every channel."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            intakes, outlets = list(self._intakes), list(self._outlets.values())
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self.address)  # noqa: PTH108
        for outlet in outlets:
            outlet.close()
        for intake in intakes:
            intake.close()
        self._served.fail_all("this end was closed")

    # -- peers ------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                raw, _address = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                continue  # such as a peer that gave up before it was its turn
            self._take(raw)

    def _take(self, raw: socket.socket) -> None:
        intake = Intake(FrameSocket(raw, stall=self._settings.stall), self._gate, self._served)
        with self._lock:
            if self._is_closed or len(self._intakes) >= self._settings.most_peers:
                raw.close()
                return
            self._intakes.add(intake)
        threading.Thread(target=self._read, args=(intake,), name="exchange intake", daemon=True).start()

    def _read(self, intake: Intake) -> None:
        try:
            intake.run(self._settings.handshake)
        finally:
            with self._lock:
                self._intakes.discard(intake)


def _listen(path: str) -> socket.socket:
    if len(os.fsencode(path)) > MOST_PATH:
        rule = f"must have at most {MOST_PATH} bytes: a socket's path cannot be longer"
        raise InvalidError([problem("path", path, rule)], what="exchange", hint="use a folder with a shorter path")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ShoalError(f"cannot listen at {path}: {error.strerror}", path=path) from error
    finally:
        os.umask(before)
    return listener
