"""Which transport leads from one process to another: a unix socket on one host, Arrow Flight between hosts.

A process says in one text how it can be reached; those that connect choose from it. Pure; used by `hosts`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from shoal.core.errors import InvalidError, PreconditionError, problem

_SCHEME = "exchange:"
_MOST = 4096


class Transport(enum.StrEnum):
    """A way between two processes."""

    UNIX = "unix"
    FLIGHT = "flight"


@dataclass(frozen=True, slots=True)
class Place:
    """How a process can be reached."""

    #: Equal for processes of one host. Empty when it is not known: then nobody is on the same one.
    host_id: str = ""
    #: The path of its unix socket; empty without one.
    unix: str = ""
    #: Where its Flight server listens; empty without one.
    flight: str = ""

    @property
    def text(self) -> str:
        """As it is told to others."""
        return _SCHEME + urlencode({"host": self.host_id, "unix": self.unix, "flight": self.flight})


def read_place(text: str) -> Place:
    """The inverse. Raises `InvalidError`."""
    wrong = InvalidError([problem("address", text[:200], "must be the address of an exchange")], what="exchange")
    if not text.startswith(_SCHEME) or len(text) > _MOST:
        raise wrong
    try:
        parts = parse_qsl(text.removeprefix(_SCHEME), keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        raise wrong from None
    found = dict(parts)
    if len(found) != len(parts) or set(found) != {"host", "unix", "flight"}:
        raise wrong
    return Place(found["host"], found["unix"], found["flight"])


def choose(own: Place, peer: Place) -> tuple[Transport, str]:
    """How a process connects to another: the transport, and the address for it."""
    if own.unix and peer.unix and own.host_id and own.host_id == peer.host_id:
        return Transport.UNIX, peer.unix
    if own.flight and peer.flight:
        return Transport.FLIGHT, peer.flight
    raise PreconditionError(
        f"nothing leads from host {own.host_id!r} to host {peer.host_id!r}",
        hint="processes of one host need the same host id, those of others need Arrow Flight",
    )
