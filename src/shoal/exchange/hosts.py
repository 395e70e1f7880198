"""The endpoint of a process that has peers on its own host and on others: a unix socket, Arrow Flight, or both.

Which of them leads to a peer is chosen by `shoal.exchange.places`. Task hosts make one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from shoal.core.clock import SystemClock
from shoal.exchange.base import Endpoint, Receiving, Sender
from shoal.exchange.places import Place, Transport, choose, read_place
from shoal.exchange.tokens import Gate
from shoal.exchange.unix import UnixEndpoint

#: The variable that has the address at which others reach this process by Arrow Flight.
HOST_VARIABLE = "SHOAL_EXCHANGE_HOST"


class HostEndpoint:
    """An `Endpoint` of one or both transports. It closes them."""

    def __init__(self, host_id: str, *, unix: Endpoint | None = None, flight: Endpoint | None = None) -> None:
        found = {Transport.UNIX: unix, Transport.FLIGHT: flight}
        self._endpoints = {transport: endpoint for transport, endpoint in found.items() if endpoint is not None}
        self._place = Place(
            host_id,
            unix=unix.address if unix is not None else "",
            flight=flight.address if flight is not None else "",
        )
        self.address = self._place.text

    def serve(self, names: Sequence[str], inbox: Receiving) -> None:
        """Let senders connect to channels, whichever way they come."""
        for endpoint in self._endpoints.values():
            endpoint.serve(names, inbox)

    def connect(self, address: str, name: str) -> Sender:
        """Connect to a channel that another endpoint serves."""
        transport, where = choose(self._place, read_place(address))
        return self._endpoints[transport].connect(where, name)

    def close(self) -> None:
        """Close every channel."""
        with ExitStack() as closing:
            for endpoint in self._endpoints.values():
                closing.callback(endpoint.close)


def open_endpoint(path: str, gate: Gate, environment: Mapping[str, str]) -> Endpoint:
    """The endpoint of a task host, as its environment says.

    Without `SHOAL_EXCHANGE_HOST`, the address that others reach it at, all of the job's processes are on one host, and
    the socket at `path` is enough. Certificates are those of `SHOAL_CA`, `SHOAL_CERT` and `SHOAL_KEY`, if given.
    """
    unix = UnixEndpoint(path, gate)
    host = environment.get(HOST_VARIABLE, "")
    if not host:
        return unix
    # Imported here: what stays on one host does not load it.
    from shoal.exchange.flight.endpoint import FlightEndpoint
    from shoal.wire.trust.credentials import CredentialPaths, CredentialWatch

    try:
        look = None
        if all(environment.get(name) for name in ("SHOAL_CA", "SHOAL_CERT", "SHOAL_KEY")):
            paths = CredentialPaths(*(Path(environment[name]) for name in ("SHOAL_CA", "SHOAL_CERT", "SHOAL_KEY")))
            look = CredentialWatch(paths, now=SystemClock().wall).look
        flight = FlightEndpoint(listening_address(host), gate, look, advertise=_bracketed(host))
        return HostEndpoint(environment.get("SHOAL_HOST_ID", ""), unix=unix, flight=flight)
    except BaseException:
        unix.close()
        raise


def listening_address(host: str) -> str:
    """Where to listen so that others reach this process at `host`, which may be that of a router or a load balancer."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return "localhost" if host == "localhost" else "0.0.0.0"  # noqa: S104 - others come from other nodes
    if address.is_loopback:
        return _bracketed(host)
    return "[::]" if address.version == 6 else "0.0.0.0"  # noqa: S104 - as above


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
