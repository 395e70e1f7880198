"""Memory follows the store, also while it is read anew."""

import asyncio

import pytest

from shoal.control.fleet import ANSWER_SECONDS, Fleet, Ledger
from shoal.control.store.base import Batch
from shoal.control.store.sqlite import SqliteStore
from shoal.core.errors import UnavailableError
from shoal.testing.stores import KeptStore
from shoal.testing.suites.store_records import decode_spec, node

pytestmark = pytest.mark.looptime


class SlowStore(KeptStore):
    """What it reads arrives a second later."""

    async def load(self):
        snapshot = await super().load()
        await asyncio.sleep(1.0)
        return snapshot


async def test_a_commit_that_is_under_way_when_memory_is_read_anew_is_not_forgotten():
    store = SlowStore(SqliteStore(":memory:", decode_spec=decode_spec))
    await store.open()
    ledger = Ledger(store, Fleet())
    store.answers.clear()
    committing = asyncio.ensure_future(ledger.commit(Batch(nodes=(node("n1"),))))
    await asyncio.sleep(0.1)
    ledger.doubt()
    reading = asyncio.ensure_future(ledger.settle())
    await asyncio.sleep(0.5)
    store.answers.set()
    await asyncio.gather(committing, reading)
    assert set(ledger.fleet.nodes) == {"n1"}
    await store.dispose()


async def test_a_commit_whose_caller_goes_away_holds_up_nobody_for_ever():
    store = KeptStore(SqliteStore(":memory:", decode_spec=decode_spec))
    await store.open()
    ledger = Ledger(store, Fleet())
    store.answers.clear()
    committing = asyncio.ensure_future(ledger.commit(Batch(nodes=(node("n1"),))))
    await asyncio.sleep(0.1)
    committing.cancel()
    ledger.doubt()
    store.answers.set()
    with pytest.raises(UnavailableError):
        await ledger.commit(Batch(nodes=(node("n2"),)))
    await asyncio.sleep(ANSWER_SECONDS)
    await ledger.commit(Batch(nodes=(node("n2"),)))
    assert set(ledger.fleet.nodes) == {"n2"}
    await store.dispose()
