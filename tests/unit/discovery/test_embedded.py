"""The embedded tree does what every coordination tree does."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from shoal.core.clock import SystemClock
from shoal.discovery.embedded import EmbeddedStore, EmbeddedTree
from shoal.discovery.store import SessionState
from shoal.testing.clock import LoopClock
from shoal.testing.suites.coordination import CoordinationSuite


class EmbeddedFaults:
    async def suspend(self, store: EmbeddedStore) -> None:
        store.suspend()

    async def resume(self, store: EmbeddedStore) -> None:
        store.resume()

    async def expire(self, store: EmbeddedStore) -> None:
        await store.expire()

    async def outlast(self, store: EmbeddedStore) -> None:
        await store.expire()


class TestEmbedded(CoordinationSuite):
    __test__ = True

    @pytest.fixture
    async def tree(self):
        tree = EmbeddedTree(SystemClock())
        yield tree
        await tree.close()

    @pytest.fixture
    def make_store(self, tree):
        return tree.session

    @pytest.fixture
    def faults(self):
        return EmbeddedFaults()


START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.looptime
async def test_a_session_expires_at_its_timeout() -> None:
    tree = EmbeddedTree(LoopClock(START))
    store, other = tree.session(timedelta(seconds=6)), tree.session(timedelta(seconds=4))
    await store.open()
    await other.open()
    await store.create("/mine", ephemeral=True)
    gone: list[float] = []
    other.watch_data("/mine", lambda value: gone.append(asyncio.get_running_loop().time()) if value is None else None)
    await asyncio.sleep(100)
    store.suspend()
    await asyncio.sleep(5.9)
    store.resume()
    await asyncio.sleep(100)
    assert (gone, store.state) == ([], SessionState.CONNECTED)
    store.suspend()
    await asyncio.sleep(10)
    assert gone == [pytest.approx(211.9)]
    assert store.state is SessionState.SUSPENDED
    store.resume()
    await asyncio.sleep(0)
    assert store.state is SessionState.CONNECTED
    await store.close()
    await other.close()
    await tree.close()


@pytest.mark.looptime
async def test_a_store_that_is_closed_without_a_connection_expires() -> None:
    tree = EmbeddedTree(LoopClock(START))
    store, other = tree.session(), tree.session()
    await store.open()
    await other.open()
    await store.create("/mine", ephemeral=True)
    store.suspend()
    await store.close()
    assert await other.exists("/mine") is not None
    await asyncio.sleep(10.1)
    assert await other.exists("/mine") is None
    await other.close()
    await tree.close()


async def test_nothing_is_kept_for_watches_that_are_closed() -> None:
    tree = EmbeddedTree(SystemClock())
    store = tree.session()
    await store.open()
    for number in range(10):
        store.watch_data(f"/n-{number}", lambda _: None).close()
        store.watch_children(f"/n-{number}", lambda _: None).close()
    assert tree.followers.count() == 1  # the store's own session
    await store.close()
    assert tree.followers.count() == 0
    await tree.close()
