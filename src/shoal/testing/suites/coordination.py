"""What every backend of `shoal.discovery.store` promises.

A test module makes a subclass per backend and overrides the fixtures `make_store` and `faults`:

    class TestEmbedded(CoordinationSuite):
        __test__ = True

        @pytest.fixture
        def tree(self):
            return EmbeddedTree(SystemClock())

        @pytest.fixture
        def make_store(self, tree):
            return tree.session
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from shoal.core.errors import ExhaustedError, InvalidError, PreconditionError, UnavailableError
from shoal.discovery.errors import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError, SessionLostError
from shoal.discovery.store import MAX_DATA_BYTES, CoordinationStore, SessionState
from shoal.testing.suites.coordination_kit import CoordinationKit


class NodesSuite(CoordinationKit):
    """Conformance of nodes: what calls do and refuse."""

    async def test_a_node_is_created_read_and_deleted(self, store: CoordinationStore, base: str) -> None:
        assert await store.create(f"{base}/a", b"one") == f"{base}/a"
        value = await store.get(f"{base}/a")
        assert (value.data, value.stat.version, value.stat.owner) == (b"one", 0, "")
        assert value.stat.created == value.stat.modified
        assert await store.exists(f"{base}/a") == value.stat
        assert await store.children(base) == ("a",)
        await store.delete(f"{base}/a")
        assert await store.exists(f"{base}/a") is None
        assert await store.children(base) == ()
        with pytest.raises(NoNodeError):
            await store.get(f"{base}/a")

    async def test_others_see_a_node(self, store: CoordinationStore, other: CoordinationStore, base: str) -> None:
        await store.create(f"{base}/a", b"one")
        assert (await other.get(f"{base}/a")).data == b"one"

    async def test_a_node_is_created_once(self, store: CoordinationStore, base: str) -> None:
        await store.create(f"{base}/a", b"one")
        with pytest.raises(NodeExistsError):
            await store.create(f"{base}/a", b"two")
        assert (await store.get(f"{base}/a")).data == b"one"

    async def test_one_of_many_creates_a_node(
        self, store: CoordinationStore, other: CoordinationStore, base: str
    ) -> None:
        results = await asyncio.gather(
            *(each.create(f"{base}/a") for each in (store, other) for _ in range(5)), return_exceptions=True
        )
        assert sorted(type(each).__name__ for each in results) == ["NodeExistsError"] * 9 + ["str"]

    async def test_a_node_needs_its_parent(self, store: CoordinationStore, base: str) -> None:
        with pytest.raises(NoNodeError):
            await store.create(f"{base}/a/b/c", b"x")
        assert await store.create(f"{base}/a/b/c", b"x", makepath=True) == f"{base}/a/b/c"
        assert (await store.get(f"{base}/a/b")).data == b""
        assert (await store.get(f"{base}/a/b/c")).data == b"x"

    async def test_parents_of_an_ephemeral_node_are_persistent(self, store: CoordinationStore, base: str) -> None:
        await store.create(f"{base}/a/b", ephemeral=True, makepath=True)
        assert (await store.get(f"{base}/a")).stat.owner == ""
        assert (await store.get(f"{base}/a/b")).stat.owner == store.session_id != ""

    async def test_a_path_is_ensured_twice(self, store: CoordinationStore, base: str) -> None:
        await store.ensure_path(f"{base}/a/b")
        first = await store.exists(f"{base}/a/b")
        await store.ensure_path(f"{base}/a/b")
        assert await store.exists(f"{base}/a/b") == first is not None

    async def test_an_ephemeral_node_has_no_children(self, store: CoordinationStore, base: str) -> None:
        await store.create(f"{base}/a", ephemeral=True)
        with pytest.raises(PreconditionError):
            await store.create(f"{base}/a/b")
        with pytest.raises(PreconditionError):
            await store.create(f"{base}/a/b/c", makepath=True)
        assert await store.children(f"{base}/a") == ()

    async def test_sequential_nodes_are_numbered_by_their_parent(
        self, store: CoordinationStore, other: CoordinationStore, base: str
    ) -> None:
        first = await store.create(f"{base}/n-", b"1", sequential=True)
        assert first == f"{base}/n-0000000000"
        second = await other.create(f"{base}/n-", b"2", sequential=True, ephemeral=True)
        third = await store.create(f"{base}/n-", b"3", sequential=True)
        assert first < second < third
        assert [len(each) for each in (second, third)] == [len(first)] * 2
        await store.delete(third)
        assert await store.create(f"{base}/n-", sequential=True) > third
        assert (await store.get(second)).stat.owner == other.session_id

    async def test_a_sequential_node_makes_its_path(self, store: CoordinationStore, base: str) -> None:
        made = await store.create(f"{base}/a/b/0", sequential=True, makepath=True)
        assert made == f"{base}/a/b/00000000000"

    async def test_children_are_sorted(self, store: CoordinationStore, base: str) -> None:
        for name in ("b", "a:1", "a", "10", "9", "é"):
            await store.create(f"{base}/{name}")
        assert await store.children(base) == ("10", "9", "a", "a:1", "b", "é")
        with pytest.raises(NoNodeError):
            await store.children(f"{base}/zzz")

    async def test_data_is_replaced_at_a_version(self, store: CoordinationStore, base: str) -> None:
        created = await store.exists(base)
        assert created is not None
        first = await store.set(base, b"one")
        assert (first.version, first.created) == (1, created.created)
        assert first.modified > created.modified
        second = await store.set(base, b"two", version=1)
        assert second.version == 2
        with pytest.raises(BadVersionError):
            await store.set(base, b"three", version=1)
        value = await store.get(base)
        assert (value.data, value.stat) == (b"two", second)
        with pytest.raises(NoNodeError):
            await store.set(f"{base}/none", b"")

    async def test_a_node_is_deleted_at_a_version(self, store: CoordinationStore, base: str) -> None:
        await store.set(base, b"one")
        with pytest.raises(BadVersionError):
            await store.delete(base, version=0)
        await store.delete(base, version=1)
        with pytest.raises(NoNodeError):
            await store.delete(base)

    async def test_what_has_children_is_deleted_recursively(self, store: CoordinationStore, base: str) -> None:
        await store.ensure_path(f"{base}/a/b/c")
        await store.create(f"{base}/a/d", ephemeral=True)
        await store.ensure_path(f"{base}/ab")
        with pytest.raises(NotEmptyError):
            await store.delete(f"{base}/a")
        await store.delete(f"{base}/a", recursive=True)
        assert await store.children(base) == ("ab",)
        with pytest.raises(NoNodeError):
            await store.delete(f"{base}/a", recursive=True)
        with pytest.raises(InvalidError):
            await store.delete(base, recursive=True, version=0)

    @pytest.mark.parametrize(
        "bad", ["", "a", "//a", "/a/", "/a//b", "/a/../b", "/./a", "/a\0", "/a\x1f", "/a\ufff0", "/" + "x" * 2000]
    )
    async def test_a_bad_path_is_refused(self, store: CoordinationStore, bad: str) -> None:
        with pytest.raises(InvalidError):
            await store.create(bad)
        with pytest.raises(InvalidError):
            await store.get(bad)
        with pytest.raises(InvalidError):
            store.watch_data(bad, self.seen())

    async def test_the_root_stays(self, store: CoordinationStore, base: str) -> None:
        with pytest.raises(InvalidError):
            await store.delete("/", recursive=True)
        assert base[1:] in await store.children("/")

    async def test_data_is_bytes_up_to_a_limit(self, store: CoordinationStore, base: str) -> None:
        large = bytes(range(250)) * (MAX_DATA_BYTES // 250)
        await store.create(f"{base}/a", large)
        assert (await store.get(f"{base}/a")).data == large
        with pytest.raises(ExhaustedError):
            await store.create(f"{base}/b", large + b"x")
        with pytest.raises(ExhaustedError):
            await store.set(f"{base}/a", large + b"x")

    async def test_a_store_works_while_it_is_open(self, made: Callable[[], CoordinationStore], base: str) -> None:
        store = made()
        assert (store.state, store.session_id) == (SessionState.LOST, "")
        with pytest.raises(SessionLostError):
            await store.get(base)
        await store.open()
        assert store.state is SessionState.CONNECTED
        assert store.session_id != ""
        await store.create(f"{base}/a", ephemeral=True)
        await store.close()
        await store.close()
        assert (store.state, store.session_id) == (SessionState.LOST, "")
        with pytest.raises(UnavailableError):
            await store.get(base)

    async def test_ephemeral_nodes_end_with_the_session(
        self, store: CoordinationStore, made: Callable[[], CoordinationStore], base: str
    ) -> None:
        other = made()
        await other.open()
        await other.create(f"{base}/mine", ephemeral=True)
        await other.create(f"{base}/kept")
        assert await store.children(base) == ("kept", "mine")
        await other.close()
        assert await store.children(base) == ("kept",)


class CoordinationSuite(NodesSuite):
    """The whole suite."""
