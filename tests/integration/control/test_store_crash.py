"""What was acknowledged survives `kill -9`, at the fault points around the commit and at any other moment."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.control.store.base import EventQuery
from shoal.control.store.postgres import PostgresStore
from shoal.control.store.sqlite import SqliteStore
from shoal.core.errors import PreconditionError
from shoal.testing.suites.store_records import decode_spec

pytestmark = pytest.mark.integration

CHILD = Path(__file__).with_name("store_child.py")

# Killed by itself at a fault point, or from outside after so many acknowledgements.
DEATHS = ["store.commit.after=kill@1", "store.commit.before=kill@4", "store.commit.after=kill@9", 60]


def live_and_die(place, death, *, first):
    """Run a child until it is killed; return the ids that it said were acknowledged."""
    child = subprocess.Popen(
        [sys.executable, CHILD, str(place), "20", str(first)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SHOAL_FAULTS": death if isinstance(death, str) else ""},
    )
    with child:
        lines = []
        for line in child.stdout:
            # A line that was cut off by the kill was not said.
            if line.endswith("\n"):
                lines.append(line.strip())
            if len(lines) == death:
                child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert lines[0] == "open"
    return lines[1:]


async def check_deaths(place, make):
    acknowledged = set()
    for life, death in enumerate(DEATHS):
        acknowledged.update(live_and_die(place, death, first=life * 100_000))
        store = make()
        await store.open()
        stored = {each.workload_id for each in (await store.load()).workloads}
        events = (await store.events(EventQuery(limit=10_000))).events
        await store.close()
        assert acknowledged <= stored
        # A batch is whole: no workload without its event, no event without its workload, no cursor left out.
        assert {each.subject_id for each in events} == stored
        assert [each.cursor for each in events] == list(range(1, len(stored) + 1))
    assert len(acknowledged) > 60


async def test_sqlite_keeps_what_was_acknowledged(tmp_path):
    place = tmp_path / "control.db"
    await check_deaths(place, lambda: SqliteStore(place, decode_spec=decode_spec))


async def test_postgresql_keeps_what_was_acknowledged(postgres_url):
    await check_deaths(postgres_url, lambda: PostgresStore(postgres_url, decode_spec=decode_spec))


async def test_one_process_has_the_file_until_it_dies(tmp_path):
    place = tmp_path / "control.db"
    store = SqliteStore(place, decode_spec=decode_spec)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(PreconditionError, match=f"in use by process {holder.pid}"):
            await store.open()
        holder.send_signal(signal.SIGKILL)
    await store.open()
    await store.close()


HOLD = """
import asyncio, sys
from shoal.control.store.sqlite import SqliteStore
async def main():
    await SqliteStore(sys.argv[1], decode_spec=lambda data: None).open()
    print("open", flush=True)
    sys.stdin.read()
asyncio.run(main())
"""
