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
from shoal.testing.suites.coordination_kit import CoordinationKit, Faults
from shoal.testing.suites.coordination_recipes import ElectionSuite, RegistrarSuite


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

    async def test_a_sequential_node_gets_no_name_that_is_taken(self, store: CoordinationStore, base: str) -> None:
        taken = [await store.create(f"{base}/n-000000000{number}") for number in (0, 1)]
        made = await store.create(f"{base}/n-", sequential=True)
        assert made == f"{base}/n-0000000002"
        assert await store.create(f"{base}/n-", sequential=True) > made
        assert len(await store.children(base)) == len(taken) + 2

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

    async def test_a_node_is_taken_over_in_one_change(
        self, store: CoordinationStore, made: Callable[[], CoordinationStore], base: str
    ) -> None:
        other = made()
        await other.open()
        await other.create(f"{base}/a", b"old", ephemeral=True)
        before = await store.get(f"{base}/a")
        with pytest.raises(BadVersionError):
            await store.take_over(f"{base}/a", b"new", version=7)
        with pytest.raises(NoNodeError):
            await store.take_over(f"{base}/none", b"new", version=0)
        await store.create(f"{base}/b/c", makepath=True)
        with pytest.raises(NotEmptyError):
            await store.take_over(f"{base}/b", b"new", version=0)
        await store.take_over(f"{base}/a", b"new", version=before.stat.version)
        value = await other.get(f"{base}/a")
        assert (value.data, value.stat.owner, value.stat.version) == (b"new", store.session_id, 0)
        assert value.stat.created > before.stat.created
        await other.close()
        assert await store.get(f"{base}/a") == value

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


