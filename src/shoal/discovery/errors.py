"""What can go wrong in a coordination tree, beyond what `shoal.core.errors` names.

    NotFoundError
    └── NoNodeError          the node, or the parent of a node to create, does not exist
    ConflictError
    ├── NodeExistsError      a node of that path exists already
    └── BadVersionError      the node has another version than the caller read
    PreconditionError
    └── NotEmptyError        the node has children
    UnavailableError
    └── SessionLostError     the session is over, and its ephemeral nodes with it

A call without a connection raises `UnavailableError`. Whether a change was applied is then unknown, as with ZooKeeper.
Raised by every backend of `shoal.discovery.store`; each survives pickling.
"""

from __future__ import annotations

from shoal.core.errors import ConflictError, NotFoundError, PreconditionError, UnavailableError


class NoNodeError(NotFoundError):
    """The node does not exist. For a new node: its parent does not."""

    def __init__(self, path: str) -> None:
        super().__init__("node", path)


class NodeExistsError(ConflictError):
    """The path is taken."""

    def __init__(self, path: str) -> None:
        super().__init__(f"node {path!r} exists already", path=path)


class BadVersionError(ConflictError):
    """Somebody else changed the node since it was read."""

    def __init__(self, path: str, *, expected: int) -> None:
        super().__init__(
            f"node {path!r} no longer has version {expected}",
            hint="read the node again, and decide again",
            path=path,
            expected=expected,
        )


class NotEmptyError(PreconditionError):
    """A node with children was to be deleted."""

    def __init__(self, path: str) -> None:
        super().__init__(f"node {path!r} has children", hint="delete it recursively", path=path)


class SessionLostError(UnavailableError):
    """The session expired or was closed. An open store makes a new one by itself."""

    def __init__(self, session_id: str = "") -> None:
        super().__init__(
            f"session {session_id} is over" if session_id else "there is no session", session_id=session_id
        )
