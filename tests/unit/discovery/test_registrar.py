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
