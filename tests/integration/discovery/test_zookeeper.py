"""A real ZooKeeper does what every coordination tree does."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from shoal.core.entropy import SystemEntropy
from shoal.core.errors import DeniedError, InvalidError, UnavailableError
from shoal.discovery.errors import NoNodeError
from shoal.discovery.registrar import Registrar
from shoal.discovery.store import NodeValue, SessionState
from shoal.discovery.zookeeper import ZookeeperSettings, ZookeeperStore, auth_from
from shoal.testing.suites.coordination import CoordinationSuite
from tests.services.relay import Relay

pytestmark = pytest.mark.integration


class ZookeeperFaults:
    """Each store has a relay of its own, which can be cut."""

    def __init__(self, hosts: str) -> None:
        self.hosts = hosts
        self.relays: dict[ZookeeperStore, Relay] = {}
        self.suspended: dict[ZookeeperStore, tuple[int, bytes]] = {}

    async def suspend(self, store: ZookeeperStore) -> None:
        self.suspended[store] = store._client.client_id
        suspended = asyncio.Event()
        watch = store.on_state(lambda state: suspended.set() if state is SessionState.SUSPENDED else None)
        await self.relays[store].cut()
        await suspended.wait()
        watch.close()

    async def resume(self, store: ZookeeperStore) -> None:
        self.relays[store].restore()

    async def expire(self, store: ZookeeperStore) -> None:
        await asyncio.to_thread(expire, self.hosts, store._client.client_id)

    async def outlast(self, store: ZookeeperStore) -> None:
        await asyncio.to_thread(expire, self.hosts, self.suspended[store])


def expire(hosts: str, client_id: tuple[int, bytes]) -> None:
    """End a session as a second client with the same id."""
    second = KazooClient(hosts, client_id=client_id)
    second.start()
    second.stop()
    second.close()


class TestZookeeper(CoordinationSuite):
    __test__ = True

    @pytest.fixture
    async def faults(self, zookeeper):
        faults = ZookeeperFaults(zookeeper)
        yield faults
        for relay in faults.relays.values():
            await relay.close()

    @pytest.fixture
    async def make_store(self, faults):
        relays = [Relay(faults.hosts) for _ in range(4)]
        for relay in relays:
            await relay.open()

        def make() -> ZookeeperStore:
            relay = relays.pop()
            store = ZookeeperStore(ZookeeperSettings(relay.address))
            faults.relays[store] = relay
            return store

        yield make
        for relay in relays:
            await relay.close()


async def test_a_server_that_is_not_there_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    relay = Relay("127.0.0.1:1")
    store = ZookeeperStore(ZookeeperSettings(relay.address, call_timeout=timedelta(milliseconds=300)))
    await relay.open()
    await relay.cut()
    with pytest.raises(UnavailableError, match="no ZooKeeper answers"):
        await store.open()
    assert store.state is SessionState.LOST
    assert caplog.records == []  # the error says it; not one line for each attempt
    await relay.close()


async def test_credentials_open_what_they_protect(zookeeper: str) -> None:
    """The node belongs to a digest user; who has no credentials, or others, may not touch it."""
    auth = auth_from({"ZK_AUTH": "ann:s3cret:with-colon"})
    path = f"/t-{SystemEntropy().token(8)}"

    def protect() -> None:
        client = KazooClient(zookeeper)
        client.start()
        client.create(path, b"x", acl=[make_digest_acl("ann", "s3cret:with-colon", all=True)])
        client.stop()
        client.close()

    await asyncio.to_thread(protect)
    with_it = ZookeeperStore(ZookeeperSettings(zookeeper, auth=auth))
    without = ZookeeperStore(ZookeeperSettings(zookeeper, auth="ann:wrong"))
    await with_it.open()
    await without.open()
    try:
        await with_it.set(path, b"y")
        await with_it.create(f"{path}/mine", ephemeral=True)
        for refused in (without.get(path), without.create(f"{path}/other")):
            with pytest.raises(DeniedError, match="does not allow") as caught:
                await refused
            assert "ZK_AUTH" in caught.value.hint
    finally:
        await with_it.close()
        await without.close()


async def test_a_root_that_is_not_there_yet_is_made_by_the_first_node(zookeeper: str) -> None:
    root = f"/t-{SystemEntropy().token(8)}/deep"
    whole, first, second = (ZookeeperStore(ZookeeperSettings(zookeeper + end)) for end in ("", root, f"{root}/er"))
    for store in (whole, first, second):
        await store.open()
    seen: asyncio.Queue[NodeValue | None] = asyncio.Queue()
    first.watch_data("/gip/a", seen.put_nowait)
    try:
        async with asyncio.timeout(30):
            assert await seen.get() is None
            # Reading makes nothing.
            with pytest.raises(NoNodeError):
                await first.children("/gip")
            assert await whole.exists(root) is None
            registrar = Registrar(first)
            registrar.start()
            registrar.register("/gip/a", b"x")
            await registrar.settled()
            while (found := await seen.get()) is None:
                pass
            assert found.data == b"x"
            assert (await whole.get(f"{root}/gip/a")).stat.owner == first.session_id
            await registrar.close()
            await second.ensure_path("/b")
            assert await whole.children(f"{root}/er") == ("b",)
            # What is missing below the root is missing.
            with pytest.raises(NoNodeError):
                await second.create("/c/d")
    finally:
        for store in (first, second, whole):
            await store.close()


def test_credentials_are_checked_and_never_shown() -> None:
    assert auth_from({}) == ""
    assert "s3cret" not in repr(ZookeeperSettings("h:1", auth=auth_from({"ZK_AUTH": "ann:s3cret"})))


@pytest.mark.parametrize("bad", ["s3cret", "s3cret:", ":s3cret"])
def test_credentials_have_a_user_and_a_password(bad: str) -> None:
    with pytest.raises(InvalidError, match="ZK_AUTH: must be user:password") as caught:
        auth_from({"ZK_AUTH": bad})
    assert "s3cret" not in str(caught.value)
