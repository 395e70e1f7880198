"""The servers of a ZooKeeper, as people write them: `host:port,host:port/path`.

Called by `shoal.cli.connection.trees` and `shoal.serving`, before a client is made. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.errors import InvalidError
from shoal.discovery.store import ROOT, check_path
from shoal.wire.addresses import Address, parse_address

RULE = "must be HOST:PORT[,HOST:PORT…][/PATH], such as 127.0.0.1:2181"


@dataclass(frozen=True, slots=True)
class ZookeeperServers:
    """Where a ZooKeeper is."""

    addresses: tuple[Address, ...]
    #: The node that is the root of the tree.
    root: str = ROOT

    def __str__(self) -> str:
        """The form that clients take."""
        return ",".join(map(str, self.addresses)) + (self.root if self.root != ROOT else "")


def parse_servers(text: str) -> ZookeeperServers:
    """Read servers. Raises ValueError with the rule."""
    hosts, slash, path = text.strip().partition("/")
    try:
        addresses = tuple(parse_address(part.strip()) for part in hosts.split(","))
        return ZookeeperServers(addresses, check_path(slash + path) if slash else ROOT)
    except InvalidError:
        raise ValueError(RULE) from None
