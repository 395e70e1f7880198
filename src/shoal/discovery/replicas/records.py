"""What the node of a replica holds: addresses and a state. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from shoal.core.errors import InvalidError
from shoal.wire.addresses import parse_address


class ModelState(enum.IntEnum):
    """The state of a version in a model server, with TF Serving's numbers."""

    UNKNOWN = 0
    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


class ServerType(enum.StrEnum):
    """What a model server serves."""

    PS = "ps"
    ENTRY = "entry"
    DENSE = "dense"


class AddressFamily(enum.StrEnum):
    """Which kind of address a client prefers."""

    IPV4 = "ipv4"
    IPV6 = "ipv6"


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of a task, with the field names of the JSON. In the v1 tree only the path names model and task."""

    address: str | None = None
    address_ipv6: str | None = None
    stat: ModelState = ModelState.UNKNOWN
    model_name: str | None = None
    server_type: str | None = None
    task: int = -1
    replica: int = -1
    archon_address: str | None = None
    archon_address_ipv6: str | None = None

    @property
    def is_available(self) -> bool:
        """Whether it can be called."""
        return self.stat is ModelState.AVAILABLE

    def chosen_address(self, *, family: AddressFamily = AddressFamily.IPV4, archon: bool = False) -> str | None:
        """The address to call, of the preferred family if there is one, else of the other."""
        v4, v6 = (self.archon_address, self.archon_address_ipv6) if archon else (self.address, self.address_ipv6)
        first, second = (v4, v6) if family is AddressFamily.IPV4 else (v6, v4)
        return usable_address(first) or usable_address(second)


def usable_address(text: str | None) -> str | None:
    """An address that can be dialed, or None: agents write `0.0.0.0` and `[::]` when they do not know their host."""
    if not text:
        return None
    try:
        address = parse_address(text)
    except InvalidError:
        return None
    return None if address.is_wildcard else text
