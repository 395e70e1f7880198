"""The transport inside of a process: senders put into the inbox of the receiver.

Endpoints of one `Switchboard` reach each other. Used by task hosts that share a process, and by tests in virtual time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from shoal.core.errors import NotFoundError, PreconditionError
from shoal.exchange.base import Receiving, Sender
from shoal.exchange.errors import PeerLostError
from shoal.exchange.tokens import Gate


class Switchboard:
    """The endpoints of a process, by their addresses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._endpoints: dict[str, LocalEndpoint] = {}
        self._made = 0

    def endpoint(self, gate: Gate) -> LocalEndpoint:
        """A new endpoint, under an address of its own."""
        with self._lock:
            self._made += 1
            endpoint = LocalEndpoint(self, f"local:{self._made}", gate)
            self._endpoints[endpoint.address] = endpoint
            return endpoint

    def find(self, address: str) -> LocalEndpoint | None:
        """The endpoint at an address."""
        with self._lock:
            return self._endpoints.get(address)

    def forget(self, address: str) -> None:
        """An endpoint was closed."""
        with self._lock:
            self._endpoints.pop(address, None)


class LocalEndpoint:
    """An `Endpoint` within a process."""

    def __init__(self, switchboard: Switchboard, address: str, gate: Gate) -> None:
        self.address = address
        self._switchboard = switchboard
        self._gate = gate
        self._lock = threading.Lock()
        self._served: dict[str, tuple[Receiving, int]] = {}
        self._senders: list[Sender] = []

    def serve(self, names: Sequence[str], inbox: Receiving) -> None:
        """Let senders connect to channels."""
        with self._lock:
            self._served |= {name: (inbox, index) for index, name in enumerate(names) if name}

    def connect(self, address: str, name: str) -> Sender:
        """Connect to a channel of an endpoint of this process."""
        peer = self._switchboard.find(address)
        if peer is None:
            raise PeerLostError(name, f"nobody listens at {address}")
        sender = peer.admit(self._gate.token, name)
        with self._lock:
            self._senders.append(sender)
        return sender

    def admit(self, token: str, name: str) -> Sender:
        """Another endpoint wants to send by a channel of this one."""
        self._gate.admit(token)
        with self._lock:
            found = self._served.get(name)
        if found is None:
            raise NotFoundError("channel", name)
        inbox, index = found
        if not inbox.claim(index):
            raise PreconditionError(f"channel {name!r} has a sender already")
        return inbox.sender(index, name)

    def close(self) -> None:
        """Close every channel."""
        self._switchboard.forget(self.address)
        with self._lock:
            senders, self._senders = self._senders, []
            served, self._served = self._served, {}
        for sender in senders:
            sender.close()
        for name, (inbox, index) in served.items():
            inbox.fail(index, PeerLostError(name, "this end was closed"))
