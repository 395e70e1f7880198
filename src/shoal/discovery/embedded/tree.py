"""The tree as a value: decides what a change means and applies it. No I/O, no clock.

Every decision returns `Changes` and touches nothing; `apply` makes them true. In between the caller may store them.
Called by `owner.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from shoal.core.errors import ExhaustedError, PreconditionError
from shoal.discovery.errors import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError, SessionLostError
from shoal.discovery.store import ROOT, NodeStat, NodeValue, join, name_of, parent_of

#: What a tree holds at most. It lives in memory, and in the database of the control plane.
MAX_NODES = 200_000
MAX_BYTES = 128_000_000
MAX_SESSIONS = 10_000


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `sequence` is the number that its next sequential child gets."""

    path: str
    value: NodeValue
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Session:
    """One session, until it is closed or was not heard of for its timeout."""

    session_id: str
    timeout: timedelta
    #: Who opened it, as its certificate says; only the same caller may go on with it.
    holder: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """What one call does to the tree: all or none. `order` is the number of the last change.

    A whole tree is written in the same form: everything in it was put and opened.
    """

    order: int
    put: tuple[Node, ...] = ()
    removed: tuple[str, ...] = ()
    opened: tuple[Session, ...] = ()
    ended: tuple[str, ...] = ()


