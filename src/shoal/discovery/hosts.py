"""The address of this machine that others can call, and the kind of addresses that it can call itself.

Called by the serving agents and by the directory of the control plane.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator

import psutil

from shoal.discovery.replicas.records import AddressFamily


def local_address() -> str:
    """An address of this machine that is not loopback; `localhost` when there is none. Sends nothing.

    The one that leads to other networks comes first. A machine without such a way has those of its interfaces.
    """
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            found = str(probe.getsockname()[0])
            if not ipaddress.ip_address(found).is_loopback:
                return found
    return next(_interface_addresses(), "localhost")


def family_of(*hosts: str) -> AddressFamily:
    """The addresses that a machine of these hosts calls: IPv4, unless it has IPv6 alone.

    Without any host it is this machine.
    """
    known = next(filter(None, hosts), "") or local_address()
    return AddressFamily.IPV6 if ":" in known else AddressFamily.IPV4


def _interface_addresses() -> Iterator[str]:
    running = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = []
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        for each in addresses:
            # An address with `%` is one of the link alone.
            is_ip = each.family in (socket.AF_INET, socket.AF_INET6) and "%" not in each.address
            if is_ip and name in running and not ipaddress.ip_address(each.address).is_loopback:
                found.append((each.family == socket.AF_INET6, each.address))
    yield from (address for _, address in sorted(found, key=lambda each: each[0]))
