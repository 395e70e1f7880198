"""Terms on SQLite: they go up, whatever copy of the file is opened, and nobody else can lead meanwhile."""

import math
import sqlite3

from shoal.control.store.sqlite import SqliteStore
from shoal.core.clock import SystemClock, epoch_ms
from shoal.testing.suites.store_records import decode_spec


async def acquire_leadership(path):
    store = SqliteStore(path, decode_spec=decode_spec)
    await store.open()
    try:
        return await store.acquire_leadership("a", "host:1", seconds=5)
    finally:
        await store.close()


async def test_a_new_file_begins_with_a_term_that_is_above_all_earlier_ones(tmp_path):
    earlier = epoch_ms(SystemClock().wall()) // 1000
    assert (await acquire_leadership(tmp_path / "new.db")).term >= earlier


async def test_each_life_has_a_higher_term(tmp_path):
    first = await acquire_leadership(tmp_path / "control.db")
    assert (await acquire_leadership(tmp_path / "control.db")).term > first.term


async def test_a_term_of_an_earlier_version_and_one_of_a_clock_that_ran_ahead_are_both_passed(tmp_path):
    path = tmp_path / "control.db"
    for stored in (3, 2**40):
        before = await acquire_leadership(path)
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE leadership SET term = ?", (stored,))
        connection.close()
        after = await acquire_leadership(path)
        assert after.term >= before.term if stored == 3 else after.term == stored + 1


async def test_nobody_else_can_lead_while_this_process_has_the_file(tmp_path):
    assert (await acquire_leadership(tmp_path / "control.db")).expires_in == math.inf
