"""A process that commits and says what was acknowledged, until it is killed: python store_child.py PLACE WRITERS START.

PLACE is a PostgreSQL URL or the path of a SQLite file. Each line on standard output is an acknowledged workload id.
Fault points are armed from SHOAL_FAULTS once the store is open, so that they count commits alone.
"""

import asyncio
import itertools
import sys

from shoal.control.store.base import Batch
from shoal.control.store.postgres import PostgresStore
from shoal.control.store.sqlite import SqliteStore
from shoal.core import faults
from shoal.testing.suites.store_records import decode_spec, event, workload


async def main() -> None:
    place, writers, start = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    kind = PostgresStore if place.startswith("postgresql:") else SqliteStore
    store = kind(place, decode_spec=decode_spec)
    await store.open()
    faults.arm_from_environment()
    print("open", flush=True)
    numbers = itertools.count(start)

    async def write() -> None:
        for number in numbers:
            name = f"w{number}"
            await store.commit(Batch(workloads=(workload(name),), events=(event(name),)))
            print(name, flush=True)

    await asyncio.gather(*(write() for _ in range(writers)))


asyncio.run(main())
