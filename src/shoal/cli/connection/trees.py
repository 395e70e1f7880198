"""One run of a command that works on a coordination tree: that of a ZooKeeper, or that of the control plane.

Called by `shoal.cli.connection.options.tree_command`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from shoal.cli.connection.session import Connection, Surroundings, surroundings
from shoal.core.errors import InvalidError, problem

if TYPE_CHECKING:
    from shoal.discovery.store import CoordinationStore

T = TypeVar("T")

FLAG = "--zk-servers"


@dataclass(frozen=True, slots=True)
class Tree:
    """Where the tree is, as it was given."""

    #: The servers of a ZooKeeper; empty for the tree of the control plane.
    servers: str
    connection: Connection

    def call(self, work: Callable[[CoordinationStore], Awaitable[T]]) -> T:
        """Open a session, do the work with it on an event loop, and end the session."""
        around = surroundings.get(Surroundings())
        make = self._of_zookeeper(around) if self.servers else self._of_control_plane(around)

        async def session() -> T:
            store = make()
            await store.open()
            try:
                return await work(store)
            finally:
                await store.close()

        result: T = around.run(session())
        return result

    def _of_zookeeper(self, around: Surroundings) -> Callable[[], CoordinationStore]:
        servers = _checked(self.servers)
        return lambda: around.make_tree(servers)

    def _of_control_plane(self, around: Surroundings) -> Callable[[], CoordinationStore]:
        addresses, access = self.connection.resolved()

        def make() -> CoordinationStore:
            from shoal.discovery.remote import RemoteStore

            return RemoteStore(around.make_transport(access), addresses)

        return make


def _checked(servers: str) -> str:
    from shoal.discovery.servers import parse_servers

    try:
        return str(parse_servers(servers))
    except ValueError as error:
        raise InvalidError([problem(FLAG, servers, str(error))]) from None
