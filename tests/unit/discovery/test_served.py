"""A tree that is served does what every coordination tree does, on the transport within one process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import DeniedError, NotLeaderError, UnavailableError
from shoal.discovery.embedded.owner import TreeOwner
from shoal.discovery.embedded.serving import LONGEST, SHORTEST, CoordinationService
from shoal.discovery.registrar import Registrar
from shoal.discovery.remote import RemoteStore
from shoal.discovery.store import CoordinationStore, SessionState
from shoal.model.identity import Identity, Role, workload_identity
from shoal.testing.journals import MemoryJournal
from shoal.testing.suites.coordination import CoordinationSuite
from shoal.testing.suites.coordination_kit import Seen
from shoal.wire.local import LocalNetwork
from shoal.wire.local_faults import Outage
from shoal.wire.methods import Coordination, methods_of
from shoal.wire.pb.shoal.v1 import coordination_pb2 as pb
from shoal.wire.transport import Service

ADDRESS = "10.0.0.1:8085"
CONTROL = Identity(Role.CONTROL, "c", "control")
OPERATOR = Identity(Role.OPERATOR, "c", "ann")
AGENT = Identity(Role.AGENT, "c", "n1")
OTHER_AGENT = Identity(Role.AGENT, "c", "n2")
MEMBER = workload_identity("c", job="web", node="n1")


class Served:
    """A control plane that does nothing but serve the tree. It can be restarted."""

    def __init__(self, identity: Identity | None = None) -> None:
        self.network = LocalNetwork()
        self.journal = MemoryJournal()
        self.names: dict[CoordinationStore, str] = {}
        self.owner: TreeOwner
        self.service: CoordinationService
        self.server: Any
        self._identity = identity
        self._numbers = itertools.count()

    async def start(self) -> None:
        self.owner = TreeOwner(SystemClock(), self.journal)
        await self.owner.restore()
        self.service = CoordinationService(self.owner)
        transport = self.network.transport("control", identity=self._identity)
        self.server = await transport.serve(ADDRESS, [Service(methods_of(Coordination), self.service)])

    async def stop(self) -> None:
        self.service.close()
        await self.server.stop(grace=0)
        await self.owner.close()

    def store(self, identity: Identity | None = None, **settings: Any) -> RemoteStore:
        name = f"client-{next(self._numbers)}"
        store = RemoteStore(self.network.transport(name, identity=identity), [ADDRESS], **settings)
        self.names[store] = name
        return store

    # Faults

    async def suspend(self, store: RemoteStore) -> None:
        suspended = asyncio.Event()
        watch = store.on_state(lambda state: suspended.set() if state is SessionState.SUSPENDED else None)
        self.network.partition(self.names[store], "control", outage=Outage.REFUSED)
        await suspended.wait()
        watch.close()

    async def resume(self, store: RemoteStore) -> None:
        self.network.heal(self.names[store], "control")

    async def expire(self, store: RemoteStore) -> None:
        await self.owner.end_session(store.session_id)

    async def outlast(self, store: RemoteStore) -> None:
        await self.expire(store)


@pytest.fixture
async def served():
    served = Served()
    await served.start()
    yield served
    await served.stop()


@pytest.fixture
async def trusted():
    """The same where callers have identities."""
    served = Served(CONTROL)
    await served.start()
    yield served
    await served.stop()


class TestServed(CoordinationSuite):
    __test__ = True

    @pytest.fixture
    def make_store(self, served):
        return served.store

    @pytest.fixture
    def faults(self, served):
        return served


async def test_a_restart_removes_nothing_and_fires_no_watch(served: Served) -> None:
    store, watcher = served.store(), served.store()
    await store.open()
    await watcher.open()
    registrar = Registrar(store)
    registrar.start()
    for number in range(20):
        registrar.register(f"/a/n-{number}", b"x")
    await registrar.settled()
    session_id, nodes = store.session_id, served.owner.tree.nodes
    children: Seen[Any] = Seen(20)
    data: Seen[Any] = Seen(20)
    states: Seen[Any] = Seen(20)
    watcher.watch_children("/a", children)
    watcher.watch_data("/a/n-7", data)
    await data.until(lambda value: value is not None)
    await children.until(lambda names: names is not None)
    store.on_state(states)
    seen = (list(children.values), list(data.values))

    await served.stop()
    await states.is_now("suspended")
    await served.start()
    await states.is_now("connected")
    assert store.session_id == session_id
    assert served.owner.tree.nodes == nodes
    await registrar.settled()
    await watcher_is_back(watcher)
    assert (children.values, data.values) == seen
    registrar.register("/a/z")
    await children.until(lambda names: names is not None and "z" in names)
    assert len(children.values) == 2
    await registrar.close()
    await store.close()
    await watcher.close()


async def watcher_is_back(watcher: RemoteStore) -> None:
    """What is followed is sent again before this is answered."""
    async with asyncio.timeout(20):
        while True:
            try:
                await watcher.exists("/a")
                return
            except UnavailableError:
                await asyncio.sleep(0.01)


async def test_who_does_not_lead_names_who_does(served: Served) -> None:
    class Follower:
        async def session(self, _requests: Any, _call: Any) -> Any:
            raise NotLeaderError(ADDRESS)
            yield

    transport = served.network.transport("follower")
    server = await transport.serve("10.0.0.2:8085", [Service(methods_of(Coordination), Follower())])
    store = RemoteStore(served.network.transport("client"), ["10.0.0.2:8085"])
    await store.open()
    assert await store.children("/") == ()
    await store.close()
    await server.stop()


async def test_nobody_answers() -> None:
    store = RemoteStore(LocalNetwork().transport("client"), [ADDRESS], call_timeout=timedelta(milliseconds=50))
    with pytest.raises(UnavailableError, match="no control plane that leads"):
        await store.open()
    assert store.state is SessionState.LOST


async def test_a_silent_server_is_noticed(served: Served) -> None:
    store = served.store(session_timeout=timedelta(seconds=1))
    states: Seen[Any] = Seen(20)
    store.on_state(states)
    await store.open()
    served.network.partition(served.names[store], "control")
    await states.is_now("suspended")
    served.network.heal()
    await states.is_now("connected")
    await store.close()


@pytest.mark.looptime
async def test_a_silent_connection_is_given_up_while_the_session_lives(served: Served) -> None:
    """As when a machine that serves the tree loses its power: no connection is reset."""
    store = served.store(session_timeout=timedelta(seconds=9))
    states: Seen[Any] = Seen(60)
    store.on_state(states)
    await store.open()
    session = store.session_id
    await store.create("/here", ephemeral=True)
    for _ in range(3):
        await asyncio.sleep(10)
        served.network.partition(served.names[store], "control")
        await states.is_now("suspended")
        served.network.heal()
        await states.is_now("connected")
    assert store.session_id == session
    assert "lost" not in states.values
    assert await store.exists("/here") is not None
    await store.close()


@pytest.mark.parametrize(
    ("asked", "given"),
    [(-(2**63), SHORTEST), (0, SHORTEST), (1500, timedelta(seconds=1.5)), (2**63 - 1, LONGEST)],
    ids=["least", "none", "between", "most"],
)
async def test_a_session_has_a_timeout_within_bounds(served: Served, asked: int, given: timedelta) -> None:
    async def requests() -> AsyncIterator[pb.CoordinationRequest]:
        yield pb.CoordinationRequest(open=pb.OpenSession(timeout_ms=asked))
        await asyncio.Event().wait()

    channel = served.network.transport("client").connect(ADDRESS)
    answers = channel.converse(Coordination.SESSION, requests())
    assert (await anext(answers)).opened.timeout_ms == given / timedelta(milliseconds=1)
    await channel.close()


async def test_agents_and_workloads_change_what_was_granted(trusted: Served) -> None:
    operator, agent, other, member = (trusted.store(identity) for identity in (OPERATOR, AGENT, OTHER_AGENT, MEMBER))
    for store in (operator, agent, other, member):
        await store.open()
    await operator.ensure_path("/shoal/grants")
    for store in (agent, member):
        with pytest.raises(DeniedError, match="an operator grants paths"):
            await store.create("/service/x", makepath=True)
    await operator.create("/shoal/grants/agent", b"/service\n/agents\n")
    await operator.create("/shoal/grants/agent:n2", b"/two")
    await operator.create("/shoal/grants/workload:web", b"/")
    await agent.create("/service/a", ephemeral=True, makepath=True)
    await other.create("/two/a", makepath=True)
    await member.create("/anywhere")
    for refused in (
        agent.create("/two/b"),
        agent.create("/services"),
        agent.set("/shoal/grants/agent", b"/"),
        member.delete("/shoal", recursive=True),
        other.set("/service/a", b"mine now"),
        other.delete("/service/a"),
        other.delete("/service", recursive=True),
        member.delete("/service/a"),
    ):
        with pytest.raises(DeniedError):
            await refused
    assert (await member.get("/service/a")).data == b""  # everybody reads
    await agent.set("/service/a", b"new")
    again = trusted.store(AGENT)  # the same agent after a restart
    await again.open()
    await again.delete("/service/a")
    await operator.delete("/anywhere")
    for store in (operator, agent, other, member, again):
        await store.close()


async def test_a_session_belongs_to_who_opened_it(trusted: Served) -> None:
    agent, thief = trusted.store(AGENT), trusted.store(OTHER_AGENT)
    await agent.open()
    thief._session_id = agent.session_id
    with pytest.raises(DeniedError, match="belongs to another caller"):
        await thief.open()
    assert agent.state is SessionState.CONNECTED
    await agent.close()


async def test_a_slow_client_gets_the_last_value(served: Served) -> None:
    store, writer = served.store(), served.store()
    await store.open()
    await writer.open()
    children: Seen[Any] = Seen(20)
    store.watch_children("/", children)
    names = tuple(f"n-{number:03}" for number in range(300))
    for name in names:
        await writer.create(f"/{name}")
    await children.is_now(names)
    await store.close()
    await writer.close()
