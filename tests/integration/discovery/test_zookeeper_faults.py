"""A ZooKeeper server that dies, freezes or ends sessions: no registration is lost, and nothing flaps afterwards.

The tests share one server of their own and bring it back to life. A session lives for two seconds here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest

from shoal.core.entropy import SystemEntropy
from shoal.discovery.registrar import Registrar
from shoal.discovery.store import SessionState
from shoal.discovery.zookeeper import ZookeeperSettings, ZookeeperStore
from shoal.testing.suites.coordination_kit import Seen
from tests.integration.discovery.test_zookeeper import expire
from tests.services.relay import Relay
from tests.services.zookeeper import ZookeeperServer

pytestmark = pytest.mark.integration

PATIENCE = 60.0
NAMES = tuple(f"n-{number:02}" for number in range(20))


@pytest.fixture(scope="module")
def server() -> Iterator[ZookeeperServer]:
    server = ZookeeperServer.create()
    yield server
    server.destroy()


def store_at(hosts: str, seconds: float = 2.0) -> ZookeeperStore:
    return ZookeeperStore(ZookeeperSettings(hosts, session_timeout=timedelta(seconds=seconds)))


@contextlib.asynccontextmanager
async def opened(store: ZookeeperStore) -> AsyncIterator[ZookeeperStore]:
    async with asyncio.timeout(PATIENCE):
        await store.open()
    try:
        yield store
    finally:
        await store.close()


class World:
    """A registrar with its nodes, and a watcher with a session of its own."""

    def __init__(self, store: ZookeeperStore, watcher: ZookeeperStore) -> None:
        self.store = store
        self.watcher = watcher
        self.base = f"/t-{SystemEntropy().token(8)}"
        self.registrar = Registrar(store)
        self.children: Seen[tuple[str, ...] | None] = Seen(PATIENCE)
        self.states: Seen[SessionState] = Seen(PATIENCE)

    async def start(self) -> None:
        await self.store.ensure_path(self.base)
        self.store.on_state(self.states)
        self.watcher.watch_children(self.base, self.children)
        self.registrar.start()
        for name in NAMES:
            self.registrar.register(f"{self.base}/{name}", name.encode())
        await self.children.is_now(NAMES)
        await self.settled()

    async def settled(self) -> None:
        """Every node is in place, with its data, of the session that lives."""
        async with asyncio.timeout(PATIENCE):
            while self.store.state is not SessionState.CONNECTED or not await self._in_place():
                await asyncio.sleep(0.05)

    async def _in_place(self) -> bool:
        await self.registrar.settled()
        for name in NAMES:
            try:
                value = await self.watcher.get(f"{self.base}/{name}")
            except Exception:
                return False
            if (value.data, value.stat.owner) != (name.encode(), self.store.session_id):
                return False
        return True

    async def quiet(self) -> None:
        """Nothing flaps: what is done next is the only thing that the watcher sees.

        A busy machine may lose a session of seconds meanwhile. That is no flapping: it is looked at once more then.
        """
        for attempt in range(10):
            await self.settled()
            sessions = (self.store.session_id, self.watcher.session_id)
            wanted = (*NAMES, *(f"z-{number}" for number in range(attempt)))
            await self.children.is_now(wanted)
            before = len(self.children.values)
            stats = [await self.watcher.exists(f"{self.base}/{name}") for name in NAMES]
            self.registrar.register(f"{self.base}/z-{attempt}")
            await self.children.is_now((*wanted, f"z-{attempt}"))
            after = [await self.watcher.exists(f"{self.base}/{name}") for name in NAMES]
            if sessions == (self.store.session_id, self.watcher.session_id):
                assert len(self.children.values) == before + 1
                assert after == stats
                return
        pytest.fail("no session lived for long enough")


@contextlib.asynccontextmanager
async def world(store: ZookeeperStore, watcher: ZookeeperStore) -> AsyncIterator[World]:
    async with opened(store), opened(watcher):
        made = World(store, watcher)
        await made.start()
        try:
            yield made
        finally:
            await made.registrar.close()


async def test_sessions_go_on_when_the_server_was_killed(server: ZookeeperServer) -> None:
    """They are on its disk: nothing is removed, and no watch fires."""
    async with world(store_at(server.hosts, 30), store_at(server.hosts, 30)) as fleet:
        session_id, seen = fleet.store.session_id, len(fleet.children.values)
        await asyncio.to_thread(server.kill)
        await fleet.states.is_now(SessionState.SUSPENDED)
        await asyncio.to_thread(server.start)
        await fleet.settled()
        assert fleet.store.session_id == session_id
        assert SessionState.LOST not in fleet.states.values
        assert len(fleet.children.values) == seen
        await fleet.quiet()


async def test_a_frozen_server_loses_no_registration(server: ZookeeperServer) -> None:
    async with world(store_at(server.hosts), store_at(server.hosts)) as fleet:
        server.freeze()
        try:
            await fleet.states.is_now(SessionState.SUSPENDED)
            await asyncio.sleep(2.5)  # longer than a session lives: the server wakes up and finds them overdue
        finally:
            server.thaw()
        await fleet.settled()
        await fleet.quiet()


async def test_a_session_that_another_client_ended_is_replaced(
    server: ZookeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with world(store_at(server.hosts), store_at(server.hosts, 30)) as fleet:
        before = fleet.store.session_id
        await asyncio.to_thread(expire, server.hosts, fleet.store._client.client_id)
        await fleet.states.until(lambda _: SessionState.LOST in fleet.states.values)
        await fleet.settled()
        assert fleet.store.session_id != before
        await fleet.quiet()
    said = {record.getMessage() for record in caplog.records if record.name.startswith("shoal.discovery.zookeeper")}
    assert said >= {f"ZooKeeper at {server.hosts}: {words}" for words in ("connected", "the session is over")}


async def test_a_partition_removes_addresses_at_the_session_timeout(server: ZookeeperServer) -> None:
    """The server gives the session up by its own clock; when the partition ends, everything returns once."""
    relay = Relay(server.hosts)
    await relay.open()
    try:
        async with world(store_at(relay.address), store_at(server.hosts, 30)) as fleet:
            await relay.cut()
            await fleet.states.is_now(SessionState.SUSPENDED)
            await fleet.children.is_now(())
            relay.restore()
            await fleet.settled()
            assert fleet.states.values[-2:] == [SessionState.LOST, SessionState.CONNECTED]
            await fleet.quiet()
    finally:
        await relay.close()
