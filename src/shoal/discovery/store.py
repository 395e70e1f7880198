"""The protocol of a coordination tree, with ZooKeeper's semantics.

A tree has nodes with data, versions and children. An ephemeral node belongs to a session and goes with it. A store is
one client with one session at a time:

    CONNECTED   calls work
    SUSPENDED   the connection is lost; the session and its ephemeral nodes may live on
    LOST        there is no session: not opened yet, closed, or expired. An open store makes a new one by itself

Every function that a watch calls runs on the event loop of the store, never inside the call that registered it.
Backends: `shoal.discovery.embedded`, `shoal.discovery.zookeeper`. The conformance suite:
`shoal.testing.suites.coordination`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shoal.core.errors import ExhaustedError, InvalidError, problem

ROOT = "/"

#: ZooKeeper's own bound on a message is 1 MiB, and a path needs room beside the data.
MAX_DATA_BYTES = 1_000_000
MAX_PATH_LENGTH = 1024

# The characters that ZooKeeper refuses in a path.
_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


class SessionState(enum.StrEnum):
    """What a store knows about its session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class NodeStat:
    """Facts about a node. `created` and `modified` are order numbers of changes to the tree (ZooKeeper's zxid)."""

    #: Counts changes of the data, from 0.
    version: int
    #: The session of an ephemeral node, otherwise empty.
    owner: str
    created: int
    modified: int


@dataclass(frozen=True, slots=True)
class NodeValue:
    """The data of a node with its facts."""

    data: bytes
    stat: NodeStat


class Watch(Protocol):
    """A registration. Nothing is called after `close`."""

    def close(self) -> None:
        """End the registration. Safe to call twice."""
        ...


class Watchable(Protocol):
    """A coordination tree that can be followed."""

    def watch_data(self, path: str, changed: Callable[[NodeValue | None], None]) -> Watch:
        """Call `changed` with the value now and after every change; None means that the node does not exist.

        Changes in quick succession are coalesced: the last value is always delivered, those in between may not be.
        A value is not delivered twice in a row. None may be: a node that is still missing may have existed meanwhile.
        So a call follows every change of the node. A watch outlives reconnects and sessions.
        """
        ...

    def watch_children(self, path: str, changed: Callable[[tuple[str, ...] | None], None]) -> Watch:
        """As `watch_data`, for the sorted names of the children; None means that the node does not exist.

        Names that are the same again after two changes are not delivered twice.
        """
        ...


class CoordinationStore(Watchable, Protocol):
    """One client of a coordination tree."""

    @property
    def state(self) -> SessionState:
        """The state of the session, as far as this client knows."""
        ...

    @property
    def session_id(self) -> str:
        """The id that ephemeral nodes of this session have as their owner; empty without a session."""
        ...

    async def open(self) -> None:
        """Begin a session. Raises `UnavailableError` when the tree cannot be reached in time."""
        ...

    async def close(self) -> None:
        """End the session: its ephemeral nodes go, and its watches end. Safe to call twice."""
        ...

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        makepath: bool = False,
    ) -> str:
        """Create a node and return its path.

        A sequential node gets the next number of its parent, ten digits long, at the end of its name. `makepath`
        creates missing parents as persistent nodes.

        Raises:
            NodeExistsError: the path is taken.
            NoNodeError: the parent does not exist.
            PreconditionError: the parent is ephemeral, and such a node has no children.
        """
        ...

    async def ensure_path(self, path: str) -> None:
        """Create the persistent nodes of a path that do not exist."""
        ...

    async def get(self, path: str) -> NodeValue:
        """Read a node. Raises `NoNodeError`."""
        ...

    async def exists(self, path: str) -> NodeStat | None:
        """The facts about a node, or None when it does not exist."""
        ...

    async def children(self, path: str) -> tuple[str, ...]:
        """The names of the children, sorted. Raises `NoNodeError`."""
        ...

    async def set(self, path: str, data: bytes, *, version: int = -1) -> NodeStat:
        """Replace the data. With a version, only if the node still has it.

        Raises:
            NoNodeError: the node does not exist.
            BadVersionError: the node has another version.
        """
        ...

    async def take_over(self, path: str, data: bytes, *, version: int) -> None:
        """Replace a node by an ephemeral one of this session, in one change, if it still has this version.

        Raises:
            NoNodeError: the node does not exist.
            BadVersionError: the node has another version.
            NotEmptyError: the node has children.
        """
        ...

    async def delete(self, path: str, *, version: int = -1, recursive: bool = False) -> None:
        """Delete a node. `recursive` deletes everything below it first and takes no version.

        Raises:
            NoNodeError: the node does not exist.
            BadVersionError: the node has another version.
            NotEmptyError: the node has children.
        """
        ...

    def on_state(self, changed: Callable[[SessionState], None]) -> Watch:
        """Call `changed` after every change of the state of the session."""
        ...


def check_path(path: str) -> str:
    """Return the path of a node if it follows the rules. Raises `InvalidError`."""
    rule = ""
    if not path.startswith("/"):
        rule = "a path begins with /"
    elif len(path) > MAX_PATH_LENGTH:
        rule = f"a path has at most {MAX_PATH_LENGTH} characters"
    elif path != ROOT and any(part in {"", ".", ".."} for part in path[1:].split("/")):
        rule = "the names in a path are not empty, and not . or .."
    elif _REFUSED.search(path):
        rule = "a path has no control characters, and none from a private area"
    if rule:
        raise InvalidError([problem("path", path, rule)])
    return path


def check_data(path: str, data: bytes) -> bytes:
    """Return the data of a node if it is not too large. Raises `ExhaustedError`."""
    if len(data) > MAX_DATA_BYTES:
        raise ExhaustedError(
            f"node {path!r}: {len(data)} bytes of data are more than {MAX_DATA_BYTES}", path=path, size=len(data)
        )
    return data


def check_delete(path: str, *, version: int, recursive: bool) -> str:
    """Return the path of a node that can be deleted so. Raises `InvalidError`."""
    if path == ROOT:
        raise InvalidError([problem("path", path, "the root cannot be deleted")])
    if recursive and version != -1:
        raise InvalidError([problem("version", version, "a recursive delete takes no version")])
    return check_path(path)


def parent_of(path: str) -> str:
    """The path of the parent."""
    return path.rpartition("/")[0] or ROOT


def name_of(path: str) -> str:
    """The last name in a path."""
    return path.rpartition("/")[2]


def join(parent: str, name: str) -> str:
    """The path of a child."""
    return f"/{name}" if parent == ROOT else f"{parent}/{name}"
