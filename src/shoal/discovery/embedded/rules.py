"""Who may change which nodes of a served tree. Pure: tree, caller and path in, a reason or None out.

Operators may change everything. Agents and workloads change what is at or below a path that an operator granted
(`shoal.discovery.grants`). An ephemeral node belongs to the caller that opened its session, who may change it in a
later session, too; no other agent or workload changes it. Everybody reads.
"""

from __future__ import annotations

from shoal.discovery.embedded.tree import Tree
from shoal.discovery.grants import GRANTS, RESERVED, grantees_of, is_below, read_paths
from shoal.discovery.store import join
from shoal.model.identity import Identity, Role


def holder_of(identity: Identity | None) -> str:
    """The caller as a session remembers it; empty where nobody is known."""
    return identity.uri if identity is not None else ""


def reason_against_change(tree: Tree, identity: Identity | None, path: str, *, recursive: bool = False) -> str | None:
    """Why a caller may not change a node; None when it may."""
    if identity is None or identity.role in {Role.OPERATOR, Role.CONTROL}:
        return None
    granted = grants_of(tree, identity)
    if is_below(path, RESERVED) or not any(is_below(path, prefix) for prefix in granted):
        below = ", ".join(granted) or "nothing"
        return f"{identity} may change {below}, and not {path!r}; an operator grants paths: `shoal grant create`"
    for each in tree.subtree(path) if recursive else (path,):
        if is_below(each, RESERVED):
            return f"{each!r} belongs to the control plane"
        node = tree.nodes.get(each)
        owner = tree.sessions.get(node.value.stat.owner) if node is not None else None
        if owner is not None and owner.holder != holder_of(identity):
            return f"node {each!r} is ephemeral and belongs to another caller"
    return None


def grants_of(tree: Tree, identity: Identity) -> tuple[str, ...]:
    """The paths at and below which an agent or a workload may change nodes."""
    found: dict[str, None] = {}
    for who in grantees_of(identity):
        value = tree.find(join(GRANTS, who))
        if value is not None:
            found.update(dict.fromkeys(read_paths(value.data)))
    return tuple(found)
