"""Who may change which nodes of a served tree. Pure: tree, caller and path in, a reason or None out.

Operators may change everything. Agents and workloads change what is at or below a path that an operator granted. Grants
are nodes themselves, one path in each line of their data:

    /shoal/grants/agent              every agent
    /shoal/grants/agent:<node>       one agent
    /shoal/grants/workload           every workload
    /shoal/grants/workload:<job>     the workloads of one job

An ephemeral node belongs to the caller that opened its session; no other agent or workload changes it. Everybody reads.
"""

from __future__ import annotations

from shoal.discovery.embedded.tree import Tree
from shoal.discovery.store import ROOT
from shoal.model.identity import Identity, Role

RESERVED = "/shoal"
GRANTS = "/shoal/grants"


def holder_of(identity: Identity | None) -> str:
    """The caller as a session remembers it; empty where nobody is known."""
    return identity.uri if identity is not None else ""


def reason_against_change(tree: Tree, identity: Identity | None, path: str, *, recursive: bool = False) -> str | None:
    """Why a caller may not change a node; None when it may."""
    if identity is None or identity.role in {Role.OPERATOR, Role.CONTROL}:
        return None
    granted = grants_of(tree, identity)
    if _is_below(path, RESERVED) or not any(_is_below(path, prefix) for prefix in granted):
        below = ", ".join(granted) or "nothing"
        return f"{identity} may change {below}, and not {path!r}; an operator grants paths in {GRANTS}"
    for each in tree.subtree(path) if recursive else (path,):
        node = tree.nodes.get(each)
        owner = tree.sessions.get(node.value.stat.owner) if node is not None else None
        if owner is not None and owner.holder != holder_of(identity):
            return f"node {each!r} is ephemeral and belongs to another caller"
    return None


def grants_of(tree: Tree, identity: Identity) -> tuple[str, ...]:
    """The paths at and below which an agent or a workload may change nodes."""
    name = identity.job if identity.role is Role.WORKLOAD else identity.name
    found: list[str] = []
    for node in (f"{GRANTS}/{identity.role}", f"{GRANTS}/{identity.role}:{name}"):
        value = tree.find(node)
        if value is not None:
            lines = value.data.decode("utf-8", "replace").splitlines()
            found.extend(line.strip() for line in lines if line.strip().startswith("/"))
    return tuple(found)


def _is_below(path: str, prefix: str) -> bool:
    return prefix in {ROOT, path} or path.startswith(f"{prefix.rstrip('/')}/")
