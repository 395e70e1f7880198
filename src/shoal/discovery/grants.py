"""Grants: below which paths of a served tree agents and workloads may change nodes.

Grants are nodes of the tree themselves, one path in each line of their data, so they are stored and served with it:

    /shoal/grants/agent              every agent
    /shoal/grants/agent:<node>       one agent
    /shoal/grants/workload           every workload
    /shoal/grants/workload:<job>     the workloads of one job

The tree refuses anything else there (`check_grant_node`). Called by `shoal grant`, and by the rules of the tree.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from shoal.core.errors import ConflictError, InvalidError, NotFoundError, problem
from shoal.core.ids import is_identifier
from shoal.discovery.errors import NoNodeError
from shoal.discovery.store import ROOT, CoordinationStore, check_path, join, name_of, parent_of
from shoal.model.identity import Identity, Role

RESERVED = "/shoal"
GRANTS = "/shoal/grants"

WHO_RULE = "must be agent, agent:NODE, workload or workload:JOB"
PATH_RULE = f"must not be {RESERVED} or below it, which belong to the control plane"

_ROLES = (Role.AGENT, Role.WORKLOAD)
#: How often a change is tried again that met another one.
_TRIES = 10


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """A path, and who may change what is at or below it: `agent:n1`."""

    who: str
    path: str


def check_grantee(who: str, *, field: str = "who") -> str:
    """Return the name of the grantees. Raises `InvalidError`."""
    role, separator, name = who.partition(":")
    if role not in _ROLES or (separator and not is_identifier(name)):
        raise InvalidError([problem(field, who, WHO_RULE)])
    return who


def check_granted_path(path: str, *, field: str = "path") -> str:
    """Return a path that can be granted. Raises `InvalidError`."""
    try:
        check_path(path)
    except InvalidError as error:
        raise InvalidError([problem(field, path, error.problems[0].rule)]) from None
    if is_below(path, RESERVED):
        raise InvalidError([problem(field, path, PATH_RULE)])
    return path


def check_grant_node(path: str, data: bytes) -> None:
    """Refuse a node at or below the grants that is not one. Raises `InvalidError`."""
    if not is_below(path, GRANTS) or path == GRANTS:
        return
    if parent_of(path) != GRANTS:
        raise InvalidError([problem("path", path, f"must be a child of {GRANTS}")])
    check_grantee(name_of(path), field="path")
    for line in _lines(data):
        check_granted_path(line, field="data")


def read_paths(data: bytes) -> tuple[str, ...]:
    """The paths in the data of a node."""
    return tuple(line for line in _lines(data) if line.startswith(ROOT))


def grantees_of(identity: Identity) -> tuple[str, str]:
    """The names under which something may be granted to a caller."""
    name = identity.job if identity.role is Role.WORKLOAD else identity.name
    return str(identity.role), f"{identity.role}:{name}"


def is_below(path: str, prefix: str) -> bool:
    """Whether a path is at or below another."""
    return prefix in {ROOT, path} or path.startswith(f"{prefix.rstrip('/')}/")


async def list_grants(store: CoordinationStore) -> list[Grant]:
    """Every grant, sorted."""
    try:
        names = await store.children(GRANTS)
    except NoNodeError:
        return []
    found: set[Grant] = set()
    for name in names:
        try:
            value = await store.get(join(GRANTS, name))
        except NoNodeError:
            continue
        found.update(Grant(name, path) for path in read_paths(value.data))
    return sorted(found)


async def create_grant(store: CoordinationStore, grant: Grant) -> bool:
    """Grant a path. False when it was granted before. Raises `InvalidError`."""
    check_grantee(grant.who)
    check_granted_path(grant.path)
    return await _change(store, grant.who, lambda paths: {*paths, grant.path})


async def revoke_grant(store: CoordinationStore, grant: Grant) -> None:
    """Take a path back. Nodes that are there stay. Raises `NotFoundError`."""
    check_grantee(grant.who)
    if not await _change(store, grant.who, lambda paths: {*paths} - {grant.path}):
        raise NotFoundError("grant", f"{grant.path} to {grant.who}", hint="`shoal grant list` shows what is granted")


async def _change(store: CoordinationStore, who: str, decide: Callable[[Collection[str]], Collection[str]]) -> bool:
    """Replace the paths of one node. Another change at the same time is met by a second try."""
    node = join(GRANTS, who)
    for _ in range(_TRIES):
        try:
            value = await store.get(node)
        except NoNodeError:
            value = None
        before = read_paths(value.data) if value is not None else ()
        after = decide(before)
        if set(after) == set(before):
            return False
        data = "".join(f"{path}\n" for path in sorted(after)).encode()
        write: Awaitable[object]
        if value is None:
            write = store.create(node, data, makepath=True)
        elif after:
            write = store.set(node, data, version=value.stat.version)
        else:
            write = store.delete(node, version=value.stat.version)
        try:
            await write
        except (ConflictError, NoNodeError):
            continue
        return True
    raise ConflictError(f"the grants of {who} are changed by others all the time", hint="try again")


def _lines(data: bytes) -> list[str]:
    return [line.strip() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
