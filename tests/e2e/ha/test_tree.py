"""One coordination tree, two control planes on one PostgreSQL: no death or sleep of a leader removes or tells anything.

Sessions live for 12 s here and a leader's lease for 3 s, so a new leader is there in time.
"""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta

import pytest

from shoal.core.errors import ShoalError
from shoal.discovery.client import LeaderChannel, ServingAgentClient
from shoal.discovery.grants import Grant, create_grant, list_grants
from shoal.discovery.registrar import Registrar
from shoal.discovery.remote import RemoteStore
from shoal.discovery.replicas.records import ServerType
from shoal.discovery.store import NodeStat, SessionState
from shoal.wire.sockets.channel import GrpcTransport
from tests.e2e.fleet.drill import insist, until
from tests.e2e.ha.planes import Planes

pytestmark = pytest.mark.e2e

REPLICA = b'{"address": "10.0.0.%d:8500", "stat": 30}'
PATHS = [f"/gip/service/m/ps:{number}/0" for number in range(5)]


@pytest.fixture
async def planes(tmp_path, postgres_url):
    planes = Planes(tmp_path, postgres_url)
    try:
        await asyncio.gather(planes.start_plane("one"), planes.start_plane("two"))
        yield planes
    finally:
        await planes.close()


class Stage:
    """A client with registrations, and one that follows them."""

    def __init__(self, planes: Planes) -> None:
        addresses = list(planes.addresses.values())
        timeouts = {"session_timeout": timedelta(seconds=12), "call_timeout": timedelta(seconds=30)}
        self.owner = RemoteStore(GrpcTransport(), addresses, **timeouts)
        self.watcher = RemoteStore(GrpcTransport(), addresses, **timeouts)
        self.registrar = Registrar(self.owner)
        self.told: list[object] = []
        self.lost: list[SessionState] = []
        self.asking = ServingAgentClient(LeaderChannel(GrpcTransport(), addresses), bzid="gip")

    async def __aenter__(self) -> Stage:
        for store in (self.owner, self.watcher):
            await store.open()
            store.on_state(lambda state: self.lost.append(state) if state is SessionState.LOST else None)
        self.registrar.start()
        for number, path in enumerate(PATHS):
            self.registrar.register(path, REPLICA % number)
        await self.registrar.settled()
        for path in PATHS:
            self.watcher.watch_data(path, self.told.append)
            self.watcher.watch_children(path.rpartition("/")[0], self.told.append)
        await until(self._everything_told, what="the first values were told")
        self.session = self.owner.session_id
        self.before = await self.stats()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.asking.close()
        await self.registrar.close()
        await self.owner.close()
        await self.watcher.close()

    async def _everything_told(self) -> bool:
        return len(self.told) == 2 * len(PATHS)

    async def stats(self) -> list[NodeStat]:
        return [(await insist(lambda path=path: self.watcher.get(path))).stat for path in PATHS]

    async def check_nothing_happened(self) -> None:
        """Both are back, with their sessions and every node as it was, and no watch has fired."""

        async def back() -> bool:
            # A read that is answered comes after whatever was followed.
            await self.owner.exists("/")
            await self.watcher.exists("/")
            return True

        await until(back, what="both have a connection")
        assert await self.stats() == self.before
        assert (self.owner.session_id, self.lost) == (self.session, [])
        assert len(self.told) == 2 * len(PATHS)
        await self.registrar.settled()
        tasks = {f"ps:{number}": [f"10.0.0.{number}:8500"] for number in range(len(PATHS))}
        assert await insist(lambda: self.asking.heart_beat(ServerType.PS)) == tasks

    async def change(self) -> None:
        """A change through the leader of the hour, and back, reaches who follows it."""
        for count, number in ((1, 100), (2, 0)):
            self.registrar.register(PATHS[0], REPLICA % number)

            async def told(count: int = count) -> bool:
                return len(self.told) == 2 * len(PATHS) + count

            await until(told, what="the change was told, once")
        del self.told[2 * len(PATHS) :]
        self.before = await self.stats()


async def test_a_killed_leader(planes):
    async with Stage(planes) as stage:
        leader = await planes.leader()
        other = "two" if leader == "one" else "one"
        await planes.kill(leader)
        assert await planes.leader(among=[other]) == other
        await stage.check_nothing_happened()
        await stage.change()


async def test_a_frozen_leader(planes):
    async with Stage(planes) as stage:
        old = await planes.leader()
        new = "two" if old == "one" else "one"
        planes.signal(old, signal.SIGSTOP)
        try:
            assert await planes.leader(among=[new]) == new
            await stage.check_nothing_happened()
        finally:
            planes.signal(old, signal.SIGCONT)

        async def follows() -> bool:
            return (await planes.health(old))["role"] == "follower"

        await until(follows, what="the old leader follows")
        await stage.check_nothing_happened()
        # The one that slept refuses the tree, and names the leader.
        one = RemoteStore(GrpcTransport(), [planes.addresses[old]])
        await one.open()
        await insist(lambda: create_grant(one, Grant("agent", "/racks")))
        assert await insist(lambda: list_grants(stage.watcher)) == [Grant("agent", "/racks")]
        await one.close()


@pytest.mark.long
async def test_both_restart_at_once(planes):
    async with Stage(planes) as stage:
        await planes.kill("one")
        await planes.kill("two")
        with pytest.raises(ShoalError):
            await stage.asking.heart_beat(ServerType.PS)
        await asyncio.gather(planes.start_plane("one"), planes.start_plane("two"))
        await planes.leader()
        await stage.check_nothing_happened()


@pytest.mark.long
async def test_a_session_whose_client_is_gone_ends_under_the_next_leader(planes):
    gone = RemoteStore(GrpcTransport(), list(planes.addresses.values()), session_timeout=timedelta(seconds=2))
    async with Stage(planes) as stage:
        await gone.open()
        await gone.create("/gone", ephemeral=True)
        leader = await planes.leader()
        other = "two" if leader == "one" else "one"
        await gone._scope.close()  # its process is gone: the stream breaks, and nobody comes back
        gone._scope = None
        await planes.kill(leader)
        assert await planes.leader(among=[other]) == other

        async def ended() -> bool:
            return await stage.watcher.exists("/gone") is None

        await until(ended, what="the session has ended")
        await stage.check_nothing_happened()
