"""A tree with a journal survives its process, and never says what is not stored."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import ExhaustedError, UnavailableError
from shoal.discovery.embedded import EmbeddedTree
from shoal.discovery.embedded import tree as trees
from shoal.discovery.errors import NodeExistsError
from shoal.discovery.store import SessionState
from shoal.testing.clock import LoopClock
from shoal.testing.journals import MemoryJournal
from shoal.testing.suites.coordination import CoordinationSuite
from tests.unit.discovery.test_embedded import EmbeddedFaults

START = datetime(2026, 1, 1, tzinfo=UTC)


class TestWithJournal(CoordinationSuite):
    __test__ = True

    @pytest.fixture
    async def tree(self):
        tree = EmbeddedTree(SystemClock(), MemoryJournal())
        await tree.restore()
        yield tree
        await tree.close()

    @pytest.fixture
    def make_store(self, tree):
        return tree.session

    @pytest.fixture
    def faults(self):
        return EmbeddedFaults()


@pytest.mark.looptime
async def test_a_tree_is_restored_and_sessions_have_their_whole_timeout() -> None:
    journal, clock = MemoryJournal(), LoopClock(START)
    first = EmbeddedTree(clock, journal)
    store = first.session(timedelta(seconds=8))
    await store.open()
    await store.create("/a/mine", b"1", ephemeral=True, makepath=True)
    await store.create("/a/n-", sequential=True)
    await store.set("/a", b"x")
    before = first.tree
    await first.close()
    await asyncio.sleep(100)

    second = EmbeddedTree(clock, journal)
    await second.restore()
    assert (second.tree.nodes, second.tree.sessions) == (before.nodes, before.sessions)
    assert second.tree.order == before.order
    assert second.tree.size == before.size
    other = second.session()
    await other.open()
    assert await other.create("/a/n-", sequential=True) == "/a/n-0000000001"
    await asyncio.sleep(7.9)
    assert await other.exists("/a/mine") is not None
    await asyncio.sleep(0.2)
    assert await other.children("/a") == ("n-0000000000", "n-0000000001")
    await other.close()
    await second.close()


@pytest.mark.parametrize("stored", [False, True])
async def test_a_change_with_an_unknown_outcome_is_looked_up(stored: bool) -> None:
    journal = MemoryJournal()
    tree = EmbeddedTree(SystemClock(), journal)
    await tree.restore()
    store = tree.session()
    await store.open()
    seen: list[object] = []
    store.watch_children("/", seen.append)
    journal.fail_next(stored=stored)
    with pytest.raises(UnavailableError):
        await store.create("/a", b"1")
    if stored:
        with pytest.raises(NodeExistsError):
            await store.create("/a", b"2")
    else:
        await store.create("/a", b"2")
    await asyncio.sleep(0)
    assert seen[-1] == ("a",)
    assert (await store.get("/a")).data == (b"1" if stored else b"2")
    assert store.state is SessionState.CONNECTED
    await store.close()
    await tree.close()


@pytest.mark.looptime
@pytest.mark.parametrize("stored", [False, True])
async def test_a_session_whose_end_was_not_stored_ends_later(stored: bool) -> None:
    journal = MemoryJournal()
    tree = EmbeddedTree(LoopClock(START), journal)
    await tree.restore()
    store, other = tree.session(timedelta(seconds=5)), tree.session()
    await store.open()
    await other.open()
    await store.create("/mine", ephemeral=True)
    store.suspend()
    journal.fail_next(stored=stored)
    await asyncio.sleep(6.1)
    assert await other.exists("/mine") is None
    store.resume()
    await asyncio.sleep(0.1)
    assert store.state is SessionState.CONNECTED
    await store.close()
    await other.close()
    await tree.close()


async def test_a_caller_that_is_gone_leaves_no_half_of_a_change() -> None:
    class Slow(MemoryJournal):
        async def append(self, changes: trees.Changes) -> None:
            await go.wait()
            await super().append(changes)

    go = asyncio.Event()
    go.set()
    tree = EmbeddedTree(SystemClock(), Slow())
    await tree.restore()
    store = tree.session()
    await store.open()
    go.clear()
    caller = asyncio.ensure_future(store.create("/a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait({caller})
    go.set()
    with pytest.raises(NodeExistsError):
        await store.create("/a")
    await store.close()
    await tree.close()


async def test_a_tree_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MAX_NODES", 4)
    monkeypatch.setattr(trees, "MAX_BYTES", 100)
    monkeypatch.setattr(trees, "MAX_SESSIONS", 1)
    tree = EmbeddedTree(SystemClock())
    store = tree.session()
    await store.open()
    await store.ensure_path("/a/b/c")
    with pytest.raises(ExhaustedError, match="the tree is full"):
        await store.create("/d")
    with pytest.raises(ExhaustedError, match="the tree is full"):
        await store.set("/a", b"x" * 100)
    await store.delete("/a/b/c")
    await store.create("/d")
    with pytest.raises(ExhaustedError, match="sessions"):
        await tree.session().open()
    await store.close()
    assert tree.tree.size == len("/") + len("/a") + len("/a/b") + len("/d")
    await tree.close()
