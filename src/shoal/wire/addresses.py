"""Addresses as people and peers write them: `host:port`, with IPv6 hosts in brackets.

Called by both transports, by the HTTP server and by `shoal.wire.convert` for the endpoint of a node.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from shoal.core.errors import InvalidError, problem

RULE = "must be host:port with a port from 1 to 65,535, and an IPv6 host in brackets, such as 10.0.0.5:50051"
RULE_FOR_LISTENING = "must be host:port with a port from 0 to 65,535, and an IPv6 host in brackets, such as [::]:8085"

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?\.?")
_PORT = re.compile(r"[0-9]{1,5}")
_EVERYWHERE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - names the wildcard, binds nothing


@dataclass(frozen=True, slots=True)
class Address:
    """A host, without brackets, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        """The way it is reached."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for every address of the machine."""
        return self.host in _EVERYWHERE

    def with_port(self, port: int) -> Address:
        """The same host with another port."""
        return Address(self.host, port)

    def dialable(self) -> Address:
        """An address that reaches a server bound to this one, from the same machine."""
        if self.host == "::":
            return Address("::1", self.port)
        return Address("127.0.0.1", self.port) if self.is_wildcard else self


def parse_address(text: str, *, field: str = "address", listening: bool = False) -> Address:
    """Read `host:port`. Raises `InvalidError` on `field`.

    With `listening` the host may be empty (every address) and the port 0 (any free one).
    """
    address = _parse(text)
    rule = RULE_FOR_LISTENING if listening else RULE
    if address is None or not (0 if listening else 1) <= address.port <= 65535:
        raise InvalidError([problem(field, text, rule)])
    if not address.host and not listening:
        raise InvalidError([problem(field, text, rule)])
    return address


def _parse(text: str) -> Address | None:
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.fullmatch(port):
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return None
        return Address(host, int(port))
    if host and (not _HOST.fullmatch(host) or ".." in host):
        return None
    return Address(host, int(port))
