"""The control plane serves the coordination tree, and stores it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from shoal.core.errors import ShoalError
from shoal.discovery.registrar import Registrar
from shoal.discovery.remote import RemoteStore
from shoal.discovery.store import SessionState
from shoal.testing.control import CONTROL_ADDRESS, ControlKit
from shoal.testing.stores import Fault

pytestmark = pytest.mark.looptime


@pytest.fixture
async def kit(tmp_path):
    async with ControlKit(tmp_path) as kit:
        yield kit


def store_of(kit: ControlKit, name: str, **settings: Any) -> RemoteStore:
    return RemoteStore(kit.network.transport(name), [CONTROL_ADDRESS], **settings)


async def connected(store: RemoteStore) -> None:
    for _ in range(600):
        if store.state is SessionState.CONNECTED:
            return
        await asyncio.sleep(0.1)
    pytest.fail(f"the store is {store.state}")


async def test_a_restart_within_the_timeout_removes_nothing_and_fires_no_watch(kit: ControlKit) -> None:
    store, watcher = store_of(kit, "a"), store_of(kit, "b")
    await store.open()
    await watcher.open()
    registrar = Registrar(store)
    registrar.start()
    for number in range(5):
        registrar.register(f"/jobs/n-{number}", b"%d" % number)
    await registrar.settled()
    session_id = store.session_id
    seen: list[object] = []
    watcher.watch_children("/jobs", seen.append)
    for number in range(5):
        watcher.watch_data(f"/jobs/n-{number}", seen.append)
    await asyncio.sleep(1)
    before = list(seen)
    await kit.stop_control()
    await asyncio.sleep(8)
    await kit.start_control()
    await connected(store)
    await connected(watcher)
    await asyncio.sleep(30)
    assert (store.session_id, seen) == (session_id, before)
    assert len(before) == 6
    await store.create("/jobs/more", ephemeral=True)
    await asyncio.sleep(1)
    assert len(seen) == 7
    await registrar.close()
    await store.close()
    await watcher.close()


async def test_a_client_that_stays_away_after_a_restart_loses_its_nodes(kit: ControlKit) -> None:
    gone, other = store_of(kit, "gone", session_timeout=timedelta(seconds=6)), store_of(kit, "other")
    await gone.open()
    await gone.create("/mine", ephemeral=True)
    kit.network.partition("gone", "control")
    await kit.stop_control()
    await asyncio.sleep(60)
    await kit.start_control()
    await other.open()
    await asyncio.sleep(5)
    assert await other.exists("/mine") is not None
    await asyncio.sleep(2)
    assert await other.exists("/mine") is None
    kit.network.heal()
    await connected(gone)
    await gone.close()
    await other.close()


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_APPLIED, Fault.UNKNOWN_NOT_APPLIED, Fault.NOT_APPLIED, Fault.CONFLICT])
async def test_a_change_that_the_store_did_not_confirm_is_settled(kit: ControlKit, fault: Fault) -> None:
    store = store_of(kit, "a")
    await store.open()
    kit.store.fail(fault, "commit", times=1)
    with pytest.raises(ShoalError):
        await store.create("/a", b"1")
    if fault is Fault.UNKNOWN_APPLIED:
        await store.set("/a", b"2", version=0)
    else:
        await store.create("/a", b"2")
    assert (await store.get("/a")).data == b"2"
    await kit.stop_control()
    await kit.start_control()
    await connected(store)
    assert (await store.get("/a")).data == b"2"
    await store.close()
