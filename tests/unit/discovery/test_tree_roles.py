"""Who may do what in a served tree: every call there is, by every kind of caller, on every kind of node."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from shoal.core.errors import DeniedError, InvalidError, UnavailableError
from shoal.discovery.errors import BadVersionError, NodeExistsError, NoNodeError
from shoal.discovery.grants import Grant, create_grant, list_grants, revoke_grant
from shoal.discovery.registrar import Registrar
from shoal.discovery.remote import RemoteStore
from shoal.discovery.store import NodeValue
from shoal.model.identity import Identity, Role, workload_identity
from shoal.testing.suites.coordination_kit import Seen
from shoal.wire.pb.shoal.v1 import coordination_pb2 as pb
from tests.unit.discovery.test_served import Served

CONTROL = Identity(Role.CONTROL, "c", "control")
OPERATOR = Identity(Role.OPERATOR, "c", "ann")
CALLERS = {
    "operator": OPERATOR,
    "agent, granted to all": Identity(Role.AGENT, "c", "n1"),
    "agent, granted to it": Identity(Role.AGENT, "c", "n2"),
    "workload, granted to all": workload_identity("c", job="any", node="n1"),
    "workload, granted to its job": workload_identity("c", job="web", node="n1"),
}
GRANTS = {
    "agent, granted to all": Grant("agent", "/mine"),
    "agent, granted to it": Grant("agent:n2", "/mine"),
    "workload, granted to all": Grant("workload", "/mine"),
    "workload, granted to its job": Grant("workload:web", "/mine"),
}
#: Grants for others, which change nothing.
BESIDE = (Grant("agent:n9", "/"), Grant("workload:other", "/"), Grant("agent:n2", "/mines"), Grant("agent", "/other"))

Work = Callable[[RemoteStore, str], Awaitable[object]]

#: By the name in the protocol; True: it changes the node.
CALLS: dict[str, tuple[bool, tuple[Work, ...]]] = {
    "create": (
        True,
        (
            lambda store, path: store.create(f"{path}/new"),
            lambda store, path: store.create(f"{path}/n-", ephemeral=True, sequential=True),
        ),
    ),
    "ensure_path": (True, (lambda store, path: store.ensure_path(f"{path}/a/b"),)),
    "get": (False, (lambda store, path: store.get(path),)),
    "exists": (False, (lambda store, path: store.exists(path),)),
    "children": (False, (lambda store, path: store.children(path),)),
    "set": (True, (lambda store, path: store.set(path, b"new"),)),
    "take_over": (True, (lambda store, path: store.take_over(path, b"new", version=0),)),
    "delete": (
        True,
        (lambda store, path: store.delete(path), lambda store, path: store.delete(path, recursive=True)),
    ),
}


@pytest.fixture
async def trusted():
    served = Served(CONTROL)
    await served.start()
    yield served
    await served.stop()


@pytest.fixture
async def operator(trusted):
    store = trusted.store(OPERATOR)
    await store.open()
    yield store
    await store.close()


async def opened(trusted: Served, identity: Identity) -> RemoteStore:
    store = trusted.store(identity)
    await store.open()
    return store


def test_every_call_of_the_protocol_is_in_the_table():
    assert {field.name for field in pb.TreeCall.DESCRIPTOR.oneofs_by_name["call"].fields} == CALLS.keys()
    messages = {field.name for field in pb.CoordinationRequest.DESCRIPTOR.oneofs_by_name["message"].fields}
    assert messages == {"open", "ping", "call", "follow", "close"}


@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("call", CALLS)
async def test_a_change_needs_a_grant_and_a_read_does_not(trusted, operator, call, caller, granted):
    if granted and caller in GRANTS:
        await create_grant(operator, GRANTS[caller])
    for grant in BESIDE:
        if grant != GRANTS.get(caller):
            await create_grant(operator, grant)
    changes, works = CALLS[call]
    store = await opened(trusted, CALLERS[caller])
    may = not changes or caller == "operator" or granted
    for number, work in enumerate(works):
        await operator.create(f"/mine/{number}", b"old", makepath=True)
        before = dict(trusted.owner.tree.nodes)
        if may:
            await work(store, f"/mine/{number}")
            assert (trusted.owner.tree.nodes != before) is changes
        else:
            with pytest.raises(DeniedError, match="shoal grant create"):
                await work(store, f"/mine/{number}")
            assert trusted.owner.tree.nodes == before
    await store.close()


@pytest.mark.parametrize("caller", [name for name in CALLERS if name != "operator"])
@pytest.mark.parametrize("call", [name for name, (changes, _) in CALLS.items() if changes])
async def test_nobody_but_operators_changes_grants(trusted, operator, call, caller):
    for grant in (Grant("agent", "/"), Grant("workload", "/"), Grant("agent:n2", "/mine")):
        await create_grant(operator, grant)
    store = await opened(trusted, CALLERS[caller])
    before = dict(trusted.owner.tree.nodes)
    for path, work in itertools.product(("/shoal", "/shoal/grants", "/shoal/grants/agent:n2"), CALLS[call][1]):
        with pytest.raises((DeniedError, InvalidError)):
            await work(store, path)
    assert trusted.owner.tree.nodes == before
    await store.close()


#: What changes an ephemeral node. Nothing can be created below one.
TOUCHING = [(call, number) for call in ("set", "take_over", "delete") for number in range(len(CALLS[call][1]))]


@pytest.mark.parametrize(("call", "number"), TOUCHING)
@pytest.mark.parametrize("same", [True, False])
async def test_an_ephemeral_node_belongs_to_its_caller(trusted, operator, call, number, same):
    await create_grant(operator, Grant("agent", "/mine"))
    owner = await opened(trusted, Identity(Role.AGENT, "c", "n1"))
    await owner.create("/mine/a", b"old", ephemeral=True, makepath=True)
    other = await opened(trusted, Identity(Role.AGENT, "c", "n1" if same else "n2"))
    work = CALLS[call][1][number]
    if same:
        await work(other, "/mine/a")
    else:
        before = dict(trusted.owner.tree.nodes)
        for path in ("/mine/a", "/mine") if number else ("/mine/a",):
            with pytest.raises(DeniedError, match="belongs to another caller"):
                await work(other, path)
        assert trusted.owner.tree.nodes == before
        await work(operator, "/mine/a")
    await owner.close()
    await other.close()


async def test_a_workload_that_moved_is_registered_when_the_session_on_the_old_node_ends(trusted, operator):
    await create_grant(operator, Grant("workload:web", "/mine"))
    old = await opened(trusted, workload_identity("c", job="web", node="n1"))
    await old.create("/mine/pod", b"10.0.0.1:80", ephemeral=True, makepath=True)
    new = await opened(trusted, workload_identity("c", job="web", node="n2"))
    registrar = Registrar(new)
    registrar.start()
    registrar.register("/mine/pod", b"10.0.0.2:80")
    registrar.register("/mine/other")
    seen: Seen[NodeValue | None] = Seen(20)
    operator.watch_data("/mine/other", seen)
    await seen.until(lambda value: value is not None)
    # What another node still holds is left to it, and keeps nothing else from its place.
    assert (await operator.get("/mine/pod")).data == b"10.0.0.1:80"
    await trusted.owner.end_session(old.session_id)
    async with asyncio.timeout(20):
        await registrar.settled()
    found = await operator.get("/mine/pod")
    assert (found.data, found.stat.owner) == (b"10.0.0.2:80", new.session_id)
    await registrar.close()
    await new.close()
    await old.close()


async def test_everybody_follows_nodes(trusted, operator):
    for identity in CALLERS.values():
        store = await opened(trusted, identity)
        data: Seen[object] = Seen(20)
        store.watch_data("/x", data)
        await data.is_now(None)
        await store.close()


async def test_a_revoked_grant_ends_at_once(trusted, operator):
    agent = await opened(trusted, Identity(Role.AGENT, "c", "n1"))
    await create_grant(operator, Grant("agent:n1", "/mine"))
    await agent.create("/mine/a", ephemeral=True, makepath=True)
    await revoke_grant(operator, Grant("agent:n1", "/mine"))
    with pytest.raises(DeniedError, match="may change nothing"):
        await agent.create("/mine/b")
    assert await operator.exists("/mine/a") is not None
    await agent.close()
    assert await operator.exists("/mine/a") is None


async def test_the_control_plane_itself_has_no_session(trusted):
    with pytest.raises(DeniedError):
        await trusted.store(CONTROL).open()


async def test_another_cluster_has_no_session(trusted):
    eve = trusted.store(Identity(Role.OPERATOR, "other", "eve"), call_timeout=timedelta(milliseconds=100))
    with pytest.raises(UnavailableError, match=r"answers at 10\.0\.0\.1:8085: .+"):
        await eve.open()
    assert trusted.owner.tree.sessions == {}


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/shoal/grants/operator", b"/"),
        ("/shoal/grants/agent:", b"/"),
        ("/shoal/grants/agent:n1/below", b""),
        ("/shoal/grants/agent", b"gip"),
        ("/shoal/grants/agent", b"/gip\n/a//b"),
        ("/shoal/grants/agent", b"/shoal/grants"),
        ("/shoal/grants/agent", b"\xff\xfe"),
    ],
)
async def test_a_node_that_is_no_grant_is_refused(trusted, operator, path, data):
    with pytest.raises(InvalidError):
        await operator.create(path, data, makepath=True)
    assert await list_grants(operator) == []


async def test_two_operators_change_grants_at_the_same_time(trusted, operator):
    """The second one meets a version that it has not read, and decides again."""
    other = await opened(trusted, Identity(Role.OPERATOR, "c", "bob"))
    await create_grant(operator, Grant("agent", "/a"))
    get = other.get

    async def overtaken(path: str):
        value = await get(path)
        other.get = get
        await create_grant(operator, Grant("agent", "/b"))
        return value

    other.get = overtaken
    await create_grant(other, Grant("agent", "/c"))
    assert await list_grants(operator) == [Grant("agent", "/a"), Grant("agent", "/b"), Grant("agent", "/c")]
    with pytest.raises((NodeExistsError, NoNodeError, BadVersionError)):
        await operator.set("/shoal/grants/agent", b"/z", version=0)
    await other.close()
