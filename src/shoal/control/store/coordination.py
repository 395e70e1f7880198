"""Tables and statements of the coordination tree, and how its changes become rows.

The tree is stored row by row as it changes, each change under the number after the stored one: a control plane whose
memory differs from what is stored cannot write. Called by `shoal.control.store.sql` and `shoal.control.store.rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Executable,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    delete,
    select,
    update,
)

from shoal.discovery.embedded.tree import Changes, Node, Session
from shoal.discovery.store import NodeStat, NodeValue

_ORDER = "coordination_order"
_MILLISECOND = timedelta(milliseconds=1)


class CoordinationTables:
    """The tables of the tree, and its row in the table of numbers."""

    def __init__(self, metadata: MetaData, meta: Table, insert: Callable[[Table], Any]) -> None:
        self.nodes = Table(
            "coordination_nodes",
            metadata,
            Column("path", Text, primary_key=True),
            Column("data", LargeBinary),
            Column("version", BigInteger),
            Column("owner", Text),
            Column("created", BigInteger),
            Column("modified", BigInteger),
            Column("sequence", BigInteger),
        )
        self.sessions = Table(
            "coordination_sessions",
            metadata,
            Column("id", Text, primary_key=True),
            Column("timeout_ms", BigInteger),
            Column("holder", Text),
        )
        self._meta = meta
        self._insert = insert

    def steps(self) -> Iterator[tuple[str, Executable, bool]]:
        """Name and statement of every step, and whether each of its rows must hit exactly one stored row."""
        follows = (self._meta.c.name == _ORDER, self._meta.c.value == bindparam("previous"))
        yield "coordination.order", update(self._meta).where(*follows).values(value=bindparam("order")), True
        yield "coordination.remove", delete(self.nodes).where(self.nodes.c.path == bindparam("key")), False
        yield "coordination.end", delete(self.sessions).where(self.sessions.c.id == bindparam("key")), False
        put = self._insert(self.nodes)
        changing = {column.name: put.excluded[column.name] for column in self.nodes.columns if not column.primary_key}
        yield "coordination.put", put.on_conflict_do_update(index_elements=[self.nodes.c.path], set_=changing), False
        yield "coordination.open", self._insert(self.sessions), False

    def load(self, connection: Connection) -> Changes:
        """Everything that is stored."""
        order = connection.execute(select(self._meta.c.value).where(self._meta.c.name == _ORDER)).scalar_one()
        nodes = connection.execute(select(self.nodes))
        sessions = connection.execute(select(self.sessions))
        return Changes(
            order=order,
            put=tuple(_node(row) for row in nodes),
            opened=tuple(Session(row.id, row.timeout_ms * _MILLISECOND, row.holder) for row in sessions),
        )


def rows_of(changes: Changes) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a change, each with the name of its step."""
    yield "coordination.order", {"previous": changes.order - 1, "order": changes.order}
    for path in changes.removed:
        yield "coordination.remove", {"key": path}
    for session_id in changes.ended:
        yield "coordination.end", {"key": session_id}
    for node in changes.put:
        stat = node.value.stat
        yield (
            "coordination.put",
            {
                "path": node.path,
                "data": node.value.data,
                "version": stat.version,
                "owner": stat.owner,
                "created": stat.created,
                "modified": stat.modified,
                "sequence": node.sequence,
            },
        )
    for session in changes.opened:
        timeout = session.timeout // _MILLISECOND
        yield "coordination.open", {"id": session.session_id, "timeout_ms": timeout, "holder": session.holder}


def _node(row: Any) -> Node:
    stat = NodeStat(version=row.version, owner=row.owner, created=row.created, modified=row.modified)
    return Node(row.path, NodeValue(bytes(row.data), stat), row.sequence)
