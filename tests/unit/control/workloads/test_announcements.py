"""Named ports of ready workloads are in the coordination tree, and gone when the workload is not ready."""

from __future__ import annotations

import asyncio

import pytest

from shoal.discovery.remote import RemoteStore
from shoal.discovery.services import Endpoint, follow, resolve
from shoal.testing.control import CONTROL_ADDRESS, ControlKit

pytestmark = pytest.mark.looptime


@pytest.fixture
async def kit(tmp_path):
    async with ControlKit(tmp_path) as kit:
        yield kit


@pytest.fixture
async def store(kit):
    store = RemoteStore(kit.network.transport("client"), [CONTROL_ADDRESS])
    await store.open()
    yield store
    await store.close()


def endpoint(workload_id: str, node_id: str, port: int) -> Endpoint:
    return Endpoint(workload_id, node_id, {"main": f"agents:{port}"})


async def until(seen: list[tuple[Endpoint, ...]], wanted: tuple[Endpoint, ...]) -> None:
    for _ in range(600):
        if seen and seen[-1] == wanted:
            return
        await asyncio.sleep(0.1)
    pytest.fail(f"{wanted} was not the last of {seen}")


async def test_ready_workloads_are_found_by_label_or_group(kit: ControlKit, store: RemoteStore) -> None:
    kit.node("n1")
    seen: list[tuple[Endpoint, ...]] = []
    follow(store, "web", seen.append)
    await until(seen, ())
    await kit.apply("web-1", port=8001, labels={"service": "web"}, only_on="n1")
    await kit.apply("web-2", port=8002, labels={"service": "web"}, only_on="n1")
    await kit.apply("silent", labels={"service": "web"})
    await kit.apply("alone", port=8003)
    await kit.apply_group("crew", {"crew-1": {"port": 8004}})
    await until(seen, (endpoint("web-1", "n1", 8001), endpoint("web-2", "n1", 8002)))
    for workload_id in ("silent", "alone", "crew-1"):
        await kit.wait_status(workload_id, "Running")
    await kit.delete("web-1")
    await until(seen, (endpoint("web-2", "n1", 8002),))
    assert await resolve(store, "crew") == (endpoint("crew-1", "n1", 8004),)
    assert await store.children("/service") == ("crew", "web")
    await kit.delete("web-2")
    await until(seen, ())
    assert await resolve(store, "none-such") == ()
    assert await store.children("/service") == ("crew",)


async def test_a_workload_that_is_not_ready_or_lost_is_not_announced(kit: ControlKit, store: RemoteStore) -> None:
    node = kit.node("n1")
    node.never_ready = True
    seen: list[tuple[Endpoint, ...]] = []
    follow(store, "web", seen.append)
    await kit.apply("web-1", port=8001, labels={"service": "web"}, only_on="n1")
    await asyncio.sleep(20)
    assert seen == [()]
    node.start_again("web-1")
    await until(seen, (endpoint("web-1", "n1", 8001),))
    kit.network.partition("agents", "control")
    await kit.wait_node("n1", "NotReady", seconds=120)
    await until(seen, ())
    kit.network.heal()
    await until(seen, (endpoint("web-1", "n1", 8001),))


async def test_a_restart_of_the_control_plane_changes_nothing(kit: ControlKit, store: RemoteStore) -> None:
    kit.node("n1")
    seen: list[tuple[Endpoint, ...]] = []
    follow(store, "web", seen.append)
    await kit.apply("web-1", port=8001, labels={"service": "web"})
    await until(seen, (endpoint("web-1", "n1", 8001),))
    before, stat = list(seen), kit.plane.leadership.tree.tree.get("/service/web/web-1")
    await kit.stop_control()
    await kit.start_control()
    await asyncio.sleep(60)
    assert (seen, kit.plane.leadership.tree.tree.get("/service/web/web-1")) == (before, stat)
