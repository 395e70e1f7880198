"""One run of a command that works on a coordination tree. Called by `shoal.cli.connection.options.tree_command`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from shoal.cli.connection.session import Surroundings, surroundings
from shoal.core.errors import InvalidError, problem
from shoal.wire.addresses import parse_address

if TYPE_CHECKING:
    from shoal.discovery.store import CoordinationStore

T = TypeVar("T")

FLAG = "--zk-servers"
RULE = "must be HOST:PORT[,HOST:PORT…], such as 127.0.0.1:2181"


def call(servers: str, work: Callable[[CoordinationStore], Awaitable[T]]) -> T:
    """Open a session, do the work with it on an event loop, and end the session."""
    checked = _checked(servers)
    around = surroundings.get(Surroundings())

    async def session() -> T:
        store = around.make_tree(checked)
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    result: T = around.run(session())
    return result


def _checked(servers: str) -> str:
    if not servers:
        raise InvalidError([problem(FLAG, None, "is required: the tree is in ZooKeeper")])
    addresses = []
    for part in servers.split(","):
        try:
            addresses.append(str(parse_address(part.strip())))
        except InvalidError:
            raise InvalidError([problem(FLAG, part, RULE)]) from None
    return ",".join(addresses)
