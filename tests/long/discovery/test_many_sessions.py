"""Two hundred agents with fifty replicas each, followed by two watchers, on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path

import pytest

from shoal.core.entropy import SystemEntropy
from shoal.discovery.documents import write_record
from shoal.discovery.registrar import Registrar
from shoal.discovery.replicas.paths import Task, replica_path, service_root
from shoal.discovery.replicas.records import ModelState, Replica, ServerType
from shoal.discovery.zookeeper import ZookeeperSettings, ZookeeperStore

pytestmark = pytest.mark.timeout(600)

SESSIONS, REPLICAS = 200, 50
FRESH = 20
MOST_MEGABYTES = 50.0
PATIENCE = 180.0


class Watcher:
    """A process that follows the replicas."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def until(self, available: int) -> dict[str, float]:
        """Wait until it knows so many replicas, and return what it printed then."""
        async with asyncio.timeout(PATIENCE):
            while True:
                facts = json.loads(await self._process.stdout.readline())
                if facts["available"] == available:
                    return facts


@contextlib.asynccontextmanager
async def watching(hosts: str, bzid: str):
    program = str(Path(__file__).with_name("follow_replicas.py"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, program, hosts, bzid, "m", stdout=asyncio.subprocess.PIPE
    )
    try:
        yield Watcher(process)
    finally:
        process.kill()
        await process.wait()


class Agent:
    """A session with its replicas."""

    def __init__(self, hosts: str, bzid: str, number: int) -> None:
        self.store = ZookeeperStore(ZookeeperSettings(hosts))
        self.registrar = Registrar(self.store)
        self._nodes = {
            replica_path(service_root(bzid, "m"), Task(ServerType.PS, task), number): write_record(
                Replica(f"10.0.{number}.1:{8000 + task}", "[::]:1", stat=ModelState.AVAILABLE)
            )
            for task in range(REPLICAS)
        }

    async def start(self) -> None:
        await self.store.open()
        self.registrar.start()
        for path, data in self._nodes.items():
            self.registrar.register(path, data)
        async with asyncio.timeout(PATIENCE):
            await self.registrar.settled()

    async def close(self) -> None:
        await self.registrar.close()
        await self.store.close()


async def test_two_watchers_follow_ten_thousand_replicas(zookeeper):
    bzid = f"b{SystemEntropy().token(8)}"
    agents = [Agent(zookeeper, bzid, number) for number in range(SESSIONS)]
    async with watching(zookeeper, bzid) as first, watching(zookeeper, bzid) as second:
        for start in range(0, SESSIONS, 20):
            await asyncio.gather(*(agent.start() for agent in agents[start : start + 20]))
        whole = SESSIONS * REPLICAS
        for facts in await asyncio.gather(first.until(whole), second.until(whole)):
            assert facts["megabytes"] <= MOST_MEGABYTES

        # Half of the agents leave, and others take their places.
        leaving, staying = agents[: SESSIONS // 2], agents[SESSIONS // 2 :]
        await asyncio.gather(*(agent.close() for agent in leaving))
        await asyncio.gather(first.until(whole // 2), second.until(whole // 2))
        fresh = [Agent(zookeeper, bzid, number) for number in range(FRESH)]
        await asyncio.gather(*(agent.start() for agent in fresh))
        expected = whole // 2 + FRESH * REPLICAS
        await asyncio.gather(first.until(expected), second.until(expected))
        await asyncio.gather(*(agent.close() for agent in (*staying, *fresh)))
        await asyncio.gather(first.until(0), second.until(0))
