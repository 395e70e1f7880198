"""Follows the replicas of a model in ZooKeeper, and prints how many there are and how much memory that took.

Run by `test_many_sessions.py` as a process of its own: `python follow_replicas.py HOSTS BZID MODEL`.
"""

from __future__ import annotations

import asyncio
import json
import sys

import psutil

from shoal.discovery.replicas.records import ServerType
from shoal.discovery.replicas.watcher import ReplicaWatcher
from shoal.discovery.zookeeper import ZookeeperSettings, ZookeeperStore


async def follow(hosts: str, bzid: str, model: str) -> None:
    store = ZookeeperStore(ZookeeperSettings(hosts))
    await store.open()
    process = psutil.Process()
    before = process.memory_info().rss
    changed = asyncio.Event()
    watcher = ReplicaWatcher(store, bzid, model, changed=changed.set)
    watcher.start()
    await watcher.wait_loaded()
    while True:
        changed.clear()
        tasks = watcher.table.all_replicas(ServerType.PS)
        facts = {
            "available": sum(len(addresses) for addresses in tasks.values()),
            "megabytes": (process.memory_info().rss - before) / 2**20,
        }
        print(json.dumps(facts), flush=True)
        await changed.wait()
        await asyncio.sleep(0.2)


asyncio.run(follow(*sys.argv[1:]))
