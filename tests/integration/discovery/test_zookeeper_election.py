"""Candidates of kazoo's own recipe and ours in one election, on a real ZooKeeper: always one leader, in one order."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest
from kazoo.client import KazooClient

from shoal.core.entropy import SystemEntropy
from shoal.discovery.election import Election
from shoal.discovery.zookeeper import ZookeeperSettings, ZookeeperStore
from shoal.testing.suites.coordination_kit import Seen
from tests.integration.discovery.test_zookeeper import expire

pytestmark = pytest.mark.integration

PATIENCE = 30.0


class Kazoo:
    """A candidate of kazoo's recipe, in a thread of its own. It leads until it is told to resign."""

    def __init__(self, hosts: str, path: str, identifier: str) -> None:
        self.client = KazooClient(hosts, timeout=4.0)
        self.client.start()
        self.election = self.client.Election(path, identifier)
        self.leads = threading.Event()
        self._resign = threading.Event()
        self._thread = threading.Thread(target=self.election.run, args=(self._lead,))
        self._thread.start()

    def _lead(self) -> None:
        self.leads.set()
        assert self._resign.wait(PATIENCE)
        self.leads.clear()

    async def is_leader(self) -> None:
        assert await asyncio.to_thread(self.leads.wait, PATIENCE)

    async def contends(self, order: tuple[str, ...]) -> None:
        """Wait until kazoo sees these candidates, in this order."""
        async with asyncio.timeout(PATIENCE):
            while tuple(await asyncio.to_thread(self.election.contenders)) != order:
                await asyncio.sleep(0.02)

    def resign(self) -> None:
        self._resign.set()
        self._thread.join(PATIENCE)

    def close(self) -> None:
        self._resign.set()
        self.election.cancel()
        self._thread.join(PATIENCE)
        self.client.stop()
        self.client.close()


class Ours:
    """One of ours."""

    def __init__(self, hosts: str, path: str, identifier: str) -> None:
        self.store = ZookeeperStore(ZookeeperSettings(hosts, session_timeout=timedelta(seconds=4)))
        self.seen: Seen[bool] = Seen(PATIENCE)
        self.election = Election(self.store, path, identifier, entropy=SystemEntropy(), changed=self.seen)

    async def start(self) -> Ours:
        await self.store.open()
        self.election.start()
        return self

    async def close(self) -> None:
        await self.election.close()
        await self.store.close()


@pytest.fixture
def path():
    return f"/t-{SystemEntropy().token(8)}/election"


async def test_ours_leads_and_then_kazoos_and_then_ours(zookeeper, path):
    first = await Ours(zookeeper, path, "ours-1").start()
    await first.seen.is_now(True)
    theirs = await asyncio.to_thread(Kazoo, zookeeper, path, "theirs")
    await theirs.contends(("ours-1", "theirs"))
    last = await Ours(zookeeper, path, "ours-2").start()
    await theirs.contends(("ours-1", "theirs", "ours-2"))
    assert await last.election.candidates() == ("ours-1", "theirs", "ours-2")
    assert (first.election.leads, theirs.leads.is_set(), last.election.leads) == (True, False, False)

    await first.close()
    await theirs.is_leader()
    assert last.election.leads is False

    await asyncio.to_thread(theirs.resign)
    await last.seen.is_now(True)
    assert theirs.leads.is_set() is False
    assert await last.election.candidates() == ("ours-2",)
    await asyncio.to_thread(theirs.close)
    await last.close()


async def test_kazoos_leads_first_and_loses_its_session(zookeeper, path):
    theirs = await asyncio.to_thread(Kazoo, zookeeper, path, "theirs")
    await theirs.is_leader()
    ours = await Ours(zookeeper, path, "ours").start()
    await theirs.contends(("theirs", "ours"))
    assert ours.election.leads is False
    await asyncio.to_thread(expire, zookeeper, theirs.client.client_id)
    await ours.seen.is_now(True)
    await asyncio.to_thread(theirs.close)
    await ours.close()


async def test_ours_loses_its_session_and_goes_behind_kazoos(zookeeper, path):
    ours = await Ours(zookeeper, path, "ours").start()
    await ours.seen.is_now(True)
    theirs = await asyncio.to_thread(Kazoo, zookeeper, path, "theirs")
    await theirs.contends(("ours", "theirs"))
    await asyncio.to_thread(expire, zookeeper, ours.store._client.client_id)
    await ours.seen.is_now(False)
    await theirs.is_leader()
    await theirs.contends(("theirs", "ours"))
    assert ours.election.leads is False
    await asyncio.to_thread(theirs.resign)
    await ours.seen.is_now(True)
    await asyncio.to_thread(theirs.close)
    await ours.close()