@dataclass(slots=True)
class Tree:
    """Nodes by path, and sessions by id."""

    order: int = 0
    nodes: dict[str, Node] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    #: Bytes of paths and data.
    size: int = 0
    _children: dict[str, set[str]] = field(default_factory=dict)
    _owned: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._put(Node(ROOT, NodeValue(b"", NodeStat(version=0, owner="", created=0, modified=0))))

    @classmethod
    def of(cls, stored: Changes) -> Tree:
        """The tree that was stored."""
        tree = cls()
        tree.apply(stored)
        return tree

    # ------------------------------------------------------------------------------------------------
    # Reading

    def get(self, path: str) -> NodeValue:
        """Read a node."""
        return self._node(path).value

    def find(self, path: str) -> NodeValue | None:
        """Read a node, or None."""
        node = self.nodes.get(path)
        return node.value if node else None

    def children(self, path: str) -> tuple[str, ...]:
        """The sorted names below a node."""
        self._node(path)
        return tuple(sorted(self._children.get(path, ())))

    def find_children(self, path: str) -> tuple[str, ...] | None:
        """The sorted names below a node, or None."""
        return self.children(path) if path in self.nodes else None

    def subtree(self, path: str) -> tuple[str, ...]:
        """A node and everything below it, the lowest first. Empty when there is no such node."""
        found = [path] if path in self.nodes else []
        for each in found:
            found.extend(join(each, name) for name in self.children(each))
        return tuple(reversed(found))

    # ------------------------------------------------------------------------------------------------
    # Deciding

    def open_session(self, session: Session) -> Changes:
        """A session begins."""
        if len(self.sessions) >= MAX_SESSIONS:
            raise ExhaustedError(f"the tree has {MAX_SESSIONS} sessions, which is the most")
        return Changes(self.order + 1, opened=(session,))

    def end_session(self, session_id: str) -> Changes:
        """A session ends, with its ephemeral nodes. Nothing happens to one that is over."""
        if session_id not in self.sessions:
            return Changes(self.order)
        return Changes(self.order + 1, removed=tuple(sorted(self._owned.get(session_id, ()))), ended=(session_id,))

    def create(
        self, path: str, data: bytes, *, session_id: str, ephemeral: bool, sequential: bool, makepath: bool
    ) -> tuple[str, Changes]:
        """A node is created: its path, and the changes."""
        self.check_session(session_id)
        order = self.order + 1
        parent = parent_of(path)
        above = self._missing(parent, order) if makepath else ()
        put = {node.path: node for node in above}
        holder = put.get(parent) or self._node(parent)
        if holder.value.stat.owner:
            raise PreconditionError(f"node {parent!r} is ephemeral and cannot have children", path=parent)
        if sequential:
            number = holder.sequence
            while f"{path}{number:010d}" in self.nodes:  # somebody chose that name
                number += 1
            put[parent] = replace(holder, sequence=number + 1)
            path = f"{path}{number:010d}"
        if path in self.nodes:
            raise NodeExistsError(path)
        stat = NodeStat(version=0, owner=session_id if ephemeral else "", created=order, modified=order)
        put[path] = Node(path, NodeValue(data, stat))
        return path, self._bounded(Changes(order, put=tuple(put.values())))

    def ensure_path(self, path: str, *, session_id: str) -> Changes:
        """The missing persistent nodes of a path are created."""
        self.check_session(session_id)
        missing = self._missing(path, self.order + 1)
        return self._bounded(Changes(self.order + 1, put=missing)) if missing else Changes(self.order)

    def set(self, path: str, data: bytes, *, version: int, session_id: str) -> Changes:
        """The data of a node is replaced."""
        self.check_session(session_id)
        node = self._at_version(path, version)
        order = self.order + 1
        stat = replace(node.value.stat, version=node.value.stat.version + 1, modified=order)
        return self._bounded(Changes(order, put=(replace(node, value=NodeValue(data, stat)),)))

    def take_over(self, path: str, data: bytes, *, version: int, session_id: str) -> Changes:
        """A node is replaced by an ephemeral one of a session."""
        self.check_session(session_id)
        self._at_version(path, version)
        if self._children.get(path):
            raise NotEmptyError(path)
        order = self.order + 1
        stat = NodeStat(version=0, owner=session_id, created=order, modified=order)
        return self._bounded(Changes(order, put=(Node(path, NodeValue(data, stat)),)))

    def publish(self, put: Mapping[str, bytes], gone: Collection[str]) -> Changes:
        """Persistent nodes are written and removed by the owner of the tree, parents included. No session is needed."""
        order = self.order + 1
        written: dict[str, Node] = {}
        for path, data in sorted(put.items()):
            written |= {node.path: node for node in self._missing(parent_of(path), order)}
            stat = NodeStat(version=0, owner="", created=order, modified=order)
            known = self.nodes.get(path)
            if known is not None:
                stat = replace(known.value.stat, version=known.value.stat.version + 1, owner="", modified=order)
            written[path] = Node(path, NodeValue(data, stat))
        removed = {path for path in gone if path in self.nodes and not self._children.get(path)} - written.keys()
        left: dict[str, set[str]] = {}
        for path in removed:
            left.setdefault(parent_of(path), set()).add(name_of(path))
        parents = {parent_of(path) for path in written}
        empty = {
            parent
            for parent, names in left.items()
            if parent not in parents and not self._children.get(parent, set()) - names
        }
        if not written and not removed:
            return Changes(self.order)
        return self._bounded(Changes(order, put=tuple(written.values()), removed=(*sorted(removed), *sorted(empty))))

    def delete(self, path: str, *, version: int, recursive: bool, session_id: str) -> Changes:
        """A node is deleted."""
        self.check_session(session_id)
        self._at_version(path, version)
        if recursive:
            return Changes(self.order + 1, removed=self.subtree(path))
        if self._children.get(path):
            raise NotEmptyError(path)
        return Changes(self.order + 1, removed=(path,))

    def _bounded(self, changes: Changes) -> Changes:
        """Refuse what would make the tree too large."""
        size = self.size + sum(_size(node) - _size(self.nodes.get(node.path)) for node in changes.put)
        count = len(self.nodes.keys() | {node.path for node in changes.put}) if len(self.nodes) >= MAX_NODES else 0
        if size > max(MAX_BYTES, self.size) or count > MAX_NODES:
            raise ExhaustedError(
                f"the tree is full: it has {len(self.nodes)} nodes of at most {MAX_NODES}, "
                f"and {self.size} bytes of at most {MAX_BYTES}",
                hint="delete nodes that nobody needs, or use ZooKeeper",
            )
        return changes

    def check_session(self, session_id: str) -> None:
        """Refuse a session that is over."""
        if session_id not in self.sessions:
            raise SessionLostError(session_id)

    # ------------------------------------------------------------------------------------------------
    # Applying

    def apply(self, changes: Changes) -> None:
        """Make changes true."""
        self.order = changes.order
        for session in changes.opened:
            self.sessions[session.session_id] = session
        for node in changes.put:
            self._put(node)
        for path in changes.removed:
            self._remove(path)
        for session_id in changes.ended:
            self.sessions.pop(session_id, None)
            self._owned.pop(session_id, None)

    def _put(self, node: Node) -> None:
        if node.path not in self.nodes and node.path != ROOT:
            self._children.setdefault(parent_of(node.path), set()).add(name_of(node.path))
        previous = self.nodes.get(node.path)
        if previous is not None and previous.value.stat.owner:
            self._owned.get(previous.value.stat.owner, set()).discard(node.path)
        if owner := node.value.stat.owner:
            self._owned.setdefault(owner, set()).add(node.path)
        self.size += _size(node) - _size(previous)
        self.nodes[node.path] = node

    def _remove(self, path: str) -> None:
        node = self.nodes.pop(path)
        self.size -= _size(node)
        self._children.pop(path, None)
        siblings = self._children.get(parent_of(path))
        if siblings is not None:
            siblings.discard(name_of(path))
            if not siblings:
                del self._children[parent_of(path)]
        if node.value.stat.owner:
            self._owned.get(node.value.stat.owner, set()).discard(path)

    def _node(self, path: str) -> Node:
        node = self.nodes.get(path)
        if node is None:
            raise NoNodeError(path)
        return node

    def _at_version(self, path: str, version: int) -> Node:
        node = self._node(path)
        if version not in {-1, node.value.stat.version}:
            raise BadVersionError(path, expected=version)
        return node

    def _missing(self, path: str, order: int) -> tuple[Node, ...]:
        """The persistent nodes that a path lacks, the highest first."""
        missing: list[Node] = []
        while path not in self.nodes:
            missing.append(Node(path, NodeValue(b"", NodeStat(version=0, owner="", created=order, modified=order))))
            path = parent_of(path)
        if missing and self.nodes[path].value.stat.owner:
            raise PreconditionError(f"node {path!r} is ephemeral and cannot have children", path=path)
        return tuple(reversed(missing))


def _size(node: Node | None) -> int:
    return len(node.path) + len(node.value.data) if node else 0
