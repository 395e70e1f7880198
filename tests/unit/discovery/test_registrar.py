"""The registrar, where a tree that hangs is needed."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import UnavailableError
from shoal.discovery.embedded import EmbeddedTree
from shoal.discovery.registrar import Registrar


async def test_an_error_that_is_not_of_the_tree_is_told():
    tree = EmbeddedTree(SystemClock())
    store = tree.session()
    await store.open()

    async def create(*_args, **_more) -> str:
        raise TypeError("a mistake in the program")

    store.create = create
    registrar = Registrar(store)
    registrar.start()
    registrar.register("/n")
    with pytest.raises(TypeError, match="a mistake"):
        async with asyncio.timeout(20):
            await registrar.failed()
    await store.close()
    await tree.close()


async def test_a_node_is_not_written_before_those_of_lower_ranks(monkeypatch):
    monkeypatch.setattr("shoal.discovery.registrar.FIRST_PAUSE", 0.01)
    tree = EmbeddedTree(SystemClock())
    store = tree.session()
    await store.open()
    create, asked, fails = store.create, [], True

    async def fail(path: str, *given, **more) -> str:
        asked.append(path)
        if fails and path == "/address":
            raise UnavailableError("the tree is away")
        return await create(path, *given, **more)

    store.create = fail
    registrar = Registrar(store)
    registrar.register("/binding", rank=1)
    registrar.register("/address")
    registrar.start()
    async with asyncio.timeout(20):
        while asked.count("/address") < 3:
            await asyncio.sleep(0.005)
        assert "/binding" not in asked
        fails = False
        await registrar.settled()
    assert await store.children("/") == ("address", "binding")
    await registrar.close()
    await store.close()
    await tree.close()


async def test_a_node_that_is_deleted_before_the_watch_has_read_it_is_put_back():
    tree = EmbeddedTree(SystemClock())
    store, other = tree.session(), tree.session()
    await store.open()
    await other.open()
    create, deletions = store.create, []

    async def create_and_lose(path: str, *given, **more) -> str:
        """The deletion comes after all that the registrar does at once, and before the watch reads."""
        if not deletions:
            deletions.append(asyncio.create_task(other.delete(path)))
        return await create(path, *given, **more)

    store.create = create_and_lose
    registrar = Registrar(store)
    registrar.start()
    registrar.register("/n", b"x")
    async with asyncio.timeout(20):
        await registrar.settled()
    await deletions[0]
    assert (await other.get("/n")).data == b"x"
    await registrar.close()
    await store.close()
    await other.close()
    await tree.close()


async def test_a_write_that_fails_and_changes_nothing_is_tried_again(monkeypatch):
    monkeypatch.setattr("shoal.discovery.registrar.FIRST_PAUSE", 0.01)
    tree = EmbeddedTree(SystemClock())
    store = tree.session()
    await store.open()
    await store.create("/n", b"old")
    take_over, failures = store.take_over, iter(range(2))

    async def fail(path: str, data: bytes, *, version: int) -> None:
        if next(failures, None) is not None:
            raise UnavailableError("the tree is away")
        await take_over(path, data, version=version)

    store.take_over = fail
    registrar = Registrar(store)
    registrar.start()
    registrar.register("/n", b"new")
    async with asyncio.timeout(20):
        await registrar.settled()
    value = await store.get("/n")
    assert (value.data, value.stat.owner, next(failures, None)) == (b"new", store.session_id, None)
    await registrar.close()
    await store.close()
    await tree.close()


async def test_a_registrar_that_is_closed_at_work_leaves_no_call_unmade():
    tree = EmbeddedTree(SystemClock())
    store = tree.session()
    await store.open()
    begun = asyncio.Event()

    async def hang(*_args, **_more) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    store.create = hang
    registrar = Registrar(store)
    for number in range(100):
        registrar.register(f"/n{number}")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        registrar.start()
        async with asyncio.timeout(20):
            await begun.wait()
        await registrar.close()
        gc.collect()
    assert [str(each.message) for each in found if issubclass(each.category, RuntimeWarning)] == []
    await store.close()
    await tree.close()