class WatchesSuite(CoordinationKit):
    """Conformance of watches, in one session."""

    async def test_a_watch_delivers_the_value_at_once(self, store: CoordinationStore, base: str) -> None:
        await store.set(base, b"one")
        data, children = self.seen(), self.seen()
        store.watch_data(base, data)
        store.watch_children(base, children)
        assert data.values == children.values == []  # never inside the call
        await data.until(lambda value: value is not None)
        await children.is_now(())
        assert data.values == [await store.get(base)]

    async def test_a_watch_follows_the_data(
        self, store: CoordinationStore, other: CoordinationStore, base: str
    ) -> None:
        path = f"{base}/a"
        data = self.seen()
        store.watch_data(path, data)
        await data.is_now(None)
        await other.create(path, b"one")
        await data.until(lambda value: value is not None and value.data == b"one")
        await other.set(path, b"two")
        await data.until(lambda value: value is not None and value.data == b"two")
        await other.delete(path)
        await data.is_now(None)
        await other.create(path, b"three")
        await data.until(lambda value: value is not None and value.data == b"three")
        assert [each and each.data for each in data.values] == [None, b"one", b"two", None, b"three"]

    async def test_a_watch_follows_the_children(
        self, store: CoordinationStore, other: CoordinationStore, base: str
    ) -> None:
        path = f"{base}/a"
        children = self.seen()
        store.watch_children(path, children)
        await children.is_now(None)
        await other.create(path)
        await children.is_now(())
        await other.create(f"{path}/y")
        await children.is_now(("y",))
        await other.create(f"{path}/x")
        await children.is_now(("x", "y"))
        await other.delete(path, recursive=True)
        await children.is_now(None)
        await other.create(f"{path}/z", makepath=True)
        await children.is_now(("z",))

    async def test_children_do_not_change_with_their_data(self, store: CoordinationStore, base: str) -> None:
        children, data = self.seen(), self.seen()
        await store.create(f"{base}/a")
        store.watch_children(base, children)
        store.watch_data(f"{base}/a", data)
        await children.is_now(("a",))
        await store.set(f"{base}/a", b"x")
        await data.until(lambda value: value is not None and value.data == b"x")
        await store.create(f"{base}/b")
        await children.is_now(("a", "b"))
        assert children.values == [("a",), ("a", "b")]

    async def test_a_node_that_was_created_again_is_a_change(self, store: CoordinationStore, base: str) -> None:
        await store.create(f"{base}/a", b"same")
        data = self.seen()
        store.watch_data(f"{base}/a", data)
        first = await data.until(lambda value: value is not None)
        await store.delete(f"{base}/a")
        await store.create(f"{base}/a", b"same")
        assert first is not None
        second = await data.until(lambda value: value is not None and value.stat.created > first.stat.created)
        assert second == await store.get(f"{base}/a")

    async def test_a_node_that_came_and_went_is_told_to_be_missing_again(
        self, store: CoordinationStore, other: CoordinationStore, base: str
    ) -> None:
        data = self.seen()
        store.watch_data(f"{base}/a", data)
        await data.is_now(None)
        await other.create(f"{base}/a")
        await other.delete(f"{base}/a")
        await data.until(lambda value: value is None and len(data.values) > 1)

    async def test_changes_are_coalesced_and_the_last_arrives(
        self, store: CoordinationStore, other: CoordinationStore, base: str
    ) -> None:
        data = self.seen()
        store.watch_data(base, data)
        await asyncio.gather(*(other.set(base, b"%d" % number) for number in range(200)))
        last = await other.get(base)
        await data.is_now(last)
        versions = [each.stat.version for each in data.values if each is not None]
        assert versions == sorted(set(versions))

    async def test_several_watches_of_one_node(
        self, store: CoordinationStore, other: CoordinationStore, base: str
    ) -> None:
        one, two = self.seen(), self.seen()
        store.watch_children(base, one)
        await one.is_now(())
        store.watch_children(base, two)
        await two.is_now(())
        await other.create(f"{base}/a")
        await one.is_now(("a",))
        await two.is_now(("a",))
        assert one.values == two.values == [(), ("a",)]

    async def test_a_closed_watch_is_quiet(self, store: CoordinationStore, other: CoordinationStore, base: str) -> None:
        closed, still = self.seen(), self.seen()
        watch = store.watch_children(base, closed)
        store.watch_children(base, still)
        await closed.is_now(())
        watch.close()
        watch.close()
        await other.create(f"{base}/a")
        await still.is_now(("a",))
        assert closed.values == [()]
        again = self.seen()
        store.watch_children(base, again)
        await again.is_now(("a",))

    async def test_a_watch_that_fails_disturbs_nobody(
        self, store: CoordinationStore, base: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls, fine = self.seen(), self.seen()

        def fails(children: tuple[str, ...] | None) -> None:
            calls(children)
            raise ValueError("broken on purpose")

        store.watch_children(base, fails)
        store.watch_children(base, fine)
        await fine.is_now(())
        await store.create(f"{base}/a")
        await fine.is_now(("a",))
        await calls.is_now(("a",))
        assert "broken on purpose" in caplog.text

    async def test_a_watch_can_be_registered_before_the_store_is_open(
        self, made: Callable[[], CoordinationStore], store: CoordinationStore, base: str
    ) -> None:
        early = made()
        children = self.seen()
        early.watch_children(base, children)
        await store.create(f"{base}/a")
        await early.open()
        await children.is_now(("a",))
        assert children.values == [("a",)]

    async def test_watches_end_with_the_store(
        self, made: Callable[[], CoordinationStore], store: CoordinationStore, base: str
    ) -> None:
        ended, still = self.seen(), self.seen()
        short = made()
        await short.open()
        short.watch_children(base, ended)
        store.watch_children(base, still)
        await ended.is_now(())
        await short.close()
        await store.create(f"{base}/a")
        await still.is_now(("a",))
        assert ended.values == [()]


class SessionsSuite(CoordinationKit):
    """Conformance of sessions: broken connections, expiry, and what survives them."""

    async def test_states_are_told_in_order(
        self, store: CoordinationStore, faults: Faults, made: Callable[[], CoordinationStore]
    ) -> None:
        fresh = made()
        states = self.seen()
        fresh.on_state(states)
        await fresh.open()
        await faults.suspend(fresh)
        await faults.resume(fresh)
        await self.reach(fresh, SessionState.CONNECTED)
        await fresh.close()
        assert states.values == ["connected", "suspended", "connected", "lost"]

    async def test_a_session_outlives_a_short_break(
        self, store: CoordinationStore, other: CoordinationStore, base: str, faults: Faults
    ) -> None:
        await store.create(f"{base}/mine", ephemeral=True)
        session_id = store.session_id
        states, seen_by_other = self.seen(), self.seen()
        store.on_state(states)
        other.watch_children(base, seen_by_other)
        await seen_by_other.is_now(("mine",))
        await faults.suspend(store)
        assert (store.state, store.session_id) == (SessionState.SUSPENDED, session_id)
        with pytest.raises(UnavailableError):
            await store.get(base)
        await faults.resume(store)
        await self.reach(store, SessionState.CONNECTED)
        assert (store.session_id, states.values) == (session_id, ["suspended", "connected"])
        await store.create(f"{base}/more", ephemeral=True)
        await seen_by_other.is_now(("mine", "more"))
        assert seen_by_other.values == [("mine",), ("mine", "more")]

    async def test_watches_catch_up_after_a_break(
        self, store: CoordinationStore, other: CoordinationStore, base: str, faults: Faults
    ) -> None:
        await store.create(f"{base}/gone")
        children, data, same = self.seen(), self.seen(), self.seen()
        store.watch_children(base, children)
        store.watch_data(f"{base}/new", data)
        store.watch_data(f"{base}/gone", same)
        await children.is_now(("gone",))
        await data.is_now(None)
        await faults.suspend(store)
        await other.create(f"{base}/new", b"x")
        await other.set(f"{base}/new", b"y")
        assert (len(children.values), len(data.values)) == (1, 1)
        await faults.resume(store)
        await children.is_now(("gone", "new"))
        await data.until(lambda value: value is not None)
        assert [each and each.data for each in data.values] == [None, b"y"]
        await other.set(f"{base}/new", b"z")
        await data.until(lambda value: value is not None and value.data == b"z")
        assert len(same.values) == 1  # what did not change is not delivered again

    async def test_a_session_that_expired_is_replaced(
        self, store: CoordinationStore, other: CoordinationStore, base: str, faults: Faults
    ) -> None:
        await store.create(f"{base}/mine", ephemeral=True)
        first = store.session_id
        states, seen_by_other = self.seen(), self.seen()
        store.on_state(states)
        other.watch_children(base, seen_by_other)
        await seen_by_other.is_now(("mine",))
        await faults.expire(store)
        await seen_by_other.is_now(())
        await states.until(lambda _: "lost" in states.values)
        await self.reach(store, SessionState.CONNECTED)
        assert store.session_id not in {"", first}
        assert states.values[-2:] == ["lost", "connected"]
        await store.create(f"{base}/mine", ephemeral=True)
        await seen_by_other.is_now(("mine",))
        assert (await other.get(f"{base}/mine")).stat.owner == store.session_id

    async def test_watches_outlive_the_session(
        self, store: CoordinationStore, other: CoordinationStore, base: str, faults: Faults
    ) -> None:
        children, data, states = self.seen(), self.seen(), self.seen()
        store.watch_children(base, children)
        store.watch_data(base, data)
        await children.is_now(())
        await data.until(lambda value: value is not None)
        store.on_state(states)
        await faults.expire(store)
        await states.until(lambda _: "lost" in states.values)
        await self.reach(store, SessionState.CONNECTED)
        await other.create(f"{base}/a")
        await children.is_now(("a",))
        await other.set(base, b"x")
        await data.until(lambda value: value is not None and value.data == b"x")
        assert children.values == [(), ("a",)]
        assert [each and each.data for each in data.values] == [b"", b"x"]

    async def test_a_break_that_lasts_ends_the_session(
        self, store: CoordinationStore, other: CoordinationStore, base: str, faults: Faults
    ) -> None:
        await store.create(f"{base}/mine", ephemeral=True)
        seen_by_other, states = self.seen(), self.seen()
        other.watch_children(base, seen_by_other)
        await seen_by_other.is_now(("mine",))
        children = self.seen()
        store.watch_children(base, children)
        await children.is_now(("mine",))
        store.on_state(states)
        await faults.suspend(store)
        await faults.outlast(store)
        await seen_by_other.is_now(())
        assert children.values == [("mine",)]
        await faults.resume(store)
        await states.until(lambda _: "lost" in states.values)
        await self.reach(store, SessionState.CONNECTED)
        assert states.values == ["suspended", "lost", "connected"]
        await children.is_now(())


class CoordinationSuite(NodesSuite, WatchesSuite, SessionsSuite, RegistrarSuite, ElectionSuite):
    """The whole suite."""
